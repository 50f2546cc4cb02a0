"""Slots: which tasks they play, and what becomes of groups whose episodes all scored alike."""

import asyncio

import pytest
from made_world import Odd, Says, rig, seeds, stage_of

from sojourn.errors import ConfigError
from sojourn.sources.slots import Slots


async def steps(slots: Slots, world: Odd, count: int, first: int = 0, **options):
    """The groups of each step, and every group that was judged for them, in the order of recording."""
    made = rig(world, **options)
    source = slots.bind(made, "rl", count, first)
    taken = []
    for step in range(count):
        groups = await source.take(step)
        taken.append(groups)
        await made.rewards(groups)
    await source.close()
    return taken, made.rewards.forget(10**9)


async def test_keep_gives_every_slot_its_task_in_order():
    taken, judged = await steps(Slots(width=3, size=2), Odd(), 2)
    assert [seeds(groups) for groups in taken] == [[0, 1, 2], [3, 4, 5]]
    assert [[g.slot for g in groups] for groups in taken] == [[0, 1, 2], [3, 4, 5]]
    assert all(len(g.episodes) == 2 for groups in taken for g in groups)
    assert len(judged) == 6


async def test_drop_leaves_out_groups_without_signal_and_they_stay_judged():
    taken, judged = await steps(Slots(width=3, size=2, zero_signal="drop"), Odd(), 2)
    assert [seeds(groups) for groups in taken] == [[1], [3, 5]]
    assert sorted(seeds(j.group for j in judged)) == [0, 1, 2, 3, 4, 5]


async def test_redraw_plays_another_task_in_the_same_slot():
    world = Odd(count=100)  # slot k is redrawn as task k + 51: odd where k is even
    taken, judged = await steps(Slots(width=3, size=2, zero_signal="redraw"), world, 2)
    assert [seeds(groups) for groups in taken] == [[51, 1, 53], [3, 55, 5]]
    assert [[g.slot for g in groups] for groups in taken] == [[0, 1, 2], [3, 4, 5]]
    assert sorted(seeds(j.group for j in judged)) == [0, 1, 2, 3, 4, 5, 51, 53, 55]
    assert {slot: [j.group.task.seed for j in judged if j.group.slot == slot] for slot in (0, 1)} == {
        0: [0, 51],
        1: [1],
    }
    assert set(world.plays.values()) == {2}


@pytest.mark.parametrize("redraws", [0, 1, 3])
async def test_redraws_are_limited_and_the_last_is_trained(redraws: int):
    world = Odd(paying=False)
    slots = Slots(width=1, size=2, zero_signal="redraw", redraws=redraws)
    taken, judged = await steps(slots, world, 1)
    drawn = [redraw * 51 % 100 for redraw in range(redraws + 1)]
    assert seeds(taken[0]) == [drawn[-1]]
    assert seeds(j.group for j in judged) == drawn
    assert world.plays == dict.fromkeys(drawn, 2)


async def test_every_play_of_every_redraw_has_a_seed_of_its_own_which_a_second_run_repeats():
    first, second = Says(), Says()
    for sampler in (first, second):
        await steps(Slots(width=2, size=3, zero_signal="redraw", redraws=1), Odd(paying=False), 2, sampler=sampler)
    asked = [params.seed for params in first.asked]
    assert len(set(asked)) == len(asked) == 2 * 2 * 3 * 2
    assert set(asked) == {params.seed for params in second.asked}


async def test_a_stage_goes_on_where_the_tasks_of_earlier_ones_end():
    slots = Slots(width=3, size=1)
    assert slots.tasks(4) == 12
    taken, _ = await steps(slots, Odd(), 2, first=12)
    assert [seeds(groups) for groups in taken] == [[12, 13, 14], [15, 16, 17]]
    assert [g.slot for groups in taken for g in groups] == list(range(6))  # slots count within the stage


async def test_lag_starts_slots_ahead_but_none_beyond_the_stage():
    world = Odd()
    made = rig(world)
    source = Slots(width=2, size=1, max_lag=2).bind(made, "rl", 4)
    started = []
    for step in range(4):
        assert seeds(await source.take(step)) == [2 * step, 2 * step + 1]
        for _ in range(100):  # whatever may start, does
            await asyncio.sleep(0)
        started.append(sorted(world.plays))
    await source.close()
    assert started == [list(range(6)), *[list(range(8))] * 3]


async def test_a_truncated_distribution_is_refused():
    made = rig(Odd())
    object.__setattr__(made.recipe.sampling, "top_p", 0.9)
    with pytest.raises(ConfigError, match="top_p = 1"):
        await Slots().check(stage_of(made, "rl"))


@pytest.mark.parametrize("zero_signal", ["drop", "redraw"])
def test_a_filter_of_groups_of_one_is_refused(zero_signal):
    with pytest.raises(ValueError, match="a lone episode"):
        Slots(size=1, zero_signal=zero_signal)
