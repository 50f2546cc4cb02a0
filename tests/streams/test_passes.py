"""What streams say of a step's tokens, and that they share the passes that it takes."""

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from made import batch, group, score, trajectory

from sojourn.backends.torch.models import loading
from sojourn.backends.torch.trainer.model_passes import ModelPasses
from sojourn.backends.torch.trainer.trainer import TorchTrainer
from sojourn.batch.flatten import flatten, scatter
from sojourn.config.components import COMPONENTS
from sojourn.config.lookup import find
from sojourn.config.registry import build
from sojourn.errors import ConfigError
from sojourn.losses.nll import NLL
from sojourn.optim import Optim
from sojourn.streams.action_values import ActionValues
from sojourn.streams.trainer_passes import TrainerPasses


async def nowhere(weights, version):
    pass


READ = [
    name
    for name in COMPONENTS["stream"]
    if name
    not in ("greedy_gap", "hindsight_hint", "latent_pairs", "reference_kl", "teacher", "turn_pairs")  # have others
    and not hasattr(find("stream", name), "learn")
    and not hasattr(find("stream", name), "task_data")
]


class Counted:
    """A trainer that notes the passes it is asked for."""

    def __init__(self, trainer):
        self.trainer, self.asked = trainer, []

    async def forward(self, batch, *, reference=False, critic=False):
        self.asked.append("reference" if reference else "policy")
        return await self.trainer.forward(batch, reference=reference)


async def stepped():
    """A trainer whose weights are no longer those that its stage began with, and a step's groups."""
    trainer = TorchTrainer(ModelPasses(loading.load("tiny").model, bf16=False, token_budget=1000), nowhere)
    trainer.begin(Optim(lr=1e-2), 10, reference=True)
    rng = np.random.default_rng(0)
    forked = trajectory(rng, parents=[-1, 0, 0, 1])
    groups = [group([forked, trajectory(rng)]), group([trajectory(rng), trajectory(rng)], 1)]
    await trainer.forward_backward(batch(rng), [NLL()])
    await trainer.optim_step()
    return Counted(trainer), groups


async def test_all_streams_of_a_step_take_one_pass_for_each_set_of_weights():
    trainer, groups = await stepped()
    scores = [[score(one, float(n)) for n, one in enumerate(g.trajectories)] for g in groups]
    passes, streams = TrainerPasses(groups, scores, trainer), [find("stream", name)() for name in READ]
    found = {stream.provides: await stream(passes) for stream in streams}
    assert set(found) == set(READ)
    assert sorted(trainer.asked) == ["policy", "reference"]
    flat, places = flatten(groups)
    for name, reference, column in (
        ("policy_logprobs", False, 0),
        ("entropy", False, 1),
        ("ref_logprobs", True, 0),
    ):
        forward = await trainer.trainer.forward(flat, reference=reference)
        expected = scatter(groups, forward[column], places)
        for given, one in zip(found[name], expected, strict=True):
            for turns, others in zip(given, one, strict=True):
                assert [t.tolist() for t in turns] == [t.tolist() for t in others]
    assert found["policy_logprobs"][0][0][0] != pytest.approx(found["ref_logprobs"][0][0][0], abs=1e-3)
    assert all((turn > 0).all() for trajectories in found["entropy"] for turns in trajectories for turn in turns)


async def test_how_far_the_first_policys_choice_is_from_the_present_one():
    """By transformers' own passes of both models over each sequence alone."""
    counted, groups = await stepped()
    trainer = counted.trainer
    found = await find("stream", "greedy_gap")()(TrainerPasses(groups, [], trainer))
    now, first = loading.load("tiny").model, loading.load("tiny").model
    now.load_state_dict(trainer.model.state_dict())
    flat, places = flatten(groups)
    expected = np.zeros(len(flat), dtype=np.float32)
    for a, b in zip(flat.offsets, flat.offsets[1:], strict=False):
        tokens = torch.from_numpy(flat.tokens[a:b])[None]
        with torch.no_grad():
            logp, choice = now(tokens).logits[0].log_softmax(-1), first(tokens).logits[0].argmax(-1)
        gap = logp.gather(1, choice[:, None])[:, 0] - logp.max(1).values
        expected[a + 1 : b] = gap[:-1].numpy()
    for given, one in zip(found, scatter(groups, expected, places), strict=True):
        for turns, others in zip(given, one, strict=True):
            for turn, other in zip(turns, others, strict=True):
                np.testing.assert_allclose(turn, other, atol=1e-4)
    assert min(turn.min() for some in found for turns in some for turn in turns) < -0.1


async def test_an_action_is_worth_what_the_critic_expects_before_its_last_token():
    rng = np.random.default_rng(0)
    made = group([trajectory(rng, turns=2)])
    tokens = [turn.sample.tokens for turn in made.trajectories[0].turns]
    values = [np.arange(len(some), dtype=np.float32) + 10 * n for n, some in enumerate(tokens, 1)]

    async def read(select):
        return [[tuple(values)]]

    [[turns]] = await ActionValues()(cast(Any, SimpleNamespace(groups=[made], read=read)))
    for turn, known in zip(turns, values, strict=True):
        assert turn.tolist() == [0.0] * (len(known) - 1) + [float(known[-1])]


async def test_hidden_states_take_a_trainer_that_gives_them():
    counted, groups = await stepped()
    assert await TrainerPasses(groups, [], counted.trainer).states()
    with pytest.raises(ConfigError, match="hidden states, which Counted does not give"):
        await TrainerPasses(groups, [], counted).states()


async def test_streams_of_the_present_weights_need_no_reference():
    trainer, groups = await stepped()
    await find("stream", "entropy")()(TrainerPasses(groups, [], trainer))
    assert trainer.asked == ["policy"]
    built = {name: build("stream", {"name": name}).value for name in COMPONENTS["stream"]}
    assert {n for n, stream in built.items() if stream.reference} == {
        "ref_logprobs",
        "greedy_gap",
        "reference_kl",
        "teacher",
    }
