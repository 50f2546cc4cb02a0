"""The probabilities with which a sampler draws each of several listed choices.

A sample that is restricted to choices is drawn token by token, and each token among those that continue a choice
(`SamplingParams.choices`). So the probability of a choice is the product of its tokens' along the trie of all choices.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sojourn.protocols import Sampler
from sojourn.types import IntArray, Prompt, SamplingParams

Choice = tuple[int, ...]


class _Node(NamedTuple):
    """A node of the trie: the choices that begin with the same `depth` tokens, and how probable these tokens are."""

    choices: Sequence[Choice]
    depth: int
    probability: float


async def choice_probabilities(
    sampler: Sampler, prompt: Prompt, choices: Sequence[Choice], params: SamplingParams, stops: Sequence[int] = ()
) -> list[float]:
    """Returns how probable each choice is in a sample by `params` that is restricted to the choices. They add up to 1;
    where a choice is listed several times, its first place has the probability.

    `stops` are the renderer's stop tokens, one of which ends a choice that is the beginning of another. The sampler is
    asked for single tokens, so that it finds the prompt in its cache: at a node with k tokens for k - 1 of them, each
    among those that it has not drawn there yet. The probabilities are exact to about 1e-7, the rounding of `Sample`.
    """
    found: dict[Choice, float] = {}
    pending = [_Node(sorted(set(choices)), 0, 1.0)]
    while pending:
        node = pending.pop()
        prefix = node.choices[0][: node.depth]
        following: dict[int, list[Choice]] = defaultdict(list)
        for choice in node.choices:
            if len(choice) > node.depth:
                following[choice[node.depth]].append(choice)
        ends = len(node.choices[0]) == node.depth  # sorted: a choice comes before those that it begins
        tokens = sorted({*following, *(stops if ends and following else ())})
        shares = await _shares(sampler, prompt, prefix, tokens, params) if node.probability else {}
        if ends:
            found[prefix] = node.probability * (1.0 - sum(shares.get(token, 0.0) for token in following))
        for token, some in following.items():
            pending.append(_Node(some, node.depth + 1, node.probability * shares.get(token, 0.0)))
    return [found.pop(choice, 0.0) for choice in choices]


async def _shares(
    sampler: Sampler, prompt: Prompt, prefix: Choice, tokens: Sequence[int], params: SamplingParams
) -> dict[int, float]:
    """Returns the probability of each of some tokens after the prompt and a prefix, where no others are allowed."""
    if len(tokens) < 2:
        return dict.fromkeys(tokens, 1.0)
    prompt = replace(prompt, tokens=_joined(prompt.tokens, prefix))
    one = replace(params, max_tokens=1, top_p=1.0, top_k=0, min_p=0.0)
    left, mass, shares = list(tokens), 1.0, dict.fromkeys(tokens, 0.0)
    while len(left) > 1 and mass > 0:
        sample = await sampler.sample(prompt, replace(one, choices=tuple((token,) for token in left)))
        token, logprob = int(sample.tokens[0]), min(float(sample.logprobs[0]), 0.0)
        if params.temperature == 0:
            return {**shares, token: 1.0}
        shares[token] = mass * math.exp(logprob)
        mass *= -math.expm1(logprob)
        left.remove(token)
    shares |= {token: mass / len(left) for token in left}  # one, or none has any
    if not params.truncates:
        return shares
    kept = _truncated(np.array(list(shares.values())), params)
    return dict(zip(shares, kept.tolist(), strict=True))


def _truncated(shares: NDArray[np.float64], params: SamplingParams) -> NDArray[np.float64]:
    """Returns the probabilities of tokens after those are cut that `top_k`, then `top_p`, then `min_p` leave out."""
    if 0 < params.top_k < len(shares):
        shares = np.where(shares < np.sort(shares)[-params.top_k], 0.0, shares)
    if params.top_p < 1:
        ordered = np.sort(shares)[::-1]
        within = int((ordered.cumsum() < params.top_p * shares.sum()).sum())  # tokens before the nucleus is whole
        shares = np.where(shares < ordered[min(within, len(ordered) - 1)], 0.0, shares)
    shares = np.where(shares < params.min_p * shares.max(), 0.0, shares)
    return shares / shares.sum()


def _joined(tokens: IntArray, prefix: Choice) -> IntArray:
    return np.concatenate([tokens, np.array(prefix, dtype=np.int64)])
