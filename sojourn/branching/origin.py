"""Where a branch begins: a moment of another play, and an environment and seats in the state of that moment."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sojourn.abilities import Forkable, ForkableSeat
from sojourn.blame import EnvCall, close
from sojourn.errors import ActionError, ConfigError, InfrastructureError, WorldError
from sojourn.protocols import Env
from sojourn.rollout.play import Moment
from sojourn.types import Branch, Message


@dataclass
class Origin:
    """Holds where a branch begins: a moment of another play, and copies of its seats and, if it can be forked, its
    environment. `call` calls the methods of an environment; `error` is that of a fork which failed."""

    moment: Moment
    seats: Mapping[str, ForkableSeat]
    actors: tuple[str, ...]  # of the turns before it
    experts: tuple[Message | None, ...]  # what an expert would have done in them, where it was asked
    branch: Branch
    call: EnvCall
    copy: Env | None = None
    error: Exception | None = None

    def turns(self) -> tuple[list[str], list[Message | None]]:
        """Returns the seats of the turns before it, and what an expert would have done in these."""
        return list(self.actors), list(self.experts)

    async def fork(self, env: Forkable) -> None:
        """Forks an environment for the branch. If that fails, so does the branch alone."""
        try:
            self.copy = await self.call(env.fork)
        except (ConfigError, WorldError):
            raise
        except Exception as error:
            self.error = error

    async def open(self, make: Callable[[], Env]) -> Env:
        """Returns an environment in the state of the moment; raises `InfrastructureError` where a replay differs."""
        error, copy, self.error, self.copy = self.error, self.copy, None, None
        if error is not None:
            raise error
        return await self._replayed(make()) if copy is None else copy

    async def _replayed(self, env: Env) -> Env:
        what = "gives another observation"
        try:
            shown = await self.call(env.start)
            for action in self.moment.performed:
                shown = (await self.call(env.step, *action)).observation
        except ActionError as error:
            what, shown = f"refuses an action that it had accepted ({error})", None
        except BaseException:  # cancellation included: nobody else knows the play
            await close(env, self.call)
            raise
        if shown == self.moment.observation:
            return env
        await close(env, self.call)
        raise InfrastructureError(
            f"the world is not deterministic: replayed for a branch, it {what} within {len(self.moment.performed)} "
            "actions"
        )
