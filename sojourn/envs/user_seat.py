"""A play with a second seat, `user`: whoever takes it is the user whom the agent serves.

The user is told in its own system message, which the agent does not see, who it is and what it wants. It sees the
conversation alone. A world of a plain class (`sojourn/envs/tools.py`) gets the seat in this way: its object has the
members of `TalksWithUser`, and its family plays it in a `UserSeatEnv` and names both of `SEATS`.
"""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass, replace
from typing import Any, Protocol

from sojourn.envs.play_thread import PlayThread
from sojourn.envs.tools import Interface, ToolsEnv
from sojourn.errors import ActionError, InfrastructureError
from sojourn.types import Message, Observation, Role, Step

AGENT, USER = SEATS = "agent", "user"
STOP = "###STOP###"  # a user who says it ends the conversation
AWAITED = "(what the user answers)"  # returned by the tool that asks the user; the answer takes its place
GREETING = "Hello, how can I help you?"
LONGEST = 2_000  # characters that a user says at once
USER_PROMPT = f"""You play a person whom an assistant serves. Write only what this person says next, one or two
sentences. Do not give away everything at once: answer what you are asked. Do not invent anything that is not below; say
that you do not know it. Answer yes or no when you are asked to confirm. When you have what you came for, or know that
you will not get it, write {STOP}.

What you want and know:
"""


@dataclass(frozen=True)
class SeatUser:
    """A user as the seat `user` plays it, by these `instructions`. `waiting` is what it was told last and has not
    answered yet, and `talk` what was said before, by others and by itself in turn."""

    instructions: str
    opening: str = ""  # its first words, where the world says them
    waiting: str = ""
    talk: tuple[str, ...] = ()

    @classmethod
    def greeted(cls, instructions: str) -> SeatUser:
        """Returns a user whose seat says the first words, too."""
        return cls(instructions, waiting=GREETING)

    @property
    def system(self) -> str:
        """Returns the system message of the seat."""
        said = f"\n\nYou have just said: {self.opening}" if self.opening else ""
        return f"{USER_PROMPT}{self.instructions}{said}"

    def told(self, text: str) -> SeatUser:
        """Returns the user to whom the agent says something."""
        if self.waiting:
            raise ValueError("wait for the user's answer before you say more")
        return replace(self, waiting=text)

    def answered(self, text: str) -> SeatUser:
        """Returns the user once it has answered."""
        return replace(self, waiting="", talk=(*self.talk, self.waiting, text))


class TalksWithUser(Protocol):
    """A plain object whose tools talk with a user in a seat: such a tool makes `user` one that is `told` the text, and
    returns `AWAITED`.

    `hear` takes the user's answer and returns what the agent is shown of it. `user_expert` returns what a scripted user
    would answer now, and `expert` the agent's next call; neither changes anything. `hear` and `user_expert` are no
    tools: make the interface of a base class that has neither.
    """

    @property
    def user(self) -> SeatUser: ...
    def hear(self, text: str) -> str: ...
    def user_expert(self) -> str: ...
    def expert(self) -> str | Awaitable[str]: ...
    def reward(self) -> float | None: ...
    def success(self) -> bool: ...


class UserSeatEnv(ToolsEnv):
    """The environment of an object that `TalksWithUser`. Both seats get its reward."""

    game: TalksWithUser

    def __init__(self, interface: Interface, game: Any, thread: PlayThread | None = None) -> None:
        super().__init__(interface, game, thread)
        self.user_began = False
        self.unshown: Observation | None = None  # what the agent sees once the user has answered
        self.expert = self._expert_of_seat
        if interface.form == "native":
            self.native_action = self._action_of_seat

    @property
    def seat(self) -> str:
        """Returns the seat whose turn it is."""
        return USER if self.game.user.waiting else AGENT

    async def start(self) -> Observation:
        return self._turned(await super().start())

    async def step(self, agent: str, action: Message) -> Step:
        if agent != self.seat:
            raise InfrastructureError(
                f"{self.interface.name} was given an action of {agent} in the turn of {self.seat}"
            )
        if agent == USER:
            return await self._answered(action.text.strip())
        step = await super().step(agent, action)
        if step.observation is None:
            return replace(step, rewards=dict.fromkeys(SEATS, step.rewards[agent]))
        return replace(step, observation=self._turned(step.observation))

    def _turned(self, observation: Observation) -> Observation:
        """Returns what is shown next: to the user, if it is to answer, else to the agent."""
        if self.seat == AGENT:
            return observation
        user, self.unshown = self.game.user, observation
        system = () if self.user_began else (Message(Role.SYSTEM, user.system),)
        self.user_began = True
        return Observation((Message(Role.USER, user.waiting),), system=system, agent=USER)

    async def _answered(self, text: str) -> Step:
        if self.over or self.unshown is None:
            raise InfrastructureError(f"{self.interface.name} was given an action after its end: play each object once")
        if not 0 < len(text) <= LONGEST:
            raise ActionError(f"{len(text)} characters, but from 1 to {LONGEST} can be said at once")
        shown = self.game.hear(text)
        reward = self.game.reward()
        if reward is not None:
            self.over = True
            return Step(None, dict.fromkeys(SEATS, float(reward)), done=True, success=bool(self.game.success()))
        messages = tuple(replace(m, text=m.text.replace(AWAITED, shown)) for m in self.unshown.messages)
        return Step(await self._observe(messages, self.unshown.system), {USER: 0.0})

    def _expert_of_seat(self) -> str | Awaitable[str]:
        return self.game.user_expert() if self.seat == USER else self.game.expert()

    def _action_of_seat(self, text: str) -> Message:
        return Message(Role.ASSISTANT, text) if self.seat == USER else self.interface.native_action(text)

    async def _fork(self) -> UserSeatEnv:
        fork = await super()._fork()
        assert isinstance(fork, UserSeatEnv)
        fork.user_began, fork.unshown = self.user_began, self.unshown
        return fork
