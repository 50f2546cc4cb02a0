"""Turn advantages relative to the group's turns with nearly the same words."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sojourn.abilities import MOVE
from sojourn.config.fields import NONBLANK, Range
from sojourn.credit.by_turn import concatenated, credit_turns, seats_of_turns
from sojourn.credit.grpo import GRPO
from sojourn.credit.relative import GroupEstimator, Values, per_label, standardised
from sojourn.types import Credit, Group, Message, Score, Trajectory, Turn

ARTICLES = frozenset({"a", "an", "the"})


class _Calls(NamedTuple):
    """Holds what a trajectory's turns are compared by, the outcome, and which turns it may be added to: (T,)."""

    texts: tuple[str, ...]
    outcome: float
    adds: NDArray[np.bool_]


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
    episode, such as sub-queries. Without `caller` one trajectory holds both the calls and the answer. With it, other
    seats answer what the seat of that name asks for, such as the ranker of the world `search`: each of their turns is
    compared by what the caller said before it, and the caller's return takes the place of the last reward. The caller
    itself gets the credit of `grpo`, as the paper trains both together; they may be one model or two that learn.

    Turns are grouped in the order of their words, so that the order of episodes does not matter. The paper leaves out
    the calls of trajectories whose answer has a wrong format. The authors' code has 0.8 for `reward_threshold`, itself
    included, and rounds the last reward to 0 or 1.
    """

    similarity: Annotated[float, Range(above=0, max=1)] = 0.8
    min_similar: Annotated[int, Range(2)] = 3
    reward_threshold: float = 0.5
    info_key: Annotated[str, NONBLANK] = "answerable"
    caller: str = ""
    epsilon: Annotated[float, Range(0)] = 1e-6

    min_group_size = 1

    @property
    def named_seats(self) -> frozenset[str]:
        return frozenset({self.caller} if self.caller else ())

    @property
    def reads_all_models(self) -> bool:
        return bool(self.caller)

    def _credit(self, group: Group, scores: Sequence[Score]) -> list[Credit]:
        calls = self._calls(group, scores)
        texts = [text for call in calls for text in call.texts]
        unanswerable = [self._unanswerable(t) for t in group.trajectories]
        kinds = list(zip(seats_of_turns(group), concatenated(unanswerable).tolist(), strict=True))
        labels = list(zip(kinds, self._clusters(texts, kinds), strict=True))
        rewards = concatenated(map(self._rewards, scores, unanswerable, calls))
        counts = Counter(labels)
        advantages = per_label(labels, rewards, partial(standardised, epsilon=self.epsilon))
        advantages *= [counts[label] >= self.min_similar for label in labels]
        credits = credit_turns(group, advantages)
        if not self.caller:
            return credits
        [callers] = GRPO(epsilon=self.epsilon)([group], [scores], {})
        return [
            of_caller if trajectory.agent == self.caller else credit
            for trajectory, credit, of_caller in zip(group.trajectories, credits, callers, strict=True)
        ]

    def _calls(self, group: Group, scores: Sequence[Score]) -> list[_Calls]:
        """Returns what each trajectory's turns are compared by, and the outcome that they are part of."""
        if not self.caller:
            return [_own(trajectory, score) for trajectory, score in zip(group.trajectories, scores, strict=True)]
        trained = zip(group.owners, group.trajectories, scores, strict=True)
        returns = {owner: score.total for owner, one, score in trained if one.agent == self.caller}
        found: list[_Calls] = []
        for owner, trajectory in zip(group.owners, group.trajectories, strict=True):
            callers = [one for one in group.episodes[owner].trajectories if one.agent == self.caller]
            outcome = returns.get(owner, sum(one.reward for one in callers))
            asked = tuple(map(_asked, _before([turn for one in callers for turn in one.turns], trajectory.turns)))
            found.append(_Calls(asked, outcome, np.ones(len(asked), dtype=bool)))
        return found

    def _unanswerable(self, trajectory: Trajectory) -> Values:
        """Returns 1 for the turns whose tool had no document with the answer, else 0: (T,)."""
        return np.array([float(turn.info.get(self.info_key, 1.0) == 0) for turn in trajectory.turns])

    def _rewards(self, score: Score, unanswerable: Values, calls: _Calls) -> Values:
        rewards = score.turns.astype(np.float64)
        added = np.where((rewards > self.reward_threshold) & calls.adds, calls.outcome, 0.0)
        return np.where((unanswerable > 0) & (rewards >= 0), calls.outcome, rewards + added)

    def _clusters(self, texts: Sequence[str], kinds: Sequence[Hashable]) -> list[int]:
        """Numbers each text by the first text of its kind that is similar to it."""
        known: dict[Hashable, _FirstTexts] = {}
        numbers: dict[tuple[Hashable, str], int] = {}
        for kind, text in sorted(set(zip(kinds, texts, strict=True)), key=lambda pair: pair[1]):
            numbers[kind, text] = known.setdefault(kind, _FirstTexts()).number(_words(text), self.similarity)
        return [numbers[pair] for pair in zip(kinds, texts, strict=True)]


class _FirstTexts:
    """Holds the first text of each cluster: how many words it has, and which of them hold a word, and how often."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.holding = defaultdict[str, list[tuple[int, int]]](list)

    def number(self, words: Counter[str], similarity: float) -> int:
        """Returns the number of the first text whose F1 with some words is high enough, else that of a new one: twice
        what they share over what they have. Two without words are alike."""
        shared, size = Counter[int](), words.total()
        for word, count in words.items():
            for number, other in self.holding[word]:
                shared[number] += min(count, other)
        alike = [n for n, both in shared.items() if 2 * both / (size + self.sizes[n]) >= similarity]
        if not size:
            alike = [n for n, other in enumerate(self.sizes) if not other]
        if alike:
            return min(alike)
        self.sizes.append(size)
        for word, count in words.items():
            self.holding[word].append((len(self.sizes) - 1, count))
        return len(self.sizes) - 1


def _own(trajectory: Trajectory, score: Score) -> _Calls:
    texts = tuple(turn.message.text if turn.message else "" for turn in trajectory.turns)
    outcome = float(score.turns[-1]) if len(score.turns) else 0.0
    return _Calls(texts, outcome, np.arange(len(texts)) < len(texts) - 1)


def _before(said: Sequence[Turn], turns: Sequence[Turn]) -> list[Message | None]:
    """Returns, for each turn, the message of the last of those that were said before it in the episode."""
    messages = dict[float, Message | None]()
    for one in said:
        messages.setdefault(one.info.get(MOVE, 0.0), one.message)
    moves = sorted(messages)
    earlier = [bisect_left(moves, turn.info.get(MOVE, 0.0)) for turn in turns]
    return [messages[moves[count - 1]] if count else None for count in earlier]


def _asked(message: Message | None) -> str:
    """Returns what a message asks for: the arguments of its calls, of a call as text such as "search[words]" what the
    brackets hold, else its text."""
    if message is None:
        return ""
    if message.calls:
        return " ".join(str(value) for call in message.calls for value in dict(call.arguments).values())
    written = re.fullmatch(r"\w+\[(.*)\]", message.text.strip(), re.DOTALL)
    return written[1] if written else message.text


def _words(text: str) -> Counter[str]:
    return Counter(word for word in re.findall(r"\w+", text.lower()) if word not in ARTICLES)
