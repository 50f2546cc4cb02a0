"""Keeps operators in lock-step: no operator acts on a turn before all that still play have reached it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from sojourn.errors import ActionError
from sojourn.types import Ending, Message, Observation, Trajectory


@dataclass
class OperatorTurn:
    """One operator's part of a turn, filled in while it acts. `message` stays None if its action cannot be parsed."""

    name: str
    observed: tuple[Message, ...] = ()
    choices: tuple[str, ...] = ()
    message: Message | None = None
    acted: bool = False
    refused: str = ""
    reward: float = 0.0
    total: float = 0.0  # reward of the episode so far
    ended: str = ""  # how the episode ended with this turn
    failed: bool = False  # ended by a failure of the infrastructure, which does not count as play


class Watcher(Protocol):
    """Is called at the start of each turn with the observations, and at its end with the actions and rewards."""

    def show_observations(self, number: int, turns: Sequence[OperatorTurn]) -> None: ...
    def show_actions(self, number: int, turns: Sequence[OperatorTurn]) -> None: ...


@dataclass
class LockStep:
    """The turns of one task, by operator name; `conduct` starts them one after another."""

    names: Sequence[str]
    watcher: Watcher
    number: int = 0  # of the turn that is being played
    turns: dict[str, OperatorTurn] = field(default_factory=dict)  # its part of each operator
    _waiting: dict[str, OperatorTurn] = field(default_factory=dict)  # of the operators that have reached the next turn
    _gate: asyncio.Event = field(default_factory=asyncio.Event)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.present = set(self.names)

    async def arrive(self, name: str, observed: tuple[Message, ...], choices: tuple[str, ...]) -> OperatorTurn:
        """Waits until all other operators have reached the next turn, too."""
        before = self.turns.get(name)
        turn = self._waiting[name] = OperatorTurn(
            name, observed, choices, total=before.total if before is not None else 0.0
        )
        gate = self._gate
        self._changed.set()
        await gate.wait()
        return turn

    def leave(self, name: str, ended: str, failed: bool) -> None:
        """Ends the part of an operator whose episode is over."""
        turn = self.turns.setdefault(name, OperatorTurn(name))
        turn.ended, turn.failed = ended, failed
        self.present.discard(name)
        self._waiting.pop(name, None)
        self._changed.set()

    async def conduct(self) -> None:
        """Starts each turn when all operators that still play have reached it, until none plays.

        What the watcher raises is raised here, so that it does not fail an operator's episode.
        """
        while True:
            await self._changed.wait()
            self._changed.clear()
            if self._waiting.keys() != self.present:
                continue
            self.watcher.show_actions(self.number, self._ordered(self.turns))
            self.turns, self._waiting = self._waiting, {}
            if not self.turns:
                return
            self.number += 1
            self.watcher.show_observations(self.number, self._ordered(self.turns))
            gate, self._gate = self._gate, asyncio.Event()
            gate.set()

    def _ordered(self, turns: Mapping[str, OperatorTurn]) -> list[OperatorTurn]:
        return [turns[name] for name in self.names if name in turns]


@dataclass
class LockStepSeat:
    """An operator's seat that keeps in step with the others; `seconds` is the time that its operator took to act."""

    seat: Any
    name: str
    lockstep: LockStep
    turn: OperatorTurn = field(default_factory=lambda: OperatorTurn(""))
    seconds: float = 0.0

    @property
    def ends_when_malformed(self) -> bool:
        return self.seat.ends_when_malformed

    async def act(self, observation: Observation, state: str | None = None) -> Message:
        observed = (*observation.system, *observation.messages)
        self.turn = await self.lockstep.arrive(self.name, observed, observation.choices)
        began = time.perf_counter()
        try:
            message = self.turn.message = await self.seat.act(observation, state)
        except ActionError as error:
            self.turn.refused = str(error)
            raise
        finally:
            self.turn.acted = True
            self.seconds += time.perf_counter() - began
        return message

    def add_reward(self, reward: float, info: Mapping[str, float]) -> None:
        if info.get("malformed") and not self.turn.refused:
            self.turn.refused = "malformed"
        self.turn.reward += reward
        self.turn.total += reward
        self.seat.add_reward(reward, info)

    def refuse(self, error: ActionError, observation: Observation) -> Observation:
        self.turn.refused = str(error)
        return self.seat.refuse(error, observation)

    def finish(self, ending: Ending) -> Trajectory:
        return self.seat.finish(ending)
