"""Distillation on a tiny real model: a teacher that is the student teaches nothing; packing, splitting and sharing
prefixes change nothing; and only tokens of which a teacher was asked are compared."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from made import group, sample, trajectory

from sojourn.backends.torch.models import loading
from sojourn.backends.torch.trainer.model_passes import ModelPasses
from sojourn.backends.torch.trainer.trainer import TorchTrainer
from sojourn.batch import Aggregate, to_batch
from sojourn.losses.distill import Distill
from sojourn.losses.importance import Importance
from sojourn.optim import Optim
from sojourn.streams.policy_logprobs import PolicyLogprobs
from sojourn.streams.teacher import Teacher
from sojourn.streams.trainer_passes import TrainerPasses
from sojourn.types import Batch, Credit, Group, Turn

NAME = "tiny:layers=1,hidden=64"
LOSSES = [
    Distill(),
    Distill(divergence="forward_kl"),
    Distill(divergence="jsd", beta=0.3),
    Distill(top_k=8),
]
IDS = ["reverse_kl", "forward_kl", "jsd", "top_k"]


async def nowhere(weights, version):
    pass


def passes(seed: int, **bounds) -> ModelPasses:
    return ModelPasses(loading.load(NAME, "fp32", seed).model, bf16=False, **{"token_budget": 100_000, **bounds})


def trainer(teacher: int = 1, **bounds) -> TorchTrainer:
    made = TorchTrainer(passes(0, **bounds), nowhere)
    made.begin(Optim(lr=1e-3), 10, reference=True)
    made.teachers.frozen["other"] = passes(teacher)
    return made


def steps() -> list[Group]:
    """Forked and linear trajectories, with several temperatures and some tokens among few."""
    rng = np.random.default_rng(0)
    forked = trajectory(rng, parents=[-1, 0, 0, 1])
    cold = [
        replace(
            t,
            sample=replace(t.sample, temperature=0.7, allowed=tuple(np.array([n, 5, 7, 11]) for n in t.sample.tokens)),
        )
        for t in trajectory(rng).turns
    ]
    return [group([forked, trajectory(rng)]), group([replace(forked, turns=tuple(cold)), trajectory(rng)], 1)]


async def taught(made: TorchTrainer, groups: list[Group], teacher: Teacher, losses) -> Batch:
    context = TrainerPasses(groups, [], made)
    streams = {
        "teacher": await teacher(context),
        "policy_logprobs": await PolicyLogprobs()(context),
    }
    credit = [[Credit.uniform(t, 1.0) for t in g.trajectories] for g in groups]
    return to_batch(groups, credit, streams, aggregate=Aggregate(), losses=losses)


def taken(made: TorchTrainer) -> torch.Tensor:
    found = torch.cat([p.grad.flatten() for p in made.trainable.values() if p.grad is not None])
    for parameter in made.trainable.values():
        parameter.grad = None
    return found


async def gradient(loss, *, model: str = "other", teacher: int = 1, groups=None, **bounds) -> torch.Tensor:
    made = trainer(teacher, **bounds)
    batch = await taught(made, groups or steps(), Teacher(model=model), [loss])
    metrics = await made.forward_backward(batch, [loss])
    assert metrics["loss"] >= -1e-6
    return taken(made)


@pytest.mark.parametrize("loss", LOSSES, ids=IDS)
@pytest.mark.parametrize("model", ["reference", "other"])
async def test_a_teacher_that_is_the_student_gives_no_gradient(loss, model):
    """Whether it is the student's reference or another model with the same weights."""
    assert (await gradient(loss, model=model, teacher=0)).abs().max() < 1e-6
    assert (await gradient(loss, teacher=1)).norm() > 0.01


