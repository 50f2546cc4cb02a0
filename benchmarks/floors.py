"""Measures how fast each part of a recipe's step can be at its best, alone, for `loop.py`.

    python benchmarks/floors.py recipes/NAME/train.toml [key=value ...]       # prints the rates as JSON

A floor is the time that a step's work would take if each part had the machine to itself at its best rate, one after the
other: prompt tokens at the rate of long prompts, sampled tokens at that of a full batch, distinct tokens at that of a
batch of demonstrations, one update of the weights, and the episodes as scripted experts play them, without a model.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from sojourn.batch import Aggregate, share, to_batch
from sojourn.commands.arguments import load
from sojourn.config.registry import build
from sojourn.sources.experts import expert_sampler
from sojourn.train.assemble import Components, assemble
from sojourn.train.recipe import Recipe
from sojourn.types import Credit, Group, IntArray, Prompt, SamplingParams

ROUNDS = 4
CONTEXTS, PROMPT, SAMPLED = 64, 32, 24  # of a full batch
LONG, PROMPTS = 250, 8
WIDTH, SIZE = 8, 8  # episodes that are played at once, and trained
IDS = (20, 120)  # of tokens that every vocabulary has


class Rates(NamedTuple):
    """`prefill`, `decode` and `train` are in tokens/s; `update_s` is for one update, `episode_s` for one episode of the
    scripted expert, as many at once as the world takes."""

    prefill: float
    decode: float
    train: float
    update_s: float
    episode_s: float

    def floors(self, step: Mapping[str, float]) -> dict[str, float]:
        """Returns the least seconds of each part of a step, by the step's metrics."""
        return {
            "sample": step["sampler_prefill_tokens"] / self.prefill + step["sampled_tokens"] / self.decode,
            "train": step["computed_tokens"] / self.train + self.update_s,
            "env": step["episodes"] * self.episode_s,
        }


def rates(recipe: Path, settings: Sequence[str] = ()) -> Rates:
    """Measures the rates of a recipe in a process of its own, with the recipe's threads."""
    command = [sys.executable, __file__, str(recipe), *settings]
    return Rates(**json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout))


async def best(work: Callable[[], Awaitable[float]], before: Callable[[], Awaitable[object]] | None = None) -> float:
    """Returns the highest of several rates, after a round that warms up. `work` returns how much it has done; what is
    done `before` it takes no part in the rate."""
    found: list[float] = []
    for _ in range(1 + ROUNDS):
        if before is not None:
            await before()
        began = time.perf_counter()
        done = await work()
        found.append(done / (time.perf_counter() - began))
    return max(found[1:])


async def measure(recipe: Recipe) -> Rates:
    async with assemble(recipe) as parts:
        parts.trainer.begin(recipe.stages[-1].optim, 1 + ROUNDS, reference=False)
        rng, reinforce = np.random.default_rng(0), build("loss", {"name": "reinforce"}).value
        groups: list[Group] = []

        def prompt(length: int) -> IntArray:
            return rng.integers(*IDS, length)

        async def play() -> float:
            groups[:] = await demonstrations(parts)
            return WIDTH * SIZE

        episodes = await best(play)
        decode = await best(lambda: sampled(parts, [prompt(PROMPT)] * CONTEXTS, SAMPLED))
        prefill = LONG * await best(lambda: sampled(parts, [prompt(LONG) for _ in range(PROMPTS)], 1))
        credit = [[Credit.uniform(t, (-1.0, 1.0)[n % 2]) for n, t in enumerate(group.trajectories)] for group in groups]
        batch = to_batch(groups, credit, {}, aggregate=Aggregate())

        async def train() -> float:
            await parts.trainer.forward_backward(batch, [reinforce])
            return len(share.merge(batch).tokens)

        async def update() -> float:
            await parts.trainer.optim_step()
            return 1.0

        trained = await best(train)
        updates = await best(update, before=train)
        return Rates(prefill, decode, trained, 1 / updates, 1 / episodes)


async def demonstrations(parts: Components) -> list[Group]:
    runner = parts.runner
    sampler_for = expert_sampler(runner.renderer, runner.agent)

    async def group(number: int) -> Group:
        task = parts.curriculum.draw(number)
        return await runner.play_group(
            task, number, SIZE, parts.params, f"floor/{number}", sampler_for=sampler_for, blame=False
        )

    return list(await asyncio.gather(*map(group, range(WIDTH))))


async def sampled(parts: Components, prompts: Sequence[IntArray], tokens: int) -> float:
    """Samples from all prompts at once; returns the number of tokens."""
    asked = [
        parts.sampler.sample(Prompt(ids), SamplingParams(max_tokens=tokens, seed=seed))
        for seed, ids in enumerate(prompts)
    ]
    return float(sum(len(sample.tokens) for sample in await asyncio.gather(*asked)))


if __name__ == "__main__":
    print(json.dumps(asyncio.run(measure(load(Path(sys.argv[1]), sys.argv[2:]).recipe))._asdict()))
