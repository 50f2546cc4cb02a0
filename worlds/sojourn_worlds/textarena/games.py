"""The games of TextArena that were tried: their number of players and their possible actions.

They run without network, data or keys, import on Python 3.11, and are deterministic given the seed. `actions` is a
superset of what is possible at any time; which of them are possible is found out by trying them on a copy.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import permutations
from typing import Any, NamedTuple


class GameInfo(NamedTuple):
    actions: tuple[str, ...]
    players: int = 1
    expert: Callable[[Any], str] | None = None  # reads the game's own object
    expert_by_search: bool = False  # lines that win against a known opponent are short enough to be found by trying
    content: Callable[[Any], str] | None = None  # of a puzzle that is shown whole: there are few, each in one split


def _each(*parts: Any) -> tuple[str, ...]:
    """Returns every action of one word from each part: `_each("attack", range(2))` is [attack 0], [attack 1]."""
    phrases = [""]
    for part in parts:
        words = [part] if isinstance(part, str) else list(part)
        phrases = [f"{before} {word}".strip() for before in phrases for word in words]
    return tuple(f"[{text}]" for text in phrases)


def _guess_the_number(game: Any) -> str:
    """Returns a guess by bisection, and with the last guess the number itself."""
    low, high = game.min_number, game.max_number
    for guess, hint in game.state.game_state["guess_history"]:
        low, high = (guess + 1, high) if hint == "higher" else (low, guess - 1)
    last = game.state.turn + 1 >= game.state.max_turns
    return f"[{game.game_number if last else (low + high) // 2}]"


def _tower_of_hanoi(game: Any) -> str:
    """Returns the first move of a shortest solution, found breadth-first."""
    towers = game.state.game_state["towers"]
    start = tuple(tuple(towers[name]) for name in "ABC")
    first_action: dict[Any, str] = {start: ""}
    queue = deque([start])
    while queue:
        state_now = queue.popleft()
        if not state_now[0] and not state_now[1]:
            return first_action[state_now]
        for source, target in permutations(range(3), 2):
            if state_now[source] and (not state_now[target] or state_now[target][-1] > state_now[source][-1]):
                next_state = list(state_now)
                next_state[source], next_state[target] = (
                    state_now[source][:-1],
                    (*state_now[target], state_now[source][-1]),
                )
                if tuple(next_state) not in first_action:
                    first_action[tuple(next_state)] = first_action[state_now] or f"[{'ABC'[source]} {'ABC'[target]}]"
                    queue.append(tuple(next_state))
    raise AssertionError("every position of the towers can be solved")


def _frozen_lake(game: Any) -> str:
    """Returns the first step of a shortest way around the holes."""
    state = game.state.game_state
    start = tuple(state["player_pos"])
    first_action = {start: ""}
    queue = deque([start])
    while queue:
        state_now = queue.popleft()
        if state_now == tuple(state["goal_pos"]):
            return first_action[state_now]
        for name, (down, across) in game.actions.items():
            next_state = (state_now[0] + down, state_now[1] + across)
            inside = all(0 <= part < game.size for part in next_state)
            if inside and next_state not in first_action and state["grid"][next_state[0]][next_state[1]] != "H":
                first_action[next_state] = first_action[state_now] or f"[{name}]"
                queue.append(next_state)
    return next(iter(_STEPS))


def _mastermind(game: Any) -> str:
    """Returns the first code that fits all answers, and with the last guess the code itself."""
    state = game.state.game_state
    code = state["secret_code"]
    if game.state.turn + 1 < game.state.max_turns:
        for guess in permutations(range(1, state["num_numbers"] + 1), state["code_length"]):
            if all(
                _black_and_white(guess, past_guess["guess"]) == (past_guess["black"], past_guess["white"])
                for past_guess in state["history"]
            ):
                code = guess
                break
    return f"[{' '.join(map(str, code))}]"


def _black_and_white(code: Any, guess: Any) -> tuple[int, int]:
    black = sum(one == other for one, other in zip(code, guess, strict=True))
    return black, sum(number in code for number in guess) - black


_STEPS = _each(("up", "down", "left", "right"))
_CARDS = ("A", *map(str, range(2, 11)), "J", "Q", "K")
_SPLITS = tuple(f"[A{a} B{b} C{20 - a - b}]" for a in range(0, 21, 2) for b in range(0, 21 - a, 2))

GAMES: dict[str, GameInfo] = {
    "TicTacToe-v0": GameInfo(_each(range(9)), 2, expert_by_search=True),
    "WildTicTacToe-v0": GameInfo(_each(tuple("XO"), range(9)), 2, expert_by_search=True),
    "UltimateTicTacToe-v0": GameInfo(_each(range(9), range(9)), 2),
    "ThreePlayerTicTacToe-v0": GameInfo(_each(range(25)), 3),
    "ConnectFour-v0": GameInfo(_each(range(7)), 2, expert_by_search=True),
    "SimpleTak-v0": GameInfo(_each(range(16)), 2, expert_by_search=True),
    "Othello-v0": GameInfo(_each(range(8), range(8)), 2),
    "Nim-v0": GameInfo(_each(range(3), range(1, 6)), 2, expert_by_search=True),
    "Chopsticks-v0": GameInfo((*_each("attack", range(2), range(2)), *_each("split", range(5), range(5))), 2),
    "KuhnPoker-v0": GameInfo(("[Check]", "[Bet]", "[Fold]", "[Call]"), 2),
    "LiarsDice-v0": GameInfo(("[call]", *(f"[bid: {n}, {face}]" for n in range(1, 11) for face in range(1, 7))), 2),
    "PigDice-v0": GameInfo(("[roll]", "[hold]"), 2),
    "GameOfPureStrategy-v0": GameInfo(_each(_CARDS), 2),
    "ColonelBlotto-v0": GameInfo(_SPLITS, 2),
    "IteratedMatchingPennies-v0": GameInfo(("[heads]", "[tails]"), 2),
    "IteratedRockPaperScissors-v0": GameInfo(("[rock]", "[paper]", "[scissors]"), 2),
    "IteratedPrisonersDilemma-v0": GameInfo(("[Cooperate]", "[Defect]"), 2),
    "IteratedTwoThirdsAverage-v0": GameInfo(_each(range(0, 101, 5)), 2),
    "Surround-v0": GameInfo(_STEPS, 2),
    "GuessTheNumber-v0": GameInfo(_each(range(1, 21)), expert=_guess_the_number),
    "TowerOfHanoi-v0": GameInfo(_each(tuple("ABC"), tuple("ABC")), expert=_tower_of_hanoi),
    "FrozenLake-v0": GameInfo(_STEPS, expert=_frozen_lake, content=lambda game: repr(game.state.game_state["grid"])),
    "Mastermind-v0": GameInfo(
        tuple(f"[{' '.join(map(str, code))}]" for code in permutations(range(1, 7), 4)), expert=_mastermind
    ),
    "LightsOut-v0": GameInfo(_each(range(5), range(5))),
    "FifteenPuzzle-v0": GameInfo(_STEPS),
    "PegJump-v0": GameInfo(_each(range(1, 16), range(1, 16))),
    "Secretary-v0": GameInfo(("[accept]", "[continue]")),
    "ThreeCardMonte-v0": GameInfo(_each(range(3))),
}
