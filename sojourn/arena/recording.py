"""Records a match as a run folder with one stage per operator; a task is a group, at the same place in each stage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sojourn.arena import OPERATORS_FILE, STAGE_PREFIX
from sojourn.arena.match import TaskResult
from sojourn.arena.results import Result
from sojourn.record.episodes import vocabulary
from sojourn.record.episodes.store import EpisodeStore
from sojourn.record.episodes.vocabulary import Vocabulary
from sojourn.record.run import RunFolder


class Recording:
    """Writes each task when it is finished, so that an interrupted match is kept as far as it was played."""

    def __init__(self, path: Path, config: str, seed: int, facts: Mapping[str, Any]) -> None:
        self.folder = RunFolder.create(path, config, seeds={"run": seed})
        self.folder.write_json(OPERATORS_FILE, facts)
        self.store = EpisodeStore(path, write=True)

    def write_vocabulary(self, vocabularies: Sequence[Vocabulary]) -> None:
        """Writes the vocabulary if all models of the match have the same."""
        if vocabularies and all(one == vocabularies[0] for one in vocabularies):
            vocabulary.write(self.folder.path, vocabularies[0])

    def write_blobs(self, blobs: Mapping[str, bytes]) -> None:
        self.folder.blobs.keep(blobs)

    def add_task(self, names: Sequence[str], task: TaskResult) -> None:
        for name, group, scores in zip(names, task.groups, task.scores, strict=True):
            self.store.append(STAGE_PREFIX + name, 0, [group], [scores])

    def add_results(self, results: Sequence[Result]) -> None:
        for result in results:
            if result.overall.episodes:
                self.folder.add_evaluation(result.name, STAGE_PREFIX + result.name, 0, result.summary)

    def close(self) -> None:
        self.store.close()
        self.folder.close()

    def __enter__(self) -> Recording:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
