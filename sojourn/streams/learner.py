"""What streams that learn share: a small network with its optimiser, and features of text."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any
from zlib import crc32

import numpy as np
import torch

from sojourn.record import checkpoint
from sojourn.types import FloatArray

Build = Callable[[int], torch.nn.Module]


class Learner:
    """A small network, on the CPU, that learns beside the policy.

    `build` makes it when its input size is first known; `seed` decides its initial weights. Its state is its weights
    and the moments of its optimiser, AdamW.
    """

    def __init__(self, build: Build, lr: float, *, seed: int = 0) -> None:
        self._build, self._lr, self._seed = build, lr, seed
        self._net: torch.nn.Module | None = None
        self._adam: Any = None
        self._restored: Mapping[str, Any] = {}

    def net(self, size: int) -> Any:
        """Returns the network for inputs with `size` features, and builds it at the first call."""
        if self._net is None:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(self._seed)
                self._net = self._build(size)
            self._adam = torch.optim.AdamW(self._net.parameters(), lr=self._lr, weight_decay=0.0)
            self._load_restored()
        return self._net

    def update(self, loss: torch.Tensor) -> float:
        """Takes one optimiser step on the loss and returns the loss before it."""
        assert self._net is not None, "net() makes what the loss comes from"
        self._adam.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self._net.parameters(), 1.0)
        self._adam.step()
        return float(loss.detach())

    def state(self) -> Mapping[str, Any]:
        if self._net is None:
            return self._restored
        weights = {name: p.detach().numpy().copy() for name, p in self._net.state_dict().items()}
        moments = {
            f"{name}/{key}": value.numpy().copy()
            for name, p in self._net.named_parameters()
            for key, value in self._adam.state.get(p, {}).items()
        }
        return {"weights": weights, "moments": moments}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._restored = state
        if not state:
            self._net = None  # as before anything was learned: it is built anew
        elif self._net is not None:
            self._load_restored()

    def _load_restored(self) -> None:
        """Loads the restored state into the network, if there is one."""
        if not self._restored or self._net is None:
            return
        with checkpoint.restoring("a stream's network"):
            self._net.load_state_dict(
                {name: torch.as_tensor(value) for name, value in self._restored["weights"].items()}
            )
            named = dict(self._net.named_parameters())
            for path, value in self._restored["moments"].items():
                name, _, key = path.rpartition("/")
                self._adam.state[named[name]][key] = torch.as_tensor(value)


class OwnsNetwork:
    """Base of whatever learns by one network of its own, which `build` makes; its state is the network's."""

    lr: float
    seed: int

    @cached_property
    def learner(self) -> Learner:
        return Learner(self.build, self.lr, seed=self.seed)

    def build(self, size: int) -> torch.nn.Module:
        raise NotImplementedError

    def state(self) -> Mapping[str, Any]:
        return self.learner.state()

    def restore(self, state: Mapping[str, Any]) -> None:
        self.learner.restore(state)


@dataclass(frozen=True, kw_only=True)
class LearnedStream(OwnsNetwork):
    """Base of streams that learn: with `frozen`, the network keeps what an equal stream of the stage before learned."""

    frozen: bool = field(default=False, compare=False)


def normalised(rows: torch.Tensor) -> torch.Tensor:
    """Normalises hidden states (n, H) to mean 0 and variance 1, as their scale differs between models."""
    return torch.nn.functional.layer_norm(rows, rows.shape[-1:])


def layers(*sizes: int) -> torch.nn.Sequential:
    """Returns linear layers of these sizes with ReLU between them."""
    modules: list[torch.nn.Module] = []
    for before, after in pairwise(sizes):
        modules += [torch.nn.Linear(before, after), torch.nn.ReLU()]
    return torch.nn.Sequential(*modules[:-1])


def hashed_counts(texts: Sequence[str | Sequence[int]], size: int) -> FloatArray:
    """Returns hashed counts of the words and pairs of words, or tokens and pairs of tokens, of each text: (n, size).

    Each row has length 1.
    """
    out = np.zeros((len(texts), size), dtype=np.float32)
    for row, text in enumerate(texts):
        words = re.findall(r"\w+", text.lower()) if isinstance(text, str) else [str(int(token)) for token in text]
        _count(out[row], words)
    return _normed(out)


def hashed_counts_so_far(parts: Sequence[Sequence[int]], size: int) -> FloatArray:
    """Returns the `hashed_counts` of the tokens up to the end of each part, of a text that comes in parts: (n, size).

    Each part is counted once, and with it the pair of its first token and the one before."""
    out, before = np.zeros((len(parts), size), dtype=np.float32), list[str]()
    for row, part in enumerate(parts):
        words = [str(int(token)) for token in part]
        out[row] = out[row - 1] if row else 0
        _count(out[row], words, before)
        before = words[-1:] or before
    return _normed(out)


def _count(row: FloatArray, words: Sequence[str], before: Sequence[str] = ()) -> None:
    """Adds words, and pairs of words that follow each other, the word `before` them included, to hashed counts."""
    for word in (*words, *(f"{a} {b}" for a, b in pairwise((*before, *words)))):
        row[crc32(word.encode()) % len(row)] += 1


def _normed(counts: FloatArray) -> FloatArray:
    norms = np.linalg.norm(counts, axis=1, keepdims=True)
    return counts / np.maximum(norms, 1e-9)
