"""Computes the metrics of a step's episodes, and how far the policy has moved since the stage began."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from sojourn.abilities import Measured, origin_of, parts_of, sub_agent_models
from sojourn.batch.flatten import flatten
from sojourn.protocols import Source, SourceConfig, Trainer
from sojourn.rewards.reward_cache import ScoredGroup
from sojourn.search_cost import spent_tokens
from sojourn.sources.slots import Signal, Slots, has_zero_signal
from sojourn.train.assemble import Components
from sojourn.train.loop import StepResult, Update, taken_by
from sojourn.train.recipe import Stage
from sojourn.train.seating import POLICY
from sojourn.train.sub_agents import measured
from sojourn.types import Group, Score, Stop, Turn


def metrics_of(component: object) -> Mapping[str, float]:
    """Returns a component's own metrics since they were last asked for, where it has any."""
    return component.metrics() if isinstance(component, Measured) else {}


def step_metrics(
    result: StepResult, components: Components, source: Source, stage: Stage, *, errors_before: int
) -> dict[str, float]:
    """Returns the metrics of a step of a stage. Those of the policy make sense only where it played groups itself.

    `errors_before` is the number of failed episodes before the step.
    """
    live = stage.groups.live
    counts = count_metrics(result)
    spent = components.timeline.take()
    seconds = sum(spent.values())
    return {
        **model_metrics(result, stage.groups, sub_agent_models(components.runner.agent)),
        **counts,
        **origin_metrics(result, stage.groups),
        "errors": components.runner.errors - errors_before,
        **(metrics_of(components.sampler) if live else {}),
        **metrics_of(source),
        **metrics_of(components.curriculum),
        **(metrics_of(components.seating) if live else {}),
        **metrics_of(components.asked),
        **{f"seconds_{activity}": part for activity, part in spent.items()},
        "seconds_step": seconds,
        "episodes_per_s": counts["episodes"] / max(seconds, 1e-9),
    }


def model_metrics(result: StepResult, source: SourceConfig[Any], called: Collection[str]) -> dict[str, float]:
    """Returns the metrics of all models that learn; each name of one beside the policy begins with its own."""
    metrics: dict[str, float] = {}
    for model, update in result.updates.items():
        of = "" if model == POLICY else f"{model}_"
        own = policy_metrics(model, update, result.played, source, called) if source.live else {}
        metrics |= {f"{of}{name}": value for name, value in {**update.metrics, **own}.items()}
    return metrics


def _signal_of(groups: SourceConfig[Any]) -> Signal:
    """Returns by what a live group of a source has a signal; by the score where the source has no rule of its own."""
    signals: list[Signal] = [part.signal_of_training for part in parts_of(groups) if isinstance(part, Slots)]
    return signals[0] if signals else "score"


def live_origins(groups: SourceConfig[Any]) -> list[str]:
    """Returns the origins of all groups that models play for a step."""
    return list(dict.fromkeys(origin_of(part) for part in parts_of(groups) if part.live))


def live_origin(groups: SourceConfig[Any]) -> str:
    """Returns the origin of the groups that the policy plays for a step: "policy" but for sources that change how it
    plays, such as `semi_online`."""
    return next(iter(live_origins(groups)), "policy")


def count_metrics(result: StepResult) -> dict[str, float]:
    """Returns how much was played for a step, including groups that were redrawn, dropped or left out.

    `episodes` counts those without a failure; `turns` is the mean over their trajectories, of which each trained seat
    has one. Tokens that branches share count once, and those of searches count.
    """
    groups = [scored.group for scored in result.played]
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    return {
        "groups": len(groups),
        "episodes": sum(len(set(group.owners)) for group in groups),
        "turns": sum(len(trajectory.turns) for trajectory in trajectories) / max(1, len(trajectories)),
        "sampled_tokens": sum(spent_tokens(_turns(group)) for group in groups),
    }


