"""Activation checkpointing within a budget of bytes (Chen et al. 2016, arXiv:1604.06174).

Beyond the budget, the first layers of the decoder keep only their input and are recomputed in the backward pass, when
the activations of the later layers are already freed. As few layers as needed do so: a batch that fits costs nothing
more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

PROBE_TOKENS = (8, 24)


@dataclass(frozen=True)
class Cost:
    """The bytes per token that layers keep for the backward pass."""

    layers: tuple[int, ...]  # the activations of each layer
    inputs: int  # the input of one layer, kept where the layer is recomputed

    def count_to_recompute(self, tokens: int, max_bytes: float) -> int:
        """Returns how many of the first layers to recompute: as few as keep the rest within the budget, or all."""
        for count in range(len(self.layers)):
            if (count * self.inputs + sum(self.layers[count:])) * tokens <= max_bytes:
                return count
        return len(self.layers)


def layers_of(decoder: Any) -> Sequence[Any]:
    """Returns the decoder's layers: the longest list of modules that it holds."""
    return list(max((m for m in decoder.children() if isinstance(m, torch.nn.ModuleList)), key=len))


def measure(layers: Sequence[Any], run: Callable[[int], Any]) -> Cost:
    """Measures what layers keep per token, from two short passes `run(tokens)` of different lengths.

    The difference leaves out what does not grow with the tokens, such as weights.
    """
    (few, inputs), (more, _) = (_kept_bytes(layers, partial(run, tokens)) for tokens in PROBE_TOKENS)
    each = [(b - a) // (PROBE_TOKENS[1] - PROBE_TOKENS[0]) for a, b in zip(few, more, strict=True)]
    return Cost(tuple(each), inputs // PROBE_TOKENS[0])


@contextmanager
def checkpointed(layers: Sequence[Any]) -> Iterator[None]:
    """Lets passes inside keep only the inputs of these layers."""
    with _replaced(layers, partial(checkpoint, use_reentrant=False, preserve_rng_state=False)):
        yield


def _kept_bytes(layers: Sequence[Any], run: Callable[[], Any]) -> tuple[list[int], int]:
    """Returns the bytes that each layer keeps in a pass, every storage counted once, and those of a layer's input."""
    held: dict[int, torch.UntypedStorage] = {}  # kept alive meanwhile, so that no two storages have the same address
    each: list[int] = []
    inputs = 0

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in held:
            held[storage.data_ptr()] = storage
            each[-1] += storage.nbytes()
        return tensor

    def counted(forward: Callable[..., Any], hidden: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        nonlocal inputs
        inputs = hidden.nbytes
        each.append(0)
        with saved_tensors_hooks(keep, lambda tensor: tensor):
            return forward(hidden, *args, **kwargs)

    with torch.enable_grad(), _replaced(layers, counted):
        run()
    return each, inputs


@contextmanager
def _replaced(layers: Sequence[Any], call: Callable[..., Any]) -> Iterator[None]:
    """Replaces each layer's `forward(...)` by `call(forward, ...)` inside the context, and restores it afterwards.

    It is set on the instance, so no model code is changed and hooks run outside of it.
    """
    with ExitStack() as stack:
        for layer in layers:
            stack.callback(_set_forward, layer, vars(layer).get("forward"))
            layer.forward = partial(call, layer.forward)
        yield


def _set_forward(layer: Any, forward: Callable[..., Any] | None) -> None:
    if forward is None:
        del layer.forward
    else:
        layer.forward = forward
