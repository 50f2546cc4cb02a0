"""Applies torch.compile, as an option, to what torch runs outside attention: a layer's norms and its feed-forward part.

Attention, which reads tables of pages that differ from step to step, stays as it is. Compiling takes some ten seconds
when a process starts, and gained nothing on a CPU (`LOG.md`).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import torch

from sojourn.backends.torch.kernels import compiler
from sojourn.backends.torch.models import loading
from sojourn.backends.torch.trainer.activations import layers_of
from sojourn.models.spec import Model

PROBES = (1, 5, 16)  # rows of the trial inputs
ATTENTION = frozenset({"self_attn", "attn", "attention", "self_attention"})  # as models name it


def applies(model: Model, *, kernel: bool) -> bool:
    """Returns whether transformers runs the layers of models of this kind, and not our kernel, which is to be used with
    `kernel`, nor our own form of Llama (`decoders.build`)."""
    source = loading.resolve(model.name, model.revision)
    kind = "llama" if source.kind is loading.Kind.TINY else loading.model_type(source)
    return kind not in (loading.LLAMA_LIKE if kernel and not compiler.failure() else ("llama",))


def compile_layers(model: Any) -> None:
    """Compiles the parts of the decoder's layers and tries them; where that fails they stay as they were, with a
    warning that says why."""
    decoder = model.get_decoder()
    hidden, first = model.config.get_text_config().hidden_size, next(model.parameters())
    for part in _parts(decoder):
        part.compile(dynamic=True)
    try:
        with torch.inference_mode():
            for rows in PROBES:
                probe = torch.zeros(1, rows, hidden, dtype=first.dtype, device=first.device)
                for part in _parts(decoder):
                    part(probe)
    except RuntimeError as failure:  # as torch's compiler raises them
        for part in _parts(decoder):
            part._compiled_call_impl = None
        reason = str(failure).strip().splitlines()[0] if str(failure).strip() else type(failure).__name__
        warnings.warn(
            f"torch.compile does not work here, so nothing is compiled: {reason}", RuntimeWarning, stacklevel=2
        )


def _parts(decoder: Any) -> Iterator[Any]:
    for layer in layers_of(decoder):
        yield from (child for name, child in layer.named_children() if name not in ATTENTION)
