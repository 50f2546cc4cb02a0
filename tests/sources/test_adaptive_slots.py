"""Live groups whose size follows from the success of their task."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest
from made_world import Odd, PlayWithExpert, components, seeds

from sojourn.checks.played import saved
from sojourn.sources.adaptive_slots import AdaptiveSlots, LiveAdaptiveSlots
from sojourn.sources.slot_record import SlotRecord
from sojourn.sources.slots import Slots
from sojourn.train.assemble import Components
from sojourn.types import Task


@dataclass(frozen=True, kw_only=True)
class Thirds(Odd):
    """Four tasks in turn: of the plays of the task n, n of every three win."""

    count: int = 4

    def make(self, task: Task) -> PlayWithExpert:
        before = self.plays[task.seed]
        self.plays[task.seed] += 1
        return PlayWithExpert(self, float(before % 3 < task.seed))


def bound(config: AdaptiveSlots, steps: int = 9) -> tuple[LiveAdaptiveSlots, Components]:
    made = components(Thirds())
    return config.bind(made, "rl", steps), made


async def play(source: LiveAdaptiveSlots, made: Components, steps: range) -> list[dict[int, int]]:
    """The number of episodes of each task in each step."""
    sizes = []
    for step in steps:
        groups = await source.take(step)
        popped = made.rewards.pop(groups, below=source.config.width * (step + 1))
        source.observe([one.group for one in popped], [one.scores for one in popped])
        sizes.append(dict(zip(seeds(groups), (len(group.episodes) for group in groups), strict=True)))
    return sizes


@pytest.mark.parametrize(
    ("rate", "size"),
    [(0.0, 8), (0.6, 8), (0.7, 7), (0.8, 5), (0.9, 4), (1.0, 2)],  # 8 less 6 (rate - 0.6) / 0.4
)
def test_the_size_falls_from_the_threshold_on(rate: float, size: int):
    assert AdaptiveSlots().size_at(rate) == size


async def test_what_is_often_solved_is_played_less():
    """Of 6 plays, the tasks win 0, 2, 4 and 6: with a threshold of 0.5, 4 of 6 leave 6 - 4 / 3 plays, and 6 leave 2."""
    source, made = bound(AdaptiveSlots(width=4, size=6, threshold=0.5))
    first, second, third = await play(source, made, range(3))
    await source.close()
    assert first == {0: 6, 1: 6, 2: 6, 3: 6}
    assert second == {0: 6, 1: 6, 2: 5, 3: 2}
    assert third[3] == 2


async def test_older_groups_count_less():
    source, _ = bound(AdaptiveSlots(decay=0.5))
    task = Thirds().tasks("train")[0]
    source.rates = {task.id: (1.0, 1.0)}
    made = components(Odd(paying=False))
    lost = await Slots(width=1, size=2).bind(made, "rl", 1).take(0)
    assert lost[0].task.id == task.id
    source.observe(lost, [[]])
    assert source.rates == {task.id: (0.5, 1.5)}


async def test_a_resumed_stage_has_the_same_sizes():
    """Two slots run ahead: those that began keep their size, later ones follow from what was observed."""
    config = AdaptiveSlots(width=4, size=6, max_lag=1, threshold=0.5)
    whole, made = bound(config)
    expected = await play(whole, made, range(5))
    await whole.close()
    first, before = bound(config)
    await play(first, before, range(2))
    for _ in range(200):
        await asyncio.sleep(0)
    state = saved(first.state())
    await first.close()
    resumed, after = bound(config)
    after.recipe.env.plays.update(before.recipe.env.plays)  # type: ignore[attr-defined]
    resumed.restore(state)
    assert resumed.rates == first.rates
    assert {slot: record.sizes for slot, record in resumed._records.items()} == {8: [6], 9: [6], 10: [5], 11: [2]}
    sizes = await play(resumed, after, range(2, 5))
    await resumed.close()
    assert sizes[0] == expected[2]


def test_a_record_without_sizes_is_read():
    assert SlotRecord.of({"tasks": [], "episodes": {}}).sizes == []


def test_a_smallest_group_that_is_larger_is_refused():
    with pytest.raises(ValueError, match="min_size = 9 with size = 8: expected min_size <= size"):
        AdaptiveSlots(min_size=9)
