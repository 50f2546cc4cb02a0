"""One episode: seats and a world take turns until one of them ends it."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from sojourn.errors import ActionError, BudgetError, ConfigError, InfrastructureError
from sojourn.protocols import Env
from sojourn.registry import Range
from sojourn.rollout.answers import checked_observation, checked_step
from sojourn.timeline import Timeline
from sojourn.types import Ending, Step, Trajectory

T = TypeVar("T")
MOVE = "move"


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Budgets of an episode. `seconds` ends it as truncated (0: no limit); `stall_s` is how long the world may take
    for one call before that counts as an infrastructure failure."""

    turns: Annotated[int, Range(1)] = 8
    seconds: Annotated[float, Range(0)] = 0.0
    stall_s: Annotated[float, Range(above=0)] = 60.0


async def play(
    env: Env, seats: Mapping[str, Any], limits: Limits, timeline: Timeline, world: str = ""
) -> tuple[Trajectory, ...]:
    """Plays until the world is done or a budget is spent; the caller closes the world, whose name is for messages.
    Where several seats play, each turn's info says with `move` which of the play's it was."""
    began, world = time.monotonic(), world or type(env).__name__
    shown = observation = checked_observation(await ask(env.start, limits, timeline), seats, world)
    ending = Ending.TURNS
    for number in range(limits.turns):
        order = {MOVE: float(number)} if len(seats) > 1 else {}
        if limits.seconds and time.monotonic() - began > limits.seconds:
            ending = Ending.TIME
            break
        seat = seats[observation.agent]
        try:
            message = await seat.act(shown, _state(env))
            answer = await ask(lambda o=observation, m=message: env.step(o.agent, m), limits, timeline)
        except BudgetError:
            ending = Ending.TOKENS
            break
        except ActionError as error:
            seat.pay(0.0, {"malformed": 1.0, **order})
            if seat.ends_when_malformed:
                ending = Ending.MALFORMED
                break
            shown = seat.refused(error, observation)
            continue
        step = checked_step(answer, seats, world)
        _pay(seats, observation.agent, step, order)
        if step.done or step.observation is None:
            ending = Ending.DONE
            break
        shown = observation = step.observation
    return tuple(seat.finish(ending) for seat in seats.values())


def _state(env: Env) -> str | None:
    key: Callable[[], str] | None = getattr(env, "state_key", None)
    return key() if key is not None else None


def _pay(seats: Mapping[str, Any], actor: str, step: Step, order: Mapping[str, float]) -> None:
    info = {**step.info, **order}
    if step.success is not None:
        info["success"] = float(step.success)
    seats[actor].pay(0.0, info)
    for name, reward in step.rewards.items():
        seats[name].pay(reward, {} if step.success is None else {"success": float(step.success)})


async def ask(call: Callable[[], Awaitable[T]], limits: Limits, timeline: Timeline) -> T:
    """One call of the world, which may stall no longer than `limits.stall_s`."""
    limit = asyncio.timeout(limits.stall_s)
    try:
        async with limit:
            with timeline.during("env"):
                return await call()
    except TimeoutError:
        if not limit.expired():  # the world's own
            raise
        raise InfrastructureError(
            f"the world did not answer within {limits.stall_s:g} s (rollout.limits.stall_s)"
        ) from None


async def expert_action(env: Any) -> str:
    """The next action of the world's scripted expert."""
    said = env.expert()
    said = await said if inspect.isawaitable(said) else said
    if not isinstance(said, str):
        raise ConfigError(f"the world's expert() gave {said!r}: expected the next action as text")
    return said
