"""Conversations: episodes as messages alone, which are yet to be rendered for a model."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any, NamedTuple, TypeGuard, TypeVar

from sojourn.call_text import written_call
from sojourn.errors import RecordError
from sojourn.record.export.selection import windows
from sojourn.types import Group, Message, Role, Task, Tool, Trajectory

T = TypeVar("T")
MALFORMED = (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError)  # of what a file may hold


@dataclass(frozen=True, kw_only=True)
class Conversation:
    """The messages of an episode of any program, with its outcome.

    `imitated` are the indices of the assistant's messages that are to be learnt; the others are context.
    """

    where: str  # file and line
    messages: tuple[Message, ...]
    imitated: frozenset[int]
    tools: tuple[Tool, ...] = ()
    reward: float = 0.0
    success: bool | None = None
    task: Task
    agent: str = "agent"
    rewards: Mapping[int, float] = field(default_factory=dict)  # of single messages, where the file has them


class Utterance(NamedTuple):
    message: Message
    turn: int | None  # that sampled it; None for an observation


def utterances(trajectory: Trajectory, path: Sequence[int]) -> list[Utterance]:
    """Returns the messages of a path of turns; an action that could not be parsed is an empty assistant message."""
    messages: list[Utterance] = []
    for place, number in enumerate(path):
        turn = trajectory.turns[number]
        before = turn.context_messages if not place else ()
        system = [*takewhile(lambda message: message.role is Role.SYSTEM, turn.observed)] if before else []
        shown = (*system, *before, *turn.observed[len(system) :])  # a window begins with its system messages
        messages += [Utterance(message, None) for message in shown]
        messages.append(Utterance(turn.message or Message(Role.ASSISTANT), number))
    return messages


def with_structured_calls(messages: Sequence[Message], tools: Sequence[Tool]) -> list[Message]:
    """Returns the messages with calls of these tools that were written as text as structured calls, and with the
    messages that follow them as the tools' answers."""
    structured: list[Message] = []
    answering: str | None = None
    for message in messages:
        if message.role is Role.ASSISTANT:
            call = None if message.calls else written_call(message.text, tools)
            answering = call.name if call is not None else None
            message = message if call is None else replace(message, text="", calls=(call,))
        elif answering is not None and message.role is Role.USER and not message.images:
            message, answering = replace(message, role=Role.TOOL, answers=answering), None
        structured.append(message)
    return structured


def tools_of(trajectory: Trajectory, path: Sequence[int]) -> tuple[Tool, ...]:
    return trajectory.turns[path[0]].tools if path else ()


def conversations(groups: Iterable[Group], where: str) -> Iterator[Conversation]:
    """Yields every window of the groups as a conversation, for another model to learn from."""
    for group in groups:
        for episode in group.episodes:
            for trajectory in episode.trajectories:
                if episode.error is None and trajectory.trainable:
                    yield from (_conversation(trajectory, path, group, where) for path in windows(trajectory))


def _conversation(trajectory: Trajectory, path: Sequence[int], group: Group, where: str) -> Conversation:
    messages = utterances(trajectory, path)
    readable = {number for number in path if trajectory.turns[number].message is not None}
    return Conversation(
        where=where,
        messages=tuple(one.message for one in messages),
        imitated=frozenset(place for place, one in enumerate(messages) if one.turn in readable),
        tools=tools_of(trajectory, path),
        reward=trajectory.reward,
        success=trajectory.success,
        task=group.task,
        agent=trajectory.agent,
    )


def foreign_task(env: str, beginning: object) -> Task:
    """Returns a task for a conversation that names none: conversations that begin alike are plays of one task."""
    digest = hashlib.sha256(repr(beginning).encode("utf-8", "surrogatepass")).hexdigest()[:16]
    return Task(env, {"begins": digest}, 0, "train")


def is_task(value: Any) -> TypeGuard[Mapping[str, Any]]:
    """Returns whether a value is a task as `sojourn export` writes it."""
    return isinstance(value, Mapping) and {"env", "data", "seed", "split", "tags"} <= value.keys()


def malformed(where: str, error: BaseException, expected: str) -> RecordError:
    return RecordError(f"{where}: {_cause(error)}: expected {expected}")


def converted(key: str, values: Any, convert: Callable[[Any], T]) -> list[T]:
    """Converts every item of the list that a record has under a key; an error names the place of the item."""
    if not isinstance(values, list):
        raise ValueError(f"{key} is {str(values)[:40]!r}, not a list")
    made: list[T] = []
    for place, value in enumerate(values):
        try:
            made.append(convert(value))
        except MALFORMED as error:
            raise ValueError(f"{key}[{place}] {_cause(error)}") from error
    return made


def _cause(error: BaseException) -> str:
    return f"has no {error}" if isinstance(error, KeyError) else str(error)[:160]


def number(value: Any) -> float:
    """Returns a finite number of a file, 0 where it has none."""
    if value is None:
        return 0.0
    if isinstance(value, bool | int | float) and abs(value) < 1e30:
        return float(value)
    raise ValueError(f"{str(value)[:40]!r} is no finite number")
