"""The plays that the promises are judged by: what is played, by whom, and how two plays differ."""

from __future__ import annotations

import inspect
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from sojourn.checks.promise import BrokenError
from sojourn.errors import ActionError
from sojourn.types import Message, Observation, Role, Step, Task, ToolCall


@dataclass(frozen=True)
class Event:
    """One action and what came of it (for the start: no action)."""

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
    """An env at play, with its events."""

    env: Any
    events: list[Event] = field(default_factory=list)
    seat: str = "agent"

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

    def key(self) -> str | None:
        return self.env.state_key() if hasattr(self.env, "state_key") else None

    async def start(self) -> Play:
        observation = await self.env.start()
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


@dataclass
class Case:
    """What is checked, and the plays that the promises are judged by."""

    family: Any
    split: str
    episodes: int
    seed: int
    max_turns: int
    tasks: list[Task] = field(default_factory=list)
    plays: list[Play] = field(default_factory=list)  # finished and closed; the first two are of one task
    expert_plays: list[Play] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)  # what refused hostile actions did to the world

    def task_of(self, play: int) -> Task:
        return self.tasks[max(play - 1, 0)]

    async def replay(self, play: int, turns: int | None = None) -> Play:
        """The same task and the same actions (the first `turns` of them) in a new env, still open."""
        fresh = await Play(self.family.make(self.task_of(play))).start()
        return await fresh.act_all(self.plays[play].actions[:turns])


async def choose(play: Play, rng: random.Random) -> Message:
    """A random choice; without choices, the expert's action or an invented call."""
    observation = next(event.observation for event in reversed(play.events) if event.observation)
    if observation.choices:
        return Message(Role.ASSISTANT, rng.choice(observation.choices))
    if hasattr(play.env, "expert") and (not observation.tools or rng.random() < 0.5):
        return await ask_expert(play.env)
    if observation.tools:
        tool = rng.choice(observation.tools)
        return Message(Role.ASSISTANT, calls=(ToolCall(tool.name, _invent(tool.parameters, rng)),))
    return Message(Role.ASSISTANT, rng.choice(("look", "help", "yes", "no", "1")))


async def ask_expert(env: Any) -> Message:
    action = env.expert()
    if inspect.isawaitable(action):
        action = await action
    if not isinstance(action, str):
        raise BrokenError(f"expert() gave {short(action)}: expected the action as text")
    return Message(Role.ASSISTANT, action)


def _invent(schema: Mapping[str, Any], rng: random.Random) -> Any:
    """A value that fits a JSON Schema of the plain kinds."""
    if "enum" in schema:
        return rng.choice(schema["enum"])
    if "anyOf" in schema:
        return _invent(rng.choice(schema["anyOf"]), rng)
    match schema.get("type"):
        case "integer":
            return rng.randint(0, 9)
        case "number":
            return rng.random()
        case "boolean":
            return rng.random() < 0.5
        case "array":
            return [_invent(schema.get("items", {}), rng)]
        case "object":
            return {key: _invent(value, rng) for key, value in schema.get("properties", {}).items()}
        case "null":
            return None
    return rng.choice(("a", "b", "yes"))


async def whole(play: Play, actions: Sequence[Message]) -> None:
    await play.start()
    await play.act_all(actions)


def require_observation(value: Any, where: str) -> None:
    if not isinstance(value, Observation):
        raise BrokenError(f"{where} gave {short(value)}: expected an Observation")
    said = [*value.brief, *value.messages]
    if not said or not all(isinstance(message, Message) for message in said):
        raise BrokenError(
            f"{where} gave an observation with the messages {short(said)}: expected Messages, at least one"
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
    if wrong := {seat: reward for seat, reward in value.rewards.items() if not isinstance(reward, (int, float))}:
        raise BrokenError(f"{where} gave the rewards {wrong}: expected numbers by seat")


def require_equal(then: Sequence[Event], now: Sequence[Event], when: str) -> None:
    if difference := first_difference(then, now):
        raise BrokenError(f"{when}, {difference}")


def first_difference(then: Sequence[Event], now: Sequence[Event]) -> str:
    """The first difference of two plays in words, state keys apart; empty where there is none."""
    for turn, (one, other) in enumerate(zip(then, now, strict=False)):
        for name in ("seat", "observation", "rewards", "done", "success", "refused"):
            was, became = getattr(one, name), getattr(other, name)
            if was != became:
                return f"after {turn} actions {name} is {short(became)}, but it was {short(was)}"
    return "" if len(then) == len(now) else f"it ends after {len(now) - 1} actions, but it was {len(then) - 1}"


def short(value: Any) -> str:
    if isinstance(value, Message):
        value = value.text or [asdict(call) for call in value.calls]
    if isinstance(value, Observation):
        value = " | ".join(message.text for message in (*value.brief, *value.messages))
    text = ascii(value)
    return text if len(text) <= 90 else f"{text[:90]}..."
