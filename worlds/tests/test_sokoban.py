"""Sokoban: its rules on boards made by hand, its levels and solver, its pictures, and what it promises."""

from __future__ import annotations

import hashlib
import random
import struct
import zlib
from itertools import pairwise

import pytest

from sojourn.checks.env import check_env
from sojourn.errors import ActionError, ConfigError
from sojourn.types import Message, Role
from sojourn_worlds.sokoban import Board, Sokoban
from sojourn_worlds.sokoban.levels import MOVES, Level, moves, plan
from sojourn_worlds.turn_based import TurnBasedEnv

LANE = "######\n#@$_.#\n#____#\n#____#\n#____#\n######"


def say(text: str) -> Message:
    return Message(Role.ASSISTANT, text)


def board(text: str, **fields) -> Board:
    level = Level.parse(text)
    return Board(Sokoban(**fields), level, level.boxes, level.player)


async def play(env, policy) -> float:
    observation, total = await env.start(), 0.0
    while observation is not None:
        step = await env.step("agent", say(policy(env, observation)))
        observation, total = step.observation, total + step.rewards["agent"]
    assert step.success == (total == pytest.approx(1))
    return total


def shortest(level: Level) -> int | None:
    """Breadth-first over single steps, without any of the solver's cleverness."""
    seen, frontier, length = {(level.boxes, level.player)}, [(level.boxes, level.player)], 0
    while frontier:
        after = []
        for boxes, player in frontier:
            if boxes == level.goals:
                return length
            for step in level.steps.values():
                then, moved = player + step, boxes
                if then in level.walls:
                    continue
                if then in boxes:
                    if then + step in level.walls or then + step in boxes:
                        continue
                    moved = boxes - {then} | {then + step}
                if (moved, then) not in seen:
                    seen.add((moved, then))
                    after.append((moved, then))
        frontier, length = after, length + 1
    return None


@pytest.mark.parametrize(
    "fields",
    [
        {"choices": True},
        {"boxes": 2, "size": 7, "turns": 60, "shaped": True, "deadlock": "play", "choices": True},
        {"observation": "image", "choices": True},
        {},
    ],
)
async def test_it_keeps_its_promises(fields) -> None:
    report = await check_env(Sokoban(**fields))
    assert report.passed, report.failed


@pytest.mark.parametrize("fields", [{}, {"boxes": 3, "size": 8, "turns": 120, "pulls": 40, "shaped": True}])
async def test_the_expert_earns_everything_and_chance_little(fields) -> None:
    family, rng = Sokoban(choices=True, **fields), random.Random(0)
    for split in ("train", "test"):
        for index in range(25):
            task = family.tasks(split)[index]
            assert await play(family.make(task), lambda env, _: env.expert()) == pytest.approx(1)
    by_chance = [
        await play(family.make(family.tasks("train")[index]), lambda _, seen: rng.choice(seen.choices))
        for index in range(60)
    ]
    assert sum(by_chance) / 60 < 0.5


def test_a_box_is_pushed_and_never_pulled() -> None:
    game = board(LANE)
    assert game.act("right") == {"agent": 0.0}
    assert game.observe("agent").splitlines()[1] == "#_@$.#"
    with pytest.raises(ActionError, match="a wall above you"):
        game.act("up")
    assert game.act(" LEFT ") == {"agent": 0.0}
    assert game.observe("agent").splitlines()[1] == "#@_$.#"
    game.act("right")
    assert game.act("right") == {"agent": 1.0}
    assert game.current_seat is None
    assert game.success()
    assert game.observe("agent").splitlines()[1] == "#__@*#"


def test_two_boxes_in_a_row_do_not_move() -> None:
    game = board("######\n#@$$_#\n#____#\n#_..##\n#____#\n######", deadlock="play")
    with pytest.raises(ActionError, match="The box to the right of you cannot be pushed"):
        game.act("right")
    assert game.choices() == ["down"]


@pytest.mark.parametrize(("deadlock", "over"), [("end", True), ("play", False)])
def test_a_box_in_a_corner_is_lost(deadlock, over) -> None:
    game = board("######\n#____#\n#__$_#\n#__@.#\n#____#\n######", deadlock=deadlock)
    assert game.act("up") == {"agent": 0.0}  # against the upper wall, along which there is no goal
    assert game.info()["deadlock"] == 1.0
    assert (game.current_seat is None) == over
    assert not game.success()
    assert plan(game.level, game.boxes, game.player) is None
    if not over:
        assert game.expert() in game.choices()


def test_four_boxes_in_a_square_are_lost_unless_all_are_on_goals() -> None:
    level = Level.parse("#######\n#_____#\n#_$$__#\n#_$___#\n#.@$.##\n#.___.#\n#######")
    square = frozenset({16, 17, 23, 24})
    assert level.frozen(square, 24)
    stuck = Level(7, level.walls, square, square, 8)
    assert not stuck.frozen(square, 24)
    assert not level.frozen(frozenset({16, 17, 23}), 17)


