"""Plans from any state of a mission: the package's own bot, tried out on copies until one of its plays succeeds.

The bot is made for fresh missions. From other states it is given only the parts of the mission that are not done yet
and the cells that were seen so far; where that does not help, it puts down what it carries, forgets what is behind shut
doors (it trusts doors to stay open), or walks about at random first. About one task in a hundred of the mazes with
locked doors is still too hard for it.
"""

from __future__ import annotations

import copy
import random
from collections import Counter
from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np

from sojourn.envs.about import require_module
from sojourn_worlds.babyai.rules import refusal

LEFT, RIGHT, FORWARD, PICK_UP, DROP, TOGGLE, DONE = range(7)  # the package's numbers
ATTEMPTS = 6
STUCK = 12  # times in the same place with the same thing in hand and in front, after which a trial is given up


class _LostError(Exception):
    """The bot plans without end."""


class _Stack(list[Any]):
    """The bot's stack of subgoals; it may not push without end for one action."""

    added = 0

    def append(self, subgoal: Any) -> None:
        self.added += 1
        if self.added > 100:
            raise _LostError
        super().append(subgoal)


def plan(world: Any, seen: np.ndarray) -> list[int]:
    """Returns actions that accomplish the mission, else (where no trial succeeds) turns to the left to the end."""
    known = seen, seen & _room(world)
    for attempt, drops, mask in product(range(ATTEMPTS), (False, True), known):
        if not drops or world.carrying is not None:
            trial = copy.deepcopy(world)
            if (actions := _try(trial, mask.copy(), _opening(trial, attempt, drops))) is not None:
                return actions
    return [LEFT] * max(1, world.max_steps - world.step_count)


def _try(world: Any, seen: np.ndarray, opening: Iterator[int]) -> list[int] | None:
    """Returns the actions of the opening and the bot in this copy of the world up to its success; None where it
    fails."""
    done: list[int] = []
    for action in opening:
        done.append(action)
        if _act(world, action):
            return done
    bot = _bot(world, seen)
    last: int | None = None
    been: Counter[tuple[Any, ...]] = Counter()
    while world.step_count < world.max_steps and max(been.values(), default=0) < STUCK:
        been[(*world.agent_pos, world.agent_dir, id(world.carrying), id(world.grid.get(*world.front_pos)))] += 1
        try:
            bot.stack.added = 0
            action = int(bot.replan(last))
        except (_LostError, AssertionError, AttributeError, TypeError, ValueError, RecursionError):  # the bot is lost
            return None
        for one in (LEFT, RIGHT) if action == DONE else (action,):  # looking away and back again
            if refusal(world, one):
                return None
            done.append(one)
            if _act(world, one):
                return done
        if action == DONE:
            return None
        last = action
    return None


def _room(world: Any) -> np.ndarray:
    """Returns the cells that can be reached through open doors, and those beside them."""
    inside, queue = np.zeros((world.width, world.height), dtype=bool), [tuple(map(int, world.agent_pos))]
    while queue:
        x, y = queue.pop()
        if inside[x, y]:
            continue
        inside[x, y] = True
        thing = world.grid.get(x, y)
        if thing is None or thing.type not in ("wall", "door") or (thing.type == "door" and thing.is_open):
            around = [(x + right, y + down) for right in (-1, 0, 1) for down in (-1, 0, 1)]
            queue += [(a, b) for a, b in around if 0 <= a < world.width and 0 <= b < world.height]
    return inside


def _act(world: Any, action: int) -> bool:
    _, reward, ended, _, _ = world.step(action)
    return bool(ended and reward > 0)


def _opening(world: Any, attempt: int, drops: bool) -> Iterator[int]:
    """Puts down what is carried, where asked to; in later attempts, then walks about at random."""
    for _ in range(4 * drops):
        if not refusal(world, DROP):
            yield DROP
            break
        yield LEFT
    rng = random.Random(attempt)
    for _ in range(4 * attempt):
        if possible := [
            action for action in (LEFT, RIGHT, *[FORWARD] * 4, PICK_UP, DROP) if not refusal(world, action)
        ]:
            yield rng.choice(possible)


def _bot(world: Any, seen: np.ndarray) -> Any:
    bot = require_module("minigrid.utils.baby_ai_bot", "sojourn-worlds[babyai]", "babyai").BabyAIBot(world)
    bot.vis_mask = seen
    bot.stack = _Stack()
    for part in reversed(remaining(world.instrs)):
        bot._process_instr(part)
    return bot


def remaining(instruction: Any) -> list[Any]:
    """Returns the parts of an instruction that are still to be done, in a valid order."""
    parts = {"BeforeInstr": "ab", "AndInstr": "ab", "AfterInstr": "ba"}.get(type(instruction).__name__)
    if parts is None:
        return [instruction]
    left = [part for part in parts if getattr(instruction, f"{part}_done") != "success"]
    return [leaf for part in left for leaf in remaining(getattr(instruction, f"instr_{part}"))]
