"""A client for the log-probabilities that a served model gives to the tokens of prompts."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from sojourn.models.endpoint import Endpoint, endpoint_of
from sojourn.models.spec import ServedModel
from sojourn.types import FloatArray, IntArray

ABSENT = -1  # in the place of a token that the server did not name


class Scores(NamedTuple):
    """Holds what a model says of n tokens: the log-probability of each, and of the k likeliest tokens in its place,
    likeliest first. Where there are fewer, `likeliest` is `ABSENT`."""

    logprobs: FloatArray  # (n,)
    likeliest: IntArray  # (n, k)
    likeliest_logprobs: FloatArray  # (n, k)


@dataclass(frozen=True)
class PromptScorer:
    """Asks a server of vLLM's API about prompts, which are given as token ids: nothing is tokenized again.

    vLLM's extension `prompt_logprobs = k` of /v1/completions gives, for each token of a prompt but the first, its own
    log-probability and those of the k likeliest tokens in its place (vllm/entrypoints/openai/completion/protocol.py and
    serving.py of 2025 and 2026 were read). They are those at temperature 1 over the whole vocabulary, whatever the
    request's temperature. The prompt's tokens are its own even where they are not among the likeliest. A token is
    sampled after the prompt, and ignored: not every version accepts a request for none.
    """

    endpoint: Endpoint
    top_k: int
    concurrency: int

    @classmethod
    def of(cls, name: str, served: ServedModel) -> PromptScorer:
        """Returns the client of the model `models.NAME`. Raises `ConfigError` for an address or a key that cannot be
        used; nothing is asked."""
        return cls(endpoint_of(name, served), served.top_k, served.concurrency)

    async def score(self, prompts: Sequence[IntArray], where: Sequence[IntArray]) -> list[Scores]:
        """Returns what the model says of the tokens at the indices `where` of each prompt, at which 0 cannot be.

        Raises `InfrastructureError` where the server fails, and then asks about no further prompt.
        """
        free = asyncio.Semaphore(self.concurrency)

        async def one(tokens: IntArray, indices: IntArray) -> Scores:
            body = {"prompt": tokens.tolist(), "prompt_logprobs": self.top_k, "max_tokens": 1, "temperature": 0}
            url = f"{self.endpoint.base_url.rstrip('/')}/completions"
            async with free:
                return await self.endpoint.post(url, body, _scores(tokens, indices, self.top_k), "scored prompt")

        tasks = [asyncio.ensure_future(one(*pair)) for pair in zip(prompts, where, strict=True)]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()

    async def detokenize(self, tokens: Sequence[int]) -> str:
        """Returns the text that the server's tokenizer makes of tokens."""
        body = {"tokens": list(tokens)}
        return await self.endpoint.post(f"{self._root}/detokenize", body, lambda data: str(data["prompt"]), "text")

    async def max_prompt(self) -> int:
        """Returns how many tokens the longest prompt may have, after which the server can sample one."""
        body = {"prompt": "a"}
        longest = await self.endpoint.post(
            f"{self._root}/tokenize", body, lambda data: int(data["max_model_len"]), "tokenized text"
        )
        return longest - 1

    @property
    def _root(self) -> str:
        """Returns the address of the routes that are not OpenAI's, beside /v1."""
        return self.endpoint.base_url.rstrip("/").removesuffix("/v1")


def _scores(tokens: IntArray, where: IntArray, top_k: int) -> Callable[[Any], Scores]:
    """Returns what reads the scores of a prompt from the server's answer."""

    def read(answer: Any) -> Scores:
        places = answer["choices"][0]["prompt_logprobs"]
        if len(places) != len(tokens):
            raise ValueError(f"it has {len(places)} places for {len(tokens)} tokens")
        logprobs = np.zeros(len(where), dtype=np.float32)
        likeliest = np.full((len(where), top_k), ABSENT)
        likeliest_logprobs = np.full((len(where), top_k), -np.inf, dtype=np.float32)
        for row, index in enumerate(where.tolist()):
            said = _said(places[index])
            logprobs[row] = said[int(tokens[index])]
            best = sorted(said, key=said.__getitem__, reverse=True)[:top_k]
            likeliest[row, : len(best)] = best
            likeliest_logprobs[row, : len(best)] = [said[token] for token in best]
        return Scores(logprobs, likeliest, likeliest_logprobs)

    return read


def _said(place: Mapping[str, Any]) -> dict[int, float]:
    """Returns the log-probabilities of one place by token."""
    said = {int(token): float(entry["logprob"]) for token, entry in place.items()}
    if not all(map(math.isfinite, said.values())):
        raise ValueError("a log-probability is not finite")
    return said
