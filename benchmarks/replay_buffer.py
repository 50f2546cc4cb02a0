"""Replay from a buffer of 100,000 episodes: what it keeps in memory, and what a step waits for it.

    python benchmarks/replay_buffer.py [episodes]

The records are made by code and written as a run writes them; the buffer is told of each step, as a run tells it. Its
memory, and the time to choose and read the groups of a step, are measured once an eighth of the episodes is there and
again with all, so that their ratios say what grows. Times are medians of 20 steps, each of other groups. They are held
against the median step of the toy recipe on this machine, with the same number of live groups and no replay.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import tempfile
import time
import tracemalloc
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

from big_run import Maker
from machine import write

from sojourn.config import toml
from sojourn.display import Display
from sojourn.record.episodes.store import EpisodeStore
from sojourn.record.run import RunFolder
from sojourn.rewards.native import Native
from sojourn.rewards.reward_cache import RewardCache
from sojourn.sources.replay import Priority, Replay, ReplayBuffer
from sojourn.train.resolve import resolve
from sojourn.train.run import run_recipe

GROUPS, PLAYS, TURNS = 16, 8, 4  # of a step, of a group, of an episode
WIDTH = 2  # groups that are replayed in each step
REPEATS = 20
PRIORITIES: tuple[Priority, ...] = ("uniform", "recent", "success", "rare", "signal")
TOY = Path(__file__).parent.parent / "recipes" / "toy" / "train.toml"


class Times(NamedTuple):
    """A time on the clock, which grows with what else the machine does, and one of the processor, in milliseconds."""

    clock: float
    processor: float


@dataclass
class Parts:
    """The parts of a run that a replay buffer uses."""

    episodes: EpisodeStore
    rewards: RewardCache = field(default_factory=lambda: RewardCache(Native()))
    runner: Any = field(default_factory=lambda: SimpleNamespace(seed=0))


def fill(maker: Maker, buffer: ReplayBuffer, steps: range, of: int) -> None:
    for step in steps:
        played = maker.step("rl", range(step * GROUPS, (step + 1) * GROUPS), PLAYS, step, 0.2 + 0.6 * step / of)
        buffer.step = step
        buffer.observe(played.groups, played.scores)
        buffer.context.episodes.append("rl", step, played.groups, played.scores, played.credits)


async def take_ms(buffer: ReplayBuffer, step: int) -> Times:
    """Returns the median times in which the buffer gives the groups of a step."""
    clock, processor = [], []
    for number in range(REPEATS):
        began = time.perf_counter(), time.process_time()
        groups = await buffer.take(step + number)
        clock.append(1e3 * (time.perf_counter() - began[0]))
        processor.append(1e3 * (time.process_time() - began[1]))
        assert len(groups) == WIDTH
        buffer.context.rewards.pop(groups, below=0)
    return Times(round(statistics.median(clock), 2), round(statistics.median(processor), 2))


async def measured(buffer: ReplayBuffer, step: int) -> dict[str, Any]:
    """Returns what the buffer holds, and what it takes to give the groups of the steps from `step` on."""
    times: dict[str, Times] = {}
    other = buffer
    for priority in PRIORITIES:
        other = Replay(width=WIDTH, priority=priority).bind(cast(Any, buffer.context), "rl", step)
        other.restore(buffer.state())
        times[priority] = await take_ms(other, step)
    tracemalloc.start()
    await other.take(step)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return {
        "episodes": step * GROUPS * PLAYS,
        "groups_in_buffer": len(buffer.entries),
        "buffer_mb": round(buffer.entries.nbytes / 1e6, 3),
        "peak_of_take_mb": round(peak / 1e6, 2),
        "take_ms": {name: one.clock for name, one in times.items()},
        "take_processor_ms": {name: one.processor for name, one in times.items()},
    }


def toy_step_ms(folder: Path) -> float:
    """Returns the median step of the toy recipe's live stage."""
    overrides = ["stages.warmup.steps=20", "stages.rl.steps=6", "evaluation.tasks=2", "evaluation.every=0"]
    resolved = resolve(toml.read(TOY, overrides))
    with RunFolder.create(folder, toml.dump(resolved.table)) as run, Display(live=False) as display:
        asyncio.run(run_recipe(resolved.recipe, run, display))
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return 1e3 * statistics.median(line["seconds_step"] for line in lines if line["stage"] == "rl")


def main() -> None:
    episodes = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    steps = -(-episodes // (GROUPS * PLAYS))
    with tempfile.TemporaryDirectory() as folder, EpisodeStore(folder, write=True) as store:
        buffer = Replay(width=WIDTH).bind(cast(Any, Parts(store)), "rl", steps)
        maker, first = Maker(0, TURNS), steps // 8
        fill(maker, buffer, range(first), steps)
        some = asyncio.run(measured(buffer, first))
        print(some, flush=True)
        fill(maker, buffer, range(first, steps), steps)
        every = asyncio.run(measured(buffer, steps))
        print(every, flush=True)
        step_ms = toy_step_ms(Path(folder) / "toy")
    slowest, before = (max(one["take_processor_ms"].values()) for one in (every, some))
    figures = {
        "an_eighth": some,
        "all": every,
        "toy_step_ms": round(step_ms, 1),
        "take_over_toy_step": round(max(every["take_ms"].values()) / step_ms, 4),
        "processor_time_of_take_all_over_an_eighth": round(slowest / before, 2),
    }
    print(write("replay_buffer", figures))


if __name__ == "__main__":
    main()
