"""Computes the metrics of a step's episodes, and how far the policy has moved since the stage began."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from sojourn.batch.flatten import flatten
from sojourn.protocols import Trainer
from sojourn.sources.slots import has_zero_signal
from sojourn.train.loop import StepResult
from sojourn.types import Group, Stop


def count_metrics(result: StepResult) -> dict[str, float]:
    """Returns how much was played for a step, including groups that were redrawn, dropped or left out.

    `episodes` counts those without a failure; `turns` is the mean over their trajectories, of which each trained seat
    has one.
    """
    groups = [scored.group for scored in result.played]
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    turns = [turn for trajectory in trajectories for turn in trajectory.turns]
    return {
        "groups": len(groups),
        "episodes": sum(len(set(group.owners)) for group in groups),
        "turns": len(turns) / max(1, len(trajectories)),
        "sampled_tokens": sum(len(turn.sample.tokens) for turn in turns),
    }


def policy_metrics(result: StepResult, version: int) -> dict[str, float]:
    """Returns how the policy did in all episodes that were played for a step, and the lags of the trained groups.

    `version` is the number of the weights that the step trained.
    """
    groups = [scored.group for scored in result.played]
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    turns = [turn for trajectory in trajectories for turn in trajectory.turns]
    samples = [turn.sample for group in result.groups for t in group.trajectories for turn in t.turns]
    lags = [version - sample.versions.oldest for sample in samples if sample.versions.oldest >= 0]
    return {
        "success": _mean([float(trajectory.success) for trajectory in trajectories]),
        "reward": _mean([score.total for scored in result.played for score in scored.scores]),
        "malformed": _mean([turn.info.get("malformed", 0.0) for turn in turns]),
        "cut_off": _mean([float(turn.sample.stop is Stop.LENGTH) for turn in turns]),
        "lag_mean": _mean(lags),
        "lag_max": float(max(lags, default=0)),
        "zero_signal": _mean([float(has_zero_signal(s.group, s.scores)) for s in result.played if s.scores]),
        **_success_by_world(groups),
    }


async def drift(trainer: Trainer, groups: Sequence[Group], step: int, count: int) -> float:
    """Returns KL(policy || reference) in nats per token, where the reference is the policy as the stage began: the k3
    estimate (Schulman 2020, "Approximating KL divergence") over `count` of the groups, which are others in each
    step."""
    count = min(count, len(groups))
    batch, _ = flatten([groups[(step * count + n) % len(groups)] for n in range(count)])
    reference = (await trainer.forward(batch, reference=True)).logprobs
    gap = (reference - batch.logprobs)[batch.weight > 0]
    return float(np.mean(np.expm1(gap) - gap)) if len(gap) else math.nan


def _success_by_world(groups: Sequence[Group]) -> dict[str, float]:
    """Returns the success in each world, where there are several."""
    successes: dict[str, list[float]] = defaultdict(list)
    for group in groups:
        successes[group.task.env] += [float(trajectory.success) for trajectory in group.trajectories]
    return (
        {f"success_{name}": _mean(values) for name, values in sorted(successes.items())} if len(successes) > 1 else {}
    )


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if len(values) else 0.0
