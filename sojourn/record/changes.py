"""What was changed of a run's config when it was resumed: which keys, from which step on, and what they were before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from sojourn.errors import RecordError
from sojourn.record.run import RunFolder, timestamp
from sojourn.record.stage_names import named
from sojourn.secrets import masked_value

CHANGES = "changes.json"


class Change(NamedTuple):
    """A key of the config with its value before and after; None where there was, or is, no such key."""

    key: str
    old: Any
    new: Any

    @property
    def masked(self) -> Change:
        """Returns the change without secrets."""
        return Change(self.key, masked_value(self.key, self.old), masked_value(self.key, self.new))

    def __str__(self) -> str:
        _, old, new = self.masked
        return f"{self.key} {'-' if old is None else old} -> {'-' if new is None else new}"


class Resumed(NamedTuple):
    """A resume that changed the config: when, and after how many steps of which stage."""

    time: str
    stage: str
    step: int
    changes: tuple[Change, ...]
    config: Mapping[str, Any] = MappingProxyType({})  # of the run, which has the names of the stages

    def __str__(self) -> str:
        changes = ", ".join(str(one.masked._replace(key=named(one.key, self.config))) for one in self.changes)
        return f"changed after step {self.step} of '{self.stage}': {changes}"


def recorded_changes(folder: RunFolder) -> list[Resumed]:
    """Returns every resume of the run that changed its config, oldest first."""
    recorded, config = folder.read_json(CHANGES, []), folder.config
    try:
        return [
            Resumed(
                str(one["time"]),
                str(one["stage"]),
                int(one["step"]),
                tuple(Change(str(c["key"]), c["old"], c["new"]) for c in one["changes"]),
                config,
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
    resumed = Resumed(timestamp(), stage, step, tuple(changes), folder.config)
    _write(folder, [*recorded_changes(folder), resumed])
    return resumed


def forget_last_change(folder: RunFolder) -> None:
    """Removes the newest resume from the record of the run's changes."""
    _write(folder, recorded_changes(folder)[:-1])


def _write(folder: RunFolder, recorded: Sequence[Resumed]) -> None:
    folder.write_json(CHANGES, [_json(one) for one in recorded])


def _json(resumed: Resumed) -> dict[str, Any]:
    changes = [change._asdict() for change in resumed.changes]
    return {"time": resumed.time, "stage": resumed.stage, "step": resumed.step, "changes": changes}
