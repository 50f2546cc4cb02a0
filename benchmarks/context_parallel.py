"""What a rank takes to train on one long sequence that several ranks share, in memory and time.

    python benchmarks/context_parallel.py [--model smollm2] [--tokens 4096] [--ranks 1 2 4] [--dry]

Ranks in actors of a local Ray cluster (gloo, CPU, one thread each) compute the gradient of one sequence, of which every
second token is trained, without computing any layer again. `activations` is by how many millions of bytes a process
grew at most meanwhile (looked at every 2 ms; its weights and gradients were there before), in the rank that took most;
`seconds` is the median of several passes after that. Time says little where there are more ranks than cores.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import time
from typing import Any

import numpy as np
from machine import write
from rank_memory import MEGABYTE, Measure, in_ranks

from sojourn.backends.ray.trainer_rank import Place, TrainerRank
from sojourn.backends.torch.backend import Torch
from sojourn.losses.nll import NLL
from sojourn.models.spec import Model
from sojourn.types import Batch

TORCH = Torch(device="cpu", threads=1, token_budget=1 << 20, activation_gb=1000.0)


def sequence(tokens: int) -> Batch:
    """Returns a batch of one sequence."""
    zeros, trained = np.zeros(tokens, dtype=np.float32), np.arange(tokens) % 2 == 1
    return Batch(
        tokens=np.random.default_rng(0).integers(0, 500, tokens),
        sequence=np.zeros(tokens, dtype=np.int64),
        weight=trained / trained.sum(),
        logprobs=zeros,
        advantages=zeros + 1,
        temperature=zeros + 1,
        trajectory=np.zeros(tokens, dtype=np.int64),
        turn=np.where(trained, np.arange(tokens), -1),
    )


def measured(rank: TrainerRank, place: Place, model: Model, tokens: int, passes: int) -> dict[str, float]:
    """Trains in a rank, and returns what that took."""
    import torch

    if place.size > 1:
        rank._rank = place.rank
        rank._join(place, torch.device("cpu"))

    async def nowhere(weights: Any, version: int) -> None: ...

    trainer = TORCH.open_trainer(TORCH.load(model, 0), model, 0, nowhere, team=rank._team)
    batch, times, took = sequence(tokens), list[float](), Measure()
    asyncio.run(trainer.forward_backward(sequence(64), [NLL()]))  # gradients are held from here on
    with took.during():
        asyncio.run(trainer.forward_backward(batch, [NLL()]))
    for _ in range(passes):
        began = time.perf_counter()
        asyncio.run(trainer.forward_backward(batch, [NLL()]))
        times.append(time.perf_counter() - began)
    trainer.close()
    return {"activations": took.grown.anonymous / MEGABYTE, "seconds": statistics.median(times)}


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--ranks", type=int, nargs="*", default=[1, 2, 4])
    parser.add_argument("--dry", action="store_true", help="share a short sequence of a tiny model, write nothing")
    options = parser.parse_args(words)
    name, tokens, counts, passes = options.model, options.tokens, options.ranks, 3
    if options.dry:
        name, tokens, counts, passes = "tiny", 128, [1, 2], 1
    figures: dict[str, Any] = {"model": name, "tokens": tokens, "cores": os.cpu_count()}
    for count in counts:
        figures[f"{count}_ranks"] = in_ranks(
            count, measured, Model(name=name, dtype="fp32"), tokens, passes, context=count
        )
        print(count, figures[f"{count}_ranks"], flush=True)
    if not options.dry:
        print(write("context_parallel", figures, "ray"))


if __name__ == "__main__":
    main()
