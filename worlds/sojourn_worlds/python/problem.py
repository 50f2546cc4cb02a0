"""A problem for a Python session: a question, files, the answer, and code that finds it."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

LONGEST_ANSWER = 200  # characters


@dataclass(frozen=True)
class Problem:
    """A generated problem. `answer` was computed in another way than by `code`, which prints it; floats are asked for
    to two decimals.
    """

    question: str
    answer: int | float | str
    code: str
    files: Mapping[str, str] = field(default_factory=dict)

    def is_correct(self, given: str) -> bool:
        text = given.strip().strip("'\"").strip()
        if len(text) > LONGEST_ANSWER:
            return False
        if isinstance(self.answer, str):
            return text.casefold() == self.answer.casefold()
        number = re.fullmatch(r"[+-]?\d+(\.\d+)?", text.replace(",", ""), re.ASCII)
        if number is None:
            return False
        if isinstance(self.answer, int):
            return number[1] is None and int(number[0]) == self.answer
        value = float(number[0])
        return math.isfinite(value) and abs(value - self.answer) < 0.006

    @property
    def submission(self) -> str:
        return f"{self.answer:.2f}" if isinstance(self.answer, float) else str(self.answer)


Kind = Callable[[random.Random, int], Problem]
