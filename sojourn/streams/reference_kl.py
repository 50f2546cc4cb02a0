"""Estimates how far the policy is from the reference model, by answers to other tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from sojourn.batch.flatten import flatten
from sojourn.protocols import PerTurn, StepContext
from sojourn.types import Group, Trajectory


@dataclass(frozen=True, kw_only=True)
class ReferenceKL:
    """An estimate of the KL divergence of the policy from the reference model, at least 0 and the same for all tokens
    of a step: the mean log-ratio of trajectories whose first context is replaced by that of the next group of the step
    (the reference point of KTO: Ethayarajh et al. 2024, arXiv:2402.01306).

    As in the paper, what was played in answer to another task stands for what the policy would say, so that nothing is
    sampled for the estimate; it costs a pass of each model. The authors' code was compared, whose answers have one
    turn; here the later turns of a trajectory keep their contexts. A step of one group has nothing to exchange: 0.
    """

    provides = "reference_kl"
    reference = True

    async def __call__(self, context: StepContext) -> PerTurn:
        point = await self._point(context)
        return [
            [
                tuple(np.full(len(turn.sample.tokens), point, dtype=np.float32) for turn in t.turns)
                for t in group.trajectories
            ]
            for group in context.groups
        ]

    async def _point(self, context: StepContext) -> float:
        groups = mismatched(context.groups)
        batch, _ = flatten(groups)
        count = sum(len(group.trajectories) for group in groups)
        if not count:
            return 0.0
        policy = (await context.trainer.forward(batch)).logprobs
        known = (await context.trainer.forward(batch, reference=True)).logprobs
        return max(float((policy - known).sum(dtype=np.float64)) / count, 0.0)


def mismatched(groups: Sequence[Group]) -> list[Group]:
    """Returns the groups with the first context of each trajectory replaced by one of the group that follows, in a
    circle: that of its first trajectory of the same seat. A trajectory without such a partner is left out."""
    out: list[Group] = []
    for number, group in enumerate(groups):
        following = groups[(number + 1) % len(groups)]
        if following is group:
            continue
        prompts = _first_by_seat(following)
        episodes = [
            replace(
                episode,
                trajectories=tuple(
                    _asked(t, prompts[t.agent])
                    for t in episode.trajectories
                    if t.trainable and t.turns and t.agent in prompts
                ),
                branch=None,
            )
            for episode in group.episodes
            if episode.error is None
        ]
        out.append(replace(group, episodes=tuple(episodes)))
    return out


def _first_by_seat(group: Group) -> dict[str, Trajectory]:
    """Returns, for each seat, its trajectory in the first episode by id, in whatever order they come."""
    pairs = zip(group.owners, group.trajectories, strict=True)
    ordered = sorted(pairs, key=lambda pair: group.episodes[pair[0]].id, reverse=True)
    return {trajectory.agent: trajectory for _, trajectory in ordered if trajectory.turns}


def _asked(trajectory: Trajectory, other: Trajectory) -> Trajectory:
    """Returns a trajectory with the first context of another one."""
    first = replace(trajectory.turns[0], context=other.turns[0].context, images=other.turns[0].images)
    return replace(trajectory, turns=(first, *trajectory.turns[1:]))
