"""The trainer on a tiny real model: packing, splitting and sharing change nothing; clipped losses agree at ratio 1."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from engine_models import build
from made import batch as made_batch
from made import group, sample, trajectory

from sojourn.backends.torch.models import loading
from sojourn.backends.torch.models.lora import adapted as with_adapters
from sojourn.backends.torch.trainer.model_passes import ModelPasses
from sojourn.backends.torch.trainer.trainer import TorchTrainer
from sojourn.batch import Aggregate, choose, to_batch
from sojourn.losses.cispo import CISPO
from sojourn.losses.clip_cov import ClipCov
from sojourn.losses.entropy import Entropy
from sojourn.losses.gspo import GSPO
from sojourn.losses.importance import Importance
from sojourn.losses.kl_cov import KLCov
from sojourn.losses.nll import NLL
from sojourn.losses.papers.aepo import AEPO
from sojourn.losses.papers.m2po import M2PO
from sojourn.losses.ppo import PPO
from sojourn.losses.reinforce import Reinforce
from sojourn.losses.sapo import SAPO
from sojourn.models.spec import Lora
from sojourn.optim import Optim
from sojourn.types import Credit


async def nowhere(weights, version):
    """Takes published weights and forgets them."""


def trainer(token_budget: int = 100_000, model=None, **bounds) -> TorchTrainer:
    model = model or loading.load("tiny", "fp32", 0).model
    made = TorchTrainer(ModelPasses(model, bf16=False, token_budget=token_budget, **bounds), nowhere)
    made.begin(Optim(lr=1e-3), 10, reference=False)
    return made


async def gradient(batch, losses, token_budget=100_000) -> torch.Tensor:
    made = trainer(token_budget)
    await made.forward_backward(batch, losses)
    return torch.cat([p.grad.flatten() for p in made.trainable.values() if p.grad is not None])


async def test_splitting_a_batch_changes_nothing():
    batch = made_batch(np.random.default_rng(0))
    losses = [PPO(), Entropy()]
    whole = await gradient(batch, losses)
    assert whole.norm() > 0.01
    torch.testing.assert_close(await gradient(batch, losses, token_budget=40), whole, atol=1e-5, rtol=1e-4)


async def test_packing_changes_nothing():
    """Each packed sequence scores as it does alone, in transformers' own attention."""
    batch = made_batch(np.random.default_rng(1))
    packed = await trainer().forward(batch)
    model = loading.load("tiny", "fp32", 0).model
    for s in range(len(batch.offsets) - 1):
        span = slice(batch.offsets[s], batch.offsets[s + 1])
        tokens = torch.from_numpy(batch.tokens[span])
        with torch.no_grad():
            logp = model(tokens[None]).logits[0].log_softmax(-1)
        alone = logp[:-1].gather(1, tokens[1:, None])[:, 0].numpy()
        entropy = -(logp.exp() * logp).sum(-1)[:-1].numpy()
        where = batch.weight[span][1:] > 0
        np.testing.assert_allclose(packed.logprobs[span][1:][where], alone[where], atol=1e-4)
        np.testing.assert_allclose(packed.entropy[span][1:][where], entropy[where], atol=1e-4)


def sharing(rng: np.random.Generator):
    """Two groups whose episodes begin alike: the same prompt, some the same first action, two the same throughout."""
    made = []
    for slot in range(2):
        prompt, action = rng.integers(0, 97, 12), rng.integers(0, 97, 4).tolist()
        episodes = [trajectory(rng, vocabulary=97) for _ in range(4)]
        for n, t in enumerate(episodes):
            first = replace(t.turns[0], context=prompt, sample=sample(action if n < 3 else [*action[:2], 7]))
            episodes[n] = replace(t, turns=(first, *t.turns[1:]))
        made.append(group([*episodes, episodes[0]], slot))
    credit = [[Credit.uniform(t, float(rng.normal())) for t in g.trajectories] for g in made]
    return to_batch(made, credit, {}, aggregate=Aggregate())


@pytest.mark.parametrize("name", ["llama", "gemma3"])
@pytest.mark.parametrize("token_budget", [60, 100_000])
async def test_sharing_a_prefix_changes_nothing(name, token_budget):
    """The gradient is the sum of those of each sequence alone; the windowed layers of Gemma see the whole path."""
    batch = sharing(np.random.default_rng(6))
    losses = [PPO(), Entropy()]
    alone = trainer(model=build(name))
    for s in range(len(batch.offsets) - 1):
        await alone.forward_backward(batch.take(np.array([s])), losses)
    shared = trainer(token_budget, model=build(name))
    metrics = await shared.forward_backward(batch, losses)
    for key, p in alone.trainable.items():
        torch.testing.assert_close(shared.trainable[key].grad, p.grad, atol=1e-5, rtol=1e-4)
    assert metrics["computed_tokens"] < metrics["sequence_tokens"] == len(batch)
    assert metrics["trained_tokens"] == np.count_nonzero(batch.weight)


