"""Places of a world, and which of the waiting plays gets one."""

import asyncio

import pytest

from sojourn.errors import ConfigError
from sojourn.places import PASSED_OVER, Places
from sojourn.types import Task


class World:
    """Has room for one play, and wants those of even seeds first."""

    capacity = 1

    def next_task(self, waiting):
        return next((n for n, task in enumerate(waiting) if task.seed % 2 == 0), 0)


def task(seed):
    return Task("world", {}, seed, "train")


async def play(places, seed, order, ends=None):
    async with places.taken(task(seed)):
        order.append(seed)
        if ends is not None:
            await ends.wait()


async def order_of(world, seeds):
    """Returns the order in which plays of these seeds start, that wait in the given order for one that goes on."""
    places, order, ends = Places.of(world, 1), [], asyncio.Event()
    first = asyncio.create_task(play(places, -1, [], ends))
    await asyncio.sleep(0)
    waiting = [asyncio.create_task(play(places, seed, order)) for seed in seeds]
    await asyncio.sleep(0)
    ends.set()
    await asyncio.gather(first, *waiting)
    assert places.free == 1
    return order


async def test_the_world_chooses_which_of_the_waiting_plays_starts_next():
    assert await order_of(World(), [1, 3, 4, 5, 2]) == [4, 2, 1, 3, 5]


async def test_without_a_choice_they_start_in_their_order():
    assert await order_of(object(), [1, 3, 4, 2]) == [1, 3, 4, 2]


async def test_a_play_is_not_passed_over_for_good():
    many = [2 * n for n in range(1, 2 * PASSED_OVER)]
    order = await order_of(World(), [1, *many])
    assert order.index(1) == PASSED_OVER


@pytest.mark.parametrize("late", [False, True])
async def test_a_cancelled_play_leaves_its_place_to_others(late):
    places, order, ends = Places(1), [], asyncio.Event()
    first = asyncio.create_task(play(places, 0, order, ends))
    await asyncio.sleep(0)
    given_up, other = (asyncio.create_task(play(places, seed, order)) for seed in (1, 2))
    await asyncio.sleep(0)
    if late:  # it is cancelled after it was given the place, before it could start
        ends.set()
        await asyncio.sleep(0)
        assert places._waiting[0].task.seed == 2
    given_up.cancel()
    ends.set()
    await asyncio.gather(first, given_up, other, return_exceptions=True)
    assert order == [0, 2]
    assert given_up.cancelled()
    assert places.free == 1


async def test_a_play_that_fails_gives_its_place_back():
    places = Places(1)
    with pytest.raises(ValueError, match="fails"):
        async with places.taken(task(1)):
            raise ValueError("it fails")
    assert places.free == 1


async def test_a_choice_outside_of_the_list_is_refused():
    places, ends = Places(1, lambda waiting: 3), asyncio.Event()
    first = asyncio.create_task(play(places, 0, [], ends))
    await asyncio.sleep(0)
    waiting = asyncio.create_task(play(places, 1, []))
    await asyncio.sleep(0)
    ends.set()
    with pytest.raises(ConfigError, match="next_task returned 3 for 1 waiting plays: expected a number of their list"):
        await first
    waiting.cancel()
