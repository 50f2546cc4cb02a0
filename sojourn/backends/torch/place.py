"""Says where a model computes, for the record of a run's parts."""

from __future__ import annotations

import socket
from typing import Any


def place_of(device: Any) -> dict[str, str]:
    """Returns the names of the node and of the device."""
    import torch

    name = str(device)
    if device.type == "cuda":
        name = f"{name} ({torch.cuda.get_device_name(device)})"
    return {"node": socket.gethostname(), "device": name}


def device_memory(device: Any) -> dict[str, float]:
    """Returns how much of a GPU's memory this process uses; nothing for another device."""
    import torch

    return {"gpu_memory_bytes": torch.cuda.memory_allocated(device)} if device.type == "cuda" else {}
