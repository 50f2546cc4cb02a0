"""Maps of frozen lakes that are proposed as text."""

from __future__ import annotations

import asyncio

import pytest

from sojourn.errors import ActionError
from sojourn.types import Message, Role
from sojourn_worlds.frozenlake import FrozenLake, map_of

OPEN = "@ . .\n. O .\n. . G"


def test_the_text_of_a_task_is_read_as_its_map():
    for world in (FrozenLake(), FrozenLake(size=5, frozen=0.7, slippery=True, turns=60)):
        for like in world.tasks("train")[:10]:
            text = world.write_task(like)
            made = world.read_task(like, text, like.seed)
            assert made is not None
            assert map_of(made) == map_of(like)
            assert world.write_task(made) == text
            assert made.split == "train"


def test_a_proposed_map_is_the_one_that_is_played():
    world = FrozenLake(size=3)
    made = world.read_task(world.tasks("train")[0], OPEN, 3)
    assert made is not None
    env = world.make(made)
    shown = asyncio.run(env.start())
    assert OPEN in shown.messages[0].text
    step = None
    while step is None or not step.done:
        step = asyncio.run(env.step("agent", Message(Role.ASSISTANT, env.expert())))
    assert step.success


def test_a_map_that_cannot_be_crossed_in_time_is_none():
    like = FrozenLake(size=3).tasks("train")[0]
    closed = "@ O .\nO . .\n. . G"
    assert FrozenLake(size=3).read_task(like, closed, 1) is None
    winding = "@ O . . .\n. O . O .\n. O . O .\n. O . O .\n. . . O G"  # 16 moves
    for turns in (15, 16):
        lake = FrozenLake(size=5, turns=turns)
        assert (lake.read_task(lake.tasks("train")[0], winding, 1) is None) == (turns < 16)


def test_no_map_of_the_test_split_can_be_proposed():
    world = FrozenLake(size=4)
    like = world.tasks("train")[0]
    assert {world.read_task(like, world.write_task(test), 1) for test in world.tasks("test")[:20]} == {None}


@pytest.mark.parametrize(
    "text",
    ["", "@ . .\n. . G", "@ . .\n. X .\n. . G", ". . .\n. @ .\n. . G", "@ . G\n. . .\n. . G", "@..\n...\n..G\n..."],
)
def test_what_is_no_map_is_malformed(text):
    world = FrozenLake(size=3)
    with pytest.raises(ActionError, match="map"):
        world.read_task(world.tasks("train")[0], text, 1)
