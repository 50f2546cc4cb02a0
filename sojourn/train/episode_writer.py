"""Writes the episodes of a run to its folder, in a thread, while the next step is played."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from sojourn.models.asking import AskedModels
from sojourn.record.blobs import Blobs
from sojourn.record.episodes.store import EpisodeStore
from sojourn.rewards.reward_cache import ScoredGroup
from sojourn.types import Episode, Group


@dataclass
class EpisodeWriter:
    """Records groups under a stage and a step, with the images that they show; one step is written at a time.

    Failed episodes are kept until they are recorded: with their group, or by `start_failed`. What models were `asked`
    about episodes is recorded with them.
    """

    store: EpisodeStore
    folder: Blobs
    blobs: dict[str, bytes] = field(default_factory=dict[str, bytes])  # images, by digest, not yet written
    failed: dict[str, Episode] = field(default_factory=dict[str, Episode])  # by id, those not yet recorded
    origins: dict[str, str] = field(default_factory=dict[str, str])  # of what fails, by the stages that know it
    asked: AskedModels = field(default_factory=lambda: AskedModels({}))
    _writing: asyncio.Future[None] | None = None

    async def start(self, stage: str, step: int, *parts: Sequence[Any]) -> None:
        """Begins to write parts, each the arguments of `EpisodeStore.append` from the groups on."""
        await self.finish()
        shown, self.blobs = self.blobs, {}
        named = [episode.id for groups, *_ in parts for group in groups for episode in group.episodes]
        asked = self.asked.take(named)
        for name in named:
            self.failed.pop(name, None)

        def write() -> None:
            self.folder.keep(shown)  # before the episodes that name them
            for part in parts:
                self.store.append(stage, step, *part, asked=asked)

        self._writing = asyncio.get_running_loop().run_in_executor(None, write)

    async def start_failed(self, stage: str, step: int, others: Sequence[ScoredGroup] = ()) -> None:
        """Begins to write the failed episodes that are in no recorded group, as demonstrations are that failed, and the
        groups `others`."""
        origin = self.origins.get(stage, "policy")
        failed = [ScoredGroup(Group(n, e.task, (e,), origin), []) for n, e in enumerate(self.failed.values())]
        if scored := [*failed, *others]:
            await self.start(stage, step, [[one.group for one in scored], [one.scores for one in scored]])

    async def record_failures(self, stage: str, step: int, others: Sequence[ScoredGroup] = ()) -> None:
        """Records what failed until an error ends the run, and others, if that can be done."""
        with suppress(Exception):  # the error that ended the run is the one to report
            await self.start_failed(stage, step, others)
            await self.finish()

    async def finish(self) -> None:
        """Waits until all that was begun is on the disk; raises what kept it from there."""
        if (writing := self._writing) is not None:
            await asyncio.wait({writing})  # if this is cancelled, the write goes on, and the stage's end waits for it
            self._writing = None
            writing.result()
