"""The outer step of the optimiser: its numbers, what it leaves alone, that it is kept, and what samplers are given."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from made import batch as made_batch
from made import group, trajectory
from safetensors.torch import load_file

from sojourn.abilities import group_size, parts_of
from sojourn.backends.torch.models import loading
from sojourn.backends.torch.models.lora import adapted
from sojourn.backends.torch.trainer.copies import CopyableTrainer
from sojourn.backends.torch.trainer.critic import Critic, Head
from sojourn.backends.torch.trainer.model_passes import ModelPasses
from sojourn.backends.torch.trainer.optimizer import Optimizer
from sojourn.backends.torch.trainer.trainer import TorchTrainer
from sojourn.backends.torch.trainer.weight_files import OPTIMIZER
from sojourn.batch import to_batch
from sojourn.config.toml import Tables
from sojourn.errors import ConfigError
from sojourn.losses.nll import NLL
from sojourn.losses.value import Value
from sojourn.models.spec import Lora
from sojourn.optim import Lookahead, Optim
from sojourn.train.resolve import load, resolve
from sojourn.types import Batch, Credit

PRESETS = Path(__file__).parent.parent.parent / "recipes" / "presets"
NAME = "tiny:layers=1,hidden=64"
CYCLES = Optim(lr=1e-2, lookahead=Lookahead(every=3, fraction=0.5))
PLAIN = Optim(lr=1e-2)
Weights = dict[str, torch.Tensor]


def trainer(optim: Optim, lora: Lora | None = None, *, critic: Optim | None = None) -> CopyableTrainer:
    """Returns a trainer of a tiny model, with a critic on its hidden states if that is given an optimiser."""
    model = loading.load(NAME, "fp32", 0).model
    model = model if lora is None else adapted(model, lora, torch.float32)
    torch.manual_seed(0)
    found = Critic(Head(64, 8), critic, detach=True) if critic is not None else None
    made = CopyableTrainer(ModelPasses(model, bf16=False, token_budget=10_000, critic=found), nowhere)
    made.begin(optim, 10, reference=False)
    return made


async def nowhere(weights: Iterator[tuple[str, torch.Tensor]], version: int) -> None:
    """Takes published weights and forgets them."""


def step(seed: int) -> Batch:
    """Returns a batch with targets for the critic."""
    batch = made_batch(np.random.default_rng(seed))
    targets = np.random.default_rng(seed).normal(size=len(batch)).astype(np.float32)
    streams = {"targets": targets, "values": np.zeros_like(targets)}
    streams |= Value().columns(Batch(**{**vars(batch), "streams": streams}))
    return Batch(**{**vars(batch), "streams": streams})


async def learn(made: TorchTrainer, *seeds: int) -> None:
    for seed in seeds:
        await made.forward_backward(step(seed), [NLL(), *([Value()] if made.critic is not None else [])])
        await made.optim_step()


def weights(made: TorchTrainer) -> Weights:
    return {name: p.detach().clone() for name, p in made.parameters.items()}


def same(one: Weights, other: Weights) -> bool:
    assert one.keys() == other.keys()
    return all(torch.equal(one[name], other[name]) for name in one)


def test_slow_and_fast_weights_by_hand() -> None:
    """Under a constant gradient of +-1, each update of Adam goes `lr` against its sign: 0.1."""
    parameter = torch.nn.Parameter(torch.tensor([1.0, 2.0]))
    made = Optimizer({"w": parameter}, Optim(lr=0.1, lookahead=Lookahead(every=2, fraction=0.25)), 5)
    found: list[list[float]] = []
    for number in range(5):
        parameter.grad = torch.tensor([1.0, -1.0])
        made.update(number)
        found.append(parameter.tolist())
    expected = [
        [0.9, 2.1],
        [1 + 0.25 * (0.8 - 1), 2 + 0.25 * (2.2 - 2)],  # 0.95, 2.05: the outer step
        [0.85, 2.15],
        [0.95 + 0.25 * (0.75 - 0.95), 2.05 + 0.25 * (2.25 - 2.05)],  # 0.9, 2.1
        [0.8, 2.2],  # of a cycle that is cut short
    ]
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert dict(made.moments())["w/slow"].tolist() == pytest.approx([0.9, 2.1])


async def test_an_outer_step_of_the_whole_way_is_the_optimiser_alone_bit_for_bit() -> None:
    whole = Optim(lr=1e-2, lookahead=Lookahead(every=2, fraction=1.0))
    made, plain = trainer(whole, critic=whole), trainer(PLAIN, critic=PLAIN)
    for one in (made, plain):
        await learn(one, 0, 1, 2, 3, 4)
    assert same(weights(made), weights(plain))


@pytest.mark.parametrize("lora", [None, Lora(rank=2)])
async def test_the_policy_and_the_critic_each_have_cycles_of_their_own(lora: Lora | None) -> None:
    """Until its first cycle ends, each is as without an outer step, and then between where it began and that."""
    made = trainer(CYCLES, lora, critic=Optim(lr=1e-2, lookahead=Lookahead(every=2, fraction=0.25)))
    plain = trainer(PLAIN, lora, critic=PLAIN)
    begun = weights(made)
    ends = {"critic": (2, 0.25), "policy": (3, 0.5)}
    for number in (1, 2, 3):
        for one in (made, plain):
            await learn(one, number)
        fast, found = weights(plain), weights(made)
        for name, value in found.items():
            every, fraction = ends["critic" if name.startswith("critic.") else "policy"]
            if number < every:
                assert torch.equal(value, fast[name]), name
            elif number == every:
                torch.testing.assert_close(value, begun[name] + fraction * (fast[name] - begun[name]))
    assert not same(weights(made), weights(plain))


@pytest.mark.parametrize("lora", [None, Lora(rank=2)])
@pytest.mark.parametrize("done", [1, 2, 3, 4])
async def test_what_is_resumed_within_a_cycle_goes_on_as_if_it_had_not_stopped(
    tmp_path: Path, lora: Lora | None, done: int
) -> None:
    first = trainer(CYCLES, lora, critic=CYCLES)
    await learn(first, *range(done))
    first.save(tmp_path)
    again = trainer(CYCLES, lora, critic=CYCLES)
    again.load(tmp_path)
    again.restore(first.state())
    for made in (first, again):
        await learn(made, *range(done, 7))
    assert same(weights(first), weights(again))


async def test_a_copy_that_learns_beside_the_policy_keeps_its_slow_weights() -> None:
    policy = trainer(PLAIN)
    first, again = (policy.copy(CYCLES, reference=True) for _ in range(2))
    await learn(first, 0, 1)
    again.restore(first.state())
    for made in (first, again):
        await learn(made, 2, 3)
    assert same(weights(first), weights(again))


def slow(folder: Path) -> int:
    return sum(name.endswith("/slow") for name in load_file(folder / OPTIMIZER))


async def test_slow_weights_are_kept_within_a_cycle_alone(tmp_path: Path) -> None:
    made = trainer(CYCLES)
    found: list[int] = []
    for number in range(4):
        await learn(made, number)
        made.save(tmp_path)
        found.append(slow(tmp_path))
    assert found == [len(made.trainable), len(made.trainable), 0, len(made.trainable)]


async def test_samplers_are_given_the_weights_that_train_next() -> None:
    sent: list[Weights] = []

    async def keep(published: Iterator[tuple[str, torch.Tensor]], version: int) -> None:
        sent.append({name: value.detach().clone() for name, value in published})

    made = TorchTrainer(ModelPasses(loading.load(NAME, "fp32", 0).model, bf16=False, token_budget=10_000), keep)
    made.begin(CYCLES, 10, reference=False)
    for number in range(4):
        await learn(made, number)
        await made.publish()
        assert same(sent[-1], {name: p.detach() for name, p in made.model.named_parameters()})


def test_a_cycle_of_the_preset_is_on_the_groups_of_one_part() -> None:
    """Minibatches cut a step in the order of its groups, and as many of them are of either part."""
    recipe = load(PRESETS / "moorl.toml").recipe
    stage = recipe.stages[1]
    live, recorded = parts_of(stage.groups)
    collected = recipe.stages[0].groups
    assert live.width * (group_size(live) or 0) == recorded.width * (group_size(collected) or 0) == 32
    made = [group([trajectory(np.random.default_rng(n), turns=1)] * 4, n) for n in range(live.width + recorded.width)]
    credit = [[Credit.uniform(t, 1.0) for t in g.trajectories] for g in made]
    batch = to_batch(made, credit, {}, aggregate=stage.aggregate)
    parts = list(batch.minibatches(stage.minibatches))
    assert recipe.critic is not None
    for optim in (stage.optim, recipe.critic.optim):
        assert optim.lookahead is not None
        every = optim.lookahead.every
        cycles = [
            np.concatenate([part.trajectory for part in parts[n : n + every]]) for n in range(0, len(parts), every)
        ]
        assert [set(cycle.tolist()) for cycle in cycles] == [set(range(32)), set(range(32, 64))]


STAGE = {"name": "rl", "steps": 2, "minibatches": 2, "losses": [{"name": "ppo"}]}


def test_cycles_that_are_longer_than_a_stage_are_refused() -> None:
    def resolved(stage: dict[str, object], **others: object) -> None:
        resolve(Tables({"name": "x", "env": {"name": "toy"}, "stages": [{**STAGE, **stage}], **others}, {}))

    resolved({"optim": {"lookahead": {"every": 4}}})
    with pytest.raises(ConfigError, match=r"stages.rl.optim.lookahead.every = 5: .* expected at most 4"):
        resolved({"optim": {"lookahead": {"every": 5}}})
    critic = {
        "estimator": {"name": "gae"},
        "losses": [{"name": "ppo"}, {"name": "value"}],
        "streams": [{"name": "values"}, {"name": "next_values"}],
    }
    resolved(critic, critic={"optim": {"lookahead": {"every": 4}}})
    with pytest.raises(ConfigError, match=r"critic.optim.lookahead.every = 5: .* expected at most 4"):
        resolved(critic, critic={"optim": {"lookahead": {"every": 5}}})
    with pytest.raises(ConfigError, match="no effect with trains = false"):
        resolve(
            Tables(
                {
                    "name": "x",
                    "env": {"name": "toy"},
                    "stages": [{"name": "collect", "trains": False, "optim": {"lookahead": {}}}, STAGE],
                },
                {},
            )
        )
