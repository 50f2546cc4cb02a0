"""Decides which model takes which seat of a play: the config table `[seats]`, and what the runner asks of it."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from sojourn.abilities import live_width, play_lag
from sojourn.config.fields import NONBLANK
from sojourn.errors import ConfigError, RecordError
from sojourn.protocols import EnvFamily, SourceConfig, Trainer
from sojourn.rollout.world import seats_of_world, worlds_of
from sojourn.seeds import seed_of
from sojourn.train.snapshots import POLICY, SnapshotPool
from sojourn.types import Group

EVALUATIONS = "evaluation"  # begins the labels of plays that are not of a stage, which no stage's name does


class Clock(NamedTuple):
    """Tells how many steps of the run are certain to be done when a group of a stage begins: its slots are `width` a
    step, may begin `lag` steps early, and `before` steps are those of earlier stages."""

    stage: str
    before: int
    width: int
    lag: int

    def known(self, slot: int) -> int:
        return self.earliest(self.before + slot // self.width)

    def earliest(self, done: int) -> int:
        """Returns it for the groups that may still be playing, or begin, when `done` steps are done."""
        return max(self.before, done - self.lag)


@dataclass(frozen=True, kw_only=True)
class Seats:
    """Says which models take the seats of a world, by their names in `[models]`, or "policy". `models` gives some for
    each seat, of which one is drawn for each group of plays. With `opponents` instead, the policy takes one seat, of
    one group the first, of the next the second, and so on, and one of the opponents, drawn anew, takes each other seat;
    "policy" may be one of them. Seats for which neither says anything are the policy's. The plays of a group have the
    same models in the same seats, so that their returns can be compared, and an evaluation has the same each time, but
    for snapshots. Only the policy's trajectories are trained. Where an expert plays, it takes all seats.
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

    def check(self, env: EnvFamily, table: str = "seats") -> None:
        """Refuses seats that no world has, and those that leave the policy none in any world."""
        worlds = [seats_of_world(world) for world in worlds_of(env)]
        for seat in self.models:
            if not any(seat in seats for seats in worlds):
                known = ", ".join(sorted({name for seats in worlds for name in seats}))
                raise ConfigError(f"{table}.models.{seat}: the world has the seats {known}: name one of them")
        for seats in worlds if self.opponents else ():
            if len(seats) == 1:
                raise ConfigError(
                    f"{table}.opponents = {list(self.opponents)}, but a play has the one seat '{seats[0]}', which is "
                    "the policy's: leave them out, or choose a world of several seats"
                )
        if not any(self._leave(seats) for seats in worlds):
            every = ", ".join(dict.fromkeys(seat for seats in worlds for seat in seats))
            raise ConfigError(
                f"{table}.models gives all of the seats {every} to other models, so that the policy "
                "would not play: leave one of them to it"
            )

    def check_evaluated(self, env: EnvFamily, split: str) -> None:
        """Refuses seats by which an evaluation on a split would have plays without the policy."""
        for world in worlds_of(env):
            if not self._leave(seats := seats_of_world(world)) and len(world.tasks(split)):
                raise ConfigError(
                    f"evaluation: the policy has none of the seats {', '.join(seats)} of a world that has tasks of the "
                    f"split '{split}', so that it would not play: give evaluations seats of their own, such as "
                    "evaluation.seats = {models = {}}"
                )

    def _leave(self, seats: Sequence[str]) -> bool:
        """Returns whether they leave the policy one of the seats of a world."""
        return any(POLICY in self.models.get(seat, (POLICY,)) for seat in seats)

    def most_taken(self, seats: Sequence[str], model: str) -> int:
        """Returns how many of these seats a model takes at most."""
        if self.opponents:
            return (len(seats) - 1 if model in self.opponents else 0) + (model == POLICY)
        return sum(model in self.models.get(seat, (POLICY,)) for seat in seats)


