"""Checks that plays are equal where they must be: repeated, beside each other, and forked."""

from __future__ import annotations

import hashlib
import random
import time
from contextlib import AsyncExitStack

from sojourn.abilities import blobs_of
from sojourn.checks.env.play import Case, Play, choose, closing, require_equal, short
from sojourn.checks.promise import BrokenError, NotOfferedError
from sojourn.envs.replay_fork import ReplayForkable, make_forkable

ACTIONS, REPEATS = 30, 5  # the number of actions to repeat in all, and the most repeats of a play


async def plays(case: Case) -> str:
    for number in range(len(case.tasks) + 1):
        rng = random.Random(f"{case.seed} {number}")
        async with closing(Play(case.family.make(case.task_of(number)))) as play:
            await play.start()
            while not play.done and len(play.events) <= case.max_turns:
                await play.act(await choose(play, rng))
            play.blobs = dict(blobs_of(play.env))
        case.plays.append(play)
    return f"{len(case.plays)} plays, {sum(len(play.actions) for play in case.plays)} actions"


async def deterministic(case: Case) -> str:
    """Repeats plays; short ones more often, as randomness shows in few of their actions."""
    actions = sum(len(play.actions) for play in case.plays)
    for _ in range(min(max(ACTIONS // max(actions, 1), 1), REPEATS)):
        for number, play in enumerate(case.plays):
            require_equal(play.events, await case.replay(number), "played again")
    return "same task, same actions: same observations, rewards and ends"


async def isolated(case: Case) -> str:
    require_room(case)
    for one, other in [(0, number) for number in range(1, len(case.plays))]:
        async with AsyncExitStack() as stack:
            both = [Play(case.family.make(case.task_of(number))) for number in (one, other)]
            pair = [await stack.enter_async_context(closing(play)) for play in both]
            for play in pair:
                await play.start()
            queues = [case.plays[number].actions for number in (one, other)]
            for turn in range(max(map(len, queues))):
                for play, queue in zip(pair, queues, strict=True):
                    await play.act_all(queue[turn : turn + 1])
        for number, play in zip((one, other), pair, strict=True):
            require_equal(case.plays[number].events, play.events, "beside another play")
    return "two plays at once do not touch each other"


async def forks(case: Case) -> str:
    """Forks plays in the middle; where a world has no fork of its own, by replaying."""
    require_room(case)
    forks_s: list[float] = []
    starts_s: list[float] = []
    own = True
    for number, play in enumerate(case.plays):
        middle = len(play.actions) // 2
        for fork_first in (True, False):
            env = make_forkable(case.family, case.task_of(number))
            own = not isinstance(env, ReplayForkable)
            async with case.replaying(number, middle, env) as original:
                began = time.perf_counter()
                forked = await original.env.fork()
                forks_s.append(time.perf_counter() - began)
                starts_s.append(original.start_s)
                async with closing(Play(forked, list(original.events), original.seat)) as copied:
                    for copy in (copied, original) if fork_first else (original, copied):
                        await copy.act_all(play.actions[middle:])
                        await copy.close()
            require_equal(play.events, copied.events, f"in a fork after {middle} actions")
            require_equal(play.events, original.events, f"in the original of a fork after {middle} actions")
    cost = f"{1000 * sum(forks_s) / len(forks_s):.3g} ms, {sum(forks_s) / max(sum(starts_s), 1e-9):.2g} starts"
    return f"its own: {cost}" if own else f"it has none; by replaying: {cost}"


async def state_key(case: Case) -> str:
    of_plays = [[event.key for event in play.events] for play in case.plays]  # a mixture may have some without keys
    keys = [key for of_play in of_plays if any(key is not None for key in of_play) for key in of_play]
    if not keys:
        raise NotOfferedError("no state_key()")
    if wrong := [key for key in keys if not isinstance(key, str)]:
        raise BrokenError(f"state_key() gave {short(wrong[0])}: expected text")
    for number, play in enumerate(case.plays):
        for turn, (then, now) in enumerate(zip(play.events, await case.replay(number), strict=True)):
            if then.key != now.key:
                raise BrokenError(f"after {turn} actions it was {short(then.key)}, played again it is {short(now.key)}")
    return f"{len(set(keys))} states told apart"


async def images(case: Case) -> str:
    """Requires every image that a message names among the play's blobs before its close, under its content's hash."""
    blobs = {digest: blob for play in case.plays for digest, blob in play.blobs.items()}
    seen = [event.observation for play in case.plays for event in play.events if event.observation]
    named = {image for o in seen for message in (*o.system, *o.messages) for image in message.images}
    if not named:
        raise NotOfferedError("no images in the observations")
    if missing := sorted(named - blobs.keys()):
        raise BrokenError(f"the image {short(missing[0])} is not among the play's blobs")
    if wrong := [digest for digest in sorted(named) if hashlib.sha256(blobs[digest]).hexdigest() != digest]:
        raise BrokenError(f"the image {short(wrong[0])} is not named by the SHA-256 of its content")
    return f"{len(named)} images"


def require_room(case: Case) -> None:
    if case.room < 2:
        raise NotOfferedError("the family holds one play at a time")
