"""Lock-step: nobody acts on a turn before all who still play have come to it."""

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
    """One operator's part of a turn, filled in while it acts; `said` stays None where it could not be read."""

    name: str
    observed: tuple[Message, ...] = ()
    choices: tuple[str, ...] = ()
    message: Message | None = None
    acted: bool = False
    refused: str = ""
    reward: float = 0.0
    total: float = 0.0  # reward of the episode so far
    ended: str = ""  # how the episode ended with this turn
    failed: bool = False  # ended by a failure that is not the operator's play


class Watcher(Protocol):
    """Is told of each turn: when all see what it begins with, and when all have acted and were answered."""

    def show_observations(self, turn: int, rows: Sequence[OperatorTurn]) -> None: ...
    def show_actions(self, turn: int, rows: Sequence[OperatorTurn]) -> None: ...


@dataclass
class LockStep:
    """The turns of one task, for operators by name; `conduct` opens them, one after another."""

    names: Sequence[str]
    watcher: Watcher
    turn: int = 0
    turns: dict[str, OperatorTurn] = field(default_factory=dict)  # of the turn that is being played
    _waiting: dict[str, OperatorTurn] = field(default_factory=dict)  # of those who have come to the next one
    _gate: asyncio.Event = field(default_factory=asyncio.Event)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.present = set(self.names)

    async def arrive(self, name: str, shown: tuple[Message, ...], choices: tuple[str, ...]) -> OperatorTurn:
        """Comes to the next turn, and waits for all others."""
        before = self.turns.get(name)
        row = self._waiting[name] = OperatorTurn(
            name, shown, choices, total=before.total if before is not None else 0.0
        )
        gate = self._gate
        self._changed.set()
        await gate.wait()
        return row

    def leave(self, name: str, ended: str, failed: bool) -> None:
        """Its episode is over: nobody waits for it any more."""
        row = self.turns.setdefault(name, OperatorTurn(name))
        row.ended, row.failed = ended, failed
        self.present.discard(name)
        self._waiting.pop(name, None)
        self._changed.set()

    async def conduct(self) -> None:
        """Opens a turn when all who still play have come to it, until nobody does. What the watcher raises is raised
        here, so that no operator is blamed for it."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            if self._waiting.keys() != self.present:
                continue
            self.watcher.show_actions(self.turn, self._ordered(self.turns))
            self.turns, self._waiting = self._waiting, {}
            if not self.turns:
                return
            self.turn += 1
            self.watcher.show_observations(self.turn, self._ordered(self.turns))
            gate, self._gate = self._gate, asyncio.Event()
            gate.set()

    def _ordered(self, rows: Mapping[str, OperatorTurn]) -> list[OperatorTurn]:
        return [rows[name] for name in self.names if name in rows]


@dataclass
class LockStepSeat:
    """An operator's seat that keeps step with the others'; `seconds` counts how long it took to act."""

    seat: Any
    name: str
    lockstep: LockStep
    turn: OperatorTurn = field(default_factory=lambda: OperatorTurn(""))
    seconds: float = 0.0

    @property
    def ends_when_malformed(self) -> bool:
        return self.seat.ends_when_malformed

    async def act(self, observation: Observation, state: str | None = None) -> Message:
        shown = (*observation.system, *observation.messages)
        self.turn = await self.lockstep.arrive(self.name, shown, observation.choices)
        began = time.perf_counter()
        try:
            said = self.turn.message = await self.seat.act(observation, state)
        except ActionError as error:
            self.turn.refused = str(error)
            raise
        finally:
            self.turn.acted = True
            self.seconds += time.perf_counter() - began
        return said

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
