"""Converts facts to plain data and back, for records, exports, checkpoints and other processes.

`msgspec` reads the fields of the dataclasses, checks the type of every value, and fills in the defaults of what is
absent. The bytes are written by `json`, since records may hold NaN and halves of surrogate pairs, which `msgspec.json`
refuses. Turns keep the keys under which they were first recorded: `said`, `shown` and `recalled`.
"""

from __future__ import annotations

import datetime
import json
import math
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
import numpy as np

from sojourn.errors import RecordError
from sojourn.types import Considered, FloatArray, IntArray, Message, Sample, Stop, Tool, Trajectory, Turn, Versions

Fact = TypeVar("Fact")
VERSION = 1  # of the layout of records; raise it when an older Sojourn would misread a newer record
REFUSED = (bytes, bytearray, memoryview, datetime.datetime, datetime.date, datetime.time)  # msgspec would make text
LEFT_OUT = {"thought": "", "images": (), "calls": (), "answers": None}  # of a message, where it has nothing else


def to_plain(fact: Any) -> Any:
    """Returns dataclasses as objects, enums as their values, and numpy's numbers as Python's.

    Raises RecordError for an object that JSON cannot hold.
    """
    return msgspec.to_builtins(fact, builtin_types=REFUSED, enc_hook=_plain)


def from_plain(data: Any, kind: type[Fact]) -> Fact:
    """Returns the fact of type `kind` that `data` describes; raises ValueError with the path of a value that is wrong.

    Keys that `kind` does not have are ignored.
    """
    return msgspec.convert(data, kind)


def to_json(value: Any) -> bytes:
    return json.dumps(value, default=_plain).encode()


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        return dict(value)
    for kind in (str, int, float):
        if isinstance(value, kind):
            return kind(value)
    raise RecordError(f"{value!r} is a {type(value).__name__}, which JSON cannot hold: task data and info must be JSON")


def message_to_plain(message: Message) -> dict[str, Any]:
    """Returns a message without the parts that it does not have."""
    return {key: value for key, value in to_plain(message).items() if key not in LEFT_OUT or value != LEFT_OUT[key]}


PlainConsidered = tuple[int, str, str, float | None, int]  # None: JSON has no NaN


def _considered(one: PlainConsidered) -> Considered:
    parent, agent, text, value, visits = one
    return Considered(parent, agent, text, math.nan if value is None else value, visits)


def _considered_to_plain(one: Considered) -> PlainConsidered:
    return (one.parent, one.agent, one.text, one.value if math.isfinite(one.value) else None, one.visits)


class PlainTurn(
    msgspec.Struct, kw_only=True, rename={"message": "said", "observed": "shown", "context_messages": "recalled"}
):
    """Everything that a recorded turn says beside its arrays; each format stores these in its own way."""

    parent: int
    versions: Versions
    stop: Stop
    temperature: float
    message: Message | None
    reward: float
    info: dict[str, Any]
    images: tuple[str, ...]
    state: str | None
    observed: tuple[Message, ...]
    context_messages: tuple[Message, ...] = ()
    tools: tuple[Tool, ...] = ()
    considered: tuple[PlainConsidered, ...] = ()
    notes: dict[str, str] = {}

    def with_arrays(
        self,
        context: IntArray,
        tokens: IntArray,
        logprobs: FloatArray,
        allowed: tuple[IntArray | None, ...] | None,
    ) -> Turn:
        return Turn(
            parent=self.parent,
            context=context,
            sample=Sample(tokens, logprobs, self.versions, self.stop, self.temperature, allowed),
            message=self.message,
            reward=self.reward,
            info=self.info,
            images=self.images,
            state=self.state,
            observed=self.observed,
            context_messages=self.context_messages,
            tools=self.tools,
            considered=tuple(map(_considered, self.considered)),
            notes=self.notes,
        )


def unacted_to_plain(trajectory: Trajectory) -> dict[str, Any]:
    """Returns what a seat that never acted was given, and nothing for any other."""
    reward, info = trajectory.unacted_reward, dict(trajectory.unacted_info)
    return {"unacted_reward": reward, "unacted_info": info} if reward or info else {}


def turn_to_plain(turn: Turn, allowed: Any) -> dict[str, Any]:
    """Returns what `PlainTurn` reads, except `parent`, and `allowed` as the caller stores it."""
    return {
        "versions": list(turn.sample.versions),
        "stop": turn.sample.stop,
        "temperature": turn.sample.temperature,
        "allowed": allowed,
        "said": None if turn.message is None else message_to_plain(turn.message),
        "reward": turn.reward,
        "info": dict(turn.info),
        "images": list(turn.images),
        "state": turn.state,
        "shown": [message_to_plain(message) for message in turn.observed],
        "recalled": [message_to_plain(message) for message in turn.context_messages],
        "tools": to_plain(turn.tools),
        **({"considered": [_considered_to_plain(one) for one in turn.considered]} if turn.considered else {}),
        **({"notes": dict(turn.notes)} if turn.notes else {}),
    }
