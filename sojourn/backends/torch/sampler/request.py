"""The state of one sample or score in the engine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sojourn.abilities import Tell
from sojourn.backends.torch.sampler import sampling
from sojourn.backends.torch.sampler.prefix_cache import Context
from sojourn.backends.torch.sampler.sampling import Choices, Row
from sojourn.backends.torch.sampler.steering import Mark
from sojourn.types import FloatArray, IntArray, Sample, SamplingParams, Stop, Versions

Decode = Callable[[Sequence[int]], str]


@dataclass(eq=False)
class Request:
    """A sample that is being computed, or a score if `params` is None."""

    prompt: IntArray
    future: asyncio.Future[Any]
    params: SamplingParams | None = None
    choices: Choices | None = None
    model: str = SamplingParams.model
    tell: Tell | None = None
    mark: Mark | None = None  # of its steered tokens, if it is steered
    told: int = 0  # how many tokens `tell` was called with
    context: Context | None = None  # its pages in the cache, once it is admitted
    submitted: float = field(default_factory=time.perf_counter)
    versions: Versions = field(default_factory=lambda: Versions(0, 0))
    drawn: bool = False  # whether any token was drawn yet; tokens without an alternative are not drawn
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    allowed: list[IntArray | None] = field(default_factory=list)
    scores: list[FloatArray] = field(default_factory=list)
    uniforms: list[float] = field(init=False)

    def __post_init__(self) -> None:
        if self.params is not None:
            self.uniforms = sampling.uniforms(self.params.seed, len(self.prompt), self.params.max_tokens).tolist()
            self._force()

    @property
    def context_tokens(self) -> IntArray:
        """Returns the tokens whose keys and values must be in the cache, as the prefix tree knows them. A score needs
        no logits after its last token."""
        if self.params is None:
            return self.prompt[:-1]
        if self.mark is not None:
            steered = np.concatenate([self.prompt[-1:], np.array(self.tokens, dtype=np.int64)])
            return np.concatenate([self.prompt[:-1], self.mark(steered)])
        return np.concatenate([self.prompt, np.array(self.tokens, dtype=np.int64)]) if self.tokens else self.prompt

    @property
    def room(self) -> int:
        """Returns the number of tokens that may still follow the context."""
        return 0 if self.params is None else self.params.max_tokens - len(self.tokens)

    @property
    def admitted_context(self) -> Context:
        assert self.context is not None, "a request that was not admitted has no context in the cache"
        return self.context

    def row(self) -> Row:
        """Returns how to draw the next token."""
        assert self.params is not None
        allowed = None if self.choices is None else self.choices.allowed()
        return Row(self.params, self.uniforms[len(self.tokens)], allowed)

    def accept(self, token: int, logprob: float, row: Row, version: int) -> None:
        """Appends a drawn token, and the tokens that are the only ones allowed after it."""
        self.drawn = True
        if self.versions.newest != version:
            self.versions = Versions(self.versions.oldest, version)
        self._add(token, logprob, row.allowed)
        self._force()

    def report(self) -> None:
        """Lets the event loop tell the tokens that were not told before, where somebody listens. What the listener
        raises is reported by the event loop: no request fails by it."""
        if self.tell is not None and self.told < len(self.tokens):
            self.future.get_loop().call_soon(self.tell, self.tokens[self.told :])
            self.told = len(self.tokens)

    def stop(self, stops: frozenset[int], decode: Decode | None) -> Stop | None:
        """Returns why the sample is complete, or None if it goes on."""
        assert self.params is not None
        if self.tokens and self.choices is not None and self.choices.complete:
            return Stop.CHOICE
        if self.tokens and self.choices is None:
            if self.tokens[-1] in stops or self.tokens[-1] in self.params.stop_tokens:
                return Stop.END
            if decode is not None and self.params.stop_strings and self._has_stop_string(decode):
                return Stop.END
        return Stop.LENGTH if len(self.tokens) >= self.params.max_tokens else None

    def _has_stop_string(self, decode: Decode) -> bool:
        assert self.params is not None
        strings = self.params.stop_strings
        longest = max(len(string.encode()) for string in strings)
        text = decode(self.tokens[-longest - 1 :])  # each token decodes to at least one byte
        return any(string in text for string in strings)

    def sample(self, stop: Stop) -> Sample:
        assert self.params is not None
        return Sample(
            np.array(self.tokens, dtype=np.int64),
            np.array(self.logprobs, dtype=np.float32),
            self.versions,
            stop,
            self.params.temperature or 1.0,
            None if self.choices is None else tuple(self.allowed),
        )

    def restart(self, version: int) -> None:
        """Makes the request begin, or begin again, under this version of the weights."""
        self.versions, self.scores = Versions(version, version), []

    def _add(self, token: int, logprob: float, allowed: IntArray | None) -> None:
        self.tokens.append(token)
        self.logprobs.append(logprob)
        self.allowed.append(allowed)
        if self.choices is not None:
            self.choices.advance(token)

    def _force(self) -> None:
        """Appends tokens while only one is allowed: its probability is 1, so the model is not run."""
        assert self.params is not None
        while self.choices is not None and not self.choices.complete and len(self.tokens) < self.params.max_tokens:
            allowed = self.choices.allowed()
            if len(allowed) > 1:
                return
            self._add(int(allowed[0]), 0.0, allowed)
