"""What a run may say of its parts while it goes on: which processes or pieces there are, and how busy each is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple, Protocol, runtime_checkable

from sojourn.ability import Ability


class PartState(StrEnum):
    UP = "up"
    LOADING = "loading"  # it is started, or loads weights, and does nothing else meanwhile
    SILENT = "silent"  # it did not answer in time
    DOWN = "down"  # its process has ended


@dataclass(frozen=True, kw_only=True)
class PartLoad:
    """Describes what a part of a run does at a moment, in plain data.

    `name` is its own in the run, such as "sampler 3"; parts of one `kind` are shown in one table. The names of
    `numbers`, the most important first, end in their units: `_s` seconds, `_bytes`, `_per_s`, `_share` a fraction;
    others are counts. Means and rates are over the time since the loads were last asked for. `busy_share` is the
    fraction of that time in which the part had anything to do. `seen_s` is how many seconds ago the part last answered,
    None where it never did, and `note` a sentence where it is not up.
    """

    name: str
    kind: str
    state: PartState = PartState.UP
    seen_s: float | None = 0.0
    note: str = ""
    facts: Mapping[str, str] = field(default_factory=dict[str, str])  # node, device, engine ...
    numbers: Mapping[str, float] = field(default_factory=dict[str, float])


@runtime_checkable
class ReportsParts(Ability, Protocol):
    """A sampler, a trainer or a world that says what its parts do, of which it may have several.

    `part_loads` is asked once a step, beside the run, and in long steps more often. Where a part does not answer within
    `ANSWER_S`, it returns what is known of it; whatever takes much longer is given up. Only one call goes on at a time.
    """

    async def part_loads(self) -> Sequence[PartLoad]: ...


ANSWER_S = 2.0  # for which a part may be waited


class GroupQueue(NamedTuple):
    """Counts the groups that are being played, and those that are complete and wait for their step."""

    playing: int = 0
    complete: int = 0


@runtime_checkable
class HasQueue(Ability, Protocol):
    """A group source that plays ahead, and says how many groups it has begun."""

    def queue(self) -> GroupQueue: ...


def queue_of(source: object) -> GroupQueue:
    """Returns the queue of a source; an empty one where it has none."""
    return source.queue() if isinstance(source, HasQueue) else GroupQueue()
