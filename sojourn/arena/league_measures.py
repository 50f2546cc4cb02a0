"""Measures the checkpoints of a league, and the mixture of all checkpoints of a run, in the worlds that can."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from sojourn.abilities import MeasuredPolicy
from sojourn.arena.checkpoints import CheckpointOperator
from sojourn.arena.operators import Operator
from sojourn.protocols import EnvFamily
from sojourn.train.policy_measures import measures_of
from sojourn.types import FloatArray, Observation


@dataclass(frozen=True)
class Remembered:
    """A policy that is asked once about what a seat has seen and done, by its own measures and by those of mixtures."""

    policy: MeasuredPolicy
    _asked: dict[tuple[str, str], asyncio.Task[Sequence[float]]] = field(default_factory=dict, init=False)

    async def __call__(self, seat: str, seen: Sequence[Observation | str]) -> Sequence[float]:
        key = (seat, repr(seen))
        if key not in self._asked:
            self._asked[key] = asyncio.ensure_future(self.policy(seat, seen))
        return await self._asked[key]


@dataclass(frozen=True)
class Mixture:
    """The policy of a player who draws one of several policies, each as likely, before every play, and keeps to it.

    Where it has seen and done the same, it takes action a with the probability sum_k r_k p_k(a) / sum_k r_k, r_k being
    the product of the probabilities that policy k gave to the player's own actions so far: by Kuhn's theorem (1953) a
    player who remembers what it did can play the mixture in this way. Fictitious play, and what trains against earlier
    policies as it does (Heinrich, Lanctot and Silver 2015, "Fictitious Self-Play in Extensive-Form Games"), approaches
    an equilibrium by this average over its iterates; the last of them, alone, need not.
    """

    policies: Sequence[MeasuredPolicy]

    async def __call__(self, seat: str, seen: Sequence[Observation | str]) -> Sequence[float]:
        of_each = [await _reached(policy, seat, seen) for policy in self.policies]
        reach = np.array([one for one, _ in of_each])  # (policies,)
        if not reach.any():  # no policy comes here: whatever it does there, nothing depends on it
            reach = np.ones(len(of_each))
        return (reach @ np.array([probabilities for _, probabilities in of_each]) / reach.sum()).tolist()


async def _reached(policy: MeasuredPolicy, seat: str, seen: Sequence[Observation | str]) -> tuple[float, FloatArray]:
    """Returns how probable a policy makes the actions that the seat has taken, together, and its next ones."""
    reach, probabilities = 1.0, np.zeros(0, dtype=np.float32)
    for number, part in enumerate(seen):
        if isinstance(part, Observation):
            probabilities = np.array(await policy(seat, seen[: number + 1]), dtype=np.float32)
            if number + 1 < len(seen):
                reach *= float(probabilities[part.choices.index(str(seen[number + 1]))])
    return reach, probabilities


async def league_measures(players: Sequence[Operator], family: EnvFamily, split: str) -> dict[str, Mapping[str, float]]:
    """Returns what the worlds measure of each checkpoint that plays, by the operator's name, and of the mixture of all
    checkpoints of a run, by the run's name and @*, where two or more of them play. Who cannot be measured is left out.
    """
    measured, by_run = dict[str, Mapping[str, float]](), dict[Path, list[MeasuredPolicy]]()
    for one in players:
        if not isinstance(one, CheckpointOperator) or (asked := one.policy()) is None:
            continue
        policy = Remembered(asked)
        if measures := await measures_of(policy, family, split):
            measured[one.name] = measures
            by_run.setdefault(one.run.resolve(), []).append(policy)
    for run, members in by_run.items():
        if len(members) > 1:
            measured[f"{run.name}@*"] = await measures_of(Mixture(members), family, split)
    return measured
