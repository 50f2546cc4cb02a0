"""Checks what is left behind after a play, or its family, is closed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import is_dataclass, replace
from typing import Any

from sojourn.abilities import Closes, Opens
from sojourn.checks.env.play import Case, spread
from sojourn.checks.env.resources import WAITS_S, growth, held_resources
from sojourn.checks.promise import BrokenError
from sojourn.protocols import EnvFamily

MAX_CLOSINGS = 5  # the most turns of a play at which it is closed


async def closes(case: Case) -> str:
    """Closes plays before the start, at several turns (as a budget does) and at the end, each twice."""
    unused = case.family.make(case.tasks[0])
    await unused.close()
    await case.replay(0)  # warms up whatever the plays share

    async def close_at(turns: int) -> None:
        async with case.replaying(0, turns) as play:
            case.starts_processes |= bool(
                held_resources(case.scratch)["process"].keys() - case.before["process"].keys()
            )
        await play.env.close()

    for turns in spread(len(case.plays[0].actions), MAX_CLOSINGS):
        if left := await case.leak(lambda turns=turns: close_at(turns)):
            raise BrokenError(f"a play that is closed after {turns} actions leaves {left}")
    return "at any turn, twice, and nothing is left"


async def family_closes(case: Case, close: Callable[[], Awaitable[Any]]) -> str:
    """Closes the family. Resources that a library opens once, at its first use, are no leak: a leak is what every
    further family leaves behind."""
    await close()
    if not await growth(case.before, case.scratch, WAITS_S[0]):
        return "nothing is left"

    async def again() -> None:
        family: EnvFamily = case.family
        family = replace(family) if is_dataclass(family) else family  # pyright: ignore[reportArgumentType]
        if isinstance(family, Opens):
            await family.open()
        try:
            env = family.make(case.tasks[0])
            await env.start()
            await env.close()
        finally:
            if isinstance(family, Closes):
                await family.close()

    if case.tasks and (left := await case.leak(again)):
        raise BrokenError(f"a family that is closed leaves {left}")
    return "nothing is left but what is used again"