def adapted(name: str):
    """With adapters that already do something."""
    model = with_adapters(build(name), Lora(rank=4), torch.float32)
    torch.manual_seed(1)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    return model


@pytest.mark.parametrize("make", [build, adapted])
@pytest.mark.parametrize("name", ["llama", "qwen2", "gemma3"])
async def test_chunks_of_the_vocabulary_head_change_nothing(name, make):
    """Tied and untied, capped, with adapters: logprobs, entropy and the gradients of all parameters."""
    batch = sharing(np.random.default_rng(8))
    where = np.flatnonzero(batch.weight)
    allowed = {int(i): np.unique([batch.tokens[i], 5, 7]) for i in where[::5]}
    batch = replace(batch, allowed=allowed, temperature=np.full(len(batch), 0.8, dtype=np.float32))
    whole, chunked = trainer(model=make(name)), trainer(model=make(name), logits_bytes=3 * 4 * 97)
    metrics = [await made.forward_backward(batch, [PPO(), Entropy()]) for made in (whole, chunked)]
    assert metrics[0] == pytest.approx(metrics[1], rel=1e-4, abs=1e-5)
    np.testing.assert_allclose(
        (await chunked.forward(batch)).logprobs, (await whole.forward(batch)).logprobs, atol=1e-5
    )
    for key, p in whole.trainable.items():
        torch.testing.assert_close(chunked.trainable[key].grad, p.grad, atol=1e-5, rtol=1e-4)


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("bounds", [{}, {"activation_bytes": 1.0}, {"kernel": False}])
@pytest.mark.parametrize("make", [build, adapted])
async def test_parts_side_by_side_change_nothing(make, bounds, two_threads):
    """The gradient is that of one part, the same to the bit every time; so are logprobs."""
    batch = sharing(np.random.default_rng(9))
    whole, *twice = [trainer(model=make("llama"), **bounds) for _ in range(3)]
    whole.passes.pool.count = 1
    for made in twice:
        assert [len(parts) for parts in made.passes.rounds(batch)] == [2]
    metrics = [await made.forward_backward(batch, [PPO(), Entropy()]) for made in (whole, *twice)]
    assert metrics[1] == metrics[2]
    metrics[0]["computed_tokens"] = metrics[1]["computed_tokens"]  # what both have in common counts twice
    assert metrics[0] == pytest.approx(metrics[1], rel=1e-4, abs=1e-5)
    scored = [await made.forward(batch) for made in (whole, *twice)]
    np.testing.assert_array_equal(scored[1].logprobs, scored[2].logprobs)
    np.testing.assert_allclose(scored[0].logprobs, scored[1].logprobs, atol=1e-5)
    for key, p in whole.trainable.items():
        torch.testing.assert_close(twice[0].trainable[key].grad, p.grad, atol=1e-5, rtol=1e-4)
        assert torch.equal(twice[0].trainable[key].grad, twice[1].trainable[key].grad)
    for made in (whole, *twice):
        made.close()


async def test_a_shared_prefix_has_the_same_gradient_every_time_on_two_threads(two_threads):
    """Rows of the hidden states that many sequences read add up their gradients in one order."""
    rng = np.random.default_rng(7)
    prompt = rng.integers(0, 300, 20)
    plays = [trajectory(rng, turns=1) for _ in range(48)]
    plays = [
        replace(t, turns=(replace(t.turns[0], context=prompt, sample=sample(rng.integers(0, 300, 8).tolist())),))
        for t in plays
    ]
    credit = [[Credit.uniform(t, float(rng.normal())) for t in plays]]
    batch = to_batch([group(plays)], credit, {}, aggregate=Aggregate())
    found = []
    for _ in range(12):
        made = trainer(model=loading.load("tiny:layers=1,hidden=192", "fp32", 0).model)
        await made.forward_backward(batch, [PPO()])
        found.append(torch.cat([p.grad.flatten() for p in made.trainable.values()]))
    assert all(torch.equal(found[0], other) for other in found)


async def test_sharing_a_turn_between_paths_trains_it_once():
    rng = np.random.default_rng(0)
    forked = trajectory(rng, parents=[-1, 0, 0])
    batch = to_batch([group([forked])], [[Credit.uniform(forked, 1.0)]], {}, aggregate=Aggregate())
    made = trainer()
    metrics = await made.forward_backward(batch, [NLL()])
    scored = (await trainer().forward(batch)).logprobs
    assert metrics["nll"] == pytest.approx(float(-(scored * batch.weight).sum()), rel=1e-4)


