"""What the decoder's layers keep for the backward pass, within a budget (Chen et al. 2016, arXiv:1604.06174).

Beyond it, the first layers keep their input alone and are computed again in the backward pass, when what the later
ones kept is gone: as many as needed, so that a batch that fits costs nothing.
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

PROBES = (8, 24)  # tokens


@dataclass(frozen=True)
class Cost:
    """Bytes per token."""

    layers: tuple[int, ...]  # what each layer keeps
    inputs: int  # of one layer, kept where it is computed again

    def recomputed(self, tokens: int, most_bytes: float) -> int:
        """The fewest first layers to compute again so that the rest is within the budget, or all."""
        for count in range(len(self.layers)):
            if (count * self.inputs + sum(self.layers[count:])) * tokens <= most_bytes:
                return count
        return len(self.layers)


def layers_of(decoder: Any) -> Sequence[Any]:
    """The longest list of modules that the decoder holds."""
    return list(max((m for m in decoder.children() if isinstance(m, torch.nn.ModuleList)), key=len))


def measure(layers: Sequence[Any], run: Callable[[int], Any]) -> Cost:
    """From two short passes, `run(tokens)`, so that what does not grow with them, as weights, is not counted."""
    (few, inputs), (more, _) = (_kept(layers, partial(run, tokens)) for tokens in PROBES)
    each = [(b - a) // (PROBES[1] - PROBES[0]) for a, b in zip(few, more, strict=True)]
    return Cost(tuple(each), inputs // PROBES[0])


@contextmanager
def checkpointed(layers: Sequence[Any]) -> Iterator[None]:
    """The layers' passes inside keep only their inputs."""
    with _replaced(layers, partial(checkpoint, use_reentrant=False, preserve_rng_state=False)):
        yield


def _kept(layers: Sequence[Any], run: Callable[[], Any]) -> tuple[list[int], int]:
    """The bytes that each layer keeps, every storage counted once, and those of a layer's input."""
    held: dict[int, torch.UntypedStorage] = {}  # alive meanwhile, so that no address stands for two
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
    """`layer.forward(...)` is `call(forward, ...)` inside. An attribute of the instance, so no model code is touched,
    hooks stay outside, and what was there before is there again."""
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
