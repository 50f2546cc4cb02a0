"""Records the samples of slots that are not trained yet, so that a resumed run continues their episodes.

The samples determine an episode: a world that is replayed with the same actions returns the same observations (a law),
so a resumed run returns the recorded samples instead of drawing others. Where a world does answer differently, its
prompts differ, and sampling continues from there.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sojourn.codec import from_plain, to_plain
from sojourn.protocols import Sampler
from sojourn.sources.horizon import Budget
from sojourn.types import FloatArray, IntArray, Prompt, Sample, SamplingParams, Stop, Task, Versions


@dataclass(frozen=True)
class RecordedSample:
    """A sample, and the digest of its request: the prompt and the sampling parameters."""

    request: str
    sample: Sample


@dataclass
class SlotRecord:
    """Holds the tasks of one slot, the first one and those redrawn, the samples of each episode by its label, the
    budget of its episodes, which is decided when the slot starts, and how many episodes each task is played."""

    tasks: list[Task] = field(default_factory=list)
    episodes: dict[str, list[RecordedSample]] = field(default_factory=dict)
    budget: Budget | None = None
    sizes: list[int] = field(default_factory=list)

    def sampler(self, engine: Sampler, label: str) -> RecordingSampler:
        """Returns a sampler for one play, which returns the recorded samples first, then draws and records new ones."""
        recorded = self.episodes.setdefault(label, [])
        return RecordingSampler(engine, recorded, self.budget.turns if self.budget is not None else sys.maxsize)

    def state(self) -> Mapping[str, Any]:
        episodes = {label: [_state(recorded) for recorded in samples] for label, samples in self.episodes.items()}
        budget = self.budget and list(self.budget)
        return {"tasks": to_plain(self.tasks), "episodes": episodes, "budget": budget, "sizes": list(self.sizes)}

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> SlotRecord:
        tasks = from_plain(state["tasks"], list[Task])
        samples = {label: [_from_state(data) for data in each] for label, each in state["episodes"].items()}
        budget = Budget(*state["budget"]) if state.get("budget") else None
        return cls(tasks, samples, budget, list(state.get("sizes", ())))  # an older run has groups of one size


@dataclass
class RecordingSampler:
    """Samples for one play, which may take `max_turns`; `recorded` has its samples so far, each of which is returned
    where the same is asked again. No two requests of a play are the same, as every turn has a seed of its own."""

    engine: Sampler
    recorded: list[RecordedSample]
    max_turns: int = sys.maxsize
    draws_all = True

    def __post_init__(self) -> None:
        self._known = {one.request: one.sample for one in self.recorded}

    async def sample(self, prompt: Prompt, params: SamplingParams) -> Sample:
        request = _digest(prompt, params)
        if (known := self._known.get(request)) is not None:
            return known
        sample = self._known[request] = await self.engine.sample(prompt, params)
        self.recorded.append(RecordedSample(request, sample))
        return sample

    async def score(self, prompt: Prompt) -> FloatArray:
        return await self.engine.score(prompt)

    async def close(self) -> None:
        """Does nothing: whoever opened the engine closes it."""


def _digest(prompt: Prompt, params: SamplingParams) -> str:
    tokens = np.asarray(prompt.tokens, dtype=np.int64).tobytes()
    asked = repr((prompt.images, params)) + ("" if params.model == SamplingParams.model else params.model)
    if params.steering is not None:
        asked += f"{params.steering.layer} {params.steering.vector.hex()}"
    return hashlib.blake2b(tokens + asked.encode(), digest_size=16).hexdigest()


def _state(recorded: RecordedSample) -> Mapping[str, Any]:
    sample = recorded.sample
    allowed = None
    if sample.allowed is not None:
        sizes = [-1 if ids is None else len(ids) for ids in sample.allowed]
        allowed = {"sizes": sizes, "ids": np.concatenate([_NONE, *(i for i in sample.allowed if i is not None)])}
    return {
        "asked": recorded.request,
        "tokens": sample.tokens,
        "logprobs": sample.logprobs,
        "versions": list(sample.versions),
        "stop": str(sample.stop),
        "temperature": sample.temperature,
        "allowed": allowed,
    }


def _from_state(data: Mapping[str, Any]) -> RecordedSample:
    allowed = None
    if data["allowed"] is not None:
        sizes, ids = data["allowed"]["sizes"], data["allowed"]["ids"]
        ends = np.cumsum([max(size, 0) for size in sizes])
        pairs = zip(sizes, ends, strict=True)
        allowed = tuple(None if size < 0 else ids[end - size : end] for size, end in pairs)
    sample = Sample(
        data["tokens"], data["logprobs"], Versions(*data["versions"]), Stop(data["stop"]), data["temperature"], allowed
    )
    return RecordedSample(data["asked"], sample)


_NONE: IntArray = np.zeros(0, dtype=np.int64)
