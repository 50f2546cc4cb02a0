"""Which model takes which seat of a play: the config table `[seats]`, and what the runner asks of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated

from sojourn.config.fields import NONBLANK
from sojourn.errors import ConfigError
from sojourn.protocols import EnvFamily
from sojourn.rollout.runner import seed_of
from sojourn.rollout.world import seats_of_world, worlds_of
from sojourn.types import SamplingParams

POLICY = SamplingParams.model


@dataclass(frozen=True, kw_only=True)
class Seats:
    """Says which models take the seats of a world, by their names in `[models]`, or "policy". `models` gives some for
    each seat, of which one is drawn for each group of plays. With `opponents` instead, the policy takes one seat, of
    one group the first, of the next the second, and so on, and one of the opponents, drawn anew, takes each other seat.
    Seats for which neither says anything are the policy's. The plays of a group have the same models in the same seats,
    so that their returns can be compared, and an evaluation has the same each time. Only the policy's trajectories are
    trained. Where an expert plays, it takes all seats.
    """

    models: Mapping[str, tuple[Annotated[str, NONBLANK], ...]] = field(default_factory=dict[str, tuple[str, ...]])
    opponents: tuple[Annotated[str, NONBLANK], ...] = ()

    def __post_init__(self) -> None:
        if self.models and self.opponents:
            raise ValueError(
                f"opponents = {list(self.opponents)} with models = {sorted(self.models)}: expected one of the two, as "
                "opponents take the seats that the policy leaves: leave the other out"
            )
        if empty := [seat for seat, names in self.models.items() if not names]:
            raise ValueError(f"models.{empty[0]} = []: expected the name of a model, or several: leave the seat out")

    @property
    def others(self) -> frozenset[str]:
        """Returns the models that sit beside the policy."""
        return frozenset(self.opponents).union(*self.models.values()) - {POLICY}

    def check(self, env: EnvFamily) -> None:
        """Refuses seats that no world has, and those that leave the policy none."""
        worlds = [seats_of_world(world) for world in worlds_of(env)]
        for seat in self.models:
            if not any(seat in seats for seats in worlds):
                known = ", ".join(sorted({name for seats in worlds for name in seats}))
                raise ConfigError(f"seats.models.{seat}: the world has the seats {known}: name one of them")
        for seats in worlds:
            if self.opponents and len(seats) == 1:
                raise ConfigError(
                    f"seats.opponents = {list(self.opponents)}, but a play has the one seat '{seats[0]}', which is the "
                    "policy's: leave them out, or choose a world of several seats"
                )
            if not any(POLICY in self.models.get(seat, (POLICY,)) for seat in seats):
                raise ConfigError(
                    f"seats.models gives all of the seats {', '.join(seats)} to other models, so that nothing would be "
                    "trained: leave one of them to the policy"
                )

    def most_trained(self, seats: Sequence[str]) -> int:
        """Returns how many of these seats the policy takes at most."""
        return 1 if self.opponents else sum(POLICY in self.models.get(seat, (POLICY,)) for seat in seats)

    def bind(self, seed: int) -> Seating:
        return Seating(self, seed)


@dataclass(frozen=True)
class Seating:
    """Tells which model takes a seat (`rollout.runner.ModelOf`)."""

    config: Seats
    seed: int

    def __call__(self, label: str, seat: str, seats: Sequence[str]) -> str:
        """Returns the name of the model. The second part of a play's `label` is the number of its group."""
        group = label.split("/")[1] if "/" in label else label
        number = int(group) if group.isdecimal() else seed_of(group)
        names = self.config.models.get(seat, (POLICY,))
        if self.config.opponents:
            names = (POLICY,) if seats[number % len(seats)] == seat else self.config.opponents
        return names[seed_of(self.seed, "seats", group, seat) % len(names)]
