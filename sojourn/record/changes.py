"""What was changed of a run's config when it was resumed: which keys, from which step on, and what they were before."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any, NamedTuple

from sojourn.errors import RecordError
from sojourn.record.run import RunFolder
from sojourn.secrets import masked_value

CHANGES = "changes.json"


class Change(NamedTuple):
    """A key of the config with its value before and after; None where there was, or is, no such key."""

    key: str
    old: Any
    new: Any

    def __str__(self) -> str:
        old, new = (masked_value(self.key, value) for value in (self.old, self.new))
        return f"{self.key} {'-' if old is None else old} -> {'-' if new is None else new}"


class Resumed(NamedTuple):
    """A resume that changed the config: when, and after how many steps of which stage."""

    time: str
    stage: str
    step: int
    changes: tuple[Change, ...]

    def __str__(self) -> str:
        return f"changed after step {self.step} of '{self.stage}': {', '.join(map(str, self.changes))}"


def recorded_changes(folder: RunFolder) -> list[Resumed]:
    """Returns every resume of the run that changed its config, oldest first."""
    recorded = folder.read_json(CHANGES, [])
    try:
        return [
            Resumed(
                str(one["time"]),
                str(one["stage"]),
                int(one["step"]),
                tuple(Change(str(c["key"]), c["old"], c["new"]) for c in one["changes"]),
            )
            for one in recorded
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise RecordError(
            f"{folder.path / CHANGES} holds something else than changes (time, stage, step, changes): it is damaged, "
            "restore it from a copy"
        ) from error


def record_changes(folder: RunFolder, stage: str, step: int, changes: Sequence[Change]) -> Resumed:
    """Adds a resume to the record of the run's changes, and returns it."""
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    resumed = Resumed(now, stage, step, tuple(changes))
    lines = [*recorded_changes(folder), resumed]
    folder.write_json(CHANGES, [{**one._asdict(), "changes": [c._asdict() for c in one.changes]} for one in lines])
    return resumed
