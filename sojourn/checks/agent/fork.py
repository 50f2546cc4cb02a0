"""Checks that a forked seat and its origin go on apart from each other."""

from __future__ import annotations

from typing import Any

from sojourn.abilities import ForkableSeat
from sojourn.checks.agent.case import Case, Follows, act
from sojourn.checks.promise import BrokenError, NotOfferedError
from sojourn.checks.synthetic import content
from sojourn.types import Ending, Trajectory

AT = 2  # the turn before which a seat is forked
OTHER = "cellar"  # where the fork goes on, so that nobody else is shown what it is


async def forks(case: Case) -> str:
    """Checks that a forked seat begins with the turns of its origin, and that neither changes the other, whichever goes
    on first. The model's replies follow from its prompts, so that a seat that shows the model what the other did gets
    other replies."""
    if not isinstance(case.seat(case.script()), ForkableSeat):
        raise NotOfferedError("its seats have no fork(): plays of this agent cannot branch")
    began = (await _begun(case)).finish(Ending.DONE)
    seat = await _begun(case)
    if _samples(began) != _samples(seat.fork().finish(Ending.DONE)):
        raise BrokenError("a forked seat does not begin with the turns of its origin")
    await act(seat, AT)
    alone = await _begun(case)
    await act(alone, AT)
    expected = content(alone.finish(Ending.DONE))
    if content(seat.finish(Ending.DONE)) != expected:
        raise BrokenError("after fork(), a seat goes on in another way than without it")
    await _require_apart(case, expected)
    return f"{len(began.turns)} turns are shared"


async def _require_apart(case: Case, expected: Any) -> None:
    """Requires that an origin goes on as without its fork where the fork went on first, and that a fork goes on in the
    same way whether its origin did before it."""
    origin = await _begun(case)
    fork: Any = origin.fork()
    await act(fork, AT, place=OTHER)
    await act(origin, AT)
    if content(origin.finish(Ending.DONE)) != expected:
        raise BrokenError("what a forked seat does changes its origin: copy in fork() whatever the seat changes")
    first = content(fork.finish(Ending.DONE))
    origin = await _begun(case)
    fork = origin.fork()
    await act(origin, AT)
    await act(fork, AT, place=OTHER)
    if content(fork.finish(Ending.DONE)) != first:
        raise BrokenError("what the origin does changes its fork: copy in fork() whatever the seat changes")


async def _begun(case: Case) -> Any:
    """Returns a seat that has taken the turns before the fork."""
    seat = case.seat(Follows(case.renderer))
    await act(seat, last=AT)
    return seat


def _samples(trajectory: Trajectory) -> list[Any]:
    return [content(turn.sample) for turn in trajectory.turns]