def _turns(group: Group) -> Iterator[Turn]:
    """Yields the turns of a group, those that branches share once."""
    for number, (trajectory, holders) in enumerate(zip(group.trajectories, group.holders, strict=True)):
        yield from (turn for turn, at in zip(trajectory.turns, holders, strict=True) if at == number)


def origin_metrics(result: StepResult, source: SourceConfig[Any]) -> dict[str, float]:
    """Returns how many of a step's groups, on which any model was trained, came from each origin, where a source has
    several."""
    origins = dict.fromkeys(map(origin_of, parts_of(source)))
    trained = {(g.slot, g.episodes[0].id): g.origin for update in result.updates.values() for g in update.groups}
    counts = Counter(trained.values())
    return {f"groups_of_{origin}": float(counts[origin]) for origin in origins} if len(origins) > 1 else {}


def policy_metrics(
    model: str,
    update: Update,
    all_played: Sequence[ScoredGroup],
    source: SourceConfig[Any],
    called: Collection[str] = (),
) -> dict[str, float]:
    """Returns how a model that learns did in all episodes that were played for a step, those of the first origin of
    which it played any, and the lags of the groups that it was trained on. Where it took seats, those that were
    `called` there are a part of a seat's result."""
    signal, version = _signal_of(source), int(update.metrics["version"]) - 1
    by_origin = (_played_by(model, all_played, origin) for origin in live_origins(source))
    played = next(filter(None, by_origin), [])
    turns = [turn for scored in played for trajectory in scored.group.trajectories for turn in trajectory.turns]
    groups, judged = measured(model, called, [one.group for one in played], [one.scores for one in played])
    scores = [score for of_group in judged for score in of_group]
    samples = [turn.sample for group in update.groups for turn in _turns(group)]
    lags = [version - sample.versions.oldest for sample in samples if sample.versions.oldest >= 0]
    return {
        "success": _mean([float(one.success) for group in groups for one in group.trajectories]),
        "reward": _mean([score.total for score in scores]),
        "malformed": _mean([turn.info.get("malformed", 0.0) for turn in turns]),
        "cut_off": _mean([float(turn.sample.stop is Stop.LENGTH) for turn in turns]),
        "lag_mean": _mean(lags),
        "lag_max": float(max(lags, default=0)),
        "zero_signal": _mean([float(has_zero_signal(s.group, s.scores, signal)) for s in played if s.scores]),
        **_success_by_world(groups),
        **_parts(scores),
    }


def _played_by(model: str, all_played: Sequence[ScoredGroup], origin: str) -> list[ScoredGroup]:
    """Returns the groups of an origin in which a model took trajectories, with these alone."""
    live = [scored for scored in all_played if scored.group.origin == origin]
    own = taken_by(model, [scored.group for scored in live], [scored.scores for scored in live])
    return [ScoredGroup(group, list(scores)) for group, scores in zip(*own, strict=True) if scores]


async def drift(trainer: Trainer, groups: Sequence[Group], step: int, count: int, origin: str) -> float:
    """Returns KL(policy || reference) in nats per token, of the policy that sampled the groups of a step; the reference
    is the policy as the stage began. It is the k3 estimate (Schulman 2020, "Approximating KL divergence") over `count`
    of the groups of an origin, those that the policy played for the step, which are others in each step; NaN where
    there are none."""
    played = [group for group in groups if group.origin == origin]
    count = min(count, len(played))
    if count == 0:
        return math.nan
    batch, _ = flatten([played[(step * count + n) % len(played)] for n in range(count)])
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


def _parts(scores: Sequence[Score]) -> dict[str, float]:
    """Returns the mean of each part of the reward, over the trajectories that have it."""
    names = sorted({name for score in scores for name in score.parts})
    return {f"part_{name}": _mean([float(s.parts[name]) for s in scores if name in s.parts]) for name in names}


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if len(values) else 0.0
