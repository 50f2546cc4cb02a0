"""Finds good moves: by exact minimax where a game is small, by Monte Carlo tree search where it is not, and by
hindsight.

`foresee` serves the expert alone: the world's random opponent and its chance follow from the seed, so a player who
knows the seed can look for a line of play that wins against exactly them.
"""

from __future__ import annotations

import copy
import hashlib
import threading
from functools import lru_cache
from typing import Any

from sojourn.envs.about import require_module
from sojourn_worlds.openspiel.position import Position, load

MAX_POSITIONS = 30_000  # of a game that is solved exactly
MAX_TRIED_MOVES = 1_500  # when looking ahead against a known opponent


class TooLargeError(Exception):
    """The game has more positions than are solved exactly."""


@lru_cache(64)
def _turn(name: str) -> threading.Lock:
    return threading.Lock()


def solved(name: str) -> dict[str, float] | None:
    """Returns the minimax value of every position to the first player.

    Returns None for games with chance, with hidden information, or with too many positions. The first call for a game
    costs a second, and many seconds where boards are large.
    """
    with _turn(name):  # where several threads ask, one of them computes
        return _solved(name)


@lru_cache(16)
def _solved(name: str) -> dict[str, float] | None:
    loaded = load(name)
    start = loaded.game.new_initial_state()
    if not (loaded.perfect_information and loaded.two_player_zero_sum) or start.is_chance_node():
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
    if state.is_chance_node() or len(values) > MAX_POSITIONS:
        raise TooLargeError
    here = _name(state)
    if here not in values:
        child_values = [_value(state.child(action), values) for action in state.legal_actions()]
        values[here] = max(child_values) if state.current_player() == 0 else min(child_values)
    return values[here]


def _name(state: Any) -> str:
    return f"{state.current_player()} {state}"


def game_value(name: str) -> float | None:
    """Returns what the first player wins when both play well, None where the game is not solved."""
    values = solved(name)
    return None if values is None else values[_name(load(name).game.new_initial_state())]


def optimal(name: str, state: Any) -> list[int]:
    """Returns the moves that keep the minimax value of the position; an empty list where the game is not solved."""
    values = solved(name)
    if values is None:
        return []
    value = values[_name(state)]

    def keeps(action: int) -> bool:
        successor = state.child(action)
        return (successor.returns()[0] if successor.is_terminal() else values[_name(successor)]) == value

    return [action for action in state.legal_actions() if keeps(action)]


def good_move(position: Position) -> int:
    """Returns a move that minimax or a tree search prefers; it is the same in the same position of the same task."""
    state = position.state
    best = optimal(position.loaded.name, state)
    if best:
        return position.random_for("good move").choice(best)
    pyspiel = require_module("pyspiel", "sojourn-worlds[openspiel]", "openspiel")
    seed = int(hashlib.sha256(position.state_key().encode()).hexdigest()[:7], 16)
    evaluator = pyspiel.RandomRolloutEvaluator(1, seed)
    bot = pyspiel.MCTSBot(position.loaded.game, evaluator, 1.4, position.simulations, 64, True, seed, False)
    return bot.step(state)


def expert(position: Position) -> int:
    """Returns the first move of a line that wins against the known opponent, through good moves if possible; else a
    good move.
    """
    if position.opponent == "random":
        for careful in (True, False):
            move = foresee(position, careful)
            if move is not None:
                return move
    return good_move(position)


def foresee(position: Position, careful: bool) -> int | None:
    """Returns the first move of the shortest winning line, found by iterative deepening, None where none is found.

    With `careful` the line consists of moves that keep the value of the position.
    """
    if careful and solved(position.loaded.name) is None:
        return None
    budget = [MAX_TRIED_MOVES]
    depth = 1
    while budget[0] > 0:
        move, deeper = _line(position, depth, careful, budget)
        if move is not None or not deeper:
            return move
        depth += 1
    return None


def _line(position: Position, depth: int, careful: bool, budget: list[int]) -> tuple[int | None, bool]:
    """Returns the first move of a winning line of at most `depth` own moves, and whether a longer one is worth a
    try."""
    deeper = False
    state = position.state
    for action in optimal(position.loaded.name, state) if careful else state.legal_actions():
        budget[0] -= 1
        if budget[0] < 0:
            return None, False
        successor = copy.deepcopy(position)
        successor.apply(action)
        play_other_seats(successor)
        if successor.current_seat is None:
            if successor.success():
                return action, False
        elif depth == 1:
            deeper = True
        else:
            move, more = _line(successor, depth - 1, careful, budget)
            if move is not None:
                return action, False
            deeper = deeper or more
    return None, deeper


def play_other_seats(position: Position) -> None:
    """Lets the world's seats move until it is the policy's turn."""
    while position.current_seat not in (None, position.policy_seat):
        position.apply(scripted(position))


def scripted(position: Position) -> int:
    """Returns the move of a seat that the world plays."""
    if position.opponent == "expert":
        return good_move(position)
    return position.random_for("opponent").choice(position.state.legal_actions())


def ends_before_policy_acts(position: Position) -> bool:
    """Returns whether the other players end the game before the policy can act."""
    successor = copy.deepcopy(position)
    play_other_seats(successor)
    return successor.current_seat is None
