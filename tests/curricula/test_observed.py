"""What a curriculum observes: everything that was played, once, in the order of the slots."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
from made_world import Odd

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


def run(folder: Path, *overrides: str, recipe: str = RECIPE) -> list[list[int]]:
    """The seeds of the tasks that were observed, step by step."""
    path = folder / "recipe.toml"
    path.write_text(recipe)
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


STOPPED = """
[[stages]]
name = "next"
steps = 2
groups = { name = "experts", width = 2 }
estimator = { name = "constant" }
losses = [{ name = "nll" }]
"""


@dataclass(frozen=True, kw_only=True)
class Breaks(Odd):
    """Its task 2 cannot be entered."""

    def make(self, task: Task) -> Any:
        if task.seed == 2:
            raise OSError("the door is locked")
        return super().make(task)


def test_what_a_stage_played_ahead_of_its_early_stop_is_in_no_other_stage(tmp_path: Path):
    groups = "zero_signal = 'redraw', max_redraws = 0, max_lag = 2, exhausted = 'keep'"
    seeds = run(
        tmp_path,
        LIVE.format(groups).replace("width = 3", "width = 2"),
        "stages.rl.steps=3",
        "stages.rl.early_stop.patience=0",
        "stages.rl.early_stop.success=0.1",
        "evaluation={ tasks = 2, samples = 2, every = 1 }",
        "rollout.retries=0",
        "env.name='test_observed:Breaks'",
        recipe=RECIPE + STOPPED,
    )
    assert seeds == [[0, 1], [7], [9]]  # of tasks 2 to 5, played ahead, none is observed
    with EpisodeStore(tmp_path / "run") as store:
        assert {row.seed for row in store.query(stage="next")} == {7, 9}


async def test_the_order_is_of_the_slots_whichever_is_judged_first():
    class Late:
        """The later the slot, the sooner it is judged."""

        async def __call__(self, group: Group) -> Any:
            for _ in range(10 - 2 * group.slot):
                await asyncio.sleep(0)
            return await Native()(group)

    cache = RewardCache(Late())
    tasks = [Task("odd", {}, slot, "train") for slot in (2, 0, 1)]
    await cache([Group(task.seed, task, (Episode(f"of-{task.seed}", task, ()),)) for task in tasks])
    assert [judged.group.slot for judged in cache.pop((), below=10)] == [0, 1, 2]
