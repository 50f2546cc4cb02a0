"""Pairs the better with the worse answers to the same state, for step-level losses of preferences."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np

from sojourn.config.fields import Range
from sojourn.finite import tolerance
from sojourn.protocols import PerTurn, StepContext
from sojourn.types import Group, Score, Trajectory


class Answer(NamedTuple):
    """A turn, by its own number and that of the trajectory which trains it (`Group.holders`), with its value."""

    trajectory: int
    turn: int
    value: float


class AnswerPair(NamedTuple):
    better: Answer
    worse: Answer

    @property
    def gap(self) -> float:
        return self.better.value - self.worse.value


@dataclass(frozen=True, kw_only=True)
class TurnPairs:
    """The number of its pair for each sampled token of a turn: k where it is the preferred answer of pair k, -k where
    it is the other one, and 0 where it is in no pair, so that losses of pairs prefer turns, not trajectories (Step-DPO:
    Lai et al. 2024, arXiv:2406.18629).

    Turns of one group and seat answer the same state where their prompts have the same tokens, as first turns and those
    of branches have, or with `state = "key"` where the world gave them the same state key. The value of an answer is
    the mean return, discounted by `gamma`, from the turn on, over all turns that gave it: a Monte Carlo estimate of Q,
    where the papers average over a tree search (Agent Q: Putta et al. 2024, arXiv:2408.07199; Zhai et al. 2024,
    arXiv:2409.09345). The best answer to a state is paired with the worst, the second with the second worst, and so on,
    as long as their values differ by more than `margin`; `max_pairs` bounds the pairs of a state (0: all).

    With `contrast` = "calls", one answer of a pair calls a tool and the other does not, so that what is learned is when
    to act (step-level action triggering of AutoCoA: Zhang et al. 2025, arXiv:2503.06580, section 3.2.2): the pair that
    differs most comes first, whichever of both is better, then that of what is left. The authors begin with answers
    that failed, and make the other one by adding or removing a call; here both were sampled.
    """

    state: Literal["prompt", "key"] = "prompt"
    gamma: Annotated[float, Range(0, 1)] = 1.0
    margin: Annotated[float, Range(0)] = 0.0
    max_pairs: Annotated[int, Range(0)] = 0
    contrast: Literal["any", "calls"] = "any"

    provides = "pairs"
    reference = False

    async def __call__(self, context: StepContext) -> PerTurn:
        count, numbered = 0, list[list[tuple[Any, ...]]]()
        for group, scores in zip(context.groups, context.scores, strict=True):
            numbers = dict[tuple[int, int], int]()
            for pair in self.pairs(group, scores):
                count += 1
                numbers[pair.better[:2]], numbers[pair.worse[:2]] = count, -count
            numbered.append(
                [
                    tuple(
                        np.full(len(turn.sample.tokens), numbers.get((holder, n), 0), dtype=np.float32)
                        for n, (turn, holder) in enumerate(zip(trajectory.turns, holders, strict=True))
                    )  # alike in all plays that share a turn, as a batch has the mean of theirs
                    for trajectory, holders in zip(group.trajectories, group.holders, strict=True)
                ]
            )
        return numbered

    def pairs(self, group: Group, scores: Sequence[Score]) -> list[AnswerPair]:
        """Returns the pairs of a group, states in the order of their first turns in the episodes by id."""
        found = list[AnswerPair]()
        for answers in self._answers(group, scores):
            answers.sort(key=lambda answer: -answer.value)  # equals stay in the order of the episodes
            chosen = _contrasted(group, answers) if self.contrast == "calls" else _opposed(answers)
            least = max(self.margin, tolerance([answer.value for answer in answers]))
            differing = [pair for pair in chosen if pair.gap > least]
            found += differing[: self.max_pairs or None]
        return found

    def _answers(self, group: Group, scores: Sequence[Score]) -> list[list[Answer]]:
        """Returns, for each state, its different answers: the first turn that gave each, with the mean value of all."""
        owners = group.owners
        order = sorted(range(len(owners)), key=lambda n: group.episodes[owners[n]].id)  # in whatever order they come
        states = dict[Hashable, dict[bytes, list[Answer]]]()
        for t in order:
            trajectory, value = group.trajectories[t], 0.0
            values = np.zeros(len(trajectory.turns))
            for n in reversed(range(len(values))):
                values[n] = value = float(scores[t].turns[n]) + self.gamma * value
            for n, turn in enumerate(trajectory.turns):
                if (state := self._state(trajectory, n)) is not None and len(turn.sample.tokens):
                    answers = states.setdefault(state, {})
                    answers.setdefault(turn.sample.tokens.tobytes(), []).append(
                        Answer(group.holders[t][n], n, float(values[n]))
                    )
        return [
            [turns[0]._replace(value=float(np.mean([turn.value for turn in turns]))) for turns in answers.values()]
            for answers in states.values()
        ]

    def _state(self, trajectory: Trajectory, number: int) -> Hashable:
        """Returns what two turns must have in common to answer the same state; None where the world has no key."""
        turn = trajectory.turns[number]
        if self.state == "key":
            return None if turn.state is None else (trajectory.agent, turn.state)
        path, images = number, list[str]()
        while path >= 0:
            images = [*trajectory.turns[path].images, *images]
            path = trajectory.turns[path].parent
        prompt = hashlib.sha256(trajectory.prompt(number).tobytes()).digest()
        return trajectory.agent, prompt, tuple(images)


def _opposed(answers: Sequence[Answer]) -> list[AnswerPair]:
    """Pairs answers, which come with the best first, from both ends."""
    return [AnswerPair(*pair) for pair in zip(answers[: len(answers) // 2], answers[::-1], strict=False)]


def _contrasted(group: Group, answers: Sequence[Answer]) -> list[AnswerPair]:
    """Pairs answers, which come with the best first, that call a tool with those that do not; malformed ones are left
    out."""
    spoken = [(answer, group.trajectories[answer.trajectory].turns[answer.turn].message) for answer in answers]
    calling = [answer for answer, message in spoken if message is not None and message.calls]
    silent = [answer for answer, message in spoken if message is not None and not message.calls]
    pairs = list[AnswerPair]()
    while calling and silent:
        first, second = AnswerPair(calling[0], silent[-1]), AnswerPair(silent[0], calling[-1])
        pair = first if first.gap >= second.gap else second
        calling, silent = ([answer for answer in of_kind if answer not in pair] for of_kind in (calling, silent))
        pairs.append(pair)
    return pairs
