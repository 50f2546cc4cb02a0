"""Shards of a model: each process of a team holds a part of every weight, its gradient and its moments (FSDP2).

Weights are gathered layer by layer where a pass needs them, and gradients are added up while they are divided again. So
every process must make the same passes in the same order.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

from sojourn.backends.torch.models import deferred
from sojourn.backends.torch.models.stored import StoredTensor

T = TypeVar("T")


class Root(torch.nn.Module):
    """Holds all that passes compute with, so that weights are gathered while a pass runs inside it."""

    def __init__(self, parts: Sequence[torch.nn.Module]) -> None:
        super().__init__()
        self.parts = torch.nn.ModuleList(parts)

    def forward(self, work: Callable[[], T]) -> T:
        """Returns what the work returns; only tensors in tuples and dicts of it are differentiated."""
        return work()


def shard(parts: Sequence[torch.nn.Module], layers: Sequence[torch.nn.Module], device: torch.device) -> Root:
    """Divides the weights of some modules between the processes of the default group, and returns what holds them.

    Each of the `layers` is gathered by itself, everything else together. Objectives are sums, so gradients are added up
    and not averaged. Of placeholders, whose weights are unread, each process gets its part without values: `fill` it.
    """
    from torch.distributed.fsdp import fully_shard  # takes seconds to import

    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view")  # which nothing changes
    root = Root(parts)
    deferred.to_meta(root)
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    for module in (*layers, root):
        sharded: Any = fully_shard(module, mesh=mesh, reshard_after_forward=True)
        sharded.set_gradient_divide_factor(1.0)
        sharded.set_force_sum_reduction_for_comms(True)
    if any(parameter.is_meta for parameter in root.parameters()):
        root._apply(lambda tensor: torch.empty_like(tensor, device=device) if tensor.is_meta else tensor)
    return root


@torch.no_grad()
def fill(tensors: Mapping[str, torch.Tensor], weights: deferred.Weights) -> None:
    """Gives tensors, by name, their values, one after the other; of a sharded one this process reads its part alone."""
    left = set(tensors)
    for name, stored in weights:
        part = tensors[name]
        local = part.to_local() if isinstance(part, DTensor) else part
        local.copy_(stored.read(*_rows(part)))
        left.remove(name)
    assert not left, f"weights without values: {sorted(left)}"


def _rows(tensor: torch.Tensor) -> tuple[int, int]:
    """Returns the first row of a tensor that this process holds, and the row behind its last one."""
    rows = len(tensor) if tensor.ndim else 1
    if not isinstance(tensor, DTensor):
        return 0, rows
    each = -(-rows // tensor.device_mesh.size())
    first = min(tensor.device_mesh.get_local_rank() * each, rows)
    return first, min(first + each, rows)


def full(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a whole tensor, gathered from all processes where it is sharded."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def part_of(parameter: torch.Tensor, stored: StoredTensor) -> torch.Tensor:
    """Returns a tensor as the parameter is held: on its device, and of a sharded one this process's part, which alone
    is read."""
    if not isinstance(parameter, DTensor) or stored.shape != tuple(parameter.shape):
        return stored.whole().to(parameter.device, copy=True)
    part = stored.read(*_rows(parameter)).to(parameter.device, copy=True)
    mesh, placements = parameter.device_mesh, parameter.placements
    return DTensor.from_local(part, mesh, placements, run_check=False, shape=parameter.shape, stride=parameter.stride())


def gradients_of(
    objectives: Mapping[str, torch.Tensor], parameters: Sequence[torch.nn.Parameter]
) -> dict[str, list[torch.Tensor | None]]:
    """Returns the gradient of each objective, a scalar, all through one graph, which is freed after the last. They are
    those of all processes; the parameters' own gradients stay as they are."""
    kept = [parameter.grad for parameter in parameters]
    *_, last = objectives
    found: dict[str, list[torch.Tensor | None]] = {}
    for name, objective in objectives.items():
        for parameter in parameters:
            parameter.grad = None
        objective.backward(retain_graph=name != last)
        found[name] = [parameter.grad for parameter in parameters]
    for parameter, gradient in zip(parameters, kept, strict=True):
        parameter.grad = gradient
    return found


def gathered(module: torch.nn.Module) -> Iterator[None]:
    """Gathers the weights of one sharded module after the other, and yields while they are whole."""
    from torch.distributed.fsdp import FSDPModule

    for one in module.modules():
        if isinstance(one, FSDPModule):
            one.unshard()
            try:
                yield
            finally:
                one.reshard()
