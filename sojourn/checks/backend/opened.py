"""An open backend, samples from it, and batches that are made of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sojourn.batch import Aggregate, to_batch
from sojourn.checks.promise import BrokenError
from sojourn.losses.reinforce import Reinforce
from sojourn.models.spec import Model
from sojourn.optim import Optim
from sojourn.render.auto import Auto
from sojourn.timeline import Timeline
from sojourn.types import (
    Batch,
    Credit,
    Ending,
    Episode,
    FloatArray,
    Group,
    Message,
    Prompt,
    Role,
    Sample,
    SamplingParams,
    Task,
    Trajectory,
    Turn,
)

TOLERANCE = 1e-3  # nats per token, in fp32
MAX_TOKENS = 12  # of a sample
TASK = Task("made", {}, 0, "train")
QUESTIONS = ("Where to?", "Which door is open, and what lies behind it?")
FOLLOW_UP = (Message(Role.USER, "A wall. And now?"),)
REPLIES = tuple(Message(Role.ASSISTANT, text) for text in ("go north", "go south", "stay"))


@dataclass
class OpenBackend:
    """An open backend, ready to be trained."""

    trainer: Any
    sampler: Any
    renderer: Any

    def prompt(self, text: str) -> Prompt:
        return self.renderer.open([Message(Role.USER, text)])

    def choices(self) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(self.renderer.encode_reply(message)) for message in REPLIES)

    async def sample(self, text: str, seed: int, **params: Any) -> Sample:
        return await self.sampler.sample(self.prompt(text), SamplingParams(MAX_TOKENS, seed=seed, **params))

    async def play(self, text: str, seed: int, **params: Any) -> Trajectory:
        """Samples two turns in one context, or one where the format cannot be extended."""
        prompt = self.prompt(text)
        first = await self.sample(text, seed, **params)
        turns = [Turn(-1, prompt.tokens, first, None)]
        extension = self.renderer.extend(first, FOLLOW_UP)
        if extension is not None:
            context = Prompt(np.concatenate([prompt.tokens, first.tokens, extension.tokens]))
            second = await self.sampler.sample(context, SamplingParams(MAX_TOKENS, seed=seed, **params))
            turns.append(Turn(0, extension.tokens, second, None))
        return Trajectory("agent", tuple(turns), Ending.TURNS)

    async def logprobs(self, batch: Batch) -> FloatArray:
        """Returns the trainer's log-probability of every token: (N,)."""
        return np.asarray((await self.trainer.forward(batch)).logprobs)

    async def update(self, *batches: Batch) -> None:
        """Takes one optimiser step on the sum of the batches."""
        for batch in batches:
            await self.trainer.forward_backward(batch, [Reinforce()])
        await self.trainer.optim_step()


@dataclass
class Case:
    """A backend component under test, and all backends that were opened from it."""

    backend: Any
    model: Model
    before: set[Any]
    opened: list[OpenBackend] = field(default_factory=list)

    def open(self, seed: int = 0) -> OpenBackend:
        """Opens another backend; the same seed gives the same weights."""
        opened = self.backend.open(self.model, Auto(), seed, Timeline())
        self.opened.append(OpenBackend(opened.trainer, opened.sampler, opened.renderer))
        opened.trainer.begin(Optim(lr=3e-3, clip_norm=0.0), 100, reference=False)
        return self.opened[-1]

    async def close(self) -> None:
        """Closes all of them, also after one that fails to close."""
        failed: list[Exception] = []
        while self.opened:
            one = self.opened.pop()
            try:
                await one.sampler.close()
                one.trainer.close()
            except Exception as error:
                failed.append(error)
        if failed:
            raise failed[0]


async def training_batch(one: OpenBackend) -> Batch:
    """Plays four trajectories with the current weights and gives them positive and negative credit."""
    return batch_of([await one.play(text, seed) for seed in (1, 2) for text in QUESTIONS])


def batch_of(played: Sequence[Trajectory]) -> Batch:
    """Makes a batch of trajectories, each with a credit that depends on its place."""
    group = Group(0, TASK, tuple(Episode(str(n), TASK, (t,)) for n, t in enumerate(played)))
    credit = [Credit.uniform(t, (1.0, -0.5, 0.25)[n % 3]) for n, t in enumerate(played)]
    return to_batch([group], [credit], {}, aggregate=Aggregate())


async def require_on_policy(one: OpenBackend, batch: Batch, when: str) -> float:
    """Returns the greatest difference between the trainer's and the sampler's log-probabilities of sampled tokens, in
    nats. Raises `BrokenError` where it is not below TOLERANCE."""
    trained = batch.weight > 0
    scored = await one.logprobs(batch)
    if scored.shape != batch.logprobs.shape:
        raise BrokenError(f"forward() gave {scored.shape} logprobs for a batch of {batch.logprobs.shape} tokens")
    gap = float(np.abs(scored - batch.logprobs)[trained].max())
    if not gap < TOLERANCE:
        raise BrokenError(
            f"{when}, sampler and trainer differ by {gap:.3g} nats on a token: expected less than {TOLERANCE:g} "
            "on-policy"
        )
    return gap


def require_same_sample(was: Sample, now: Sample, when: str) -> None:
    if was.tokens.tolist() != now.tokens.tolist():
        raise BrokenError(f"{when} gave the tokens {now.tokens.tolist()}, but they were {was.tokens.tolist()}")
    if not np.abs(was.logprobs - now.logprobs).max() < TOLERANCE:
        raise BrokenError(f"{when} gave other logprobs for the same tokens: expected the same within {TOLERANCE:g}")
