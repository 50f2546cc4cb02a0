"""A fork for every world: a play that remembers its actions is copied by playing them again.

It costs a start and as many actions as were played, where a world's own `fork` costs little; it needs nothing of the
world but what the law says anyway, that the same task and actions show the same again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from sojourn.errors import ActionError, InfrastructureError
from sojourn.protocols import Env, EnvFamily, HasBlobs, HasExpert, HasStateKey
from sojourn.types import Message, Observation, Step, Task


def make_forkable(family: EnvFamily, task: Task) -> Env:
    """A new play with a `fork`: the world's own where it has one, else by playing again.

    While it is open, a fork takes one more place of the family's `capacity`.
    """
    env = family.make(task)
    return env if hasattr(env, "fork") else ReplayForkable(env, lambda: family.make(task))


class RecordedStep(NamedTuple):
    """One accepted action, and what the world answered."""

    agent: str
    action: Message
    step: Step


class ReplayForkable:
    """A play of any world that can be forked; `make` gives another play of the same task.

    Refused actions are not played again: they change nothing. A play whose world failed in the midst of an action is
    in no state that could be reached again, so it is not forked.
    """

    def __init__(self, env: Env, make: Callable[[], Env]) -> None:
        self.env = env
        self.make = make
        self.first_observation: Observation | None = None
        self.steps: list[RecordedStep] = []
        self.in_known_state = True  # no start or action is under way, or was broken off
        if isinstance(env, HasStateKey):
            self.state_key = env.state_key
        if isinstance(env, HasExpert):
            self.expert = env.expert

    @property
    def blobs(self) -> Mapping[str, bytes]:
        """The images that the play itself has shown."""
        return self.env.blobs if isinstance(self.env, HasBlobs) else {}

    async def start(self) -> Observation:
        self.in_known_state = False
        self.first_observation = await self.env.start()
        self.in_known_state = True
        return self.first_observation

    async def step(self, agent: str, action: Message) -> Step:
        self.in_known_state = False
        try:
            step = await self.env.step(agent, action)
        except ActionError:
            self.in_known_state = True
            raise
        self.in_known_state = True
        self.steps.append(RecordedStep(agent, action, step))
        return step

    async def close(self) -> None:
        await self.env.close()

    async def fork(self) -> ReplayForkable:
        """Another play in the same state; `InfrastructureError` where the world does not get there again."""
        if not self.in_known_state:
            raise InfrastructureError(
                f"a play cannot be forked: its world failed or was cancelled after {len(self.steps)} actions"
            )
        first, taken = self.first_observation, list(self.steps)
        twin = ReplayForkable(self.make(), self.make)
        if first is not None:
            try:
                await twin._replay(first, taken)
            except BaseException:  # also when cancelled: nobody else knows of the twin
                await twin.close()
                raise
        return twin

    async def _replay(self, first: Observation, taken: list[RecordedStep]) -> None:
        self._require(await self.start() == first)
        for agent, action, then in taken:
            try:
                now = await self.step(agent, action)
            except ActionError as error:
                raise self._nondeterministic(f"refuses what it accepted ({error})") from error
            self._require(_comparable(now) == _comparable(then))

    def _require(self, same: bool) -> None:
        if not same:
            raise self._nondeterministic("shows or pays something else")

    def _nondeterministic(self, what: str) -> InfrastructureError:
        return InfrastructureError(
            f"the world is not deterministic: played again for a fork, it {what} after {len(self.steps)} actions"
        )


def _comparable(step: Step) -> tuple[Any, ...]:
    """What must be the same again; `info` may hold times and costs."""
    return step.observation, dict(step.rewards), step.done, step.success
