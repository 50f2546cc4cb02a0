"""The log-ratio of a teacher to the sampler as the advantage of each token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated

import numpy as np

from sojourn.config.fields import Kind, Range
from sojourn.credit.constant import Constant
from sojourn.credit.process import STREAM
from sojourn.credit.wrapped import Wrapped
from sojourn.protocols import Estimator
from sojourn.types import Credit, FloatArray, Group, Score, Streams, Trajectory


@dataclass(frozen=True, kw_only=True)
class TeacherKL(Wrapped):
    """Advantages of on-policy distillation: `coef` times the logarithm of the teacher's probability of each token over
    the sampler's, whose mean over samples is the negative reverse KL (Lu 2025, "On-Policy Distillation", Thinking
    Machines: the authors' code was read, and accounts of the text).

    With `discount` above 0, those of the later tokens of the trajectory are added, discounted for each sampled token,
    so that a token also answers for the states that it leads to. The advantages of `base` are added: by default 0,
    without any influence of the reward; with one such as `grpo`, the policy is reinforced and taught at once. The loss
    is one of policy gradients, such as `reinforce` or `ppo`. `stream` names the stream that the teacher's
    log-probabilities come from: `teacher`, or `hindsight_hint`.
    """

    base: Annotated[Estimator, Kind("estimator")] = field(default_factory=lambda: Constant(value=0.0))
    coef: float = 1.0
    discount: Annotated[float, Range(0, 1)] = 0.0

    stream: Annotated[str, STREAM] = "teacher"

    @property
    def needs(self) -> frozenset[str]:
        return self.base.needs | {self.stream}

    def __call__(
        self, groups: Sequence[Group], scores: Sequence[Sequence[Score]], streams: Streams
    ) -> list[list[Credit]]:
        return [
            [self._taught(*arguments) for arguments in zip(group.trajectories, of_group, teacher, strict=True)]
            for group, of_group, teacher in zip(
                groups, self.base(groups, scores, streams), streams[self.stream], strict=True
            )
        ]

    def _taught(self, trajectory: Trajectory, credit: Credit, teacher: Sequence[FloatArray]) -> Credit:
        ratios = [
            (logprobs - turn.sample.logprobs).astype(np.float64)
            for turn, logprobs in zip(trajectory.turns, teacher, strict=True)
        ]
        later = 0.0
        if self.discount:
            for ratio in reversed(ratios):
                for token in reversed(range(len(ratio))):
                    later = ratio[token] = ratio[token] + self.discount * later
        pairs = zip(credit.tokens, ratios, strict=True)
        return replace(credit, tokens=tuple((own + self.coef * ratio).astype(np.float32) for own, ratio in pairs))
