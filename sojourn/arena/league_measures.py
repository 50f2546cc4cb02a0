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
class Mixture:
    """The policy of a player who draws one of several policies, each as likely, before every play, and keeps to it.

    Where it has seen and done the same, it takes action a with the probability sum_k r_k p_k(a) / sum_k r_k, r_k being
    the product of the probabilities that policy k gave to the player's own actions so far: by Kuhn's theorem (1953) a
    player who remembers what it did can play the mixture in this way. Fictitious play, and what trains against earlier
    policies as it does (Heinrich, Lanctot and Silver 2015, "Fictitious Self-Play in Extensive-Form Games"), approaches
    an equilibrium by this average over its iterates; the last of them, alone, need not.

    Each policy is asked once about what a seat has seen and done, however often the mixture is.
    """

    policies: Sequence[MeasuredPolicy]
    _asked: dict[tuple[int, str, str], asyncio.Task[Sequence[float]]] = field(default_factory=dict, init=False)

    async def __call__(self, seat: str, seen: Sequence[Observation | str]) -> Sequence[float]:
        of_each = [await self._reached(number, seat, seen) for number in range(len(self.policies))]
        reach = np.array([one for one, _ in of_each])  # (policies,)
        if not reach.any():  # no policy comes here: whatever it does there, nothing depends on it
            reach = np.ones(len(of_each))
        return (reach @ np.array([probabilities for _, probabilities in of_each]) / reach.sum()).tolist()

    async def _reached(self, policy: int, seat: str, seen: Sequence[Observation | str]) -> tuple[float, FloatArray]:
        """Returns how probable a policy makes the actions that the seat has taken, together, and its next ones."""
        reach, probabilities = 1.0, np.zeros(0, dtype=np.float32)
        for number, part in enumerate(seen):
            if isinstance(part, Observation):
                probabilities = np.array(await self._ask(policy, seat, seen[: number + 1]), dtype=np.float32)
                if number + 1 < len(seen):
                    reach *= float(probabilities[part.choices.index(str(seen[number + 1]))])
        return reach, probabilities

    async def _ask(self, policy: int, seat: str, seen: Sequence[Observation | str]) -> Sequence[float]:
        key = (policy, seat, repr(seen))
        if key not in self._asked:
            self._asked[key] = asyncio.ensure_future(self.policies[policy](seat, seen))
        return await self._asked[key]


async def league_measures(players: Sequence[Operator], family: EnvFamily, split: str) -> dict[str, Mapping[str, float]]:
    """Returns what the worlds measure of each checkpoint that plays, by the operator's name, and of the mixture of all
    checkpoints of a run, by the run's name and @*, where two or more of them play. Who cannot be measured is left out.
    """
    checkpoints = [one for one in players if isinstance(one, CheckpointOperator)]
    policies = {one.name: policy for one in checkpoints if (policy := one.policy()) is not None}
    by_run: dict[Path, list[MeasuredPolicy]] = {}
    for one in checkpoints:
        if one.name in policies:
            by_run.setdefault(one.run.resolve(), []).append(policies[one.name])
    mixtures = {f"{run.name}@*": Mixture(members) for run, members in by_run.items() if len(members) > 1}
    measured = {name: await measures_of(policy, family, split) for name, policy in {**policies, **mixtures}.items()}
    return {name: measures for name, measures in measured.items() if measures}
