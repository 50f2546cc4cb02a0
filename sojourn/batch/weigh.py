"""Computes the weight of every sampled token, which holds all normalisation of the loss."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np

from sojourn.config.fields import Range
from sojourn.types import FloatArray, Group, Trajectory


@dataclass(frozen=True, kw_only=True)
class Aggregate:
    """Says how tokens are averaged over a step.

    "token": every token alike (DAPO, arXiv:2503.14476, eq. 8). "sequence": every trajectory alike, the tokens of all
    its paths sharing its weight (GRPO, arXiv:2402.03300, eq. 3). "turn": every turn alike. "constant": every token 1 /
    `length` of a trajectory (Dr. GRPO, arXiv:2503.20783, section 3.2), whatever was said. "seat": every seat of every
    episode alike, its trajectories sharing its weight and their tokens sharing theirs, so that an agent counts for as
    much however often it was called (after the trajectory alignment of M-GRPO, arXiv:2511.13288). Tokens and turns that
    branched plays share count once; each of the trajectories has its part of their weight.
    """

    by: Literal["token", "sequence", "turn", "constant", "seat"] = "token"
    length: Annotated[int, Range(1)] = 256


def weigh(groups: Sequence[Group], aggregate: Aggregate) -> list[list[tuple[FloatArray, ...]]]:
    """Returns the weights of the sampled tokens, (A,) by group, trajectory and turn. They sum to 1 where no trajectory
    (with "turn": no turn) is empty; with "constant" to the mean number of tokens divided by `length`."""
    trajectories = [t for group in groups for t in group.trajectories]
    sharers = [Counter((at, n) for of_turns in group.holders for n, at in enumerate(of_turns)) for group in groups]
    sizes = [
        len(group.trajectories[at].turns[n].sample.tokens)
        for group, held in zip(groups, sharers, strict=True)
        for at, n in held
    ]
    tokens, turns = sum(sizes), len(sizes)
    seats = [[(n, o, t.agent) for o, t in zip(g.owners, g.trajectories, strict=True)] for n, g in enumerate(groups)]
    trajectory_counts = Counter(seat for of_group in seats for seat in of_group)  # of each seat of each episode

    def weights_of(trajectory: Trajectory, seat: tuple[int, int, str], shared: Sequence[int]) -> tuple[FloatArray, ...]:
        lengths = [len(turn.sample.tokens) for turn in trajectory.turns]
        turn_weights = {
            "token": [1 / max(tokens, 1) / count for count in shared],
            "sequence": [1 / max(sum(lengths) * len(trajectories), 1)] * len(lengths),
            "turn": [1 / max(length * turns, 1) / count for length, count in zip(lengths, shared, strict=True)],
            "constant": [1 / (aggregate.length * max(len(trajectories), 1))] * len(lengths),
            "seat": [1 / max(sum(lengths) * trajectory_counts[seat] * len(trajectory_counts), 1)] * len(lengths),
        }[aggregate.by]
        return tuple(np.full(n, weight, np.float32) for n, weight in zip(lengths, turn_weights, strict=True))

    return [
        [
            weights_of(trajectory, seat, [held[at, n] for n, at in enumerate(holders)])
            for trajectory, seat, holders in zip(group.trajectories, of_group, group.holders, strict=True)
        ]
        for group, of_group, held in zip(groups, seats, sharers, strict=True)
    ]
