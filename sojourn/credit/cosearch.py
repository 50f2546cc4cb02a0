"""Turns beside those that said nearly the same."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar

import numpy as np

from sojourn.config.registry import SOME, Range
from sojourn.credit.relative import ByGroup, Values, joined, seats_of_turns, spread_turns, standardised, within
from sojourn.types import Credit, Group, Score, Trajectory

ARTICLES = frozenset({"a", "an", "the"})


@dataclass(frozen=True, kw_only=True)
class CoSearch(ByGroup):
    """Each turn's reward, and above `gate` its trajectory's last one too, standardised among the group's turns that
    said nearly the same: whose words have an F1 of `similarity` or more with the words of the first of them (semantic
    grouping of CoSearch: Zeng et al. 2026, arXiv:2604.17555, eq. 5-6 and appendix C).

    Where the number `by` of a turn's `Turn.info` is 0, no document that the tool could choose held the answer: such
    turns are compared among themselves, and have their trajectory's last reward alone, unless their own is below 0,
    which is what a wrong format costs. Fewer than `least` of a kind teach nothing. Words are compared without case,
    punctuation and articles, as in the authors' code.

    It is the paper's training of the tool, for worlds that pay for each call and whose calls differ from play to play,
    such as sub-queries; here one trajectory says both the calls and the answer. Turns are looked through in the order
    of their words, so that the order of plays does not matter. The paper leaves out the calls of trajectories whose
    answer has a wrong format. The authors' code has 0.8 for `gate`, itself included, and rounds the last reward to 0
    or 1.
    """

    similarity: Annotated[float, Range(above=0, max=1)] = 0.8
    least: Annotated[int, Range(2)] = 3
    gate: float = 0.5
    by: Annotated[str, SOME] = "answerable"
    epsilon: Annotated[float, Range(0)] = 1e-6

    least_size: ClassVar[int] = 1

    def _one(self, group: Group, judged: Sequence[Score]) -> list[Credit]:
        said = [turn.message.text if turn.message else "" for t in group.trajectories for turn in t.turns]
        hopeless = [self._hopeless(t) for t in group.trajectories]
        sorts = list(zip(seats_of_turns(group), joined(hopeless).tolist(), strict=True))
        labels = list(zip(sorts, self._kinds(said, sorts), strict=True))
        worth = joined(self._worth(score, none) for score, none in zip(judged, hopeless, strict=True))
        counts = Counter(labels)
        gain = within(labels, worth, partial(standardised, epsilon=self.epsilon))
        gain *= [counts[label] >= self.least for label in labels]
        return spread_turns(group, gain)

    def _hopeless(self, trajectory: Trajectory) -> Values:
        """1 for the turns whose tool had nothing to find: (T,)."""
        return np.array([float(turn.info.get(self.by, 1.0) == 0) for turn in trajectory.turns])

    def _worth(self, score: Score, hopeless: Values) -> Values:
        own = score.turns.astype(np.float64)
        final = own[-1] if len(own) else 0.0
        earlier = np.arange(len(own)) < len(own) - 1
        added = own + np.where((own > self.gate) & earlier, final, 0.0)
        return np.where((hopeless > 0) & (own >= 0), final, added)

    def _kinds(self, said: Sequence[str], sorts: Sequence[Hashable]) -> list[int]:
        """The number of the first text of its sort that each is like."""
        firsts: dict[Hashable, list[Counter[str]]] = {}
        kinds: dict[tuple[Hashable, str], int] = {}
        for sort, text in sorted(set(zip(sorts, said, strict=True)), key=lambda pair: pair[1]):
            words, known = _words(text), firsts.setdefault(sort, [])
            found = [n for n, first in enumerate(known) if _f1(words, first) >= self.similarity]
            if not found:
                known.append(words)
            kinds[sort, text] = found[0] if found else len(known) - 1
        return [kinds[pair] for pair in zip(sorts, said, strict=True)]


def _words(text: str) -> Counter[str]:
    return Counter(word for word in re.findall(r"\w+", text.lower()) if word not in ARTICLES)


def _f1(one: Counter[str], other: Counter[str]) -> float:
    """Twice what they share, counted as often as both have it, over what they have: 1 for two texts without words."""
    words = one.total() + other.total()
    return 2 * (one & other).total() / words if words else 1.0
