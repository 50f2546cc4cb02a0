"""Turns beside those that said nearly the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar

import numpy as np

from sojourn.config.registry import Range
from sojourn.credit.relative import ByGroup, joined, seats_of_turns, spread_turns, standardised, within
from sojourn.types import Credit, Group, Score


@dataclass(frozen=True, kw_only=True)
class CoSearch(ByGroup):
    """Each turn's reward, and above `gate` its trajectory's last one too, standardised among the group's turns that
    said nearly the same: whose words have an F1 of `similarity` or more with the words of the first of them (semantic
    grouping of CoSearch: Zeng et al. 2026, arXiv:2604.17555, eq. 5-6).

    Fewer than `least` of a kind teach nothing. For tools whose calls differ from play to play, such as sub-queries, and
    worlds that pay for each. Turns are looked through in the order of their words, so that the order of plays does not
    matter; the paper splits by whether an answer could be found, first, and has a penalty for format, which is the
    world's here.
    """

    similarity: Annotated[float, Range(above=0, most=1)] = 0.8
    least: Annotated[int, Range(2)] = 3
    gate: float = 0.5
    epsilon: Annotated[float, Range(0)] = 1e-6

    least_size: ClassVar[int] = 1

    def _one(self, group: Group, judged: Sequence[Score]) -> list[Credit]:
        said = [turn.said.text if turn.said else "" for t in group.trajectories for turn in t.turns]
        labels = list(zip(seats_of_turns(group), self._kinds(said), strict=True))
        worth = joined(self._worth(score) for score in judged)
        counts = Counter(labels)
        gain = within(labels, worth, partial(standardised, epsilon=self.epsilon))
        gain *= [counts[label] >= self.least for label in labels]
        return spread_turns(group, gain)

    def _worth(self, score: Score) -> np.ndarray:
        own = score.turns.astype(np.float64)
        final = np.where(np.arange(len(own)) < len(own) - 1, own[-1] if len(own) else 0.0, 0.0)
        return own + np.where(own > self.gate, final, 0.0)

    def _kinds(self, said: Sequence[str]) -> list[int]:
        """The number of the first text that each is like."""
        firsts: list[Counter[str]] = []
        kinds: dict[str, int] = {}
        for text in sorted(set(said)):
            words = Counter(text.split())
            found = [n for n, first in enumerate(firsts) if _f1(words, first) >= self.similarity]
            if not found:
                firsts.append(words)
            kinds[text] = found[0] if found else len(firsts) - 1
        return [kinds[text] for text in said]


def _f1(one: Counter[str], other: Counter[str]) -> float:
    """Twice what they share, counted as often as both have it, over what they have: 1 for two texts without words."""
    words = one.total() + other.total()
    return 2 * (one & other).total() / words if words else 1.0