AT_ONE = [
    *(PPO(), PPO(clip_low=0.01, clip_high=0.5), PPO(dual_clip=3.0), CISPO(), SAPO(), AEPO()),
    ClipCov(min_covariance=1e9, max_covariance=1e9),
]
AT_ONE += [M2PO(), Importance(), Importance(base=Reinforce(), level="sequence"), GSPO(), GSPO(token_form=True), KLCov()]


@pytest.mark.parametrize("loss", AT_ONE, ids=str)
async def test_at_ratio_one_a_clipped_loss_has_the_reinforce_gradient(loss):
    """That of GSPO, whose ratio is a sequence's, where its tokens have one weight."""
    batch = made_batch(np.random.default_rng(2))
    logprobs = (await trainer().forward(batch)).logprobs
    on_policy = replace(batch, logprobs=logprobs, streams={"policy_logprobs": logprobs})
    on_policy = await choose(on_policy, [loss], trainer())
    torch.testing.assert_close(
        await gradient(on_policy, [loss]), await gradient(on_policy, [Reinforce()]), atol=1e-5, rtol=1e-4
    )


async def test_off_policy_the_clip_acts():
    """Without this, the law above would hold of a loss that ignores the ratio."""
    batch = made_batch(np.random.default_rng(2))
    far = replace(batch, logprobs=(await trainer().forward(batch)).logprobs - 1.0)
    difference = await gradient(far, [PPO()]) - await gradient(far, [Reinforce()])
    assert difference.norm() > 0.01


async def test_the_reference_is_what_the_stage_began_with_and_leaves_the_policy_as_it_is():
    batch, made = made_batch(np.random.default_rng(9)), trainer()
    made.begin(Optim(lr=1e-2), 10, reference=True)
    began = (await made.forward(batch)).logprobs
    for _ in range(2):
        await made.forward_backward(batch, [NLL()])
        await made.optim_step()
        moved = (await made.forward(batch)).logprobs
        np.testing.assert_array_equal((await made.forward(batch, reference=True)).logprobs, began)
        np.testing.assert_array_equal((await made.forward(batch)).logprobs, moved)
        assert np.abs(moved - began).max() > 0.01


async def test_sequences_without_advantage_are_skipped_exactly():
    batch = made_batch(np.random.default_rng(3))
    idle = np.isin(batch.sequence, [1, 3])
    batch = replace(batch, advantages=np.where(idle, 0, batch.advantages).astype(np.float32))

    class Whole(NLL):
        zero_at_zero_advantage = False

    torch.testing.assert_close(await gradient(batch, [NLL()]), await gradient(batch, [Whole()]), atol=1e-6, rtol=1e-4)
    metrics = await trainer().forward_backward(batch, [NLL()])
    assert metrics["sequence_tokens"] == (~idle).sum()
    assert metrics["trained_tokens"] == np.count_nonzero(batch.weight[~idle])


async def test_metrics_are_over_the_sequences_that_the_losses_learn_from():
    batch = made_batch(np.random.default_rng(3))
    idle = np.isin(batch.sequence, [1, 3])
    batch = replace(batch, advantages=np.where(idle, 0, batch.advantages).astype(np.float32))
    entropy = (await trainer().forward(batch)).entropy
    for losses, kept in (([PPO()], ~idle), ([PPO(), Entropy()], ~idle | idle)):
        metrics = await trainer().forward_backward(batch, losses)
        assert metrics["entropy"] == pytest.approx(np.average(entropy[kept], weights=batch.weight[kept]), rel=1e-4)
        assert metrics["trained_tokens"] == np.count_nonzero(batch.weight[kept])


async def test_temperature_and_constraints_are_those_of_the_sampler():
    batch = made_batch(np.random.default_rng(4), groups=1, size=1)
    where = np.flatnonzero(batch.weight)[0]
    allowed = np.array([5, int(batch.tokens[where]), 7])
    changed = replace(batch, temperature=np.full(len(batch), 0.5, dtype=np.float32), allowed={int(where): allowed})
    scored = ((await trainer().forward(changed)).logprobs)[where]
    model = loading.load("tiny", "fp32", 0).model
    with torch.no_grad():
        logits = model(torch.from_numpy(batch.tokens[:where])[None]).logits[0, -1] / 0.5
    expected = logits[int(batch.tokens[where])] - logits[allowed].logsumexp(0)
    assert scored == pytest.approx(float(expected), abs=1e-4)


async def test_a_checkpoint_restores_weights_and_optimiser(tmp_path):
    batch = made_batch(np.random.default_rng(5))

    async def step(made):
        await made.forward_backward(batch, [NLL()])
        await made.optim_step()

    first = trainer()
    await step(first)
    first.save(tmp_path)
    second = trainer()
    second.load(tmp_path)
    second.restore(first.state())
    for made in (first, second):
        await step(made)
    for name, weight in first.trainable.items():
        assert torch.equal(weight, second.trainable[name]), name
