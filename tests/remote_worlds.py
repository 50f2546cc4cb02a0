"""Worlds for tests of plays in other processes: what a play does there is seen in what it shows."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from walks import TASK, ForkableWalk, Walk, Walks

from sojourn.envs.toy import Toy
from sojourn.errors import ActionError, BudgetError, ConfigError, WorldError
from sojourn.types import Message, Observation, Role, Step, Task, ToolCall

KINDS = ("bare", "state_key", "fork", "expert", "blobs", "native_action", "late")


class OddError(Exception):
    """Can be pickled, but not be made again."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


class OddActionError(ActionError):
    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


def _stop() -> Step:
    sys.exit(3)


def _die() -> Step:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("unreachable")


def _block() -> Step:
    time.sleep(3600)
    raise AssertionError("unreachable")


def _raise(error: Any) -> Any:
    def fail() -> Step:
        raise error

    return fail


BREAKS = {
    "refused": _raise(ActionError("not here")),
    "oddly refused": _raise(OddActionError(1, 2)),
    "spent": _raise(BudgetError("no room")),
    "misconfigured": _raise(ConfigError("no such page")),
    "wrong": _raise(WorldError("no number")),
    "broken": _raise(ZeroDivisionError("by nothing")),
    "odd": _raise(OddError(1, 2)),
    "cancelled": _raise(asyncio.CancelledError()),
    "exit": _stop,
    "die": _die,
    "block": _block,
    "unsendable": lambda: Step(None, {"agent": threading.Lock()}),  # type: ignore[dict-item]
}


@dataclass(frozen=True)
class Fragile:
    """Pays every action; "end" ends a play, "wait" waits until it is cancelled, and those of `BREAKS` do harm."""

    room: int = 0
    open_s: float = 0.0  # how long it takes to open the world
    once: str = ""  # a folder, in which a world that can be opened once alone remembers that
    pids: list[int] = field(default_factory=list[int])  # that opened the world, in this process
    open_plays: list[FragilePlay] = field(default_factory=list["FragilePlay"])

    def __post_init__(self) -> None:
        if self.room:
            object.__setattr__(self, "capacity", self.room)

    def tasks(self, split: str) -> Sequence[Task]:
        return [Task("fragile", {"kind": kind}, 0, split, (kind,)) for kind in KINDS]

    def make(self, task: Task) -> FragilePlay:
        return FragilePlay(self, task.data["kind"])

    async def open(self) -> None:
        await asyncio.sleep(self.open_s)
        if self.once:
            (Path(self.once) / f"{len(os.listdir(self.once))}").touch(exist_ok=False)
            if len(os.listdir(self.once)) > 1:
                raise ConfigError("no browser is left here")
        self.pids.append(os.getpid())

    async def close(self) -> None:
        assert self.pids in ([os.getpid()], []), "opened once, in the process that closes it"
        self.pids.clear()


class FragilePlay:
    def __init__(self, family: Fragile, kind: str) -> None:
        self.family, self.kind, self.said = family, kind, list[str]()
        self.images: dict[str, bytes] = {}
        if kind in KINDS[1:4]:
            setattr(self, kind, getattr(self, f"_{kind}"))
        if kind == "native_action":
            self.native_action, self.expert = self._native_action, self._expert
        if kind == "blobs":
            self.blobs = self.images

    async def start(self) -> Observation:
        assert self.family.pids, "the world is not open"
        self.family.open_plays.append(self)
        if self.kind == "late":
            self.native_action = self._native_action
        return self._shown()

    async def step(self, agent: str, action: Message) -> Step:
        if action.text == "wait":
            try:
                await asyncio.sleep(3600)
            finally:
                await asyncio.sleep(0.05)  # some take their time
                self.said.append("interrupted")
        if action.text in BREAKS:
            return BREAKS[action.text]()
        await asyncio.sleep(0.01)
        self.said.append(action.text)
        if action.text == "end":
            return Step(None, {agent: 1.0}, done=True, success=True)
        return Step(self._shown(), {agent: 0.5})

    async def close(self) -> None:
        if self in self.family.open_plays:
            self.family.open_plays.remove(self)

    def _shown(self) -> Observation:
        image = f"{self.said}".encode()
        digest = sha256(image).hexdigest()
        self.images[digest] = image
        return Observation((Message(Role.USER, f"said {' '.join(self.said)} {digest[:4]}"),))

    def _state_key(self) -> str:
        return "/".join(self.said)

    async def _fork(self) -> FragilePlay:
        copy = FragilePlay(self.family, self.kind)
        copy.said = [*self.said]
        self.family.open_plays.append(copy)
        return copy

    async def _expert(self) -> str:
        return "end" if self.said else "go on"

    def _native_action(self, text: str) -> Message:
        return Message(Role.ASSISTANT, text, calls=(ToolCall("say", {"text": text}),))


@dataclass(frozen=True)
class Wandering:
    """The walks of `walks`, which cannot be a family here, as they count their plays in `open`."""

    kind: type[Walk] = ForkableWalk
    slow: float = 0.0

    def tasks(self, split: str) -> Sequence[Task]:
        return [TASK]

    def make(self, task: Task) -> Walk:
        return self.kind(Walks(slow=self.slow))


@dataclass(frozen=True, kw_only=True)
class OpenedToy(Toy):
    """The toy, which makes no play where it is not open."""

    is_open: list[bool] = field(default_factory=list[bool], init=False)

    def make(self, task: Task) -> Any:
        assert self.is_open
        return super().make(task)

    async def open(self) -> None:
        self.is_open.append(True)


@dataclass(frozen=True)
class Unsendable:
    lock: Any = field(default_factory=threading.Lock)

    def tasks(self, split: str) -> Sequence[Task]:
        return [Task("unsendable", {}, 0, split)]

    def make(self, task: Task) -> Any:
        raise NotImplementedError
