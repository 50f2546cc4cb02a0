"""Groups of a recorded run, from its folder on disk, to imitate or to train on again."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from sojourn.config.fields import FOLDER, NONBLANK, Range
from sojourn.curricula.weighted import weighted_sample
from sojourn.errors import ConfigError
from sojourn.record.decoding import not_drawn
from sojourn.record.episodes.index import has_records
from sojourn.record.episodes.store import EpisodeStore
from sojourn.seeds import seed_of
from sojourn.sources.context import SourceContext, StageContext, misread, require_imitation, unsampled
from sojourn.sources.recorded import played_groups, read_played
from sojourn.types import Group


@dataclass(frozen=True, kw_only=True)
class Folder:
    """`width` groups per step from one stage of a recorded run, cycling through them in their recorded order.

    The weights that sampled them are not the present ones, so losses that are right for those alone are refused; for
    recorded demonstrations, so is whatever needs the sampler's log-probabilities. With `success_only`, groups without a
    successful episode are left out. With `long_horizon` above 0, a step draws its groups, none twice, in proportion to
    the mean number of their turns to the power of it, so that long ones are seen more often (after the resampling of
    long-horizon trajectories of DR-Venus: Venus Team 2026, arXiv:2604.19859, of which accounts were read).
    """

    path: Annotated[str, FOLDER]
    stage: Annotated[str, NONBLANK]
    width: Annotated[int, Range(1)] = 16
    success_only: bool = False
    long_horizon: Annotated[float, Range(0)] = 0.0

    live = False
    origin = "folder"

    def tasks(self, steps: int) -> int:
        return 0

    async def check(self, stage: StageContext) -> None:
        """Reads the groups once, so that what cannot be used is refused before anything is trained."""
        if not has_records(Path(self.path) / "tokens"):
            raise ConfigError(
                f"stage '{stage.name}': groups.path = '{self.path}': no recorded episodes there; give a run folder"
            )
        groups = self.read()
        if stage.renderer is not None and (sentence := misread(stage.renderer, groups[0])):
            raise ConfigError(
                f"stage '{stage.name}': groups.path = '{self.path}': {sentence}: use the model of that run, or export "
                "its episodes, and imitate their messages by groups = {name = 'imported', render = true}"
            )
        if any(map(unsampled, groups)):
            require_imitation(stage, f"groups.path = '{self.path}'", self.origin)
        if setting := not_drawn(Path(self.path), self.stage):
            require_imitation(stage, f"'{self.stage}' of '{self.path}', decoded with {setting},", self.origin)

    def bind(self, context: SourceContext, stage: str, steps: int, first: int = 0) -> RecordedGroups:
        return RecordedGroups(self.width, self.read(), self.long_horizon, context.runner.seed)

    def read(self) -> list[Group]:
        """Returns the groups that can be used. Raises `ConfigError` where there are none."""
        with EpisodeStore(self.path) as store:
            records = read_played(store, played_groups(store.query(stage=self.stage)))
            groups = [self._foreign(one.group) for one in records if one is not None and one.group.trajectories]
            stages = sorted({count.stage for count in store.steps()})
        if self.success_only:
            groups = [g for g in groups if any(t.success for t in g.trajectories)]
        if not groups:
            usable = "groups of it with a successful episode" if self.success_only else "usable groups of it"
            raise ConfigError(
                f"groups.stage = '{self.stage}': '{self.path}' has no {usable}; it holds {', '.join(stages)}"
            )
        return groups

    def _foreign(self, group: Group) -> Group:
        return replace(with_foreign_ids(group, self.path), origin=self.origin)


def with_foreign_ids(group: Group, source: str) -> Group:
    """Returns a group of another run, whose episodes have ids by which those of this run, or of a further one, cannot
    be called: two runs call theirs alike where they have the same seed."""
    mark = f"{crc32(source.encode()):08x}"
    return replace(
        group,
        episodes=tuple(
            replace(
                episode,
                id=f"{mark}/{episode.id}",
                branch=None if episode.branch is None else replace(episode.branch, of=f"{mark}/{episode.branch.of}"),
            )
            for episode in group.episodes
        ),
    )


@dataclass(frozen=True)
class RecordedGroups:
    """Returns `width` recorded groups per step, cycling through the groups, or drawn by their length."""

    width: int
    groups: list[Group]
    long_horizon: float = 0.0
    seed: int = 0

    async def take(self, step: int) -> list[Group]:
        width = min(self.width, len(self.groups))
        if self.long_horizon == 0:
            return [self.groups[(step * width + number) % len(self.groups)] for number in range(width)]
        rng = np.random.default_rng(seed_of(self.seed, "long_horizon", step))
        return [self.groups[number] for number in weighted_sample(rng, self._weights, width)]

    async def close(self) -> None:
        """Does nothing: nothing is open."""

    @cached_property
    def _weights(self) -> NDArray[np.float64]:
        """Returns how likely each group is, 0 where it has no turns: (n,)."""
        turns = [np.mean([len(t.turns) for t in group.trajectories]) for group in self.groups]
        return np.array(turns, dtype=np.float64) ** self.long_horizon
