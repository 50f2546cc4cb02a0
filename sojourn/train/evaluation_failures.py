"""The failed episodes of an evaluation that belongs to no stage of a run, such as that of `sojourn eval`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from sojourn.models.asking import AskedModels
from sojourn.record.episodes.store import EpisodeStore
from sojourn.record.run import RunFolder
from sojourn.rollout.runner import Runner
from sojourn.train.episode_writer import EpisodeWriter
from sojourn.types import Episode

STAGE = "evaluation"  # under which they are recorded: no stage of a recipe, nor its evaluation, can be called so


@dataclass
class EvaluationFailures:
    """Keeps the failed episodes, by id, and the images of all, by digest, until they are recorded."""

    episodes: dict[str, Episode] = field(default_factory=dict[str, Episode])
    blobs: dict[str, bytes] = field(default_factory=dict[str, bytes])
    asked: AskedModels = field(default_factory=lambda: AskedModels({}))

    def watch(self, runner: Runner, show: Callable[[Episode], None], asked: AskedModels) -> None:
        """Lets a runner show every episode that ends from now on, and keep what failed, with what models are asked
        about it."""

        def ended(episode: Episode) -> None:
            if episode.error is not None:
                self.episodes[episode.id] = episode
            show(episode)

        runner.on_episode, runner.on_blobs, self.asked = ended, self.blobs.update, asked

    async def record(self, run: Path, step: int) -> None:
        """Records the failed episodes in a run folder, in the place of those of an earlier evaluation. Raises
        `RecordError` where it cannot be written, as while it trains."""
        with RunFolder.open(run) as folder, EpisodeStore(run, write=True) as store:
            store.truncate(STAGE, 0)
            writer = EpisodeWriter(store, folder.blobs, self.blobs, dict(self.episodes), asked=self.asked)
            await writer.start_failed(STAGE, step)
            await writer.finish()
