"""What actors say of their processes, and how the driver asks them without waiting for those that do not answer."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from sojourn.abilities import ANSWER_S, PartState
from sojourn.backends.ray.cluster import imported
from sojourn.gauge import children_bytes, resident_bytes


class Report(NamedTuple):
    """Holds what an actor says of its process: where it is, and numbers as `PartLoad` has them."""

    facts: Mapping[str, str] = {}
    numbers: Mapping[str, float] = {}

    @classmethod
    def here(cls, facts: Mapping[str, str], numbers: Mapping[str, float] | None = None) -> Report:
        """Returns the report of this process, with further facts and numbers."""
        known = {"node": socket.gethostname(), **facts, "process": str(os.getpid())}
        return cls(known, {"memory_bytes": resident_bytes(), **(numbers or {})})

    @classmethod
    async def with_children(cls, facts: Mapping[str, str]) -> Report:
        """Returns the report of this process, with the memory of those that it started."""
        return cls.here(facts, {"children_memory_bytes": await asyncio.to_thread(children_bytes)})


class Heard(NamedTuple):
    """Says whether an actor answered, and what."""

    state: PartState
    answer: Any = None
    note: str = ""


@dataclass(eq=False)
class Contact:
    """Asks an actor one question at a time, and knows when it answered last. One that has not answered yet is not asked
    again; it is waited for anew."""

    report: Report = field(default_factory=Report)  # the last one
    _seen: float | None = None
    _asked: asyncio.Future[Any] | None = None

    def seen(self) -> None:
        """Notes that the actor answered anything."""
        self._seen = asyncio.get_running_loop().time()

    @property
    def seen_s(self) -> float | None:
        """Returns how many seconds ago it answered last, None where it never did."""
        return None if self._seen is None else asyncio.get_running_loop().time() - self._seen

    async def ask(self, question: Callable[[], Awaitable[Any]]) -> Heard:
        """Waits up to `ANSWER_S` for the answer to a question."""
        asked = self._asked
        if asked is None:
            asked = self._asked = asyncio.ensure_future(_answered(question))
        await asyncio.wait({asked}, timeout=ANSWER_S)
        if not asked.done():
            return Heard(PartState.SILENT, note=f"has not answered within {ANSWER_S:g} s")
        self._asked = None
        heard: Heard = asked.result()
        if heard.state is PartState.UP:
            self.seen()
        return heard

    def close(self) -> None:
        """Waits for no answer any more."""
        if self._asked is not None:
            self._asked.cancel()


async def _answered(question: Callable[[], Awaitable[Any]]) -> Heard:
    errors = imported().exceptions
    try:
        return Heard(PartState.UP, await question())
    except (errors.RayActorError, errors.ActorUnavailableError):
        return Heard(PartState.DOWN, note="its process has ended")
    except errors.RayError as error:
        return Heard(PartState.SILENT, note=f"failed to answer: {str(error).strip().splitlines()[-1][:150]}")
