"""A seat that repeats the recorded actions of an episode up to a turn, and lets another player act from there on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from sojourn.agents.ask_person import QUESTIONS
from sojourn.agents.text_seat import TextReply
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

UNPARSED = "(could not be parsed)"


@dataclass(frozen=True)
class ResumePoint:
    """The turn from which an episode is played again: the recorded turns before it, and those from it on."""

    before: Trajectory
    after: tuple[Turn, ...]

    @classmethod
    def of(cls, episode: Episode, turn: int) -> ResumePoint:
        """Returns the point before a turn (counted from 0); raises ConfigError if a re-run cannot start there."""
        if problem := _problem(episode):
            raise ConfigError(problem)
        trajectory = episode.trajectories[0]
        path = next((turns for turns in paths_in_world(trajectory) if turn in turns), None)
        if path is None:
            count = len(trajectory.turns)
            raise ConfigError(f"this episode has {count} turns: choose one of them instead of turn {turn + 1}")
        at = path.index(turn)
        turns = tuple(trajectory.turns[number] for number in path)
        asked = next((number for number, one in enumerate(turns[:at], 1) if QUESTIONS in one.info), None)
        if asked is not None:
            raise ConfigError(
                f"turn {asked} asked a person, which a re-run does not do again: choose that turn, or an earlier one"
            )
        return cls(replace(trajectory, turns=turns[:at]), turns[at:])


def turns_to_resume(episode: Episode) -> frozenset[int]:
    """Returns the turns, counted from 0, for which `ResumePoint.of` returns a point."""
    found: set[int] = set()
    for path in () if _problem(episode) else paths_in_world(episode.trajectories[0]):
        for turn in path:
            found.add(turn)
            if QUESTIONS in episode.trajectories[0].turns[turn].info:
                break  # a later turn is refused, as a re-run asks nobody
    return frozenset(found)


def _problem(episode: Episode) -> str:
    """Says why no turn of an episode can be re-run; empty where one can."""
    if episode.error is not None:
        return f"this episode cannot be re-run because its environment failed: {episode.error[:300]}"
    if len(episode.trajectories) != 1:
        seats = ", ".join(trajectory.agent for trajectory in episode.trajectories)
        return f"this episode has several seats ({seats}), but only episodes of one seat can be re-run"
    return ""


@dataclass
class ResumeSeat:
    """Repeats the recorded actions, compares what the environment answers with the record, and then lets `player` act.

    `player` is a seat that sees every observation from the start, so that its context is complete when it takes over.
    """

    start: ResumePoint
    player: Any
    actions: int = 0
    _refused: Observation | None = None  # the player's own observation after a refused action

    def __post_init__(self) -> None:
        self.recorded = RecordedSeat(self.start.before, ends=False)

    @property
    def recorded_turns(self) -> int:
        """Returns the number of turns that are repeated."""
        return len(self.start.before.turns)

    @property
    def ends_when_malformed(self) -> bool:
        return self.actions > self.recorded_turns and self.player.ends_when_malformed

    async def act(self, observation: Observation, state: str | None = None) -> Message:
        observed, self._refused = self._refused or observation, None
        self.actions += 1
        if self.actions > self.recorded_turns:
            if self.actions == self.recorded_turns + 1:
                self.recorded.compare_end()
            return await self.player.act(observed, state)
        with suppress(ActionError):  # the record below refuses an action that could not be parsed the first time
            await self.player.act(observed, state)
        return await self.recorded.act(observation, state)

    def add_reward(self, reward: float, info: Mapping[str, float]) -> None:
        self.player.add_reward(reward, info)
        if self.actions <= self.recorded_turns:
            self.recorded.add_reward(reward, info)

    def refuse(self, error: ActionError, observation: Observation) -> Observation:
        refused = self._refused = self.player.refuse(error, observation)
        return self.recorded.refuse(error, observation) if self.actions <= self.recorded_turns else refused

    def finish(self, ending: Ending) -> Trajectory:
        return self.player.finish(ending)


@dataclass
class ReplaySampler:
    """A sampler that returns the recorded samples first and then samples from the engine.

    Messages that were sampled with another vocabulary, or without tokens, are encoded with this model's renderer.
    """

    engine: Sampler
    renderer: Renderer
    turns: Sequence[Turn]
    same_vocabulary: bool  # whether the recorded tokens are of this model's vocabulary
    replayed: int = 0

    async def sample(self, prompt: Prompt, params: SamplingParams) -> Sample:
        if self.replayed == len(self.turns):
            return await self.engine.sample(prompt, params)
        turn = self.turns[self.replayed]
        self.replayed += 1
        if self.same_vocabulary and len(turn.sample.tokens):
            return turn.sample
        message = turn.message or Message(Role.ASSISTANT, UNPARSED)
        tokens = np.asarray(self.renderer.encode_reply(message), dtype=np.int64)
        return Sample(tokens, np.zeros(len(tokens), dtype=np.float32), Versions(-1, -1), Stop.END)

    async def score(self, prompt: Prompt) -> FloatArray:
        return await self.engine.score(prompt)

    async def close(self) -> None:
        """Does nothing: the engine is closed by the code that opened it."""


@dataclass
class PagePlayer:
    """Repeats the recorded messages, then waits for a person to enter each action on the page."""

    turns: Sequence[Turn]
    idle_s: float
    on_turn: Callable[[Observation], Awaitable[None]]
    replayed: int = 0
    answer: asyncio.Future[str] | None = field(default=None)

    async def reply(self, observation: Observation) -> TextReply:
        if self.replayed < len(self.turns):
            message = self.turns[self.replayed].message
            self.replayed += 1
            return TextReply(message, fault="" if message else UNPARSED)
        self.answer = asyncio.get_running_loop().create_future()
        await self.on_turn(observation)
        try:
            async with asyncio.timeout(self.idle_s):
                return TextReply(Message(Role.ASSISTANT, await self.answer))
        except TimeoutError:
            raise ConfigError(
                f"no action was entered for {self.idle_s / 60:.3g} minutes, so the re-run was stopped"
            ) from None
        finally:
            self.answer = None
