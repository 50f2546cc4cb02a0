"""How far the trainer's log-probabilities are from the sampler's, on-policy, in fp32 and in bf16.

    python benchmarks/exactness.py

SmolLM2-135M plays the text shop (ordinary episodes of several turns, sampled by the engine from its cache); the trainer
then scores the same tokens, packed, with shared prefixes computed once. Both hold the same weights.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
from machine import write

from sojourn.batch.flatten import flatten
from sojourn.sources.slots import Slots
from sojourn.train.assemble import assemble
from sojourn.train.resolve import load

OVERRIDES = ["agent.malformed=tell", "rollout.limits.turns=3"]


async def measure(dtype: str, episodes: int) -> dict[str, Any]:
    recipe = load(Path("recipes/shop/train.toml"), [*OVERRIDES, f"model.dtype={dtype}"]).recipe
    async with assemble(recipe) as components:
        components.trainer.begin(recipe.stages[-1].optim, 1, reference=False)
        groups = await Slots(width=2, size=episodes // 2).bind(components, "rl", 1).take(0)
        batch, _ = flatten(groups)
        gap = np.abs((await components.trainer.forward(batch)).logprobs - batch.logprobs)[batch.weight > 0]
    return {
        "tokens": len(gap),
        "largest": float(gap.max()),
        "mean": float(gap.mean()),
        "99th_percentile": float(np.quantile(gap, 0.99)),
    }


if __name__ == "__main__":
    figures = {
        "fp32": asyncio.run(measure("fp32", 16)),
        "bf16": asyncio.run(measure("bf16", 16)),
    }
    print(write("exactness", figures), figures)
