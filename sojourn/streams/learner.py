"""What streams that learn have in common: a small network with its optimiser, and text as numbers."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any
from zlib import crc32

import numpy as np
import torch

from sojourn.types import FloatArray

Build = Callable[[int], torch.nn.Module]


class Learner:
    """A network that learns beside the policy, on the CPU. It is made when the first step says how wide what it reads
    is; its weights and its optimiser's moments are its state. `seed` decides the weights that it starts from."""

    def __init__(self, build: Build, lr: float, *, seed: int = 0) -> None:
        self._build, self._lr, self._seed = build, lr, seed
        self._net: torch.nn.Module | None = None
        self._adam: Any = None
        self._kept: Mapping[str, Any] = {}

    def net(self, size: int) -> Any:
        """The network, for inputs of so many numbers."""
        if self._net is None:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(self._seed)
                self._net = self._build(size)
            self._adam = torch.optim.AdamW(self._net.parameters(), lr=self._lr, weight_decay=0.0)
            self._fill()
        return self._net

    def descend(self, loss: torch.Tensor) -> float:
        """One step down; gives the loss as it was."""
        assert self._net is not None, "net() makes what the loss comes from"
        self._adam.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self._net.parameters(), 1.0)
        self._adam.step()
        return float(loss.detach())

    def state(self) -> Mapping[str, Any]:
        if self._net is None:
            return self._kept
        weights = {name: p.detach().numpy().copy() for name, p in self._net.state_dict().items()}
        moments = {
            f"{name}/{key}": value.numpy().copy()
            for name, p in self._net.named_parameters()
            for key, value in self._adam.state.get(p, {}).items()
        }
        return {"weights": weights, "moments": moments}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._kept = state
        if self._net is not None:
            self._fill()

    def _fill(self) -> None:
        """Takes what was kept, where anything was."""
        if not self._kept or self._net is None:
            return
        self._net.load_state_dict({name: torch.as_tensor(value) for name, value in self._kept["weights"].items()})
        named = dict(self._net.named_parameters())
        for path, value in self._kept["moments"].items():
            name, _, key = path.rpartition("/")
            self._adam.state[named[name]][key] = torch.as_tensor(value)


class Learning:
    """A stream with one network of its own, which `build` makes; its state is the network's where it has no other."""

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


def scaled(rows: torch.Tensor) -> torch.Tensor:
    """Hidden states (n, H) with mean 0 and variance 1: how large a model's are says nothing."""
    return torch.nn.functional.layer_norm(rows, rows.shape[-1:])


def layers(*sizes: int) -> torch.nn.Sequential:
    """Linear layers of these sizes, ReLU between."""
    made: list[torch.nn.Module] = []
    for before, after in pairwise(sizes):
        made += [torch.nn.Linear(before, after), torch.nn.ReLU()]
    return torch.nn.Sequential(*made[:-1])


def hashed(texts: Sequence[str | Sequence[int]], size: int) -> FloatArray:
    """How often each word and pair of words, or token and pair of tokens, occurs, in `size` columns by a hash, each row
    of length 1: (n, size)."""
    out = np.zeros((len(texts), size), dtype=np.float32)
    for row, text in enumerate(texts):
        words = re.findall(r"\w+", text.lower()) if isinstance(text, str) else [str(int(token)) for token in text]
        for word in (*words, *(f"{a} {b}" for a, b in pairwise(words))):
            out[row, crc32(word.encode()) % size] += 1
    norms = np.linalg.norm(out, axis=1, keepdims=True)
    return out / np.maximum(norms, 1e-9)
