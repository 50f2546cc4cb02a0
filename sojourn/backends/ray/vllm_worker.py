"""What runs inside vLLM's own processes: new weights out of memory that is shared, and choices token by token.

vLLM imports this module by its name, in each process that holds a part of the model; nothing else imports it.
"""

from __future__ import annotations

import multiprocessing
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
from vllm.v1.executor.uniproc_executor import UniProcExecutor
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor
from vllm.v1.sample.logits_processor.builtin import process_dict_updates

from sojourn.backends.ray.packed_weights import PackedTensor, PackedWeights
from sojourn.backends.ray.vllm_mapping import CHOICES, WEIGHTS, Constraint


@dataclass
class SharedWeights(WeightTransferUpdateInfo):
    """Says where packed weights lie: the file that holds their bytes, and the place of each tensor."""

    path: str
    tensors: list[list[Any]]

    def open(self) -> PackedWeights:
        """Maps the file into memory. What is written to it there stays in this process."""
        places = tuple(
            PackedTensor(name, dtype, tuple(shape), start, stop) for name, dtype, shape, start, stop in self.tensors
        )
        return PackedWeights(np.memmap(self.path, dtype=np.uint8, mode="c"), places)


class SharedMemory(WeightTransferEngine[WeightTransferInitInfo, SharedWeights]):
    """Loads new weights from a file in memory, as vLLM loads a checkpoint."""

    init_info_cls = WeightTransferInitInfo
    update_info_cls = SharedWeights

    def init_transfer_engine(self, init_info: WeightTransferInitInfo) -> None: ...

    def start_weight_update(self) -> None:
        from vllm.model_executor.model_loader.reload import initialize_layerwise_reload

        initialize_layerwise_reload(self.model)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Loads all weights. vLLM's own method ends by waiting for an accelerator, which there may not be."""
        self.receive_weights(self.parse_update_info(update_info))
        if self.device.type != "cpu":
            torch.accelerator.synchronize()

    def receive_weights(self, update_info: SharedWeights) -> None:
        model: Any = self.model
        model.load_weights(update_info.open().unpack())

    def finish_weight_update(self) -> None:
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload

        finalize_layerwise_reload(self.model, self.model_config)
        if self.device.type == "cpu":
            pack_heads(self.model)

    def shutdown(self) -> None: ...


def pack_heads(model: Any) -> None:
    """Packs each head anew. vLLM for CPUs packs a copy of a head's weights, and where the head shares them with the
    embedding, they come under the embedding's name alone: reloading leaves the copy as it was."""
    for module in model.modules():
        if isinstance(module, ParallelLMHead):
            module.quant_method.process_weights_after_loading(module)


WeightTransferEngineFactory.register_engine(WEIGHTS, SharedMemory)


class OneProcess(UniProcExecutor):
    """Lets the model live in the process of vLLM's engine, on CPUs too, and has it leave nothing behind if it is
    killed."""

    def _init_executor(self) -> None:
        """Loads the model. Locks that are made meanwhile have no name that would outlive the process, as they have
        where processes are forked."""
        method = multiprocessing.get_start_method()
        multiprocessing.set_start_method("fork", force=True)
        try:
            super()._init_executor()
        finally:
            multiprocessing.set_start_method(method, force=True)


class Extension:
    """Is added to vLLM's workers, so that they import this module."""


@dataclass(eq=False)
class ConstrainedRow:
    """A request whose sample is one of given choices. `drawn` is vLLM's own list, which grows."""

    constraint: Constraint
    drawn: list[int]
    known: int = 0  # how many of them the constraint has seen

    def allowed(self) -> list[int]:
        for token in self.drawn[self.known :]:
            self.constraint.advance(token)
        self.known = len(self.drawn)
        return self.constraint.allowed()


class ChoicesProcessor(LogitsProcessor):
    """Leaves each request that has choices only the tokens that continue one of them."""

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        self._rows: dict[int, ConstrainedRow] = {}

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        process_dict_updates(self._rows, batch_update, _row)

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        for number, row in self._rows.items():
            ids = torch.tensor(row.allowed(), device=logits.device)
            kept = logits[number, ids]
            logits[number] = -torch.inf
            logits[number, ids] = kept
        return logits


def _row(params: Any, prompt: list[int] | None, drawn: list[int]) -> ConstrainedRow | None:
    given = (params.extra_args or {}).get(CHOICES)
    return None if given is None else ConstrainedRow(Constraint(**given), drawn)
