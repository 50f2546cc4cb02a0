"""Checks training: parts of a batch add up, only `publish` changes the sampler, and saved weights come back."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from sojourn.checks.backend.opened import (
    QUESTIONS,
    TOLERANCE,
    Case,
    batch_of,
    require_on_policy,
    require_same_sample,
    training_batch,
)
from sojourn.checks.promise import BrokenError, NotOfferedError
from sojourn.protocols import Stateful
from sojourn.types import FloatArray

SPLIT_TOLERANCE = 0.02  # as a fraction of the update: AdamW magnifies the rounding errors of gradients near 0


async def publishes(case: Case) -> str:
    one = case.open()
    batch = await training_batch(one)
    was = [await one.sample(QUESTIONS[0], seed) for seed in range(3)]
    scored = await one.logprobs(batch)
    await one.update(batch)
    if not np.abs(await one.logprobs(batch) - scored).max() > TOLERANCE:
        raise BrokenError("forward() gives the same after optim_step(): expected that the step changes the weights")
    for seed, sample in enumerate(was):
        require_same_sample(
            sample, await one.sample(QUESTIONS[0], seed), f"after optim_step(), seed {seed}, unpublished,"
        )
    version = await one.trainer.publish()
    again = [await one.play(text, 7) for text in QUESTIONS]
    for turn in (turn for t in again for turn in t.turns):
        if tuple(turn.sample.versions) != (version, version) or version == was[0].versions.newest:
            raise BrokenError(
                f"publish() gave version {version} after {was[0].versions.newest}, a later sample has the versions "
                f"{tuple(turn.sample.versions)}: expected the new one"
            )
    await require_on_policy(one, batch_of(again), "after publish()")
    return f"version {version}"


async def splits(case: Case) -> str:
    """Gives the first of two steps its batch in parts; the second shows whether their sum was scaled, which AdamW
    hides in the first."""
    whole, parted = case.open(), case.open()
    batch = await training_batch(whole)
    before = await whole.logprobs(batch)
    count = len(batch.offsets) - 1
    await whole.update(batch)
    await parted.update(batch.take(np.array([0])), batch.take(np.arange(1, count)))
    for one in (whole, parted):
        await one.update(batch.take(np.arange(count // 2)))
    together, apart = [await one.logprobs(batch) for one in (whole, parted)]
    moved, gap = float(np.abs(together - before).max()), float(np.abs(together - apart).max())
    if not gap < SPLIT_TOLERANCE * moved:
        raise BrokenError(
            f"two steps moved a logprob by {moved:.3g}; with the first batch given in two parts it ended {gap:.3g} "
            "elsewhere: parts must add up, every normalisation being in the weights"
        )
    return f"a step on 1 + {count - 1} sequences is the step on {count}"


async def saves(case: Case) -> str:
    one, other = case.open(), case.open(seed=1)
    batch = await training_batch(one)
    if not np.abs(await other.logprobs(batch) - await one.logprobs(batch)).max() > TOLERANCE:
        raise NotOfferedError("the model has the same weights for every seed: nothing can be told apart")
    await one.update(batch)
    with tempfile.TemporaryDirectory() as folder:
        one.trainer.save(Path(folder))
        kept = one.trainer.state() if isinstance(one.trainer, Stateful) else None
        other.trainer.load(Path(folder))
        if kept is not None:
            other.trainer.restore(kept)
    require_equal(await one.logprobs(batch), await other.logprobs(batch), "loaded into another backend")
    for trained in (one, other):
        await trained.update(batch)
    require_equal(await one.logprobs(batch), await other.logprobs(batch), "a step later")
    return "weights, and the optimiser's state"


def require_equal(one: FloatArray, other: FloatArray, when: str) -> None:
    if not (gap := float(np.abs(one - other).max())) < 1e-5:
        raise BrokenError(f"{when}, a logprob differs by {gap:.3g} nats: expected what was saved")
