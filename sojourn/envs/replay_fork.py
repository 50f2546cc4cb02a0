"""Forks a play of any world by replaying its actions in a new play.

Such a fork costs a start and as many actions as were played, while a world's own `fork` is cheap. It relies only on the
law that the same task and the same actions give the same observations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from sojourn.abilities import Forkable, HasExpert, HasNativeActions, HasStateKey, blobs_of
from sojourn.errors import ActionError, InfrastructureError
from sojourn.protocols import Env, EnvFamily
from sojourn.types import Message, Observation, Step, Task


def make_forkable(family: EnvFamily, task: Task) -> Env:
    """Returns a new play that can be forked: by the world's own `fork` where it has one, else by replaying.

    An open fork takes one more place of the family's `capacity`.
    """
    env = family.make(task)
    return env if isinstance(env, Forkable) else ReplayForkable(env, lambda: family.make(task))


class RecordedStep(NamedTuple):
    """One accepted action and the step that the world returned for it."""

    agent: str
    action: Message
    step: Step


class ReplayForkable:
    """Makes a play of any world forkable; `make` returns another play of the same task.

    Refused actions are not replayed, as they change nothing. A play whose world failed in the middle of an action is in
    no state that a replay could reach, so it refuses to fork.
    """

    def __init__(self, env: Env, make: Callable[[], Env]) -> None:
        self.env = env
        self.make = make
        self.first_observation: Observation | None = None
        self.steps: list[RecordedStep] = []
        self.in_known_state = True  # no start or action is running, or was interrupted
        if isinstance(env, HasStateKey):
            self.state_key = env.state_key
        if isinstance(env, HasExpert):
            self.expert = env.expert
        self._offer_native_actions()

    @property
    def blobs(self) -> Mapping[str, bytes]:
        """Returns the images that this play has shown, by their digest."""
        return blobs_of(self.env)

    async def start(self) -> Observation:
        self.in_known_state = False
        self.first_observation = await self.env.start()
        self._offer_native_actions()  # some worlds know only now how agents are to act
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

    def _offer_native_actions(self) -> None:
        if isinstance(self.env, HasNativeActions):
            self.native_action = self.env.native_action

    async def fork(self) -> ReplayForkable:
        """Returns another play in the same state. Raises `InfrastructureError` where the replay differs from this
        play."""
        if not self.in_known_state:
            raise InfrastructureError(
                f"a play cannot be forked: its world failed or was cancelled after {len(self.steps)} actions"
            )
        first, steps = self.first_observation, list(self.steps)
        copy = ReplayForkable(self.make(), self.make)
        if first is not None:
            try:
                await copy._replay(first, steps)
            except BaseException:  # cancellation included: nobody else knows the copy, so it is closed here
                await copy.close()
                raise
        return copy

    async def _replay(self, first: Observation, steps: list[RecordedStep]) -> None:
        self._require(await self.start() == first)
        for agent, action, recorded in steps:
            try:
                step = await self.step(agent, action)
            except ActionError as error:
                raise self._nondeterministic(f"refuses an action that it had accepted ({error})") from error
            self._require(_comparable(step) == _comparable(recorded))

    def _require(self, same: bool) -> None:
        if not same:
            raise self._nondeterministic("gives another observation or reward")

    def _nondeterministic(self, what: str) -> InfrastructureError:
        return InfrastructureError(
            f"the world is not deterministic: replayed for a fork, it {what} after {len(self.steps)} actions"
        )


def _comparable(step: Step) -> tuple[Any, ...]:
    """Returns what a replay must reproduce; `info` is left out, as it may hold times and costs."""
    return step.observation, dict(step.rewards), step.done, step.success
