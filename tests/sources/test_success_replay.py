"""Recorded successes in groups without a winner: which group gets which, what is trained and what counts as played."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

import numpy as np
import pytest
from made_world import Odd, Play, PlayWithExpert, components
from test_replayed_groups import LIVE, RUN, stopping_at
from trained_run import final_weights, train

import sojourn
from sojourn.abilities import max_lag, play_lag
from sojourn.checks.synthetic import content
from sojourn.config import toml
from sojourn.credit.grpo import GRPO
from sojourn.errors import ConfigError
from sojourn.record.episodes.store import EpisodeStore
from sojourn.sources.mixed import Mixed
from sojourn.sources.slots import Slots
from sojourn.sources.success_replay import SuccessReplay, SuccessReplayGroups
from sojourn.train.resolve import resolve
from sojourn.types import Group, Message, Step, Task

WRAPPED = 'stages.rl.groups={name="success_replay", base={name="slots", width=2, size=4}}'


@dataclass(frozen=True, kw_only=True)
class Fades(Odd):
    """Two tasks in turn. In the groups 0, 1 and 4 of the task 1, one of three plays wins; all others lose."""

    count: int = 2

    def make(self, task: Task) -> PlayWithExpert:
        before = self.plays[task.seed]
        self.plays[task.seed] += 1
        return PlayWithExpert(self, float(task.seed == 1 and before in (1, 5, 13)))


@dataclass(frozen=True, kw_only=True)
class Picky(Odd):
    """Two tasks in turn, each of which is won by what about a sixth of all actions say."""

    count: int = 2

    def make(self, task: Task) -> PickyPlay:
        return PickyPlay(self, 0.0)


class PickyPlay(Play):
    async def step(self, agent: str, action: Message) -> Step:
        won = crc32(action.text.encode()) % 6 == 0
        return Step(None, {agent: float(won)}, done=True, success=won)


async def played(folder: Path, steps: int, config: SuccessReplay | None = None, size: int = 3):
    """The groups that each step trains, those that it played, the credit of GRPO, and the source."""
    config = config or SuccessReplay(base=Slots(width=2, size=size))
    made = components(Fades())
    made.episodes = EpisodeStore(folder, write=True)
    source = config.bind(made, "rl", steps)
    trained, plays, credit = [], [], []
    for step in range(steps):
        groups = await source.take(step)
        scores = await made.rewards(groups)
        popped = made.rewards.pop(groups, below=2 * (step + 1))
        both = [one.group for one in popped], [one.scores for one in popped]
        source.observe(*both)
        await asyncio.to_thread(made.episodes.append, "rl", step, *both)
        trained.append(groups)
        plays.append([one.group for one in popped])
        credit.append(GRPO()(groups, scores, {}))
    await source.close()
    return trained, plays, credit, source


def wins(groups: list[Group]) -> list[list[bool]]:
    return [[t.success for t in group.trajectories] for group in groups]


async def test_a_group_without_a_winner_gets_a_recorded_success_of_its_task(tmp_path: Path):
    """Task 1 wins in steps 0, 1 and 4; in the steps between its last failure gives way. Task 0 never wins."""
    trained, plays, credit, source = await played(tmp_path, 5)
    lost, second, third = [False] * 3, [False, True, False], [False, False, True]
    assert [wins(groups)[0] for groups in plays] == [wins(groups)[0] for groups in trained] == [lost] * 5
    assert [wins(groups)[1] for groups in plays] == [second, third, lost, lost, second]
    assert [wins(groups)[1] for groups in trained] == [second, third, third, third, second]
    assert source.metrics() == {"successes_replayed": 2.0}
    replayed = trained[2][1].episodes
    recorded = plays[0][1].episodes[1]
    assert [e.id for e in replayed[:2]] == [e.id for e in plays[2][1].episodes[:2]]
    assert replayed[2].id == f"{recorded.id}#2-5"
    assert content(replayed[2].trajectories) == content(recorded.trajectories)
    assert [float(c.tokens[0][0]) > 0 for c in credit[2][1]] == [False, False, True]
    assert all(not c.tokens[0].any() for c in credit[2][0])


@pytest.mark.parametrize(
    ("options", "found"), [({}, {0, 1}), ({"per_task": 1}, {1}), ({"max_age": 3}, {1}), ({"capacity": 1}, {1})]
)
async def test_which_successes_are_used(tmp_path: Path, options: dict[str, int], found: set[int]):
    """In the steps from 4 on there are two successes of task 1: those of the slots 1 and 3, of the steps 0 and 1."""
    config = SuccessReplay(base=Slots(width=2, size=3), **options)
    trained, *_ = await played(tmp_path, 4, config)
    _, _, _, source = await played(tmp_path / "other", 2, config)
    assert isinstance(source, SuccessReplayGroups)
    chosen = Counter[int]()
    for seed in range(40):
        source.context.runner.seed = seed
        success = source._success(4, trained[3][1])
        assert success is not None
        chosen[success.group.slot // 2] += 1
    assert set(chosen) == found


async def test_a_step_whose_groups_all_drop_out_is_known_by_its_number(tmp_path: Path):
    """What won in it is found there later."""
    _, _, _, source = await played(tmp_path, 2)

    class Nothing:
        async def take(self, step: int) -> list[Group]:
            return []

    won = await asyncio.to_thread(
        lambda: next(g for g in source.context.episodes.groups("rl") if any(t.success for t in g.trajectories))
    )
    source.base = Nothing()  # type: ignore[assignment]
    assert await source.take(5) == []
    source.observe([won], [[]])
    assert source.entries["step"][-1] == 5


def test_plays_begin_no_earlier_than_those_of_the_base():
    """How old a success may be does not matter to them, nor to the snapshots that they meet."""
    for base in (Slots(width=2), Slots(width=2, max_lag=3)):
        made = SuccessReplay(base=base, max_age=50)
        assert (max_lag(made), play_lag(made), play_lag(Mixed(parts=(made,)))) == (50, base.max_lag, base.max_lag)
    assert max_lag(SuccessReplay(base=Slots(width=2))) > 10**9


async def test_a_lone_failure_is_left_alone(tmp_path: Path):
    trained, plays, *_ = await played(tmp_path, 3, SuccessReplay(base=Slots(width=2, size=1)))
    assert trained == plays


def test_where_nothing_succeeds_it_is_its_base(tmp_path: Path):
    """The law of sources that change groups: one that changes none is its base, bit for bit."""
    alone, wrapped = (
        train(tmp_path / name, groups, "env.turns=1", "rollout.limits.turns=1", recipe=RUN)
        for name, groups in (("alone", LIVE), ("wrapped", WRAPPED))
    )
    one, other = final_weights(alone), final_weights(wrapped)
    assert all(np.array_equal(one[name], other[name]) for name in one)
    with EpisodeStore(alone) as first, EpisodeStore(wrapped) as second:
        assert [row.id for row in first.query()] == [row.id for row in second.query()]


def test_a_run_that_replays_successes_resumes_with_the_same_ones(tmp_path: Path):
    options = (WRAPPED, "env={name='test_success_replay:Picky'}", "agent={name='plain'}", "stages.rl.steps=5")
    options += ("sampling.max_tokens=4", "record.sinks=[{name='test_replayed_groups:Stops'}]", "evaluation.tasks=1")
    whole = train(tmp_path / "whole", *options, recipe=RUN)
    with pytest.raises(RuntimeError, match="stopped"), stopping_at(3):
        train(tmp_path / "stopped", *options, recipe=RUN)
    sojourn.train(tmp_path / "stopped", resume=True, progress=False)
    ids = []
    for run in (whole, tmp_path / "stopped"):
        with EpisodeStore(run) as store:
            ids.append([row.id for row in store.query(stage="rl", step=range(3, 5)) if "#" in row.id])
    assert ids[0] == ids[1] != []


def test_a_loss_without_a_ratio_is_refused(tmp_path: Path):
    (tmp_path / "recipe.toml").write_text(RUN)
    with pytest.raises(ConfigError, match=r"Reinforce is valid only .* but SuccessReplay gives other ones"):
        resolve(toml.read(tmp_path / "recipe.toml", [WRAPPED, 'stages.rl.losses=[{name="reinforce"}]']))
    with pytest.raises(ValueError, match="base is mixed: name one source as the base"):
        SuccessReplay(base=Mixed(parts=(Slots(),)))
