"""The environment that all turn-based games share: a game implements its rules alone (`Game`), and `TurnBasedEnv` plays
it.

In each step one seat acts. Seats that the world plays itself act by a script in between, so an observation always goes
to a seat of the policy.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

from sojourn.abilities import HasBlobs, HasExpert
from sojourn.errors import ActionError, InfrastructureError
from sojourn.types import Message, Observation, Role, Step

MAX_ACTION_CHARS = 200  # longer actions are refused unread


class Game(Protocol):
    """One play of a game. A fork copies it deeply, so it may hold nothing but its own state.

    Optional: `HasExpert`, for the best action of the current seat; `HasBlobs`; `JudgesSuccess`.
    """

    @property
    def current_seat(self) -> str | None:
        """Returns the seat that acts now, None when the game is over."""
        ...

    def system_prompt(self, seat: str) -> str: ...
    def observe(self, seat: str) -> str | Message:
        """Returns what the seat sees before it acts, with what happened since its last action."""
        ...

    def choices(self) -> Sequence[str]: ...
    def act(self, action: str) -> Mapping[str, float]:
        """Applies an action of the current seat and returns the reward of each seat for it.

        Raises `ActionError`, with the game unchanged, where the action is malformed or impossible.
        """
        ...

    def info(self) -> Mapping[str, float]: ...
    def state_key(self) -> str: ...


@runtime_checkable
class JudgesSuccess(Protocol):
    """A game that says whether the policy's only seat has won; asked at the end, and only where it has one seat."""

    def success(self) -> bool: ...


Script = Callable[[Any], str]
"""Returns the action of a seat that the world plays. It reads the game alone, so that copies of a game go on alike."""


@dataclass
class TurnBasedEnv:
    """Plays a `Game`. `scripts` are the policies of the seats that the world plays.

    `has_expert` says whether the game's expert is offered. It is not where several seats of the policy play against
    each other and nobody knows what is best.
    """

    game: Any
    scripts: Mapping[str, Script] = field(default_factory=dict)
    policy_seat: str = ""  # the policy's only seat, which is then called "agent"; empty where it has several
    choices: bool = False
    has_expert: bool = True
    seats_with_system: set[str] = field(default_factory=set)
    done: bool = False

    def __post_init__(self) -> None:
        if self.has_expert and isinstance(self.game, HasExpert):
            self.expert = self.game.expert
        if isinstance(self.game, HasBlobs):
            self.blobs = self.game.blobs

    async def start(self) -> Observation:
        self._scripted()
        return self.observe()

    async def step(self, agent: str, action: Message) -> Step:
        if self.done:
            raise InfrastructureError(f"{self._world} was given an action after its end: play each game once")
        seat = self.game.current_seat
        if agent != self._called(seat):
            raise InfrastructureError(f"{self._world} was given an action of {agent}, but it is {seat} who acts")
        if len(action.text) > MAX_ACTION_CHARS:
            raise ActionError(f"An action of {len(action.text)} characters is too long: say one short action.")
        rewards = dict(self.game.act(action.text))
        for more in self._scripted():
            for name, reward in more.items():
                rewards[name] = rewards.get(name, 0.0) + reward
        rewards = {self._called(name): float(reward) for name, reward in rewards.items() if name not in self.scripts}
        if self.game.current_seat is None:
            self.done = True
            success = _success(self.game) if self.policy_seat else None
            return Step(None, rewards, done=True, success=success, info=dict(self.game.info()))
        return Step(self.observe(), rewards or {agent: 0.0}, info=dict(self.game.info()))

    async def close(self) -> None:
        pass

    async def fork(self) -> TurnBasedEnv:
        return replace(self, game=copy.deepcopy(self.game), seats_with_system=set(self.seats_with_system))

    def state_key(self) -> str:
        return self.game.state_key()

    @property
    def _world(self) -> str:
        return type(self.game).__name__

    def _called(self, seat: str) -> str:
        return "agent" if seat == self.policy_seat else seat

    def _scripted(self) -> list[Mapping[str, float]]:
        """Lets the seats that the world plays act until it is another's turn, and returns their rewards."""
        rewards = []
        while (seat := self.game.current_seat) in self.scripts:
            rewards.append(self.game.act(self.scripts[seat](self.game)))
        return rewards

    def observe(self) -> Observation:
        """Returns what the seat whose turn it is sees now; its system prompt the first time."""
        seat = self.game.current_seat
        if seat is None:
            raise InfrastructureError(f"{self._world} is over before anyone can act: this is a bug in the game")
        system = () if seat in self.seats_with_system else (Message(Role.SYSTEM, self.game.system_prompt(seat)),)
        self.seats_with_system.add(seat)
        view = self.game.observe(seat)
        message = view if isinstance(view, Message) else Message(Role.USER, view)
        choices = tuple(self.game.choices()) if self.choices else ()
        return Observation((message,), system=system, choices=choices, agent=self._called(seat))


def plain(text: str) -> str:
    """Returns an action in lower case, with single spaces between its words."""
    return " ".join(text.lower().split())


def pick(text: str, options: Sequence[str]) -> int:
    """Returns the index of the option that the text names; raises `ActionError` where it names none of them."""
    normalised = plain(text)
    for number, option in enumerate(options):
        if normalised == plain(option):
            return number
    listed = ", ".join(options[:12]) + (", ..." if len(options) > 12 else "")
    raise ActionError(f'"{normalised[:30]}" is no action here, say one of: {listed}.')


def _success(game: Game) -> bool | None:
    return game.success() if isinstance(game, JudgesSuccess) else None
