"""Offers the weights that a run trains to the service which its people use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sojourn.live.gate import OFFERED, REFUSED, Gate, judge, panel_of
from sojourn.live.store import LiveStore
from sojourn.protocols import Trainer
from sojourn.record.atomic import new_folder, writing
from sojourn.record.summary import Summary
from sojourn.train import trained_models

FOLDER = "live"  # in the run folder


@dataclass
class Releases:
    """The releases of a run: weights are offered after an evaluation, where the gate lets them pass. Every decision is
    written down with its reason."""

    gate: Gate
    store: LiveStore

    @classmethod
    def of(cls, gate: Gate, run: Path) -> Releases:
        return cls(gate, LiveStore(run / FOLDER))

    def consider(self, name: str, step: int, summary: Summary, trainers: Mapping[str, Trainer]) -> str:
        """Offers the present weights, or writes down why not; returns that in a sentence. An evaluation that
        was considered before, by a run that was killed, is not considered again."""
        folder = f"{name}@{step}"
        if any(one.folder.name == folder for one in self.store.releases()):
            return f"{name} was offered before"
        if reason := judge(self.gate, self.store, summary):
            self.store.tell(REFUSED, None, f"{name}: {reason}")
            return f"{name} does not serve: {reason}"
        path = self.store.folder / "releases" / folder
        with writing(path), new_folder(path, replace=True) as temporary:
            trained_models.save(trainers, temporary)
        number = self.store.offer(step, path, panel_of(summary))
        self.store.tell(OFFERED, number, name)
        return f"{name} may serve, as release {number}"

    def close(self) -> None:
        self.store.close()
