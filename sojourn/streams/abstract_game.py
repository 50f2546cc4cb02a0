"""A game of a few strategies as recorded plays show it, and counterfactual regret minimisation in it.

The tree holds what was played: after a strategy, the plays went on in as many ways, or ended with such payoffs, as
often as they did, which counts as chance. Strategies that no play took in a place are not known there.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sojourn.errors import ConfigError

Values = NDArray[np.float64]
MOST_CHOICES = 250


class Choice(NamedTuple):
    """A turn in the abstract: who acted, what the seat knew (its information set), and the strategy that it took."""

    seat: str
    known: Hashable
    strategy: int


@dataclass
class Place:
    """Holds what came after a strategy, or at the start: `ends` of plays with their payoffs by seat, and decisions,
    each with the number of plays that went there."""

    ends: list[Mapping[str, float]] = field(default_factory=list[Mapping[str, float]])
    decisions: dict[tuple[str, Hashable], Decision] = field(default_factory=dict[tuple[str, Hashable], "Decision"])

    def add(self, choices: Sequence[Choice], payoffs: Mapping[str, float]) -> None:
        """Adds a play that goes on from here with these choices. Raises `ConfigError` for one of more than
        `MOST_CHOICES`, as the game is solved by recursion."""
        if len(choices) > MOST_CHOICES:
            raise ConfigError(
                f"a play of {len(choices)} turns, of all seats together, is too long for a game of latent strategies: "
                f"expected at most {MOST_CHOICES}: lower rollout.limits.turns"
            )
        place = self
        for one in choices:
            decision = place.decisions.setdefault((one.seat, one.known), Decision(one.seat, one.known))
            decision.plays += 1
            place = decision.after.setdefault(one.strategy, Place())
        place.ends.append(payoffs)


@dataclass
class Decision:
    """Counts the plays in which a seat decided there, and holds what came after each strategy."""

    seat: str
    known: Hashable
    plays: int = 0
    after: dict[int, Place] = field(default_factory=dict[int, Place])


@dataclass
class InformationSet:
    """All decisions in which a seat knows the same: regrets and the sum of policies, by strategy."""

    strategies: tuple[int, ...]
    regrets: Values
    policies: Values
    reach: float = 0.0  # the sum over iterations of how likely the others and chance lead here

    def policy(self) -> Values:
        """Returns regret matching's policy: in proportion to positive regrets, uniform where there is none."""
        positive = np.maximum(self.regrets, 0.0)
        total = positive.sum()
        return positive / total if total > 0 else np.full(len(positive), 1 / len(positive))


@dataclass
class AbstractGame:
    """The trees of several deals, which are equally likely; a seat's information sets go through all of them."""

    deals: Sequence[Place]
    known: dict[tuple[str, Hashable], InformationSet] = field(
        default_factory=dict[tuple[str, Hashable], InformationSet]
    )

    def __post_init__(self) -> None:
        found = dict[tuple[str, Hashable], set[int]]()
        pending = list(self.deals)
        while pending:
            for key, decision in pending.pop().decisions.items():
                found.setdefault(key, set()).update(decision.after)
                pending += decision.after.values()
        for key, strategies in found.items():
            zeros = np.zeros(len(strategies))
            self.known[key] = InformationSet(tuple(sorted(strategies)), zeros.copy(), zeros.copy())

    def solve(self, iterations: int) -> None:
        """Does so many iterations of counterfactual regret minimisation (Zinkevich et al. 2007, eq. 7-8)."""
        for _ in range(iterations):
            policies = {key: one.policy() for key, one in self.known.items()}
            for deal in self.deals:
                self._value(deal, policies, {}, 1 / len(self.deals))

    def advantage(self, seat: str, known: Hashable, strategy: int) -> float:
        """Returns the mean regret of not having taken a strategy, given that the others and chance led there: 0 or
        near it for those of an equilibrium, and below it for worse ones."""
        of = self.known[seat, known]
        return float(of.regrets[of.strategies.index(strategy)] / of.reach) if of.reach > 0 else 0.0

    def average_policy(self, seat: str, known: Hashable) -> dict[int, float]:
        """Returns the mean policy over the iterations, which is the one that comes close to an equilibrium."""
        of = self.known[seat, known]
        total = of.policies.sum()
        shares = of.policies / total if total > 0 else np.full(len(of.strategies), 1 / len(of.strategies))
        return {strategy: float(share) for strategy, share in zip(of.strategies, shares, strict=True)}

    def _value(
        self,
        place: Place,
        policies: Mapping[tuple[str, Hashable], Values],
        reach: Mapping[str, float],
        chance: float,
    ) -> dict[str, float]:
        """Returns the mean payoffs from a place on, by seat, and updates what was met. `reach` is how likely each
        seat's own policy leads here."""
        plays = len(place.ends) + sum(one.plays for one in place.decisions.values())
        mean: dict[str, float] = {}
        for end in place.ends:
            _add(mean, end, 1 / plays)
        for key, decision in place.decisions.items():
            share = decision.plays / plays
            _add(mean, self._decided(key, decision, policies, reach, chance * share), share)
        return mean

    def _decided(
        self,
        key: tuple[str, Hashable],
        decision: Decision,
        policies: Mapping[tuple[str, Hashable], Values],
        reach: Mapping[str, float],
        chance: float,
    ) -> dict[str, float]:
        of, policy, seat = self.known[key], policies[key], decision.seat
        at = [of.strategies.index(strategy) for strategy in decision.after]
        taken = policy[at] if policy[at].sum() > 0 else np.ones(len(at))
        shares = taken / taken.sum()  # among the strategies that plays took here
        own = reach.get(seat, 1.0)
        values = [
            self._value(after, policies, {**reach, seat: own * float(policy[n])}, chance)
            for n, after in zip(at, decision.after.values(), strict=True)
        ]
        mean: dict[str, float] = {}
        for value, share in zip(values, shares, strict=True):
            _add(mean, value, float(share))
        others = chance * float(np.prod([one for name, one in reach.items() if name != seat]))
        for n, value in zip(at, values, strict=True):
            of.regrets[n] += others * (value.get(seat, 0.0) - mean.get(seat, 0.0))
        of.reach += others
        of.policies += own * chance * policy
        return mean


def _add(total: dict[str, float], values: Mapping[str, float], factor: float) -> None:
    for name, value in values.items():
        total[name] = total.get(name, 0.0) + factor * value
