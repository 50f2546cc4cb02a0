"""Plans from any state of a game: the gold path, or actions that lead back to it, tried out in another game.

An episode that left the gold path is led back to a room of it, and the rest of the path from there is tried, without
the actions that are not possible any more; what wins is the plan. One is found nearly always, except where things of
the twc game were put in wrong places: then in two cases of three.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sojourn_worlds.java import Machine
    from sojourn_worlds.textworld_express.game import Game

ROOM = re.compile(r"You are in the ([^.]*)\.")
TRIALS = 400  # games played, at most, to find one plan
WAYS = ("move ", "open door ")


def plan(game: Game, machine: Machine, actions_taken: Sequence[str]) -> list[str]:
    """Returns actions that win after those that were taken; empty where none are found."""
    with game.alone():
        return _plan(game, machine, actions_taken)


def _plan(game: Game, machine: Machine, actions_taken: Sequence[str]) -> list[str]:
    server = machine.new()
    game.begin(server, gold=True)
    gold = list(server.getGoldActionSequence())
    if (
        gold[: len(actions_taken)] == list(actions_taken)
        and (rest := _follow(game, server, actions_taken, gold[len(actions_taken) :])) is not None
    ):
        return rest
    along = _rooms(game, server, gold)
    kept = next((n for n, (one, other) in enumerate(zip(actions_taken, gold, strict=False)) if one != other), len(gold))
    trials = 0
    queue: deque[list[str]] = deque([[]])
    seen: set[tuple[str, ...]] = set()
    while queue:
        way = queue.popleft()
        state = game.replay(server, [*actions_taken, *way])
        place = _place(state)
        if place in seen:
            continue
        seen.add(place)
        nearest = [number for number, room in enumerate(along) if room == place[0]]
        for number in sorted(nearest, key=lambda number: (number > kept, abs(number - kept))):
            trials += 1
            if trials > TRIALS:
                return []
            if (rest := _follow(game, server, [*actions_taken, *way], gold[number:])) is not None:
                return [*way, *rest]
        queue += [[*way, action] for action in sorted(state["validActions"]) if action.startswith(WAYS)]
    return []


def _rooms(game: Game, server: Any, gold: Sequence[str]) -> list[str]:
    """Returns the room in which each action of the gold path is done."""
    state = game.begin(server)
    rooms = []
    for action in gold:
        rooms.append(_place(state)[0])
        state = json.loads(server.stepJSON(action))
    return rooms


def _place(state: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the room, and its exits."""
    match = ROOM.search(state["look"])
    return (match[1] if match else "", *sorted(action for action in state["validActions"] if action.startswith(WAYS)))


def _follow(game: Game, server: Any, before: Sequence[str], actions: Sequence[str]) -> list[str] | None:
    """Returns those of the actions that are possible, up to the one that wins; None where none does."""
    state = game.replay(server, before)
    done: list[str] = []
    for action in actions:
        if action in state["validActions"]:
            state = json.loads(server.stepJSON(action))
            done.append(action)
            if state["tasksuccess"]:
                return done
            if state["taskfailure"]:
                return None
    return None
