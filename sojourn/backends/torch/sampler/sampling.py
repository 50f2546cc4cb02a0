"""Draws tokens from logits, with the exact log-probability of what was drawn.

A token depends on its own logits, its request's parameters and one uniform number, which is determined by the request's
seed and the token's position: never on what is sampled beside it.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch

from sojourn.backends.torch.kernels.kernel import Kernel
from sojourn.errors import ModelError
from sojourn.types import IntArray, SamplingParams

BLOCK = 256  # ids: the cumulative distribution is searched block by block, so that only one block is summed id by id
HEAD = 1024  # likeliest ids that are searched for the nucleus before the whole vocabulary is sorted
DIVERGED = "the model's logits are not finite: its weights have diverged: lower the step size"
_START: Any = np.random.Philox(0).state


class _Generator(threading.local):
    """A generator for each thread: creating one takes longer than drawing some numbers."""

    def __init__(self) -> None:
        self.bits: Any = np.random.Philox(0)
        self.random = np.random.Generator(self.bits).random


_generator = _Generator()


def uniforms(seed: int, prompt_length: int, count: int) -> np.ndarray:
    """Returns a number in [0, 1) for each token to be sampled: (count,), by a counter-based generator (Philox)."""
    key = np.array([seed % 2**64, prompt_length], dtype=np.uint64)
    _generator.bits.state = _START | {"state": {"counter": np.zeros(4, dtype=np.uint64), "key": key}}
    return _generator.random(count)


class Row(NamedTuple):
    """Says how to draw one token. `allowed` are the only ids possible, or None for all."""

    params: SamplingParams
    uniform: float
    allowed: IntArray | None = None


class Draw(NamedTuple):
    """The sampled tokens of R rows; -1 where the logits of a row are not finite."""

    tokens: list[int]  # (R,)
    logprobs: list[float]  # (R,) in nats


def draw(logits: torch.Tensor, rows: Sequence[Row], kernel: Kernel | None = None) -> Draw:
    """Draws one token from each row of logits (R, V). The kernel, where there is one, draws from whole distributions.

    The distribution is that of logits / temperature over the allowed ids, cut to `top_k`, then to the nucleus `top_p`,
    then to `min_p` times the greatest probability, and renormalised; ids that tie with the last one kept are kept. With
    temperature 0 the token is the likeliest (of several, the lowest id), and its log-probability that of the uncut
    distribution at temperature 1.
    """
    whole = [kernel is not None and row.allowed is None and not row.params.truncates for row in rows]
    if kernel is None or not any(whole):
        return _draw_by_torch(logits, rows)
    if not all(whole):  # how a row is drawn must not depend on the others
        parts = [[n for n, is_whole in enumerate(whole) if is_whole is wanted] for wanted in (True, False)]
        drawn = [draw(logits[part], [rows[n] for n in part], kernel) for part in parts]
        back = np.argsort(np.concatenate(parts))
        return Draw(*(np.concatenate(each)[back].tolist() for each in zip(*drawn, strict=True)))
    temperatures = torch.from_numpy(np.array([row.params.temperature for row in rows], dtype=np.float32))
    uniform = torch.from_numpy(np.array([row.uniform for row in rows]))
    drawn = kernel.sample(logits.float().contiguous(), temperatures, uniform)
    return Draw(*(values.tolist() for values in drawn))


def _draw_by_torch(logits: torch.Tensor, rows: Sequence[Row]) -> Draw:
    scaled = _support(logits.float(), rows)
    top, likeliest = scaled.max(dim=-1)
    weights = torch.exp(scaled - top[:, None])
    drawn, total = _inverse_cdf(weights, [row.uniform for row in rows])
    greedy = torch.tensor([row.params.temperature == 0 for row in rows], device=logits.device)
    tokens = torch.where(greedy, likeliest, drawn)
    logprobs = (scaled.gather(1, tokens[:, None])[:, 0] - top).double() - total.log()
    return Draw(tokens.where(torch.isfinite(top), -1).tolist(), logprobs.tolist())


def score(logits: torch.Tensor, tokens: torch.Tensor) -> np.ndarray:
    """Returns the log-probability of each token (n,) under its row of logits (n, V), at temperature 1."""
    parts = []
    for some, targets in zip(logits.split(128), tokens.split(128), strict=True):
        some = some.float()
        parts.append(some.gather(1, targets[:, None])[:, 0] - some.logsumexp(-1))
    return torch.cat(parts).cpu().numpy()


def _support(logits: torch.Tensor, rows: Sequence[Row]) -> torch.Tensor:
    """Returns the logits at each row's temperature, padded to whole blocks, and -inf for what cannot be drawn."""
    temperatures = [row.params.temperature or 1.0 for row in rows]
    if any(t != 1.0 for t in temperatures):
        logits = logits / torch.tensor(temperatures, device=logits.device)[:, None]
    special = [n for n, row in enumerate(rows) if row.allowed is not None or row.params.truncates]
    if special:
        logits = logits.clone()
    for n in special:
        row = rows[n]
        if row.allowed is not None:
            ids = torch.from_numpy(row.allowed).to(logits.device)
            kept = logits[n, ids]
            logits[n] = -torch.inf
            logits[n, ids] = kept
        if row.params.truncates and row.params.temperature > 0:
            logits[n] = _truncated(logits[n], row.params)
    return torch.nn.functional.pad(logits, (0, -logits.shape[1] % BLOCK), value=-torch.inf)


