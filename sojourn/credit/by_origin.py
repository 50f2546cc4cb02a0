"""An estimator for each origin of groups, such as demonstrations and groups that the policy played."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from sojourn.abilities import env_needs, min_group_size, provided
from sojourn.composite import HasBases
from sojourn.config.fields import Kind
from sojourn.credit.grpo import GRPO
from sojourn.protocols import Estimator, Stateful
from sojourn.types import Credit, Group, Score, Streams


@dataclass(frozen=True, kw_only=True)
class ByOrigin(HasBases):
    """Other estimators, by the origin of a group: `of` names one for each of some origins, `base` is for all others.

    The origin is "policy" for groups that the policy played for the step, else the name of the source that gave them:
    "experts", "replay", "folder", "imported". Each estimator gets the groups of its origins alone, as if the step had
    no others, so that whatever it averages or normalises over a step is of these. An estimator for "experts" is mostly
    `constant`, as demonstrations are to be imitated and have nothing to be compared with.
    """

    base: Annotated[Estimator, Kind("estimator")] = field(default_factory=GRPO)
    of: Mapping[str, Annotated[Estimator, Kind("estimator")]] = field(default_factory=dict[str, Estimator])

    @property
    def needs(self) -> frozenset[str]:
        return frozenset().union(*(part.needs for part in self._parts.values()))

    @property
    def env_needs(self) -> frozenset[str]:
        return frozenset().union(*map(env_needs, self._parts.values()))

    @property
    def provides(self) -> frozenset[str]:
        return frozenset().union(*map(provided, self._parts.values()))

    @property
    def min_group_size(self) -> int:
        return min(map(min_group_size, self._parts.values()))

    @property
    def origins(self) -> Sequence[str]:
        return tuple(self.of)

    @property
    def contained(self) -> Sequence[Estimator]:
        return [*self._parts.values()]

    def of_origin(self, origin: str) -> Estimator:
        return self.of.get(origin, self.base)

    def __call__(
        self, groups: Sequence[Group], scores: Sequence[Sequence[Score]], streams: Streams
    ) -> list[list[Credit]]:
        credit: list[list[Credit]] = [[] for _ in groups]
        for origin, part in self._parts.items():
            places = [n for n, group in enumerate(groups) if self._key(group) == origin]
            own = {name: [streams[name][n] for n in places] for name in sorted(part.needs)}
            found = part([groups[n] for n in places], [scores[n] for n in places], own)
            for n, of_group in zip(places, found, strict=True):
                credit[n] = of_group
        return credit

    def state(self) -> Mapping[str, Any]:
        return {origin: part.state() for origin, part in self._parts.items() if isinstance(part, Stateful)}

    def restore(self, state: Mapping[str, Any]) -> None:
        for origin, part in self._parts.items():
            if isinstance(part, Stateful):
                part.restore(state[origin])

    def _key(self, group: Group) -> str:
        return group.origin if group.origin in self.of else ""

    @property
    def _parts(self) -> Mapping[str, Estimator]:
        """Returns the estimators by their origin, that of all others under the empty text."""
        return {"": self.base, **self.of}