@pytest.mark.parametrize("loss", LOSSES, ids=IDS)
async def test_dividing_a_batch_changes_nothing(loss):
    whole = await gradient(loss)
    for bounds in ({"token_budget": 1}, {"token_budget": 40}, {"logits_bytes": 4 * 600 * 4}):
        torch.testing.assert_close(await gradient(loss, **bounds), whole, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("loss", LOSSES, ids=IDS)
@pytest.mark.parametrize("token_budget", [1, 100_000])
async def test_each_task_is_taught_by_its_own_teacher(loss, token_budget):
    """The gradient is the sum of those of the tasks, each with its teacher alone."""
    rng = np.random.default_rng(0)
    [_, cold] = steps()
    linear = replace(cold.trajectories[0], turns=tuple(replace(t, parent=-1) for t in cold.trajectories[0].turns[:1]))
    groups = [group([trajectory(rng), trajectory(rng)]), group([linear, trajectory(rng)], 1)]
    groups[1] = replace(groups[1], task=replace(groups[1].task, tags=("far",)))
    made = trainer(token_budget=token_budget)
    made.teachers.frozen["third"] = passes(2)
    batch = await taught(made, groups, Teacher(model="other", of={"far": "third"}), [loss])
    assert len(batch.offsets) - 1 == 4
    await made.forward_backward(batch, [loss])
    together, apart = taken(made), []
    for model, sequences in (("other", np.arange(2)), ("third", np.arange(2, 4))):
        alone = await taught(made, groups, Teacher(model=model), [loss])
        await made.forward_backward(alone.take(sequences), [loss])
        apart.append(taken(made))
    assert min(one.norm() for one in apart) > 0.001
    torch.testing.assert_close(together, sum(apart), atol=1e-6, rtol=1e-4)


async def test_the_order_of_episodes_and_parts_of_a_step_change_nothing():
    loss, groups = Distill(), steps()
    whole = await gradient(loss, groups=groups)
    turned = [replace(g, episodes=g.episodes[::-1]) for g in groups[::-1]]
    torch.testing.assert_close(await gradient(loss, groups=turned), whole, atol=1e-6, rtol=1e-4)
    made = trainer()
    batch = await taught(made, groups, Teacher(model="other"), [loss])
    for sequences in (np.arange(2), np.arange(2, len(batch.offsets) - 1)):
        await made.forward_backward(batch.take(sequences), [loss])
    torch.testing.assert_close(taken(made), whole, atol=1e-6, rtol=1e-4)


async def test_a_shared_prefix_changes_nothing():
    """Two trajectories with the same beginning, beside the same two with other first tokens in one of them."""
    rng = np.random.default_rng(3)
    start = rng.integers(0, 300, 12)

    def line(first: np.ndarray, seed: int) -> Group:
        own = np.random.default_rng(seed)
        turns = (Turn(-1, first, sample(own.integers(0, 300, 5).tolist()), None),)
        return group([replace(trajectory(rng, turns=1), turns=turns)], seed)

    together = await gradient(Distill(), groups=[line(start, 1), line(start, 2)])
    apart = [await gradient(Distill(), groups=[line(start, n)]) for n in (1, 2)]
    torch.testing.assert_close(together, (apart[0] + apart[1]) / 2, atol=1e-6, rtol=1e-4)


async def test_steps_towards_the_teacher_bring_it_nearer():
    made, groups, found = trainer(), steps(), []
    made.begin(Optim(lr=1e-2), 30, reference=False)
    batch = await taught(made, groups, Teacher(model="other"), [Distill()])
    for _ in range(30):
        found.append((await made.forward_backward(batch, [Distill()]))["reverse_kl"])
        await made.optim_step()
    assert found[-1] < 0.2 * found[0]


async def test_the_policy_as_teacher_stays_as_it_was_asked():
    """Its vocabulary head changes with the first update, its distributions as a teacher must not."""
    made, groups = trainer(), steps()
    made.begin(Optim(lr=1e-2), 10, reference=False)
    context = TrainerPasses(groups, [], made)
    await made.ask_models({"policy": context.flat[0]})
    credit = [[Credit.uniform(t, 1.0) for t in g.trajectories] for g in groups]
    streams = {"teacher": await PolicyLogprobs()(context)}
    batch = to_batch(groups, credit, streams, aggregate=Aggregate())
    assert (await made.forward_backward(batch, [Distill()]))["reverse_kl"] == pytest.approx(0.0, abs=1e-6)
    taken(made)
    [kept] = made.teachers.scored
    before = kept.said.states @ kept.said.weight.T
    with torch.no_grad():
        for parameter in made.trainable.values():
            parameter.add_(0.1)
    torch.testing.assert_close(kept.said.states @ kept.said.weight.T, before)


async def test_a_loss_inside_another_finds_its_column():
    inner, wrapped = Distill(), Importance(base=Distill(), max_weight=1e6)
    made, groups = trainer(), steps()
    batch = await taught(made, groups, Teacher(model="other"), [inner])
    same = replace(batch, logprobs=batch.streams["policy_logprobs"])  # on-policy, every weight is 1
    await made.forward_backward(same, [inner])
    alone = taken(made)
    await made.forward_backward(same, [wrapped])
    torch.testing.assert_close(taken(made), alone, atol=1e-6, rtol=1e-4)


async def test_tokens_of_which_no_teacher_was_asked_are_refused():
    made, groups = trainer(), steps()
    batch = await taught(made, groups, Teacher(model="other"), [Distill()])
    other = replace(batch, tokens=batch.tokens[::-1].copy())
    with pytest.raises(ValueError, match="of which no teacher was asked: ask one first"):
        await made.forward_backward(other, [Distill()])
    with pytest.raises(ValueError, match="of which no teacher was asked: ask one first"):
        await trainer().forward_backward(batch, [Distill()])
