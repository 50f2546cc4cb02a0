"""Checks the seats of a family: their names, whose turn it is, and what each is told first."""

from __future__ import annotations

import itertools

from sojourn.checks.env.play import Case, Play, require_equal, short
from sojourn.checks.promise import BrokenError, DoubtfulError
from sojourn.errors import ActionError
from sojourn.types import Message


async def named(case: Case) -> str:
    named: set[str] = set()
    moved: set[str] = set()
    strangers: set[str] = set()
    for number, play in enumerate(case.plays):
        seats = case.seats(case.task_of(number))
        named |= set(seats)
        moved |= _moved(play, seats)
        strangers |= {seat for event in play.events for seat in event.rewards} - set(seats)
        if len(seats) > 1:
            await _wrong_seat(case, number, seats)
    if strangers:
        raise BrokenError(f"it rewards {short(min(strangers))}, who has no seat: a run stops there")
    if idle := named - moved:
        raise DoubtfulError(f"the seat '{min(idle)}' never moved in {len(case.plays)} plays")
    return ", ".join(sorted(named)) + ("; none moves in another's turn" if len(named) > 1 else "")


def _moved(play: Play, seats: tuple[str, ...]) -> set[str]:
    """Returns the seats whose turn it was. Requires that all are named and, where there are several, that the first
    observation of each has system messages."""
    moved: set[str] = set()
    for observation in [event.observation for event in play.events if event.observation]:
        seat = observation.agent
        if seat not in seats:
            raise BrokenError(f"it asks for the seat {short(seat)}, but its `seats` are {', '.join(seats)}")
        if len(seats) > 1 and seat not in moved and not observation.system:
            raise BrokenError(
                f"the first observation of the seat '{seat}' has no system message: nothing says what it is"
            )
        moved.add(seat)
    return moved


async def _wrong_seat(case: Case, number: int, seats: tuple[str, ...]) -> None:
    """Sends the next recorded action from every other seat, at the start and in the middle; it must be refused."""
    recorded = case.plays[number].actions
    for turns, other in itertools.product(sorted({0, len(recorded) // 2}), seats):
        async with case.replaying(number, turns) as play:
            if play.done or turns >= len(recorded) or other == play.seat:
                continue
            if await _refuses(play, other, recorded[turns]):
                await play.act_all(recorded[turns:])
                require_equal(case.plays[number].events, play.events, f"after '{other}' was refused out of turn")


async def _refuses(play: Play, seat: str, action: Message) -> bool:
    """Returns whether the play can go on after the wrong seat's action; a play whose world failed on it is over."""
    try:
        await play.env.step(seat, action)
    except ActionError:
        return True
    except Exception:  # whatever it raises, it did not take the action
        return False
    raise BrokenError(f"it took an action of '{seat}' when it was the turn of '{play.seat}'")
