"""EAST: the vector by the paper's formula, and that it moves the entropy of a trained model as it says."""

import numpy as np
import pytest
import torch
from engine_models import build, twin

from sojourn.activation_steering import Steering
from sojourn.backends.torch.sampler.engine import Engine
from sojourn.errors import ConfigError
from sojourn.steering.east import Decisions, east
from sojourn.steering.of_run import entropy
from sojourn.types import Message, Prompt, Role, SamplingParams

LEVELS, FIRST_LEVEL, QUERY, FIRST_ANSWER, ANSWERS = 8, 20, 30, 40, 8


def play(states, entropies):
    return Decisions(np.array(states, dtype=np.float32), np.array(entropies, dtype=np.float32))


def test_it_is_the_papers_vector_on_activations_made_by_hand():
    """Play 1 has the mean (2, 1), play 2 the mean (0, 4): 1/5 (1 (-1, -1) + 2 (1, 1) + 2 (0, -2))."""
    plays = [play([[1, 0], [3, 2]], [1.0, 2.0]), play([[0, 2], [0, 6]], [2.0, 0.0])]
    np.testing.assert_allclose(east(plays), [0.2, -0.6], atol=1e-6)


def test_it_agrees_with_the_formula_written_out():
    rng = np.random.default_rng(0)
    plays = [play(rng.normal(size=(t, 5)), rng.uniform(size=t)) for t in (3, 1, 7)]
    total, expected = 0.0, np.zeros(5)
    for one in plays:
        for state, h in zip(one.states, one.entropies, strict=True):
            expected += h * (state - sum(one.states) / len(one.states))
            total += h
    np.testing.assert_allclose(east(plays), expected / total, atol=1e-6)


def test_what_all_decisions_share_adds_nothing():
    """A play of one decision, and a constant in the states of a play, leave the sum as it is."""
    rng = np.random.default_rng(1)
    states, h = rng.normal(size=(4, 3)), [0.1, 0.9, 0.4, 0.0]
    alone = east([play(states, h)])
    np.testing.assert_allclose(east([play(states + 7, h)]), alone, atol=1e-5)
    np.testing.assert_allclose(east([play(states, h), play([[5, 5, 5]], [1.4])]), alone / 2, atol=1e-6)


def test_plays_that_tell_no_direction_are_refused():
    with pytest.raises(ConfigError, match="all decisions of 1 plays are certain"):
        east([play([[1, 2], [3, 4]], [0, 0])])
    with pytest.raises(ConfigError, match="no play has decisions that differ"):
        east([play([[1, 2]], [1])])


def test_the_entropy_is_that_of_actions_and_not_of_their_words_around_them():
    said = [
        Message(Role.ASSISTANT, text, thought) for text, thought in (("go  up", "a"), ("go up\n", "b"), ("stay", ""))
    ]
    assert entropy([]) is None
    assert entropy(said[:2]) == 0
    assert entropy([said[0], said[2]]) == pytest.approx(np.log(2))
    assert entropy(said) == pytest.approx(-(2 / 3 * np.log(2 / 3) + 1 / 3 * np.log(1 / 3)))


# -- on a model


def prompts(levels, seed):
    """Returns prompts that say, among noise, how uncertain the answer is."""
    noise = np.random.default_rng(seed).integers(60, 90, (len(levels), 5))
    levels = np.asarray(levels)[:, None]
    return np.hstack([noise, levels + FIRST_LEVEL, np.full_like(levels, QUERY)])


def targets(levels):
    """Returns the distributions to be learned: one answer at level 0, all of them alike at the last level."""
    share = torch.tensor(levels, dtype=torch.float32)[:, None] / (LEVELS - 1)
    certain = torch.nn.functional.one_hot(torch.zeros(len(levels), dtype=torch.int64), ANSWERS)
    return (1 - share) * certain + share / ANSWERS


@pytest.fixture(scope="module")
def model():
    """A tiny model that has learned to be as uncertain as its prompt says."""
    model = build("llama")
    optim, rng = torch.optim.Adam(model.parameters(), 3e-3), np.random.default_rng(0)
    for step in range(300):
        levels = rng.integers(0, LEVELS, 32)
        logits = model(torch.from_numpy(prompts(levels, step))).logits[:, -1]
        answers = logits.log_softmax(-1)[:, FIRST_ANSWER : FIRST_ANSWER + ANSWERS]
        loss = -(targets(levels.tolist()) * answers).sum(1).mean()
        optim.zero_grad()
        loss.backward()
        optim.step()
    return model.eval()


@torch.no_grad()
def answers(model, levels, seed, layer):
    """Returns the states after a layer at the last tokens of prompts, and the entropies of the answers."""
    passed = model(torch.from_numpy(prompts(levels, seed)), output_hidden_states=True)
    logp = passed.logits[:, -1].log_softmax(-1)
    return passed.hidden_states[layer + 1][:, -1].numpy(), -(logp.exp() * logp).sum(1).numpy()


async def mean_surprise(model, steering, levels, samples=24):
    """Returns the mean of -log p over sampled answers, which is their entropy in the mean."""
    engine = Engine(twin(model), stops=(), max_context=16)
    found = [
        float(-(await engine.sample(Prompt(prompt), SamplingParams(1, seed=seed, steering=steering))).logprobs[0])
        for seed in range(samples)
        for prompt in prompts(levels, 10_000 + seed)
    ]
    await engine.close()
    return np.mean(found)


@pytest.mark.parametrize("layer", [0, 1])
async def test_it_makes_a_trained_model_less_certain_and_its_opposite_more(model, layer):
    plays = [
        Decisions(*answers(model, np.random.default_rng(k).integers(0, LEVELS, 6).tolist(), 5_000 + k, layer))
        for k in range(40)
    ]
    vector = east(plays)
    middle = [2, 3, 4] * 4

    async def steered(beta):
        return await mean_surprise(model, Steering(layer, (np.float32(beta) * vector).tobytes()), middle)

    less, plain, more = [await steered(beta) for beta in (-2, 0, 2)]
    assert less < plain - 0.15
    assert more > plain + 0.15
