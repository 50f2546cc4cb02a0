"""What a curriculum observes: everything that was played, once, in the order of the slots."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest

from sojourn.config import toml
from sojourn.display import Display
from sojourn.record.episodes.store import EpisodeStore
from sojourn.record.run import RunFolder
from sojourn.rewards.native import Native
from sojourn.rewards.reward_cache import RewardCache
from sojourn.train.resolve import resolve
from sojourn.train.run import run_recipe
from sojourn.types import Episode, Group, Score, Task

RECIPE = """
name = "observed"
model = { name = "tiny:layers=1,hidden=64", dtype = "fp32" }
env.name = "made_world:Odd"
sampling = { max_tokens = 2 }
evaluation = { tasks = 1 }
curriculum = { name = "test_observed:Watches" }
[[stages]]
name = "rl"
steps = 2
losses = [{ name = "ppo" }]
"""


@dataclass(frozen=True, kw_only=True)
class Watches:
    """Slot k plays task k, and its redraw task 10 k + redraw; what it observes is kept, step by step."""

    split: str = "train"
    seen: ClassVar[list[list[tuple[Group, Sequence[Score]]]]] = []

    def bind(self, tasks: Sequence[Task], seed: int) -> Watching:
        self.seen.clear()
        return Watching(tasks, self.seen)


@dataclass(frozen=True)
class Watching:
    tasks: Sequence[Task]
    seen: list[list[tuple[Group, Sequence[Score]]]]

    def draw(self, slot: int, redraw: int = 0) -> Task:
        return self.tasks[(10 if redraw else 1) * slot + redraw]

    def observe(self, groups: Sequence[Group], scores: Sequence[Sequence[Score]]) -> None:
        self.seen.append(list(zip(groups, scores, strict=True)))


def run(folder: Path, *overrides: str) -> list[list[int]]:
    """The seeds of the tasks that were observed, step by step."""
    path = folder / "recipe.toml"
    path.write_text(RECIPE)
    resolved = resolve(toml.read(path, overrides))
    with RunFolder.create(folder / "run", toml.dump(resolved.table)) as made, Display(live=False) as display:
        asyncio.run(run_recipe(resolved.recipe, made, display))
    for step in Watches.seen:
        assert all(len(scores) == len(group.trajectories) for group, scores in step)
    return [[group.task.seed for group, _ in step] for step in Watches.seen]


LIVE = "stages.rl.groups={{ name = 'slots', width = 3, size = 2, {} }}"
CASES = {
    "kept": ("zero_signal = 'keep'", [[0, 1, 2], [3, 4, 5]]),
    "dropped": ("zero_signal = 'drop'", [[0, 1, 2], [3, 4, 5]]),
    "dropped, with lag": ("zero_signal = 'drop', max_lag = 1", [[0, 1, 2], [3, 4, 5]]),
    "redrawn": ("zero_signal = 'redraw', max_redraws = 1", [[0, 1, 1, 2, 21], [3, 4, 41, 5]]),
    "redrawn, with lag": ("zero_signal = 'redraw', max_redraws = 1, max_lag = 1", [[0, 1, 1, 2, 21], [3, 4, 41, 5]]),
}


@pytest.mark.parametrize("case", CASES)
def test_every_group_that_was_played_is_observed_once(case: str, tmp_path: Path):
    groups, expected = CASES[case]
    assert run(tmp_path, LIVE.format(groups)) == expected
    with EpisodeStore(tmp_path / "run") as store:
        recorded = sorted(episode.id for group in store.groups("rl") for episode in group.episodes)
    observed = [episode.id for step in Watches.seen for group, _ in step for episode in group.episodes]
    assert sorted(observed) == recorded


def test_episodes_that_a_filter_leaves_out_are_observed(tmp_path: Path):
    seeds = run(tmp_path, LIVE.format("zero_signal = 'keep'"), "stages.rl.filters=[{ name = 'roc' }]")
    assert seeds == [[0, 1, 2], [3, 4, 5]]
    assert all(len(group.episodes) == 2 for step in Watches.seen for group, _ in step)


def test_demonstrations_are_observed(tmp_path: Path):
    groups = "stages.rl.groups={ name = 'experts', width = 2 }"
    credit = ("stages.rl.estimator={ name = 'constant' }", "stages.rl.losses=[{ name = 'nll' }]")
    assert run(tmp_path, groups, *credit) == [[1], [3]]  # the experts fail on 0 and 2


async def test_the_order_is_of_the_slots_whichever_is_judged_first():
    class Late:
        """The later the slot, the sooner it is judged."""

        async def __call__(self, group: Group) -> Any:
            for _ in range(10 - 2 * group.slot):
                await asyncio.sleep(0)
            return await Native()(group)

    judge = RewardCache(Late())
    tasks = [Task("odd", {}, slot, "train") for slot in (2, 0, 1)]
    await judge([Group(task.seed, task, (Episode(f"of-{task.seed}", task, ()),)) for task in tasks])
    assert [judged.group.slot for judged in judge.pop_before(10)] == [0, 1, 2]
