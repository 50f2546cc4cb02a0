"""Has the policy itself say which of some actions are good."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from sojourn.config.fields import Range
from sojourn.searchers.ahead import Ahead, Position

QUESTION = (
    "Before you act, compare what you could do next:\n{actions}\n"
    "Answer with the numbers of these actions alone, from the best to the worst."
)


@dataclass(frozen=True, kw_only=True)
class Critique:
    """Ranks the actions that were sampled at a position, by a question to the policy that would take them (the AI
    feedback of Agent Q: Putta et al. 2024, arXiv:2408.07199, by accounts).

    The `question` follows what the seat is shown, and has the numbered actions in the place of `{actions}`. Neither it
    nor the answer becomes part of the play; its tokens count as tokens of the search. An action is worth 1 where it is
    named first, 0 where last, and in between by its place. Actions that are not named share the places after those
    that are; so without an answer that can be read, all are worth the same.

    A search mixes this worth with what it found itself, `alpha` * found + (1 - `alpha`) * ranked. No account says how
    the authors make numbers of places; a re-implementation asks once for each place.
    """

    alpha: Annotated[float, Range(0, 1)] = 0.5
    question: str = QUESTION

    def __post_init__(self) -> None:
        if "{actions}" not in self.question:
            raise ValueError(
                f"question = {self.question!r} does not show the actions: put {{actions}} where they are to stand"
            )

    async def worths(self, ahead: Ahead, position: Position, actions: Sequence[str]) -> list[float]:
        """Returns what each of some distinct actions at a position is worth, 0 to 1."""
        if len(actions) < 2:
            return [0.5 for _ in actions]
        numbered = "\n".join(f"{number}. {action}" for number, action in enumerate(actions, 1))
        answer = await ahead.ask(position, self.question.replace("{actions}", numbered))
        return ranked(answer, len(actions))

    def mixed(self, found: float, ranked: float) -> float:
        return self.alpha * found + (1 - self.alpha) * ranked


def ranked(answer: str, count: int) -> list[float]:
    """Returns the worth of each of `count` actions by the order in which an answer has their numbers, 1 ... `count`."""
    named = [number - 1 for number in map(int, re.findall(r"\d{1,9}", answer)) if 1 <= number <= count]
    order = list(dict.fromkeys(named))
    shared = (count - 1 - len(order)) / 2 / (count - 1)  # the mean of the places that are left
    return [1 - order.index(action) / (count - 1) if action in order else shared for action in range(count)]
