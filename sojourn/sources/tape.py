"""Keeps the samples of slots that are not trained yet, so that a resumed run continues their episodes where they were.

An episode is its samples: a world that is replayed with the same actions shows the same again (a law), and the samples
are not drawn twice. Where a world answers differently after all, its prompts differ, and sampling goes on from there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sojourn.codec import from_plain, to_plain
from sojourn.protocols import Sampler
from sojourn.types import FloatArray, IntArray, Prompt, Sample, SamplingParams, Stop, Task, Versions


@dataclass(frozen=True)
class Drawn:
    """A sample and the digest of what was asked: the prompt and how to sample."""

    asked: str
    sample: Sample


@dataclass
class Tape:
    """One slot's record: its tasks, the first and those redrawn, and the samples of each episode by its label."""

    tasks: list[Task] = field(default_factory=list)
    episodes: dict[str, list[Drawn]] = field(default_factory=dict)

    def sampler(self, engine: Sampler, label: str) -> TapedSampler:
        """Returns a sampler for one play, which returns recorded samples first, then draws others and records them."""
        return TapedSampler(engine, self.episodes.setdefault(label, []))

    def state(self) -> Mapping[str, Any]:
        episodes = {label: [_state(drawn) for drawn in taken] for label, taken in self.episodes.items()}
        return {"tasks": to_plain(self.tasks), "episodes": episodes}

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> Tape:
        tasks = from_plain(state["tasks"], list[Task])
        return cls(tasks, {label: [_drawn(data) for data in taken] for label, taken in state["episodes"].items()})


@dataclass
class TapedSampler:
    engine: Sampler
    taken: list[Drawn]
    played: int = 0

    async def sample(self, prompt: Prompt, params: SamplingParams) -> Sample:
        asked, turn = _digest(prompt, params), self.played
        self.played += 1
        if turn < len(self.taken) and self.taken[turn].asked == asked:
            return self.taken[turn].sample
        del self.taken[turn:]
        sample = await self.engine.sample(prompt, params)
        self.taken.append(Drawn(asked, sample))
        return sample

    async def score(self, prompt: Prompt) -> FloatArray:
        return await self.engine.score(prompt)

    async def close(self) -> None:
        """Does nothing: whoever opened the engine closes it."""


def _digest(prompt: Prompt, params: SamplingParams) -> str:
    tokens = np.asarray(prompt.tokens, dtype=np.int64).tobytes()
    return hashlib.blake2b(tokens + repr((prompt.images, params)).encode(), digest_size=16).hexdigest()


def _state(drawn: Drawn) -> Mapping[str, Any]:
    sample = drawn.sample
    allowed = None
    if sample.allowed is not None:
        sizes = [-1 if ids is None else len(ids) for ids in sample.allowed]
        allowed = {"sizes": sizes, "ids": np.concatenate([_NONE, *(i for i in sample.allowed if i is not None)])}
    return {
        "asked": drawn.asked,
        "tokens": sample.tokens,
        "logprobs": sample.logprobs,
        "versions": list(sample.versions),
        "stop": str(sample.stop),
        "temperature": sample.temperature,
        "allowed": allowed,
    }


def _drawn(data: Mapping[str, Any]) -> Drawn:
    allowed = None
    if data["allowed"] is not None:
        sizes, ids = data["allowed"]["sizes"], data["allowed"]["ids"]
        ends = np.cumsum([max(size, 0) for size in sizes])
        pairs = zip(sizes, ends, strict=True)
        allowed = tuple(None if size < 0 else ids[end - size : end] for size, end in pairs)
    sample = Sample(
        data["tokens"], data["logprobs"], Versions(*data["versions"]), Stop(data["stop"]), data["temperature"], allowed
    )
    return Drawn(data["asked"], sample)


_NONE: IntArray = np.zeros(0, dtype=np.int64)
