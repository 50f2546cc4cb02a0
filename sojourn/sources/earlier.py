"""Groups that an earlier stage of the run recorded, to be trained on."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated

import numpy as np

from sojourn.abilities import parts_of
from sojourn.config.fields import NONBLANK, Range
from sojourn.errors import ConfigError
from sojourn.record.episodes.group import GroupRecord
from sojourn.record.episodes.store import EpisodeStore
from sojourn.record.stage_rounds import rounds_of
from sojourn.seeds import seed_of
from sojourn.sources.context import SourceContext, StageContext, require_imitation
from sojourn.sources.recorded import PlayedGroup, played_groups, read_played
from sojourn.types import Group, IntArray


@dataclass(frozen=True, kw_only=True)
class Earlier:
    """`width` groups per step of those that an earlier `stage` of this run recorded: all of them in random order, then
    all of them in another order, until the stage ends.

    Where `stage` is repeated, its last `rounds` rounds are taken (0: all of them). With `success_only`, groups without
    a successful episode are left out; the estimator `constant` with a `threshold` leaves out single episodes. A group
    keeps its rewards, its tokens and the log-probabilities of the weights that sampled it, which are not the present
    ones, so losses that are right for those alone are refused.
    """

    stage: Annotated[str, NONBLANK]
    width: Annotated[int, Range(1)] = 16
    rounds: Annotated[int, Range(0)] = 1
    success_only: bool = False

    live = False
    origin = "earlier"

    def tasks(self, steps: int) -> int:
        return 0

    async def check(self, stage: StageContext) -> None:
        """Refuses a stage that does not come before, and demonstrations for losses that need samples of a model."""
        rounds = self.require_before(stage)
        if any(not part.live for name in rounds for part in parts_of(stage.earlier[name])):
            require_imitation(stage, f"groups.stage = '{self.stage}'", self.origin)

    def require_before(self, stage: StageContext) -> list[str]:
        """Returns the names of the rounds of `stage` that come before. Raises `ConfigError` where there are none."""
        if not (rounds := rounds_of(self.stage, stage.earlier)):
            before = ", ".join(stage.earlier) or "none"
            raise ConfigError(
                f"stage '{stage.name}': groups.stage = '{self.stage}': expected a stage that comes before it, which "
                f"are: {before}"
            )
        return rounds

    def bind(self, context: SourceContext, stage: str, steps: int, first: int = 0) -> EarlierGroups:
        return EarlierGroups(self, context, stage)


@dataclass
class EarlierGroups:
    """The places of the groups in the run's records, from which they are read when they are taken; a group that a
    filter parted is whole again."""

    config: Earlier
    context: SourceContext
    stage: str
    places: list[PlayedGroup] = field(init=False)

    def __post_init__(self) -> None:
        store = self.context.episodes
        rounds = rounds_of(self.config.stage, {count.stage for count in store.steps() if count.stage != self.stage})
        self.places = [place for name in rounds[-self.config.rounds :] for place in self._places(store, name)]
        if not self.places:
            kind = "in which an episode succeeded" if self.config.success_only else "without failures"
            raise ConfigError(
                f"stage '{self.stage}': the stage '{self.config.stage}' recorded no groups {kind}: give it more steps, "
                "or weights that succeed sometimes, such as those after a stage of cloning"
            )

    def _places(self, store: EpisodeStore, stage: str) -> list[PlayedGroup]:
        rows = [row for row in store.query(stage=stage) if row.error is None]
        won = {(row.step, row.place) for row in rows if row.success or not self.config.success_only}
        return [one for one in played_groups(rows) if any((one.step, place) in won for place in one.places)]

    async def take(self, step: int) -> list[Group]:
        count = len(self.places)
        width = min(self.config.width, count)
        taken = range(step * width, (step + 1) * width)
        orders = {epoch: self._order(epoch) for epoch in {number // count for number in taken}}
        places = [self.places[orders[number // count][number % count]] for number in taken]
        records = [
            self._required(*pair) for pair in zip(places, read_played(self.context.episodes, places), strict=True)
        ]
        for record in records:
            self.context.rewards.remember(record.group, record.scores)
        return [record.group for record in records]

    def _order(self, epoch: int) -> IntArray:
        """Returns the order in which the groups are taken the `epoch`-th time: (n,)."""
        seed = seed_of(self.context.runner.seed, self.stage, "earlier", epoch)
        return np.random.default_rng(seed).permutation(len(self.places))

    def _required(self, place: PlayedGroup, record: GroupRecord | None) -> GroupRecord:
        if record is None:
            raise ConfigError(
                f"stage '{place.stage}', step {place.step}: the group {place.places[0]} cannot be read from "
                f"{self.context.episodes.path} any more: a stage that trains on earlier ones needs the records of its "
                "run"
            )
        return replace(record, group=replace(record.group, origin=self.config.origin))

    async def close(self) -> None:
        """Does nothing: nothing is open."""
