"""What each turn adds to the policy's belief in the task's right answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, NamedTuple

import numpy as np

from sojourn.config.registry import SOME
from sojourn.errors import ConfigError
from sojourn.protocols import PerTurn, StepContext
from sojourn.streams.trainer_passes import at_last
from sojourn.types import IntArray, Task, Trajectory


class Reply(NamedTuple):
    """What the policy would say if it answered now; the answer's own tokens are `start` to `stop`."""

    tokens: IntArray
    start: int
    stop: int


@dataclass(frozen=True, kw_only=True)
class InformationGain:
    """The policy's belief in the task's right answer after each turn, what the world answered included, less that
    before it: at the turn's last token; 0 for the last turn (Wang et al. 2025, arXiv:2510.14967).

    The belief is how probable the right answer is if the policy gives it at once, as `before` + answer + `after`: the
    geometric mean over the tokens that hold any of the answer, or its logarithm (DR-Venus: Venus Team 2026,
    arXiv:2604.19859). `answer` is its key in `Task.data`: a text, a number, or a list of which the first counts.

    The authors close the thought, where the policy thinks, after "Now there's enough information to answer"; here the
    renderer does, and `before` is what follows. Turns are compared in the order in which they were taken, also where a
    prompt forgets or forks. DR-Venus asks after some tools' turns alone, here every turn has its gain.
    """

    task_key: Annotated[str, SOME] = "answer"
    answer_prefix: str = "<answer>\n"
    answer_suffix: str = "\n</answer>"
    belief: Literal["prob", "logprob"] = "prob"

    provides: ClassVar[str] = "information_gain"
    reference: ClassVar[bool] = False

    @property
    def task_data(self) -> frozenset[str]:
        return frozenset({self.task_key})

    async def __call__(self, context: StepContext) -> PerTurn:
        replies = [self._reply(context, group.task) for group in context.groups]
        asked = [
            (trajectory.prompt(turn), reply)
            for group, reply in zip(context.groups, replies, strict=True)
            for trajectory in group.trajectories
            for turn in _compared(trajectory)
        ]
        said = await context.unsaid([p for p, _ in asked], [r.tokens for _, r in asked]) if asked else []
        means = [of[r.start : r.stop].mean(dtype=np.float64) for of, (_, r) in zip(said, asked, strict=True)]
        beliefs = iter(np.exp(means) if self.belief == "prob" else means)
        return [
            at_last(group, [_gains(t, [next(beliefs) for _ in _compared(t)]) for t in group.trajectories])
            for group in context.groups
        ]

    def _reply(self, context: StepContext, task: Task) -> Reply:
        """Where the reply is as `before` alone begins it and as `after` alone ends it, it is not the answer's."""
        text = self._answer(task)
        tokens = context.reply(self.answer_prefix + text + self.answer_suffix)
        start = _alike(tokens, context.reply(self.answer_prefix))
        stop = len(tokens) - _alike(tokens[::-1], context.reply(self.answer_suffix)[::-1])
        if start >= stop:
            raise ConfigError(f"information_gain: {text!r}, a right answer of '{task.env}', has no token: give it one")
        return Reply(tokens, start, stop)

    def _answer(self, task: Task) -> str:
        found = task.data.get(self.task_key)
        found = found[0] if isinstance(found, list | tuple) and found else found
        if isinstance(found, str | int | float):
            return str(found)
        raise ConfigError(
            f"information_gain: a task of '{task.env}' has data['{self.task_key}'] = {found!r}: expected its right "
            "answer, a text, a number or a list of them: name its key, information_gain.answer, or another world"
        )


def _compared(trajectory: Trajectory) -> range:
    """The turns whose beliefs are asked for: of a single one there is nothing to compare it with."""
    return range(len(trajectory.turns) if len(trajectory.turns) > 1 else 0)


def _gains(trajectory: Trajectory, beliefs: Sequence[float]) -> list[float]:
    return [*map(float, np.diff(beliefs)), 0.0][: len(trajectory.turns)]


def _alike(one: IntArray, other: IntArray) -> int:
    """How many tokens both begin with."""
    length = min(len(one), len(other))
    return int(np.cumprod(one[:length] == other[:length]).sum())
