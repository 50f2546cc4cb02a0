"""A seat that says what was recorded of an episode up to a turn, and hands over to somebody else there."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from sojourn.arena.spoken import Spoken
from sojourn.errors import ActionError, ConfigError
from sojourn.protocols import Renderer, Sampler
from sojourn.record.export.selection import paths_in_world
from sojourn.replay import RecordedSeat
from sojourn.types import (
    Ending,
    Episode,
    FloatArray,
    Message,
    Observation,
    Prompt,
    Role,
    Sample,
    SamplingParams,
    Stop,
    Trajectory,
    Turn,
    Versions,
)

UNREAD = "(could not be read)"


@dataclass(frozen=True)
class Start:
    """From where an episode is played again: what led there, and what followed."""

    before: Trajectory
    after: tuple[Turn, ...]

    @classmethod
    def of(cls, episode: Episode, turn: int) -> Start:
        """Before the turn of this number, from 0; ConfigError where it cannot be played again from there."""
        if episode.error is not None:
            raise ConfigError(f"this episode cannot be played again: its world failed ({episode.error[:300]})")
        if len(episode.trajectories) != 1:
            seats = ", ".join(trajectory.agent for trajectory in episode.trajectories)
            raise ConfigError(
                f"this episode was played by several seats ({seats}): only those of one seat can be re-run"
            )
        whole = episode.trajectories[0]
        course = next((path for path in paths_in_world(whole) if turn in path), None)
        if course is None:
            raise ConfigError(f"this episode has {len(whole.turns)} turns: it cannot be re-run from turn {turn + 1}")
        at = course.index(turn)
        turns = tuple(whole.turns[number] for number in course)
        return cls(replace(whole, turns=turns[:at]), turns[at:])


@dataclass
class Handover:
    """Plays the record first, and compares what the world answers with it; `then` hears all of it, and goes on."""

    start: Start
    then: Any
    acted: int = 0
    _refused: Observation | None = None  # what `then` sees after a refusal, in its own words

    def __post_init__(self) -> None:
        self.recorded = RecordedSeat(self.start.before, ends=False)

    @property
    def given(self) -> int:
        """How many turns the record holds."""
        return len(self.start.before.turns)

    @property
    def ends_when_malformed(self) -> bool:
        return self.acted > self.given and self.then.ends_when_malformed

    async def act(self, observation: Observation, state: str | None = None) -> Message:
        heard, self._refused = self._refused or observation, None
        self.acted += 1
        if self.acted > self.given:
            if self.acted == self.given + 1:
                self.recorded.compare_rewards()
            return await self.then.act(heard, state)
        with suppress(ActionError):  # what could not be read then either is refused by the record, below
            await self.then.act(heard, state)
        return await self.recorded.act(observation, state)

    def add_reward(self, reward: float, info: Mapping[str, float]) -> None:
        self.then.add_reward(reward, info)
        if self.acted <= self.given:
            self.recorded.add_reward(reward, info)

    def refuse(self, error: ActionError, observation: Observation) -> Observation:
        told = self._refused = self.then.refuse(error, observation)
        return self.recorded.refuse(error, observation) if self.acted <= self.given else told

    def finish(self, ending: Ending) -> Trajectory:
        return self.then.finish(ending)


@dataclass
class Recited:
    """In the engine's place: gives what was sampled before the handover, then samples. What was sampled in another
    model's tokens, or said without any, is put into this model's."""

    engine: Sampler
    renderer: Renderer
    turns: Sequence[Turn]
    same: bool  # whether the record's tokens are this model's
    given: int = 0

    async def sample(self, prompt: Prompt, params: SamplingParams) -> Sample:
        if self.given == len(self.turns):
            return await self.engine.sample(prompt, params)
        turn = self.turns[self.given]
        self.given += 1
        if self.same and len(turn.sample.tokens):
            return turn.sample
        said = turn.message or Message(Role.ASSISTANT, UNREAD)
        tokens = np.asarray(self.renderer.encode_reply(said), dtype=np.int64)
        return Sample(tokens, np.zeros(len(tokens), dtype=np.float32), Versions(-1, -1), Stop.END)

    async def score(self, prompt: Prompt) -> FloatArray:
        return await self.engine.score(prompt)

    async def close(self) -> None:
        """The engine is closed by whoever opened it."""


@dataclass
class PageVoice:
    """A person at a page: what was recorded is said first, then each action is waited for."""

    turns: Sequence[Turn]
    idle_s: float
    asked: Callable[[Observation], Awaitable[None]]
    given: int = 0
    answer: asyncio.Future[str] | None = field(default=None)

    async def say(self, observation: Observation) -> Spoken:
        if self.given < len(self.turns):
            said = self.turns[self.given].message
            self.given += 1
            return Spoken(said, fault="" if said else UNREAD)
        self.answer = asyncio.get_running_loop().create_future()
        await self.asked(observation)
        try:
            async with asyncio.timeout(self.idle_s):
                return Spoken(Message(Role.ASSISTANT, await self.answer))
        except TimeoutError:
            raise ConfigError(f"nobody acted for {self.idle_s / 60:.3g} minutes, so it was ended") from None
        finally:
            self.answer = None
