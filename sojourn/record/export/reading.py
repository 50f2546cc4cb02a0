"""What a file of recorded episodes gives: groups with their tokens, or conversations that are yet to be rendered."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeGuard

from sojourn.errors import RecordError
from sojourn.record.export.chosen import windows
from sojourn.types import Group, Message, Role, Task, Tool, Trajectory


@dataclass(frozen=True, kw_only=True)
class Conversation:
    """What was said, by whomever and in whatever format, with what came of it. `learnt` are the numbers of the
    assistant's messages that are to be imitated; the others are context."""

    where: str  # file and line
    messages: tuple[Message, ...]
    learnt: frozenset[int]
    tools: tuple[Tool, ...] = ()
    reward: float = 0.0
    success: bool | None = None
    task: Task
    agent: str = "agent"
    rewards: Mapping[int, float] = field(default_factory=dict)  # of single messages, where the file has them


class Spoken(NamedTuple):
    message: Message
    turn: int | None  # that said it; None for what was shown


def spoken(trajectory: Trajectory, path: Sequence[int]) -> list[Spoken]:
    """The conversation of a path of turns; what could not be read is an empty message of the assistant."""
    told: list[Spoken] = []
    for place, number in enumerate(path):
        turn = trajectory.turns[number]
        before = turn.context_messages if not place else ()
        told += [Spoken(message, None) for message in (*before, *turn.observed)]
        told.append(Spoken(turn.message or Message(Role.ASSISTANT), number))
    return told


def tools_of(trajectory: Trajectory, path: Sequence[int]) -> tuple[Tool, ...]:
    return trajectory.turns[path[0]].tools if path else ()


def conversations(groups: Iterable[Group], where: str) -> Iterator[Conversation]:
    """Every window of the groups as what was said in it, for another model to learn."""
    for group in groups:
        for episode in group.episodes:
            for trajectory in episode.trajectories:
                if episode.error is None and trajectory.trainable:
                    yield from (_conversation(trajectory, path, group, where) for path in windows(trajectory))


def _conversation(trajectory: Trajectory, path: Sequence[int], group: Group, where: str) -> Conversation:
    told = spoken(trajectory, path)
    readable = {number for number in path if trajectory.turns[number].message is not None}
    return Conversation(
        where=where,
        messages=tuple(one.message for one in told),
        learnt=frozenset(place for place, one in enumerate(told) if one.turn in readable),
        tools=tools_of(trajectory, path),
        reward=trajectory.reward,
        success=trajectory.success,
        task=group.task,
        agent=trajectory.agent,
    )


def foreign_task(env: str, said: object) -> Task:
    """A task for what names none: conversations that begin alike are plays of the same one."""
    digest = hashlib.sha256(repr(said).encode("utf-8", "surrogatepass")).hexdigest()[:16]
    return Task(env, {"begins": digest}, 0, "train")


def is_task(value: Any) -> TypeGuard[Mapping[str, Any]]:
    """Whether it is a task as our own exports write it."""
    return isinstance(value, Mapping) and {"env", "data", "seed", "split", "tags"} <= value.keys()


def malformed(where: str, error: BaseException, expected: str) -> RecordError:
    what = f"has no {error}" if isinstance(error, KeyError) else str(error)[:120]
    return RecordError(f"{where}: {what}: expected {expected}")


def number(value: Any) -> float:
    """A finite number of a file, 0 where there is none."""
    if value is None:
        return 0.0
    if isinstance(value, bool | int | float) and abs(value) < 1e30:
        return float(value)
    raise ValueError(f"{str(value)[:40]!r} is no finite number")
