"""Plays that must be equal: repeated, beside each other, forked."""

from __future__ import annotations

import random

from sojourn.checks.env.play import Case, Play, choose, require_equal, short
from sojourn.checks.promise import BrokenError, NotOfferedError

ACTIONS, REPEATS = 30, 5  # plays are repeated for so many actions in all, but not more often than so


async def plays(case: Case) -> str:
    for number in range(len(case.tasks) + 1):
        rng = random.Random(f"{case.seed} {number}")
        play = Play(case.family.make(case.task_of(number)))
        try:
            await play.start()
            while not play.done and len(play.events) <= case.max_turns:
                await play.act(await choose(play, rng))
        finally:
            await play.env.close()
        case.plays.append(play)
    return f"{len(case.plays)} plays, {sum(len(play.actions) for play in case.plays)} actions"


async def deterministic(case: Case) -> str:
    """Short plays are repeated more often: chance shows in few of their actions."""
    actions = sum(len(play.actions) for play in case.plays)
    for _ in range(min(max(ACTIONS // max(actions, 1), 1), REPEATS)):
        for number, play in enumerate(case.plays):
            again = await case.replay(number)
            await again.env.close()
            require_equal(play.events, again.events, "played again")
    return "same task, same actions: same observations, rewards and ends"


async def isolated(case: Case) -> str:
    for one, other in [(0, number) for number in range(1, len(case.plays))]:
        pair = [Play(case.family.make(case.task_of(number))) for number in (one, other)]
        try:
            for play in pair:
                await play.start()
            queues = [case.plays[number].actions for number in (one, other)]
            for turn in range(max(map(len, queues))):
                for play, queue in zip(pair, queues, strict=True):
                    await play.act_all(queue[turn : turn + 1])
        finally:
            for play in pair:
                await play.env.close()
        for number, play in zip((one, other), pair, strict=True):
            require_equal(case.plays[number].events, play.events, "beside another play")
    return "two plays at once do not touch each other"


async def forks(case: Case) -> str:
    probe = case.family.make(case.tasks[0])
    offered = hasattr(probe, "fork")
    await probe.close()
    if not offered:
        raise NotOfferedError("no fork()")
    for number, play in enumerate(case.plays):
        middle = len(play.actions) // 2
        for fork_first in (True, False):
            original = await case.replay(number, middle)
            twin = Play(await original.env.fork(), list(original.events), original.seat)
            order = (twin, original) if fork_first else (original, twin)
            for copy in order:
                await copy.act_all(play.actions[middle:])
                await copy.env.close()
            require_equal(play.events, twin.events, f"in a fork after {middle} actions")
            require_equal(play.events, original.events, f"in the original of a fork after {middle} actions")
    return "a fork and its original go on alike, and apart"


async def state_key(case: Case) -> str:
    keys = [event.key for play in case.plays for event in play.events]
    if all(key is None for key in keys):
        raise NotOfferedError("no state_key()")
    if wrong := [key for key in keys if not isinstance(key, str)]:
        raise BrokenError(f"state_key() gave {short(wrong[0])}: expected text")
    for number, play in enumerate(case.plays):
        again = await case.replay(number)
        await again.env.close()
        for turn, (then, now) in enumerate(zip(play.events, again.events, strict=True)):
            if then.key != now.key:
                raise BrokenError(f"after {turn} actions it was {short(then.key)}, played again it is {short(now.key)}")
    return f"{len(set(keys))} states told apart"