def _truncated(logits: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    if 0 < params.top_k < len(logits):
        smallest = logits.topk(params.top_k).values[-1]
        logits = logits.masked_fill(logits < smallest, -torch.inf)
    if params.top_p < 1:
        probabilities = logits.softmax(0)
        logits = logits.masked_fill(probabilities < _smallest_in_nucleus(probabilities, params.top_p), -torch.inf)
    if params.min_p > 0:
        probabilities = logits.softmax(0)
        logits = logits.masked_fill(probabilities < params.min_p * probabilities.max(), -torch.inf)
    return logits


def _smallest_in_nucleus(probabilities: torch.Tensor, top_p: float) -> torch.Tensor:
    """Returns the least probability in the nucleus: the smallest set of ids that holds `top_p` of the mass."""
    for count in (min(HEAD, len(probabilities)), len(probabilities)):
        ordered = probabilities.topk(count).values
        reached = ordered.double().cumsum(0) >= top_p
        if bool(reached[-1]) or count == len(probabilities):
            break
    last = int(reached.int().argmax()) if bool(reached[-1]) else len(ordered) - 1
    return ordered[last]


def _inverse_cdf(weights: torch.Tensor, uniform: Sequence[float]) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the ids at which the cumulative weights (R, V) pass the uniform numbers times the total of their row, and
    these totals.

    Where rounding puts a number past the end, it returns the last id with a weight.
    """
    blocks = weights.view(len(weights), -1, BLOCK)
    sums = blocks.sum(-1).double().cumsum(-1)  # (R, blocks)
    total = sums[:, -1:]
    target = torch.tensor(uniform, dtype=torch.float64, device=weights.device)[:, None] * total
    block = torch.minimum((sums <= target).sum(-1), (sums < total).sum(-1))
    row = torch.arange(len(weights), device=weights.device)
    before = torch.where(block > 0, sums[row, (block - 1).clamp(min=0)], 0.0)
    inner = blocks[row, block].double().cumsum(-1)  # (R, BLOCK)
    place = torch.minimum((inner <= target - before[:, None]).sum(-1), (inner < inner[:, -1:]).sum(-1))
    return block * BLOCK + place, total[:, 0]


class Choices:
    """Restricts sampling to one of the given choices, token by token.

    Where a choice is a prefix of another, a stop token ends the shorter one: it is allowed there besides the tokens
    that continue. The choices are kept sorted, so that those which begin with the tokens so far are consecutive.
    """

    def __init__(self, choices: Sequence[Sequence[int]], stops: Sequence[int]) -> None:
        self._all = sorted({tuple(choice) for choice in choices})
        self._stops = sorted(set(stops))
        if not self._all[0]:
            raise ModelError("a choice has no tokens: expected at least one: leave empty choices out")
        if not self._stops and any(then[: len(choice)] == choice for choice, then in pairwise(self._all)):
            raise ModelError(
                "a choice is the beginning of another, and the engine has no stop token to end it: "
                "expected choices of which none begins another: end each with a token of its own"
            )
        self.ids = (min(map(min, self._all)), max(map(max, self._all)))  # the least and the greatest
        self._first, self._last, self._depth = 0, len(self._all), 0  # remaining choices, and the number of tokens
        self._ends = False  # whether the tokens so far are a whole choice

    @property
    def complete(self) -> bool:
        """Returns whether the tokens so far are a choice, and not a prefix of a longer one."""
        return self._ends and self._first == self._last

    @property
    def decided(self) -> bool:
        """Returns whether all tokens that may still come are known: no choice is left, or only one."""
        return self._last - self._first + self._ends <= 1

    def allowed(self) -> IntArray:
        """Returns the ids that may come next, ascending."""
        ids = set(self._stops) if self._ends else set()
        here = self._first
        while here < self._last:
            ids.add(token := self._all[here][self._depth])
            here = self._after(token, here)
        return np.array(sorted(ids), dtype=np.int64)

    def advance(self, token: int) -> None:
        """Accepts an allowed token; a stop token that ends a choice completes it."""
        first = bisect_left(self._all, token, self._first, self._last, key=self._next)
        self._first, self._last = first, self._after(token, first)
        self._depth += 1
        if self._first == self._last:
            self._ends = True
            return
        self._ends = len(self._all[self._first]) == self._depth
        self._first += self._ends

    def _after(self, token: int, here: int) -> int:
        """Returns the end of the choices that continue with the token; they begin at `here`, if there are any."""
        if here + 1 < self._last and self._next(self._all[here + 1]) > token:
            return here + (self._next(self._all[here]) == token)
        return bisect_right(self._all, token, here, self._last, key=self._next)

    def _next(self, choice: tuple[int, ...]) -> int:
        return choice[self._depth]
