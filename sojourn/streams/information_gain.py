"""The information gain of each turn about the task's right answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

import numpy as np

from sojourn.config.fields import NONBLANK
from sojourn.errors import ConfigError
from sojourn.protocols import PerTurn, StepContext
from sojourn.streams.replies import reply_tokens, score_replies
from sojourn.streams.trainer_passes import at_last_token
from sojourn.types import IntArray, Task, Trajectory


class Reply(NamedTuple):
    """The tokens of a reply with the right answer, of which `start` to `stop` hold the answer itself."""

    tokens: IntArray
    start: int
    stop: int


@dataclass(frozen=True, kw_only=True)
class InformationGain:
    """Increase of the policy's belief in the task's right answer over each turn and the world's reply to it, at the
    turn's last token; 0 for the last turn (Wang et al. 2025, arXiv:2510.14967).

    The belief is the policy's probability of the right answer, were it to answer now with `answer_prefix` + answer +
    `answer_suffix`: the geometric mean over the tokens that hold any part of the answer (`belief` = "prob"), or its
    logarithm ("logprob"; DR-Venus: Venus Team 2026, arXiv:2604.19859). `task_key` is the answer's key in `Task.data`: a
    text, a number, or a list, of which the first entry counts.

    Where the policy thinks, the authors close the thought after "Now there's enough information to answer"; here the
    renderer closes it, and `answer_prefix` follows. Turns are compared in the order in which they were taken, also
    where a prompt forgets or forks. DR-Venus computes gains for the turns of some tools only, here every turn has one.
    """

    task_key: Annotated[str, NONBLANK] = "answer"
    answer_prefix: str = "<answer>\n"
    answer_suffix: str = "\n</answer>"
    belief: Literal["prob", "logprob"] = "prob"

    provides = "information_gain"
    reference = False

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
        prompts, answers = [prompt for prompt, _ in asked], [reply.tokens for _, reply in asked]
        scored = await score_replies(context.trainer, prompts, answers) if asked else []
        means = [row[r.start : r.stop].mean(dtype=np.float64) for row, (_, r) in zip(scored, asked, strict=True)]
        beliefs = iter(np.exp(means) if self.belief == "prob" else means)
        return [
            at_last_token(group, [_gains(t, [next(beliefs) for _ in _compared(t)]) for t in group.trajectories])
            for group in context.groups
        ]

    def _reply(self, context: StepContext, task: Task) -> Reply:
        """Returns the reply with the task's answer: the tokens that it shares with the prefix alone or the suffix alone
        are not the answer's."""
        text = self._answer(task)
        tokens = reply_tokens(context, self.answer_prefix + text + self.answer_suffix)
        start = _common_prefix(tokens, reply_tokens(context, self.answer_prefix))
        stop = len(tokens) - _common_prefix(tokens[::-1], reply_tokens(context, self.answer_suffix)[::-1])
        if start >= stop:
            raise ConfigError(f"information_gain: {text!r}, a right answer of '{task.env}', has no token: give it one")
        return Reply(tokens, start, stop)

    def _answer(self, task: Task) -> str:
        answer = task.data.get(self.task_key)
        answer = answer[0] if isinstance(answer, list | tuple) and answer else answer
        if isinstance(answer, str | int | float):
            return str(answer)
        raise ConfigError(
            f"information_gain: a task of '{task.env}' has data['{self.task_key}'] = {answer!r}: expected its right "
            "answer, a text, a number or a list of them: name its key, information_gain.task_key, or another world"
        )


def _compared(trajectory: Trajectory) -> range:
    """Returns the turns whose beliefs are needed: none of a single turn, which has nothing to compare with."""
    return range(len(trajectory.turns) if len(trajectory.turns) > 1 else 0)


def _gains(trajectory: Trajectory, beliefs: Sequence[float]) -> list[float]:
    return [*map(float, np.diff(beliefs)), 0.0][: len(trajectory.turns)]


def _common_prefix(one: IntArray, other: IntArray) -> int:
    """Returns the length of the common prefix."""
    length = min(len(one), len(other))
    return int(np.cumprod(one[:length] == other[:length]).sum())
