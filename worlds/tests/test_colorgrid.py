"""ColorGrid: who is paid for what, what each seat is told, the leader's ways, and what the world promises."""

from __future__ import annotations

import random

import pytest

from sojourn.checks.env import check_env
from sojourn.errors import ActionError, ConfigError
from sojourn.types import Message, Role
from sojourn_worlds.colorgrid import ColorGrid, Grid
from sojourn_worlds.turn_based import TurnBasedEnv


def say(text: str) -> Message:
    return Message(Role.ASSISTANT, text)


def grid(text: str, pays=("red",), **fields) -> Grid:
    """A grid from its picture."""
    rows = text.split()
    cells = "".join(rows)
    names = {"r": "red", "g": "green", "b": "blue"}
    blocks = {cell: names[sign] for cell, sign in enumerate(cells) if sign in names}
    at = {"leader": cells.index("L"), "follower": cells.index("F")}
    return Grid(ColorGrid(size=len(rows), **fields), pays, blocks, at)


SMALL = {"colours": 2, "blocks": 2, "target": 1, "turns": 20}


async def play(env, policy) -> dict:
    observation, total = await env.start(), {}
    while observation is not None:
        step = await env.step(observation.agent, say(policy(env, observation)))
        for seat, reward in step.rewards.items():
            total[seat] = total.get(seat, 0.0) + reward
        observation = step.observation
    return total | {"success": step.success}


@pytest.mark.parametrize(
    "fields",
    [
        {"choices": True},
        {},
        {"switch": 6},
        {"opponent": "self", "choices": True},
        {"size": 4, **SMALL, "choices": True},
    ],
)
async def test_it_keeps_its_promises(fields) -> None:
    report = await check_env(ColorGrid(**fields))
    assert report.passed, report.failed


@pytest.mark.parametrize("fields", [{}, {"switch": 6}, {"opponent": "self"}, {"size": 8, "target": 3, "turns": 60}])
async def test_the_expert_earns_everything_and_chance_nothing(fields) -> None:
    family, rng, chance = ColorGrid(choices=True, **fields), random.Random(0), []
    paid = family.seats
    for split in ("train", "test"):
        for task in family.tasks(split)[:25]:
            earned = await play(family.make(task), lambda env, seen: env.expert())
            assert all(earned[seat] == pytest.approx(1) for seat in paid)
            assert earned["success"] is (None if len(paid) > 1 else True)
            chance.append(await play(family.make(task), lambda env, seen: rng.choice(seen.choices)))
    assert all(-1 - 1e-9 <= found.get(seat, 0) <= 1 + 1e-9 for found in chance for seat in paid)
    assert sum(found.get(paid[0], 0) for found in chance) / 50 < 0.2


async def test_whoever_follows_the_leader_s_choice_does_well() -> None:
    """One who knows no more than the text tells: waits until the leader takes a block, then takes that colour."""
    family, earned = ColorGrid(size=6, colours=2, blocks=4, target=2, turns=40), []
    for task in family.tasks("test")[:30]:
        seen: dict[str, str] = {}

        def policy(env, observation, seen=seen):
            text = observation.messages[0].text
            for colour in ("red", "green"):
                if f"took a {colour} block" in text:
                    seen["goal"] = colour
            if "goal" not in seen:
                return "stay"
            twin = Grid(env.game.config, (seen["goal"],), env.game.blocks, env.game.positions)
            return twin._towards(env.game.positions["follower"])

        earned.append((await play(family.make(task), policy))["agent"])
    assert sum(earned) / 30 > 0.9


def test_the_follower_is_paid_for_the_right_colour_and_charged_for_others() -> None:
    game = grid("Fgr. r..L .... ..g.", **SMALL | {"target": 1})
    game.act("left")
    assert game.act("down") == {"leader": 1.0, "follower": 1.0}
    assert game.current_seat is None
    assert game.success()
    game = grid("Fgr. r..L .... ..g.", **SMALL)
    game.act("stay")
    assert game.act("right") == {"leader": -1.0, "follower": -1.0}
    assert game.current_seat is None
    assert not game.success()


