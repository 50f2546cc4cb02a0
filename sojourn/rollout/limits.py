"""The budgets of an episode, and the time limit of each call of its environment."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from sojourn.config.fields import Range
from sojourn.errors import InfrastructureError
from sojourn.event_loop import time_limit
from sojourn.timeline import Timeline

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The budgets of an episode. `turns` counts the actions of all seats, refused ones included; `seconds` ends it as
    truncated (0: no limit). A call of the world that takes longer than `stall_s` is a failure of the infrastructure;
    what it waits for a free environment worker does not count."""

    turns: Annotated[int, Range(1)] = 8
    seconds: Annotated[float, Range(0)] = 0.0
    stall_s: Annotated[float, Range(above=0)] = 60.0


async def call_env(call: Callable[..., Awaitable[T]], limits: Limits, timeline: Timeline, *arguments: Any) -> T:
    """Awaits one call of an environment, which may take at most `limits.stall_s`."""
    limit = asyncio.timeout(limits.stall_s)
    try:
        with time_limit(getattr(call, "__qualname__", "the world"), limit, limits.stall_s):
            async with limit:
                with timeline.during("env"):
                    return await call(*arguments)
    except TimeoutError:
        if not limit.expired():  # raised by the world itself
            raise
        raise InfrastructureError(
            f"the world did not answer within {limits.stall_s:g} s (rollout.limits.stall_s)"
        ) from None
