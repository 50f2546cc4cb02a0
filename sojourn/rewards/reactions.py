"""What the next state says of a turn: by rules, which are regular expressions on what users and tools say."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from sojourn.rewards.hints import as_words, best_hint
from sojourn.types import Message, Role, Score, Turn

CORRECTIONS = (  # after "^", `\s*` would begin anew at each of many blank lines, and read all that follow
    r"^[^\S\n]*no\b(?!,? (problem|worries|need|rush|thanks))",
    r"\b(wrong|incorrect|mistaken?|nonsense)\b",
    r"\bnot (what|correct|right|true)\b",
    r"\bI (meant|asked|told you|said|wanted)\b",
    r"\b(do|try) (it|that|this)? ?again\b",
    r"\bstill (not|fails?|broken|does ?n[o']t|is ?n[o']t)\b",
    r"\b(should|must) (have been|not have)\b",
)
THANKS = (
    r"\b(thanks|thank you|thx)\b",
    r"\b(great|perfect|excellent|awesome|lovely|well done|good job|exactly)\b",
    r"\b(that|it) (works|worked|helps|helped)\b",
)
ERRORS = (
    r"^[^\S\n]*(error|exception|fatal|failed|failure)\b",
    r"Traceback \(most recent call last\)",
    r"\b\w*(Error|Exception): ",
    r"\bexit(ed with)?( code| status)?:? [1-9]",
    r"\b(command not found|no such file or directory|permission denied)\b",
)


class Reaction(NamedTuple):
    """Holds what is said of a turn, from -1 to 1, the best hint that it gives, and how many votes could not be read.
    `judged` says whether anything came after the turn that could be judged."""

    value: float = 0.0
    hint: str = ""
    unreadable: int = 0
    judged: bool = True


NONE = Reaction(judged=False)


@dataclass(frozen=True)
class Rules:
    """Judges a turn by what came next: an error of a tool or a correction by the user is -1, thanks are 1, all else is
    0. Where several apply, the first of these counts. A correction is also a hint, if `hints` says so."""

    corrections: tuple[str, ...]
    thanks: tuple[str, ...]
    errors: tuple[str, ...]
    error_keys: tuple[str, ...]
    hints: bool

    def react(self, turn: Turn, following: Sequence[Message]) -> Reaction:
        failed = any(turn.info.get(name, 0.0) > 0 for name in self.error_keys)
        if failed or _any_says(following, Role.TOOL, self.errors):
            return Reaction(-1.0)
        if _any_says(following, Role.USER, self.corrections):
            said = "\n".join(one.text for one in following if one.role is Role.USER)
            return Reaction(-1.0, best_hint([said]) if self.hints else "")
        if _any_says(following, Role.USER, self.thanks):
            return Reaction(1.0)
        return Reaction(judged=bool(following))


def _any_says(messages: Sequence[Message], role: Role, patterns: Sequence[str]) -> bool:
    texts = [one.text for one in messages if one.role is role]
    return any(re.search(pattern, text, re.IGNORECASE | re.MULTILINE) for text in texts for pattern in patterns)


def with_reactions(score: Score, reactions: Sequence[Reaction], coef: float) -> Score:
    """Returns a score with `coef` times what is said of each turn besides, and the hints."""
    values = coef * np.array([one.value for one in reactions], dtype=np.float64)
    judged = [one.value for one in reactions if one.judged]
    parts = {
        "next_state": float(np.mean(judged)) if judged else 0.0,
        "next_state_turns": float(len(judged)),
        "next_state_hints": float(sum(bool(one.hint) for one in reactions)),
        "next_state_unreadable": float(sum(one.unreadable for one in reactions)),
    }
    return replace(
        score,
        turns=(score.turns + values).astype(np.float32),
        parts={**score.parts, **parts},
        words={**score.words, **as_words(one.hint for one in reactions)},
        outcome=score.result + float(values.sum()),
    )
