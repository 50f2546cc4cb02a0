"""Plays environments for the checks: records plays, chooses actions, and compares two plays."""

from __future__ import annotations

import inspect
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from sojourn.abilities import HasExpert, HasNativeActions, HasStateKey, capacity
from sojourn.checks.env.resources import Held, leak
from sojourn.checks.promise import BrokenError
from sojourn.errors import ActionError
from sojourn.finite import as_finite, is_number, is_success
from sojourn.rollout.world import seats_of, world_of
from sojourn.types import Message, Observation, Role, Step, Task, ToolCall


@dataclass(frozen=True)
class Event:
    """One action and its result; the start of a play has no action."""

    seat: str
    action: Message | None
    observation: Observation | None
    rewards: Mapping[str, float] = field(default_factory=dict)
    done: bool = False
    success: bool | None = None
    refused: str = ""
    key: str | None = None


@dataclass
class Play:
    """A play of an env, with its recorded events."""

    env: Any
    events: list[Event] = field(default_factory=list)
    seat: str = "agent"
    start_s: float = 0.0
    blobs: Mapping[str, bytes] = field(default_factory=dict)  # the images that it showed, by digest
    closed: bool = False

    @property
    def done(self) -> bool:
        return self.events[-1].done

    @property
    def actions(self) -> list[Message]:
        return [event.action for event in self.events if event.action is not None]

    @property
    def success(self) -> bool:
        known = [event.success for event in self.events if event.success is not None]
        return known[-1] if known else sum(sum(event.rewards.values()) for event in self.events) > 0

    @property
    def accepted(self) -> int:
        """Returns how many actions were accepted."""
        return sum(event.action is not None and not event.refused for event in self.events)

    def key(self) -> str | None:
        return self.env.state_key() if isinstance(self.env, HasStateKey) else None

    async def start(self) -> Play:
        began = time.perf_counter()
        observation = await self.env.start()
        self.start_s = time.perf_counter() - began
        require_observation(observation, "start()")
        self.seat = observation.agent
        self.events.append(Event(self.seat, None, observation, key=self.key()))
        return self

    async def act(self, action: Message) -> Event:
        seat = self.seat
        try:
            step = await self.env.step(seat, action)
        except ActionError as error:
            event = Event(seat, action, None, refused=str(error) or "refused", key=self.key())
        else:
            require_step(step, f"step({short(action)})")
            self.seat = step.observation.agent if step.observation else seat
            event = Event(seat, action, step.observation, dict(step.rewards), step.done, step.success, key=self.key())
        self.events.append(event)
        return event

    async def act_all(self, actions: Sequence[Message]) -> Play:
        for action in actions:
            if self.done:
                break
            await self.act(action)
        return self

    async def close(self) -> None:
        if not self.closed:
            self.closed = True
            await self.env.close()


@dataclass
class Case:
    """The family under check, and the plays that its promises are judged by."""

    family: Any
    split: str
    episodes: int
    seed: int
    max_turns: int
    scratch: Path  # the folder for temporary files during the checks
    before: Held = field(default_factory=dict)  # what the process held before the family was opened
    tasks: list[Task] = field(default_factory=list)
    plays: list[Play] = field(default_factory=list)  # finished and closed; the first two are of one task
    expert_plays: list[Play] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)  # descriptions of what refused hostile actions did to the world
    starts_processes: bool = False  # whether any ran during a play
    untidy: bool = False  # whether anything was left behind

    def seats(self, task: Task) -> tuple[str, ...]:
        return tuple(seats_of(self.family, task))

    @property
    def room(self) -> int:
        """Returns how many plays the family can hold at once; 2 where it does not say."""
        return min(capacity(world_of(self.family, task), 2) for task in self.tasks)

    def task_of(self, play: int) -> Task:
        return self.tasks[max(play - 1, 0)]

    async def leak(self, act: Callable[[], Awaitable[Any]]) -> str:
        """Describes the resources that are left every time `act` is done; empty where there are none."""
        left = await leak(act, self.scratch)
        self.untidy |= bool(left)
        return left

    @asynccontextmanager
    async def replaying(self, play: int, turns: int | None = None, env: Any = None) -> AsyncIterator[Play]:
        """Yields a new play of the same task after the same actions (the first `turns` of them), and closes it."""
        async with closing(Play(env or self.family.make(self.task_of(play)))) as fresh:
            await play_through(fresh, self.plays[play].actions[:turns])
            yield fresh

    async def replay(self, play: int) -> list[Event]:
        """Returns the events of the same task and actions in a new env, which is closed again."""
        async with self.replaying(play) as fresh:
            return fresh.events


@asynccontextmanager
async def closing(play: Play) -> AsyncIterator[Play]:
    try:
        yield play
    finally:
        await play.close()


def spread(last: int, most: int) -> list[int]:
    """Returns at most `most` evenly spaced integers from 0 to `last`, both included."""
    return sorted({round(step * last / max(most - 1, 1)) for step in range(most)})


