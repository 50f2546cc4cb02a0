"""The games of TextArena that were tried: how many play, and what they may say.

They run without network, data or keys, do not fail to import on Python 3.11, and go on alike from the same seed. The
actions are a superset of what is possible at any time; which of them are is found out by trying them on a copy.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import permutations
from typing import Any, NamedTuple


class Kind(NamedTuple):
    actions: tuple[str, ...]
    players: int = 1
    expert: Callable[[Any], str] | None = None  # of the game's own object
    foreseen: bool = False  # against a known opponent, lines that win are short enough to be found by trying


def _each(*parts: Any) -> tuple[str, ...]:
    """Every action of one word from each part: `_each("attack", range(2))` is [attack 0], [attack 1]."""
    found = [""]
    for part in parts:
        words = [part] if isinstance(part, str) else list(part)
        found = [f"{before} {word}".strip() for before in found for word in words]
    return tuple(f"[{text}]" for text in found)


def _guess_the_number(game: Any) -> str:
    """Halves what is left, and knows the number when it has one guess left."""
    low, high = game.min_number, game.max_number
    for guess, hint in game.state.game_state["guess_history"]:
        low, high = (guess + 1, high) if hint == "higher" else (low, guess - 1)
    last = game.state.turn + 1 >= game.state.max_turns
    return f"[{game.game_number if last else (low + high) // 2}]"


def _tower_of_hanoi(game: Any) -> str:
    """The first move of a shortest way, found breadth-first."""
    towers = game.state.game_state["towers"]
    start = tuple(tuple(towers[name]) for name in "ABC")
    first: dict[Any, str] = {start: ""}
    queue = deque([start])
    while queue:
        here = queue.popleft()
        if not here[0] and not here[1]:
            return first[here]
        for source, target in permutations(range(3), 2):
            if here[source] and (not here[target] or here[target][-1] > here[source][-1]):
                then = list(here)
                then[source], then[target] = here[source][:-1], (*here[target], here[source][-1])
                if tuple(then) not in first:
                    first[tuple(then)] = first[here] or f"[{'ABC'[source]} {'ABC'[target]}]"
                    queue.append(tuple(then))
    raise AssertionError("every position of the towers can be solved")


def _frozen_lake(game: Any) -> str:
    """The first step of a shortest way round the holes."""
    state = game.state.game_state
    start = tuple(state["player_pos"])
    first = {start: ""}
    queue = deque([start])
    while queue:
        here = queue.popleft()
        if here == tuple(state["goal_pos"]):
            return first[here]
        for name, (down, across) in game.actions.items():
            then = (here[0] + down, here[1] + across)
            inside = all(0 <= part < game.size for part in then)
            if inside and then not in first and state["grid"][then[0]][then[1]] != "H":
                first[then] = first[here] or f"[{name}]"
                queue.append(then)
    return next(iter(_STEPS))


def _mastermind(game: Any) -> str:
    """The first code that fits all answers; the code itself with the last guess."""
    state = game.state.game_state
    code = state["secret_code"]
    if game.state.turn + 1 < game.state.max_turns:
        for guess in permutations(range(1, state["num_numbers"] + 1), state["code_length"]):
            if all(_pegs(guess, said["guess"]) == (said["black"], said["white"]) for said in state["history"]):
                code = guess
                break
    return f"[{' '.join(map(str, code))}]"


def _pegs(code: Any, guess: Any) -> tuple[int, int]:
    black = sum(one == other for one, other in zip(code, guess, strict=True))
    return black, sum(number in code for number in guess) - black


_STEPS = _each(("up", "down", "left", "right"))
_CARDS = ("A", *map(str, range(2, 11)), "J", "Q", "K")
_SPLITS = tuple(f"[A{a} B{b} C{20 - a - b}]" for a in range(0, 21, 2) for b in range(0, 21 - a, 2))

GAMES: dict[str, Kind] = {
    "TicTacToe-v0": Kind(_each(range(9)), 2, foreseen=True),
    "WildTicTacToe-v0": Kind(_each(tuple("XO"), range(9)), 2, foreseen=True),
    "UltimateTicTacToe-v0": Kind(_each(range(9), range(9)), 2),
    "ThreePlayerTicTacToe-v0": Kind(_each(range(25)), 3),
    "ConnectFour-v0": Kind(_each(range(7)), 2, foreseen=True),
    "SimpleTak-v0": Kind(_each(range(16)), 2, foreseen=True),
    "Othello-v0": Kind(_each(range(8), range(8)), 2),
    "Nim-v0": Kind(_each(range(3), range(1, 6)), 2, foreseen=True),
    "Chopsticks-v0": Kind((*_each("attack", range(2), range(2)), *_each("split", range(5), range(5))), 2),
    "KuhnPoker-v0": Kind(("[Check]", "[Bet]", "[Fold]", "[Call]"), 2),
    "LiarsDice-v0": Kind(("[call]", *(f"[bid: {n}, {face}]" for n in range(1, 11) for face in range(1, 7))), 2),
    "PigDice-v0": Kind(("[roll]", "[hold]"), 2),
    "GameOfPureStrategy-v0": Kind(_each(_CARDS), 2),
    "ColonelBlotto-v0": Kind(_SPLITS, 2),
    "IteratedMatchingPennies-v0": Kind(("[heads]", "[tails]"), 2),
    "IteratedRockPaperScissors-v0": Kind(("[rock]", "[paper]", "[scissors]"), 2),
    "IteratedPrisonersDilemma-v0": Kind(("[Cooperate]", "[Defect]"), 2),
    "IteratedTwoThirdsAverage-v0": Kind(_each(range(0, 101, 5)), 2),
    "Surround-v0": Kind(_STEPS, 2),
    "GuessTheNumber-v0": Kind(_each(range(1, 21)), expert=_guess_the_number),
    "TowerOfHanoi-v0": Kind(_each(tuple("ABC"), tuple("ABC")), expert=_tower_of_hanoi),
    "FrozenLake-v0": Kind(_STEPS, expert=_frozen_lake),
    "Mastermind-v0": Kind(
        tuple(f"[{' '.join(map(str, code))}]" for code in permutations(range(1, 7), 4)), expert=_mastermind
    ),
    "LightsOut-v0": Kind(_each(range(5), range(5))),
    "FifteenPuzzle-v0": Kind(_STEPS),
    "PegJump-v0": Kind(_each(range(1, 16), range(1, 16))),
    "Secretary-v0": Kind(("[accept]", "[continue]")),
    "ThreeCardMonte-v0": Kind(_each(range(3))),
}
