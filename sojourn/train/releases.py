"""Offers the weights that a run trains to the service which its people use."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sojourn.live.facts import Candidate, Event
from sojourn.live.gate import OFFERED, REFUSED, RETURNED, Gate, frozen, judge, panel_of, serving
from sojourn.live.store import LiveStore
from sojourn.protocols import Trainer
from sojourn.record.atomic import new_folder, writing
from sojourn.record.summary import Summary
from sojourn.train import trained_models

FOLDER = "live"  # in the run folder


def evaluation_name(stage: str, step: int) -> str:
    """Returns the name of the evaluation after so many steps of a stage, before its end."""
    return f"{stage}-{step}"


def _evaluation(name: str, step: int) -> str:
    """Returns what tells an evaluation from all others: the one at the end of a stage may be at several steps, where
    the stage was given more of them later."""
    return f"{name}@{step}"


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
        evaluation = _evaluation(name, step)
        known = next((one.number for one in self.store.releases() if one.folder.name == evaluation), None)
        if known is not None:
            told = any(event.kind == OFFERED and event.release == known for event in self.store.events())
            events = [] if told else [Event(time.time(), OFFERED, known, name)]
            self.store.add_events(*events, of=Candidate(evaluation))
            return f"{name} was offered before"
        if (judged := self.store.candidate(evaluation)) is not None:
            return f"{name} was refused before: {judged.refused}"
        if reason := judge(self.gate, self.store, summary):
            return self._refuse(name, evaluation, reason)
        path = self.store.weights / evaluation
        with writing(path), new_folder(path, replace=True) as temporary:
            trained_models.save(trainers, temporary)
        number = self.store.offer(step, path, panel_of(summary))
        self.store.add_events(Event(time.time(), OFFERED, number, name), of=Candidate(evaluation))
        return f"{name} may serve, as release {number}"

    def _refuse(self, name: str, evaluation: str, reason: str) -> str:
        """Writes down that weights are refused, and whether the learner goes back; returns that in a sentence."""
        now, said = time.time(), f"{name} does not serve: {reason}"
        refused = Event(now, REFUSED, None, f"{name}: {reason}")
        if frozen(self.store):
            self.store.add_events(refused)
            return said
        count, release = self.store.refused_in_a_row() + 1, serving(self.store)
        if release is None or not 0 < self.gate.refused_limit <= count:
            self.store.add_events(refused, of=Candidate(evaluation, reason))
            return said
        why = f"{count} candidates in a row were refused, the last one {name}"
        returned = Event(now, RETURNED, release.number, why)
        self.store.add_events(refused, returned, of=Candidate(evaluation, reason, release.number))
        return f"{said}; {why}: the learner continues from release {release.number}"

    def back_to(self, stage: str, step: int) -> Path | None:
        """Returns the weights from which the learner continues after so many steps of a stage, None where it was not
        decided that it goes back then. A run that is resumed there does what was decided."""
        for name in (evaluation_name(stage, step), stage):
            found = self.store.candidate(_evaluation(name, step))
            if found is not None and found.back_to is not None:
                return next(one.folder for one in self.store.releases() if one.number == found.back_to)
        return None

    def close(self) -> None:
        self.store.close()
