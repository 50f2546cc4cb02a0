"""Who plays: the seats that a family names, whose turn it is, and what each has to go by."""

from __future__ import annotations

from sojourn.checks.env.play import Case, Play, require_equal, short
from sojourn.checks.promise import BrokenError, DoubtfulError
from sojourn.errors import ActionError
from sojourn.types import Message


async def named(case: Case) -> str:
    moved: set[str] = set()
    for play in case.plays:
        briefed: set[str] = set()
        for observation in [event.observation for event in play.events if event.observation]:
            seat = observation.agent
            if seat not in case.seats:
                raise BrokenError(f"it asks for the seat {short(seat)}, but its `seats` are {', '.join(case.seats)}")
            if len(case.seats) > 1 and seat not in briefed and not observation.brief:
                raise BrokenError(f"the first observation of the seat '{seat}' has no brief: nothing says what it is")
            briefed.add(seat)
        moved |= briefed
    paid = {seat for play in case.plays for event in play.events for seat in event.rewards}
    if strangers := sorted(paid - set(case.seats)):
        raise DoubtfulError(f"it pays {short(strangers[0])}, who has no seat, so nobody gets it")
    if len(case.seats) == 1:
        return f"one: {case.seats[0]}"
    await _wrong_seat(case)
    if idle := [seat for seat in case.seats if seat not in moved]:
        raise DoubtfulError(f"the seat '{idle[0]}' never moved in {len(case.plays)} plays")
    return f"{', '.join(case.seats)}; none moves in another's turn"


async def _wrong_seat(case: Case) -> None:
    """Every other seat says what the one whose turn it is said next: at the start, and in the middle."""
    recorded = case.plays[0].actions
    for turns in sorted({0, len(recorded) // 2}):
        for other in case.seats:
            async with case.replaying(0, turns) as play:
                if play.done or turns >= len(recorded) or other == play.seat:
                    continue
                if await _takes(play, other, recorded[turns]):
                    await play.act_all(recorded[turns:])
                    require_equal(case.plays[0].events, play.events, f"after '{other}' was refused out of turn")


async def _takes(play: Play, seat: str, action: Message) -> bool:
    """Whether the play can go on after the wrong seat's action; one that the world fails on is over."""
    try:
        await play.env.step(seat, action)
    except ActionError:
        return True
    except Exception:  # whatever it raises, it did not take the action
        return False
    raise BrokenError(f"it took an action of '{seat}' when it was the turn of '{play.seat}'")