def test_the_solver_agrees_with_a_search_of_every_step() -> None:
    solved = 0
    for seed in range(250):
        rng = random.Random(seed)
        cells = ["#" if r in (0, 5) or c in (0, 5) or rng.random() < 0.1 else "_" for r in range(6) for c in range(6)]
        free = rng.sample([cell for cell, sign in enumerate(cells) if sign == "_"], 5)
        for cell, sign in zip(free, "@$$..", strict=True):
            cells[cell] = sign
        level = Level.parse("\n".join("".join(cells[row : row + 6]) for row in range(0, 36, 6)))
        length, pushes = shortest(level), plan(level, level.boxes, level.player)
        assert (length is None) == (pushes is None)
        if pushes is not None:
            solved += 1
            assert len(pushes) <= length <= (moves(level) or 0)
    assert 20 < solved < 100


async def test_the_expert_finishes_from_wherever_it_is_still_possible() -> None:
    family, rng, finished = Sokoban(boxes=2, size=7, turns=200, choices=True), random.Random(3), 0
    for index in range(20):
        env = family.make(family.tasks("train")[index])
        observation = await env.start()
        for _ in range(12):
            step = await env.step("agent", say(rng.choice(observation.choices)))
            observation = step.observation
            if observation is None:
                break
        possible = shortest(Level(7, env.game.level.walls, env.game.level.goals, env.game.boxes, env.game.player))
        if observation is None or possible is None:
            continue
        while not step.done:
            step = await env.step("agent", say(env.expert()))
        assert step.success
        finished += 1
    assert finished > 5


def test_no_level_is_in_both_splits_and_half_the_turns_suffice() -> None:
    family = Sokoban(size=5, pulls=4, turns=20)
    boards = {
        split: [family.make(family.tasks(split)[index]).game.level for index in range(150)]
        for split in ("train", "test")
    }
    digests = {split: {level.digest for level in found} for split, found in boards.items()}
    assert len(digests["train"]) > 100
    assert not digests["train"] & digests["test"]
    assert all(1 <= moves(level) <= 10 for level in boards["train"])


async def test_the_shares_of_boxes_add_up_to_one() -> None:
    family = Sokoban(boxes=2, size=7, turns=60, shaped=True)
    env = family.make(family.tasks("train")[0])
    await env.start()
    paid: list[float] = []
    while sum(paid) < 1 and len(paid) < 60:
        step = await env.step("agent", say(env.expert()))
        paid.append(step.rewards["agent"])
    assert set(paid) <= {0.0, 0.5, -0.5}
    assert sum(paid) == 1.0


async def test_it_ends_without_reward_when_the_turns_are_over() -> None:
    env = TurnBasedEnv(board(LANE, turns=20), policy_seat="agent")
    await env.start()
    for turn in range(20):
        step = await env.step("agent", say(("down", "up")[turn % 2]))
        assert step.done == (turn == 19)
    assert step.success is False
    assert step.rewards == {"agent": 0.0}


async def test_a_picture_shows_every_cell_in_its_colours() -> None:
    family = Sokoban(observation="image", scale=8)
    env = family.make(family.tasks("train")[0])
    message = (await env.start()).messages[0]
    (digest,) = message.images
    data = env.blobs[digest]
    assert hashlib.sha256(data).hexdigest() == digest
    assert data.startswith(b"\x89PNG")
    assert struct.unpack(">II", data[16:24]) == (48, 48)
    length = struct.unpack(">I", data[33:37])[0]
    lines = zlib.decompress(data[41 : 41 + length])
    signs = env.game.level.text(env.game.boxes, env.game.player).split("\n")
    colours = {}
    for row in range(6):
        for column in range(6):
            middle = (8 * row + 4) * (1 + 48 * 3) + 1 + (8 * column + 4) * 3
            colours.setdefault(signs[row][column], set()).add(lines[middle : middle + 3])
    assert all(len(found) == 1 for found in colours.values())
    assert all(not one & other for one, other in pairwise(colours.values()))
    twin = await env.fork()
    await twin.step("agent", say(twin.expert()))
    assert len(twin.blobs) == 2
    assert len(env.blobs) == 1


@pytest.mark.parametrize("said", ["", "jump", "up up", "up" * 200, "\u202eup", "0", "right\x00"])
async def test_what_is_no_step_is_refused(said) -> None:
    env = TurnBasedEnv(board(LANE), policy_seat="agent")
    await env.start()
    before = env.state_key()
    with pytest.raises(ActionError):
        await env.step("agent", say(said))
    assert env.state_key() == before


@pytest.mark.parametrize(
    "wrong", [{"size": 4}, {"boxes": 3}, {"walls": 0.9}, {"turns": 3}, {"pulls": 0}, {"scale": 1}, {"train": 0}]
)
def test_impossible_fields_are_refused(wrong) -> None:
    with pytest.raises(ConfigError, match=f"sokoban: {next(iter(wrong))} = .* must be from"):
        Sokoban(**wrong)


def test_unknown_words_are_refused() -> None:
    with pytest.raises(ConfigError, match="one of text, image"):
        Sokoban(observation="smell")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match='unknown split "valid"'):
        Sokoban().tasks("valid")
    assert set(MOVES) == {"up", "down", "left", "right"}
