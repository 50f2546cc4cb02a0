"""The stages of a run that were stopped early: after which step, and why."""

from __future__ import annotations

from typing import NamedTuple

from sojourn.errors import RecordError
from sojourn.record.run import RunFolder

STOPPED = "stopped.json"


class Stopped(NamedTuple):
    """A stage was stopped after `step` of its steps; `reason` says why."""

    step: int
    reason: str


def stopped_stages(folder: RunFolder) -> dict[str, Stopped]:
    """Returns the stages that were stopped early, by name."""
    recorded = folder.read_json(STOPPED, {})
    try:
        return {str(stage): Stopped(int(one["step"]), str(one["reason"])) for stage, one in recorded.items()}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise RecordError(
            f"{folder.path / STOPPED} holds something else than stopped stages (step, reason): it is damaged, restore "
            "it from a copy"
        ) from error


def record_stop(folder: RunFolder, stage: str, stopped: Stopped | None) -> None:
    """Records that a stage was stopped, or, with None, that it goes on."""
    others = {name: one for name, one in stopped_stages(folder).items() if name != stage}
    kept = others | ({stage: stopped} if stopped is not None else {})
    if kept or (folder.path / STOPPED).exists():
        folder.write_json(STOPPED, {name: one._asdict() for name, one in kept.items()})
