"""What a fork costs in worlds whose state cannot simply be copied, and what of that is the start of another play.

    python benchmarks/forks.py [world ...]

The expert plays half of a test task; from there the play is forked `FORKS` times, each copy closed before the next is
made, as a tree or a search does it. Reported, in milliseconds, are the start of a play when its world has just been
opened, and later; the median action; the first fork, and the median of the others; and `replay`, what as many actions
as were played take alone. Where a fork costs more than a later start and the replay, there is something to save; where
it costs that much, only a snapshot of the world's own program could. Tasks are the first `TASKS` of the test split.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from typing import Any

from machine import write

from sojourn.checks.env.play import Play, ask_expert
from sojourn.config.registry import build
from sojourn.envs.replay_fork import ReplayForkable, make_forkable
from sojourn.rollout.world import open_world
from worlds import fields_of

WORLDS = ("miniwob", "desktop", "scienceworld", "textworld_express", "terminal", "python", "repo", "webnav", "toy")
TASKS, FORKS = 3, 6
PERFORMED_AGAIN = ("scienceworld", "textworld_express", "textworld", "alfworld")  # by their own `fork`, too


def median(values: list[float]) -> float:
    return round(1e3 * statistics.median(values), 2)


async def timed(doing: Any, into: list[float]) -> Any:
    began = time.perf_counter()
    result = await doing
    into.append(time.perf_counter() - began)
    return result


async def measure(name: str) -> dict[str, Any]:
    family = build("env", {"name": name, **fields_of(name)}).value
    starts, actions, firsts, others, counts = [], [], [], [], []
    own = False
    async with open_world(family):
        for task in family.tasks("test")[:TASKS]:
            whole = len((await played(family, task, 300, starts, actions)).actions)
            play = await played(family, task, whole // 2, starts, actions)
            counts.append(whole // 2)
            own = not isinstance(play.env, ReplayForkable)
            try:
                for number in range(FORKS):
                    copy = await timed(play.env.fork(), others if number else firsts)
                    await copy.close()
            finally:
                await play.env.close()
    return {
        "fork": "replays" if not own or name in PERFORMED_AGAIN else "copies",
        "start_cold_ms": round(1e3 * starts[0], 2),
        "start_ms": median(starts[1:]),
        "action_ms": median(actions),
        "actions": statistics.median(counts),
        "replay_ms": round(median(actions) * statistics.median(counts), 2),
        "first_fork_ms": median(firsts),
        "fork_ms": median(others),
    }


async def played(family: Any, task: Any, turns: int, starts: list[float], actions: list[float]) -> Play:
    """Returns a play by the expert of so many turns, which is still open where it has not ended."""
    play = Play(make_forkable(family, task))
    await timed(play.start(), starts)
    while not play.done and len(play.actions) < turns:
        action = await ask_expert(play.env)
        await timed(play.act(action), actions)
    if play.done:
        await play.env.close()
    return play


def main(asked: list[str]) -> None:
    figures: dict[str, Any] = {}
    for name in asked or WORLDS:
        figures[name] = asyncio.run(measure(name))
        print(name, *(f"{key} {value}" for key, value in figures[name].items()), sep="  ", flush=True)
    if not asked:
        print(write("forks", figures))


if __name__ == "__main__":
    main(sys.argv[1:])