@dataclass
class Seating:
    """Tells which model takes a seat (`rollout.runner.ModelOf`), and keeps the snapshots of the policy that do.
    `evaluation` says it for evaluations, and for single plays; None: as `config`."""

    config: Seats
    seed: int
    evaluation: Seats | None = None
    pools: Mapping[str, SnapshotPool] = field(default_factory=dict[str, SnapshotPool])
    _clock: Clock = field(default_factory=lambda: Clock("", 0, 1, 0))
    _done: int = 0  # steps of the run

    def __call__(self, label: str, seat: str, seats: Sequence[str]) -> str:
        """Returns the name of the model. The second part of a play's `label` is the number of its group."""
        stage, _, rest = label.partition("/")
        group = rest.partition("/")[0] or label
        number = int(group) if group.isdecimal() else seed_of(group)
        trains = not stage.startswith(EVALUATIONS)
        config = self.config if trains or self.evaluation is None else self.evaluation
        names = config.models.get(seat, (POLICY,))
        if config.opponents:
            names = (POLICY,) if seats[number % len(seats)] == seat else config.opponents
        name = names[seed_of(self.seed, "seats", group, seat) % len(names)]
        if name not in self.pools:
            return name
        known = self._clock.known(number) if stage == self._clock.stage else self._done
        return self.pools[name].choose(known, seed_of(self.seed, "snapshot", group, seat) / 2**63)

    def begin(self, stage: str, before: int, groups: SourceConfig[Any]) -> None:
        """Begins a stage of these groups, before which the run has `before` steps."""
        self._clock = Clock(stage, before, max(1, live_width(groups)), play_lag(groups))

    async def begin_run(self, folder: Path, trainer: Trainer) -> None:
        """Keeps the weights that a run begins with."""
        for pool in self.pools.values():
            pool.attach(folder)
            await pool.keep(0, trainer)

    async def resume(self, folder: Path, done: int, lag: int) -> None:
        """Opens the snapshots of a run that goes on after `done` steps, whose plays may have begun up to `lag` steps
        early."""
        self._done = done
        for pool in self.pools.values():
            pool.attach(folder)
            if not await pool.open_kept(done, done - lag):
                raise RecordError(
                    f"{pool.path} has no snapshot of the first {done} steps, but the run goes on after these: restore "
                    "the folder from a copy, or start a new run"
                )

    async def evaluate(self, folder: Path | None, done: int, trainer: Trainer) -> None:
        """Opens the snapshots that a run folder has of its first `done` steps, for plays outside of training. Where
        there are none, the policy's present weights are one."""
        self._done = done
        for pool in self.pools.values():
            if folder is not None:
                pool.attach(folder)
            if folder is None or not await pool.open_kept(done, done):
                with tempfile.TemporaryDirectory() as place:
                    pool.attach(Path(place))
                    await pool.keep(done, trainer)

    async def end_step(self, done: int, trainer: Trainer) -> None:
        """Keeps the present weights where that is due, and closes the snapshots that no play meets any more."""
        self._done = done
        for pool in self.pools.values():
            if done % pool.config.every == 0:
                await pool.keep(done, trainer)
            await pool.release(self._clock.earliest(done))

    def prune(self, done: int) -> None:
        """Removes the files of snapshots for which a run that is resumed after `done` steps has no use."""
        for pool in self.pools.values():
            pool.prune(self._clock.earliest(done))

    def observe(self, done: int, groups: Sequence[Group]) -> None:
        """Counts the results of the plays of a step, after which `done` steps are done."""
        for pool in self.pools.values():
            pool.observe(done, groups)

    def metrics(self) -> Mapping[str, float]:
        """Returns the policy's points in the newest step's plays against each pool, as a fraction: `<name>_won`."""
        rates = {name: pool.points(self._done + 1) for name, pool in self.pools.items()}
        return {f"{name}_won": rate for name, rate in rates.items() if rate is not None}

    def state(self) -> Mapping[str, Any]:
        return {name: pool.state() for name, pool in self.pools.items()}

    def restore(self, state: Mapping[str, Any]) -> None:
        for name, pool in self.pools.items():
            pool.restore(state[name])
