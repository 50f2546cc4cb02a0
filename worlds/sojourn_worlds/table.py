"""A table at which seats take turns: the `Env` that the games share, so that a game is its rules alone."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from sojourn.errors import ActionError, InfrastructureError
from sojourn.types import Message, Observation, Role, Step

LONGEST = 200  # characters of an action; longer ones are refused unread


class Game(Protocol):
    """One play of a game. It is copied deeply by a fork, so it holds nothing but its own state.

    Optional: `expert() -> str`, the best action of the mover; `blobs`, the images that views name; `success() -> bool`,
    whether the one seat of the policy's has won (asked at the end; not where several seats are the policy's).
    """

    @property
    def mover(self) -> str | None:
        """The seat that acts now; None when the game is over."""
        ...

    def brief(self, seat: str) -> str: ...
    def view(self, seat: str) -> str | Message:
        """What the seat is to see before it acts, with what happened since it last did."""
        ...

    def choices(self) -> Sequence[str]: ...
    def play(self, said: str) -> Mapping[str, float]:
        """The mover acts; what each seat is paid for it. Raises `ActionError`, with the game unchanged."""
        ...

    def info(self) -> Mapping[str, float]: ...
    def key(self) -> str: ...


Script = Callable[[Any], str]
"""The action of a seat that the world plays, from the game alone: copies of a game go on alike."""


@dataclass
class Table:
    """The play of a game. `scripts` are the seats that the world plays; where that leaves one, it is called "agent".

    `advised`: whether the game's expert is offered, which it is not where several play against each other and nobody
    knows what is best.
    """

    game: Any
    scripts: Mapping[str, Script] = field(default_factory=dict)
    alone: str = ""  # the seat that is called "agent"; empty where several are the policy's
    choices: bool = False
    advised: bool = True
    briefed: set[str] = field(default_factory=set)
    over: bool = False

    def __post_init__(self) -> None:
        if self.advised and hasattr(self.game, "expert"):
            self.expert = self.game.expert
        if hasattr(self.game, "blobs"):
            self.blobs = self.game.blobs

    async def start(self) -> Observation:
        self._scripted()
        return self._observe()

    async def step(self, agent: str, action: Message) -> Step:
        if self.over:
            raise InfrastructureError(f"{self._world} was given an action after its end: play each game once")
        seat = self.game.mover
        if agent != self._called(seat):
            raise InfrastructureError(f"{self._world} was given an action of {agent}, but it is {seat} who acts")
        if len(action.text) > LONGEST:
            raise ActionError(f"An action of {len(action.text)} characters is too long: say one short action.")
        paid = dict(self.game.play(action.text))
        for more in self._scripted():
            for name, reward in more.items():
                paid[name] = paid.get(name, 0.0) + reward
        rewards = {self._called(name): float(reward) for name, reward in paid.items() if name not in self.scripts}
        if self.game.mover is None:
            self.over = True
            success = self.game.success() if self.alone and hasattr(self.game, "success") else None
            return Step(None, rewards, done=True, success=success, info=dict(self.game.info()))
        return Step(self._observe(), rewards or {agent: 0.0}, info=dict(self.game.info()))

    async def close(self) -> None:
        pass

    async def fork(self) -> Table:
        return replace(self, game=copy.deepcopy(self.game), briefed=set(self.briefed))

    def state_key(self) -> str:
        return self.game.key()

    @property
    def _world(self) -> str:
        return type(self.game).__name__

    def _called(self, seat: str) -> str:
        return "agent" if seat == self.alone else seat

    def _scripted(self) -> list[Mapping[str, float]]:
        """The seats that the world plays act until another's turn."""
        paid = []
        while (seat := self.game.mover) in self.scripts:
            paid.append(self.game.play(self.scripts[seat](self.game)))
        return paid

    def _observe(self) -> Observation:
        seat = self.game.mover
        if seat is None:
            raise InfrastructureError(f"{self._world} is over before anyone can act: this is a bug in the game")
        brief = () if seat in self.briefed else (Message(Role.SYSTEM, self.game.brief(seat)),)
        self.briefed.add(seat)
        view = self.game.view(seat)
        shown = view if isinstance(view, Message) else Message(Role.USER, view)
        choices = tuple(self.game.choices()) if self.choices else ()
        return Observation((shown,), system=brief, choices=choices, agent=self._called(seat))


def plain(text: str) -> str:
    """An action without what does not matter: capitals, spaces around and between words."""
    return " ".join(text.lower().split())


def pick(said: str, options: Sequence[str]) -> int:
    """The number of the option that was said; `ActionError` where it is none of them."""
    found = plain(said)
    for number, option in enumerate(options):
        if found == plain(option):
            return number
    listed = ", ".join(options[:12]) + (", ..." if len(options) > 12 else "")
    raise ActionError(f'"{found[:30]}" is no action here, say one of: {listed}.')
