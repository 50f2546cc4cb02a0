"""Groups of a recorded run, from its folder on disk, to imitate or to train on again."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from sojourn.config.fields import FOLDER, NONBLANK, Range
from sojourn.errors import ConfigError
from sojourn.record.episodes.store import EpisodeStore
from sojourn.sources.context import SourceContext, StageContext, require_imitation, unsampled
from sojourn.types import Group


@dataclass(frozen=True, kw_only=True)
class Folder:
    """`width` groups per step from one stage of a recorded run, cycling through them in their recorded order.

    The weights that sampled them are not the present ones, so losses that are right for those alone are refused; for
    recorded demonstrations, so is whatever needs the sampler's log-probabilities. With `success_only`, groups without a
    successful episode are left out.
    """

    path: Annotated[str, FOLDER]
    stage: Annotated[str, NONBLANK]
    width: Annotated[int, Range(1)] = 16
    success_only: bool = False

    live = False

    def tasks(self, steps: int) -> int:
        return 0

    async def check(self, stage: StageContext) -> None:
        """Reads the groups once, so that what cannot be used is refused before anything is trained."""
        if not (Path(self.path) / "episodes.sqlite").exists():
            raise ConfigError(
                f"stage '{stage.name}': groups.path = '{self.path}': no recorded episodes there; give a run folder"
            )
        if any(map(unsampled, self._groups())):
            require_imitation(stage, f"groups.path = '{self.path}'")

    def bind(self, context: SourceContext, stage: str, steps: int, first: int = 0) -> RecordedGroups:
        return RecordedGroups(self.width, self._groups())

    def _groups(self) -> list[Group]:
        """Returns the groups that can be used. Raises `ConfigError` where there are none."""
        with EpisodeStore(self.path) as store:
            groups = [g for g in store.groups(self.stage) if g.trajectories]
            stages = sorted({count.stage for count in store.steps()})
        if self.success_only:
            groups = [g for g in groups if any(t.success for t in g.trajectories)]
        if not groups:
            raise ConfigError(
                f"groups.stage = '{self.stage}': '{self.path}' has no usable groups of it; it holds {', '.join(stages)}"
            )
        return groups


@dataclass(frozen=True)
class RecordedGroups:
    """Returns `width` recorded groups per step, cycling through the groups."""

    width: int
    groups: list[Group]

    async def take(self, step: int) -> list[Group]:
        width = min(self.width, len(self.groups))
        return [self.groups[(step * width + number) % len(self.groups)] for number in range(width)]

    async def close(self) -> None:
        """Does nothing: nothing is open."""