async def choose(play: Play, rng: random.Random) -> Message:
    """Returns a random choice; without choices, the expert's action, an invented call, or a word that was shown."""
    observation = next(event.observation for event in reversed(play.events) if event.observation)
    if observation.choices:
        return Message(Role.ASSISTANT, rng.choice(observation.choices))
    if isinstance(play.env, HasExpert) and (not observation.tools or rng.random() < 0.5):
        return await ask_expert(play.env)
    if observation.tools:
        tool = rng.choice(observation.tools)
        return Message(Role.ASSISTANT, calls=(ToolCall(tool.name, invent(tool.parameters, rng)),))
    words = [word.strip(".,:;!?\"'()[]") for word in _words(play.events[0].observation, observation).split()]
    return Message(Role.ASSISTANT, rng.choice(("look", "help", "yes", "no", "1", *words)))


async def ask_expert(env: HasExpert) -> Message:
    action = env.expert()
    if inspect.isawaitable(action):
        action = await action
    if not isinstance(action, str):
        raise BrokenError(f"expert() gave {short(action)}: expected the action as text")
    return env.native_action(action) if isinstance(env, HasNativeActions) else Message(Role.ASSISTANT, action)


def invent(schema: Mapping[str, Any], rng: random.Random) -> Any:
    """Returns a random value that fits a JSON Schema of one of the simple kinds."""
    if "enum" in schema:
        return rng.choice(schema["enum"])
    if "anyOf" in schema:
        return invent(rng.choice(schema["anyOf"]), rng)
    match schema.get("type"):
        case "integer":
            return rng.randint(0, 9)
        case "number":
            return rng.random()
        case "boolean":
            return rng.random() < 0.5
        case "array":
            return [invent(schema.get("items", {}), rng)]
        case "object":
            return {key: invent(value, rng) for key, value in schema.get("properties", {}).items()}
        case "null":
            return None
    return rng.choice(("a", "b", "yes"))


async def play_through(play: Play, actions: Sequence[Message]) -> None:
    await play.start()
    await play.act_all(actions)


def require_observation(value: Any, where: str) -> None:
    if not isinstance(value, Observation):
        raise BrokenError(f"{where} gave {short(value)}: expected an Observation")
    messages = [*value.system, *value.messages]
    if not messages or not all(isinstance(message, Message) for message in messages):
        raise BrokenError(
            f"{where} gave an observation with the messages {short(messages)}: expected Messages, at least one"
        )


def require_step(value: Any, where: str) -> None:
    if not isinstance(value, Step):
        raise BrokenError(f"{where} gave {short(value)}: expected a Step")
    if value.done != (value.observation is None):
        raise BrokenError(
            f"{where} gave done={value.done} with {short(value.observation)}: None belongs to the end alone"
        )
    if value.observation is not None:
        require_observation(value.observation, where)
    if wrong := {seat: reward for seat, reward in value.rewards.items() if not is_number(reward)}:
        raise BrokenError(f"{where} gave the rewards {short(wrong)}: expected numbers by seat")
    if wrong := {name: number for name, number in value.info.items() if as_finite(number) is None}:
        raise BrokenError(f"{where} gave the info {short(wrong)}: expected finite numbers by name")
    if not is_success(value.success):
        raise BrokenError(f"{where} gave success={short(value.success)}: expected True, False or None")


def require_equal(then: Sequence[Event], now: Sequence[Event], when: str) -> None:
    if difference := first_difference(then, now):
        raise BrokenError(f"{when}, {difference}")


def first_difference(then: Sequence[Event], now: Sequence[Event]) -> str:
    """Describes the first difference of two plays, state keys aside; empty where there is none."""
    for turn, (one, other) in enumerate(zip(then, now, strict=False)):
        for name in ("seat", "observation", "rewards", "done", "success", "refused"):
            was, became = getattr(one, name), getattr(other, name)
            if was != became:
                return f"after {turn} actions {difference(name, was, became)}"
    return "" if len(then) == len(now) else f"it ends after {len(now) - 1} actions, but it was {len(then) - 1}"


def difference(name: str, was: Any, became: Any) -> str:
    """Describes how two values differ: for observations with equal text, in which other part; for long texts, where."""
    if isinstance(was, Observation) and isinstance(became, Observation) and _words(was) == _words(became):
        part = next(f.name for f in fields(Observation) if getattr(was, f.name) != getattr(became, f.name))
        return difference(f"observation.{part}", getattr(was, part), getattr(became, part))
    old, new = _ascii(was), _ascii(became)
    same = next((i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))
    start = max(same - 30, 0) if max(len(old), len(new)) > LONGEST else 0
    return f"{name} is {_cut(new, start)}, but it was {_cut(old, start)}"


LONGEST = 90


def short(value: Any) -> str:
    return _cut(_ascii(value))


def _cut(text: str, start: int = 0) -> str:
    end = start + LONGEST
    return f"{'...' * (start > 0)}{text[start:end]}{'...' * (len(text) > end)}"


def _ascii(value: Any) -> str:
    """Returns any value as ASCII text, also one that is nested too deep or too long for Python to print."""
    if isinstance(value, Message):
        value = value.text[: 100 * LONGEST] or [(call.name, call.arguments) for call in value.calls]
    if isinstance(value, Observation):
        value = _words(value)
    try:
        return ascii(value)
    except (RecursionError, ValueError):  # integers of many digits are values that Python does not print
        return f"a {type(value).__name__} too deep or too long to print"


def _words(*observations: Observation | None) -> str:
    return " | ".join(message.text for o in observations if o for message in (*o.system, *o.messages))