def test_what_the_leader_takes_is_gone_and_not_paid() -> None:
    game = grid("F.r. r..L .... ..g.", **SMALL)
    game.act("left")
    assert game.act("stay") == {"leader": 0.0, "follower": 0.0}
    assert game.act("up") == {}
    assert game.observe("follower") == "F.L.\nr...\n....\n..g.\nThe leader went up and took a red block."
    assert game.right == 0


def test_the_leader_goes_round_wrong_blocks_and_leaves_what_the_follower_needs() -> None:
    game = grid("Lgr. ..g. .... r..F", **SMALL)
    walked = []
    for _ in range(4):
        walked.append(game.expert())
        game.act(walked[-1])
        game.act("stay")
    assert walked == ["down", "down", "down", "stay"]  # one is left, which the follower needs


def test_only_the_leader_is_told_what_pays() -> None:
    game = grid("F.r. r..L .... ..g.", pays=("red", "green"), switch=2, **SMALL)
    assert game.observe("leader").endswith("Now red pays.")
    assert "pays" not in game.observe("follower")
    assert "Only the leader knows which" in game.system_prompt("follower")
    assert "You alone know which, and it may change." in game.system_prompt("leader")
    for _ in range(4):
        game.act("stay")
    assert game.observe("leader").endswith("The follower stayed. Now green pays.")


def test_two_in_one_cell_are_an_x() -> None:
    game = grid("FL.. r... .... g..g", **SMALL)
    game.act("left")
    assert game.observe("follower").startswith("X...\n")


async def test_the_follower_s_view_does_not_depend_on_the_colour_before_the_leader_shows_it() -> None:
    shown = []
    for pays in ("red", "green"):
        game = grid("F... r..g .... .L..", pays=(pays,), **SMALL)
        env = TurnBasedEnv(game, {"leader": lambda game: "stay"}, policy_seat="follower")
        seen = await env.start()
        shown.append((seen.system, seen.messages))
    assert shown[0] == shown[1]


async def test_it_ends_when_the_turns_are_over() -> None:
    family = ColorGrid(turns=24)
    env = family.make(family.tasks("train")[0])
    observation, moves = await env.start(), 0
    while observation is not None:
        step = await env.step("agent", say("stay"))
        observation, moves = step.observation, moves + 1
    assert moves == 24
    assert step.success is False
    assert step.rewards["agent"] == 0


def test_layouts_leave_a_way_to_every_block() -> None:
    assert not grid("Fr.. g..L .... ..g.", **SMALL).is_connected()  # the follower is shut in by blocks
    assert grid("F.r. r..L .... ..g.", **SMALL).is_connected()
    family = ColorGrid()
    assert all(family.make(task).game.is_connected() for task in family.tasks("train")[:30])


@pytest.mark.parametrize("said", ["", "north", "up up", "jump", "\u2191"])
async def test_what_is_no_move_is_refused(said) -> None:
    env = ColorGrid().make(ColorGrid().tasks("train")[0])
    await env.start()
    before = env.state_key()
    with pytest.raises(ActionError, match="say one of: up, down, left, right, stay"):
        await env.step("agent", say(said))
    assert env.state_key() == before


def test_the_edge_refuses() -> None:
    game = grid("F.r. r..L .... ..g.", **SMALL)
    with pytest.raises(ActionError, match="You cannot go right: the grid ends there"):
        game.act("right")
    assert game.choices() == ["up", "down", "left", "stay"]


@pytest.mark.parametrize(
    "wrong", [{"size": 2}, {"colours": 5}, {"blocks": 20}, {"target": 4}, {"turns": 5}, {"opponent": "me"}]
)
def test_impossible_fields_are_refused(wrong) -> None:
    with pytest.raises(ConfigError, match=f"colorgrid: {next(iter(wrong))} = "):
        ColorGrid(**wrong)
