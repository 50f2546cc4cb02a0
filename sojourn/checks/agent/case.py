"""The scripted model of a check of an agent, and the episode in which it plays."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import Any
from zlib import crc32

import numpy as np

from sojourn.checks.promise import BrokenError
from sojourn.errors import ActionError
from sojourn.protocols import AgentContext, Renderer
from sojourn.types import (
    Ending,
    FloatArray,
    Message,
    Observation,
    Prompt,
    Role,
    Sample,
    SamplingParams,
    Stop,
    Trajectory,
    Versions,
)

TURNS = 4
FIRST = Observation((Message(Role.USER, "You are in room 0."),), system=(Message(Role.SYSTEM, "Find the key."),))
REPLIES = ("go north", "go to the key", "look", "take it")
UNREADABLE = '<tool_call>{"name": "look"'
CONTEXT = 4096


@dataclass
class Script:
    """A sampler that says the replies in turn, spelled letter by letter: text that is encoded again has other tokens.

    It notes what it was asked, and what it gave.
    """

    renderer: Any
    replies: tuple[str, ...] = REPLIES
    prompts: list[Prompt] = field(default_factory=list[Prompt])
    params: list[SamplingParams] = field(default_factory=list[SamplingParams])
    given: list[Sample] = field(default_factory=list[Sample])

    async def sample(self, prompt: Prompt, params: SamplingParams) -> Sample:
        self.prompts.append(replace(prompt, tokens=prompt.tokens.copy()))
        self.params.append(params)
        number = self.number(prompt)
        await asyncio.sleep(0)
        letters = [token for letter in self.replies[number % len(self.replies)] for token in self._spell(letter)]
        whole = [*letters, self.renderer.stops[0]]
        tokens = np.array(whole[: params.max_tokens], dtype=np.int64)
        stop = Stop.END if len(tokens) == len(whole) else Stop.LENGTH
        logprobs = -np.linspace(0.5, 1.5, len(tokens)).astype(np.float32) - number
        self.given.append(Sample(tokens, logprobs, Versions(0, 0), stop))
        return self.given[-1]

    async def score(self, prompt: Prompt) -> FloatArray:
        return np.zeros(max(len(prompt.tokens) - 1, 0), dtype=np.float32)

    async def close(self) -> None:
        """Does nothing: nothing is open."""

    def number(self, prompt: Prompt) -> int:
        """Returns which reply is said to the prompt that was asked last."""
        return len(self.prompts) - 1

    def _spell(self, letter: str) -> list[int]:
        return list(self.renderer.codec.control(letter))


@dataclass
class Follows(Script):
    """A sampler whose reply follows from the prompt alone, whoever asked before."""

    def number(self, prompt: Prompt) -> int:
        return crc32(prompt.tokens.tobytes()) % len(self.replies)


@dataclass(frozen=True)
class Case:
    agent: Any
    renderer: Renderer

    def script(self, *replies: str) -> Script:
        return Script(self.renderer, replies or REPLIES)

    def seat(self, script: Script, **changes: Any) -> Any:
        params = SamplingParams(max_tokens=64, seed=11)
        context = AgentContext(
            name="agent", renderer=self.renderer, sampler=script, params=params, max_context=CONTEXT, trainable=True
        )
        return self.agent.seat(replace(context, **changes))


async def act(seat: Any, first: int = 0, last: int = TURNS, place: str = "room") -> float:
    """Takes the turns from `first` to `last` in a place, as an episode does: each action is rewarded, and one that
    cannot be read is refused. Before the last turn, the task changes. Returns all that the actions were given."""
    observation, given = observed(first, place), 0.0
    for number in range(first, last):
        if (refused := await take_turn(seat, observation, number)) is not None:
            observation = refused
            continue
        seat.add_reward(reward := 0.25 * (number + 1), {"number": float(number)})
        observation, given = observed(number + 1, place), given + reward
    return given


async def take_turn(seat: Any, observation: Observation, number: int) -> Observation | None:
    """Takes a turn. Returns what the seat is shown where its action was refused, else None."""
    try:
        action = await seat.act(observation, f"state {number}")
    except ActionError as error:
        seat.add_reward(0.0, {"malformed": 1.0})
        refused = seat.refuse(error, observation)
        if not isinstance(refused, Observation) or not refused.messages:
            raise BrokenError(f"refuse() gave {refused!r:.80}: expected an Observation with messages") from error
        return refused
    if not isinstance(action, Message):
        raise BrokenError(f"act() gave {action!r:.80}: expected a Message")
    return None


def observed(number: int, place: str = "room") -> Observation:
    """Returns what is shown before a turn; a context with new system messages begins before the last."""
    if number == 0:
        return FIRST
    system = (Message(Role.SYSTEM, "Find the door."),) if number == TURNS - 1 else ()
    return Observation((Message(Role.USER, f"You are in {place} {number}."),), system=system)


async def play(case: Case, script: Script | None = None, **changes: Any) -> Trajectory:
    seat = case.seat(script or case.script(), **changes)
    await act(seat)
    return seat.finish(Ending.DONE)
