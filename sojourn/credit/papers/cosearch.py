"""Turn advantages relative to the group's turns with nearly the same words."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated

import numpy as np

from sojourn.config.fields import NONBLANK, Range
from sojourn.credit.by_turn import concatenated, credit_turns, seats_of_turns
from sojourn.credit.relative import GroupEstimator, Values, per_label, standardised
from sojourn.types import Credit, Group, Score, Trajectory

ARTICLES = frozenset({"a", "an", "the"})


@dataclass(frozen=True, kw_only=True)
class CoSearch(GroupEstimator):
    """Reward of each turn, plus the trajectory's last reward where the turn's own is above `reward_threshold`,
    standardised among the group's turns with nearly the same words: a token F1 of at least `similarity` with the first
    of them (semantic grouping of CoSearch: Zeng et al. 2026, arXiv:2604.17555, eq. 5-6 and appendix C).

    Where the number `info_key` of a turn's `Turn.info` is 0, none of the documents that the tool could choose held the
    answer: such turns are compared among themselves, and their reward is their trajectory's last reward alone, unless
    their own is below 0, which is the cost of a wrong format. Sets of fewer than `min_similar` turns get zero credit.
    Words are compared without case, punctuation and articles, as in the authors' code.

    This is how the paper trains the tool. It suits worlds that reward each call and whose calls differ from episode to
    episode, such as sub-queries; here one trajectory holds both the calls and the answer. Turns are grouped in the
    order of their words, so that the order of episodes does not matter. The paper leaves out the calls of trajectories
    whose answer has a wrong format. The authors' code has 0.8 for `reward_threshold`, itself included, and rounds the
    last reward to 0 or 1.
    """

    similarity: Annotated[float, Range(above=0, max=1)] = 0.8
    min_similar: Annotated[int, Range(2)] = 3
    reward_threshold: float = 0.5
    info_key: Annotated[str, NONBLANK] = "answerable"
    epsilon: Annotated[float, Range(0)] = 1e-6

    min_group_size = 1

    def _credit(self, group: Group, scores: Sequence[Score]) -> list[Credit]:
        texts = [turn.message.text if turn.message else "" for t in group.trajectories for turn in t.turns]
        unanswerable = [self._unanswerable(t) for t in group.trajectories]
        kinds = list(zip(seats_of_turns(group), concatenated(unanswerable).tolist(), strict=True))
        labels = list(zip(kinds, self._clusters(texts, kinds), strict=True))
        rewards = concatenated(self._rewards(score, flags) for score, flags in zip(scores, unanswerable, strict=True))
        counts = Counter(labels)
        advantages = per_label(labels, rewards, partial(standardised, epsilon=self.epsilon))
        advantages *= [counts[label] >= self.min_similar for label in labels]
        return credit_turns(group, advantages)

    def _unanswerable(self, trajectory: Trajectory) -> Values:
        """Returns 1 for the turns whose tool had no document with the answer, else 0: (T,)."""
        return np.array([float(turn.info.get(self.info_key, 1.0) == 0) for turn in trajectory.turns])

    def _rewards(self, score: Score, unanswerable: Values) -> Values:
        rewards = score.turns.astype(np.float64)
        final = rewards[-1] if len(rewards) else 0.0
        earlier = np.arange(len(rewards)) < len(rewards) - 1
        summed = rewards + np.where((rewards > self.reward_threshold) & earlier, final, 0.0)
        return np.where((unanswerable > 0) & (rewards >= 0), final, summed)

    def _clusters(self, texts: Sequence[str], kinds: Sequence[Hashable]) -> list[int]:
        """Numbers each text by the first text of its kind that is similar to it."""
        first_texts: dict[Hashable, list[Counter[str]]] = {}
        numbers: dict[tuple[Hashable, str], int] = {}
        for kind, text in sorted(set(zip(kinds, texts, strict=True)), key=lambda pair: pair[1]):
            words, known = _words(text), first_texts.setdefault(kind, [])
            similar = [n for n, first in enumerate(known) if _f1(words, first) >= self.similarity]
            if not similar:
                known.append(words)
            numbers[kind, text] = similar[0] if similar else len(known) - 1
        return [numbers[pair] for pair in zip(kinds, texts, strict=True)]


def _words(text: str) -> Counter[str]:
    return Counter(word for word in re.findall(r"\w+", text.lower()) if word not in ARTICLES)


def _f1(one: Counter[str], other: Counter[str]) -> float:
    """Returns the F1 of two bags of words: twice what they share over what they have; 1 for two without words."""
    words = one.total() + other.total()
    return 2 * (one & other).total() / words if words else 1.0
