"""The actions that a search tried before a turn, as a tree."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from sojourn.terminal.clean import one_line
from sojourn.terminal.numbers import number
from sojourn.types import Considered, Turn

SHOWN = 12  # of them, in the terminal


class ConsideredLine(NamedTuple):
    """An action that was tried, `depth` actions after the turn's own; `taken` if it is the turn's."""

    depth: int
    considered: Considered
    taken: bool


def considered_lines(turn: Turn) -> list[ConsideredLine]:
    """Returns what was tried before a turn, each action followed by those after it, the most valuable first."""
    below = defaultdict[int, list[int]](list)
    for place, one in enumerate(turn.considered):
        below[one.parent].append(place)
    found: list[ConsideredLine] = []
    waiting = [(place, 0) for place in reversed(_best_first(below[-1], turn.considered))]
    said = None if turn.message is None else turn.message.text
    while waiting:
        place, depth = waiting.pop()
        one = turn.considered[place]
        found.append(ConsideredLine(depth, one, depth == 0 and one.text == said))
        waiting += [(other, depth + 1) for other in reversed(_best_first(below[place], turn.considered))]
    return found


def considered_text(turn: Turn, several: bool) -> str:
    """Returns the lines as text, with the seat of each action where there are `several`."""
    lines = considered_lines(turn)
    shown = [
        f"{'  ' * line.depth}{'> ' if line.taken else '- '}"
        + (f"{one_line(line.considered.agent, 20)}: " if several else "")
        + f"{one_line(line.considered.text, 60)}  {worth(line.considered)}"
        for line in lines[:SHOWN]
    ]
    more = [f"... and {len(lines) - SHOWN} more"] if len(lines) > SHOWN else []
    return "\n".join([*shown, *more])


def worth(one: Considered) -> str:
    """Returns the value of an action and over how many trials, as text."""
    if math.isnan(one.value):
        return "not tried on"
    return f"{number(one.value)}" + (f" in {one.visits} trials" if one.visits != 1 else "")


def _best_first(places: Sequence[int], considered: Sequence[Considered]) -> list[int]:
    """Returns the places by value, those without one last."""
    values = {place: -math.inf if math.isnan(considered[place].value) else considered[place].value for place in places}
    return sorted(places, key=lambda place: -values[place])
