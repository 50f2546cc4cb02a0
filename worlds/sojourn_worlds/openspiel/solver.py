"""Good moves: exact minimax where a game is small, Monte Carlo tree search where it is not, and hindsight.

`foresee` is for the expert alone: the world's random opponent and its chance follow from the seed, so whoever knows the
seed can look for a line of play that wins against exactly them.
"""

from __future__ import annotations

import copy
import hashlib
import threading
from functools import lru_cache
from typing import Any

from sojourn.envs.about import require_module
from sojourn_worlds.openspiel.position import Position, load

SMALL = 30_000  # positions of a game that is solved exactly
LINES = 1_500  # moves that are tried when looking ahead against a known opponent


class TooLargeError(Exception):
    """The game has more positions than are solved exactly."""


@lru_cache(64)
def _turn(name: str) -> threading.Lock:
    return threading.Lock()


def solved(name: str) -> dict[str, float] | None:
    """The value to the first player of every position, with both playing well; None for games of chance, of hidden
    things, or of too many positions. Costs a second once per game, and many where boards are large."""
    with _turn(name):  # several threads ask, one of them works
        return _solved(name)


@lru_cache(16)
def _solved(name: str) -> dict[str, float] | None:
    loaded = load(name)
    start = loaded.game.new_initial_state()
    if not (loaded.perfect and loaded.duel) or start.is_chance_node():
        return None
    values: dict[str, float] = {}
    try:
        _value(start, values)
    except (TooLargeError, RecursionError):
        return None
    return values


def _value(state: Any, values: dict[str, float]) -> float:
    if state.is_terminal():
        return state.returns()[0]
    if state.is_chance_node() or len(values) > SMALL:
        raise TooLargeError
    here = _name(state)
    if here not in values:
        found = [_value(state.child(action), values) for action in state.legal_actions()]
        values[here] = max(found) if state.current_player() == 0 else min(found)
    return values[here]


def _name(state: Any) -> str:
    return f"{state.current_player()} {state}"


def game_value(name: str) -> float | None:
    """What the first player wins when both play well; None where the game is not solved."""
    values = solved(name)
    return None if values is None else values[_name(load(name).game.new_initial_state())]


def optimal(name: str, state: Any) -> list[int]:
    """The moves that keep the value of the position; none where the game is not solved."""
    values = solved(name)
    if values is None:
        return []
    worth = values[_name(state)]

    def keeps(action: int) -> bool:
        then = state.child(action)
        return (then.returns()[0] if then.is_terminal() else values[_name(then)]) == worth

    return [action for action in state.legal_actions() if keeps(action)]


def good_move(position: Position) -> int:
    """A move that minimax, or a tree search, thinks best; the same in the same position of the same task."""
    state = position.state
    best = optimal(position.loaded.name, state)
    if best:
        return position.coins("good move").choice(best)
    pyspiel = require_module("pyspiel", "sojourn-worlds[openspiel]", "openspiel")
    seed = int(hashlib.sha256(position.key().encode()).hexdigest()[:7], 16)
    evaluator = pyspiel.RandomRolloutEvaluator(1, seed)
    bot = pyspiel.MCTSBot(position.loaded.game, evaluator, 1.4, position.simulations, 64, True, seed, False)
    return bot.step(state)


def expert(position: Position) -> int:
    """A winning line against the known opponent, through good moves where there is one; else a good move."""
    if position.opponent == "random":
        for careful in (True, False):
            found = foresee(position, careful)
            if found is not None:
                return found
    return good_move(position)


def foresee(position: Position, careful: bool) -> int | None:
    """The first move of the shortest line that earns the most there is, found by deepening; with `careful` through
    moves that keep the value of the position alone."""
    if careful and solved(position.loaded.name) is None:
        return None
    budget = [LINES]
    depth = 1
    while budget[0] > 0:
        found, deeper = _line(position, depth, careful, budget)
        if found is not None or not deeper:
            return found
        depth += 1
    return None


def _line(position: Position, depth: int, careful: bool, budget: list[int]) -> tuple[int | None, bool]:
    """The first move of a line of at most `depth` own moves that wins, and whether longer ones are worth a try."""
    deeper = False
    state = position.state
    for action in optimal(position.loaded.name, state) if careful else state.legal_actions():
        budget[0] -= 1
        if budget[0] < 0:
            return None, False
        then = copy.deepcopy(position)
        then.apply(action)
        reply(then)
        if then.mover is None:
            if then.success():
                return action, False
        elif depth == 1:
            deeper = True
        else:
            found, more = _line(then, depth - 1, careful, budget)
            if found is not None:
                return action, False
            deeper = deeper or more
    return None, deeper


def reply(position: Position) -> None:
    """The world's seats move until it is the lonely seat's turn."""
    while position.mover not in (None, position.alone):
        position.apply(scripted(position))


def scripted(position: Position) -> int:
    """The move of a seat that the world plays."""
    if position.opponent == "expert":
        return good_move(position)
    return position.coins("opponent").choice(position.state.legal_actions())


def over_at_once(position: Position) -> bool:
    """Whether the others end the game before the lonely seat can act."""
    then = copy.deepcopy(position)
    reply(then)
    return then.mover is None
