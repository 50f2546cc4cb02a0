"""The decoder: passes a tree of tokens through a model's layers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import get_ident
from typing import Any

import numpy as np
import torch

from sojourn.backends.torch.kernels import product
from sojourn.backends.torch.models.known_scores import KnownScores
from sojourn.backends.torch.trainer import activations, fused_layers, head, tree_attention
from sojourn.backends.torch.trainer.context_parallel import ContextGroup, Division
from sojourn.batch import share
from sojourn.errors import ModelError
from sojourn.types import Batch, FloatArray, IntArray

GROWING = frozenset({"dynamic", "longrope"})  # rotary positions that depend on the longest of a pass


class Decoder:
    """The decoder layers of a transformers model. Layers of a form that our kernel supports are computed by it.

    `layers_to_recompute` says which layers to checkpoint so that activations stay within `activation_bytes`. With
    `bf16`, on a CPU, the factors of matrix products and the embeddings are rounded to bf16, as the sampler's are, and
    everything else is fp32; their gradients are those of what was rounded. The processes of a `context` pass each tree
    together.
    """

    def __init__(self, model: Any, *, bf16: bool, kernel: bool = True, activation_bytes: float = float("inf")) -> None:
        self.base = base_of(model)
        self.device = next(self.base.parameters()).device
        self.activation_bytes = activation_bytes
        native = kernel and self.device.type == "cpu"
        self.kernel, self._autocast = kernel, False
        self._cost: activations.Cost | None = None
        self.context: ContextGroup | None = None
        packed = self.base.config._attn_implementation == tree_attention.NAME
        known = None if packed else KnownScores.of(self.base)
        tree_attention.use_packed(self.base)
        self.fused = native and fused_layers.fuse(self.base)
        if native:
            product.use_kernel(model, bf16=False)
        if known is not None:
            known.require(self._logprobs, self.base, "the trainer of backend 'torch'")
        if native:
            product.use_kernel(model, bf16=bf16)
        self._autocast = bf16 and not native
        if bf16:
            self.base.get_input_embeddings().register_forward_hook(_rounded)

    def __call__(self, tree: share.Tree, rows: torch.Tensor) -> torch.Tensor:
        """Returns the last hidden states (R, H) of the nodes `rows` (R,), ascending, which are computed here."""
        division, ids = self.divide(tree), (tree.tokens, tree.positions)
        if division is not None:
            ids = tuple(of_all[division.nodes] for of_all in ids)
            rows = self._computed(tree, rows)
        tokens, positions = (torch.from_numpy(one).to(self.device)[None] for one in ids)
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self._autocast):
            tree_mask = tree_attention.TreeMask(tree, self.device, rows, kernel=self.kernel, division=division)
            output = self.base.get_decoder()(
                input_ids=tokens, position_ids=positions, use_cache=False, tree_mask=tree_mask
            )
        hidden = output.last_hidden_state[0]
        return hidden if self.fused else hidden.index_select(0, rows)

    @torch.no_grad()
    def _logprobs(self, tokens: IntArray) -> FloatArray:
        """Returns the log-probabilities (S, L - 1) of the tokens of sequences (S, L), given those before, by products
        that round nothing."""
        one, none = np.ones(tokens.size, dtype=np.float32), np.zeros(tokens.size, dtype=np.int64)
        sequence = np.repeat(np.arange(len(tokens)), tokens.shape[1])
        batch = Batch(tokens.ravel(), sequence, one, one, one, one, sequence, none)
        where, tree = np.flatnonzero(np.arange(tokens.size) % tokens.shape[1]), share.merge(batch)
        hidden = self(tree, torch.arange(len(tree.tokens), device=self.device))
        query = head.HeadQuery.of_model(self.base, batch, where, batch.tokens[where], bf16=False)
        scored = head.score(hidden[tree.node[where - 1]], self.base.get_output_embeddings(), query)
        return scored.logprobs.cpu().numpy().reshape(len(tokens), -1)

    @contextmanager
    def reading(self, layer: int | None) -> Iterator[Callable[[share.Tree, torch.Tensor], torch.Tensor]]:
        """Gives a function of a tree and rows as a call takes them, which returns the residual stream (R, H) after a
        layer (0: the first), or the last hidden states without one. Several threads may call it at the same time."""
        if layer is None:
            yield self
            return
        layers = activations.layers_of(self.base.get_decoder())
        if not 0 <= layer < len(layers):
            raise ModelError(f"layer {layer}: expected one of the model's layers, 0 to {len(layers) - 1}")
        held: dict[int, Any] = {}  # by thread
        hook = layers[layer].register_forward_hook(lambda _, x, y: held.update({get_ident(): y}))

        def read(tree: share.Tree, rows: torch.Tensor) -> torch.Tensor:
            self(tree, rows)
            output = held.pop(get_ident())
            hidden = (output if isinstance(output, torch.Tensor) else output[0])[0]
            requested = self.fused and layer == len(layers) - 1  # what a fused last layer returns
            return hidden if requested else hidden.index_select(0, self._computed(tree, rows))

        try:
            yield read
        finally:
            hook.remove()

    def _computed(self, tree: share.Tree, rows: torch.Tensor) -> torch.Tensor:
        """Returns which of the nodes that are computed here the nodes `rows` are."""
        division = self.divide(tree)
        return rows if division is None else torch.searchsorted(torch.from_numpy(division.nodes).to(self.device), rows)

    def share(self, context: ContextGroup | None) -> None:
        """Lets the processes of a group pass each tree together from now on. Raises `ModelError` where what a model
        computes of a token depends on how long the rest is."""
        if context is not None and (kinds := _rope_kinds(self.base.config) & GROWING):
            raise ModelError(
                f"the model's positions are scaled by the length of the text (rope_type '{min(kinds)}'), of which each "
                "rank sees a part: set backend.trainer.context_parallel = 1"
            )
        self.context = context

    def divide(self, tree: share.Tree) -> Division | None:
        """Returns what of a tree is computed here; None where all of it is."""
        return None if self.context is None else self.context.divide(tree)

    def layers_to_recompute(self, tokens: int) -> Sequence[Any]:
        """Returns the layers to checkpoint (recompute in the backward pass) in a pass of this many tokens in each
        process."""
        layers = activations.layers_of(self.base.get_decoder())
        if self._cost is None:
            self._cost = activations.measure(layers, self.probe)
        return layers[: self._cost.count_to_recompute(tokens, self.activation_bytes)]

    def probe(self, tokens: int) -> None:
        """Passes one sequence, of this length in each process."""
        tree = share.line(tokens * (1 if self.context is None else self.context.count))
        division = self.divide(tree)
        self(tree, torch.from_numpy(tree.node if division is None else division.nodes).to(self.device))


def _rounded(module: Any, inputs: Any, embeddings: torch.Tensor) -> torch.Tensor:
    """Rounds embeddings to bf16; the gradient passes through (straight-through estimator)."""
    return embeddings + (embeddings.bfloat16().to(embeddings.dtype) - embeddings).detach()


def _rope_kinds(config: Any) -> set[str]:
    """Returns how rotary positions are computed, of all layers."""
    known = getattr(config.get_text_config(), "rope_parameters", None) or {}
    tables = [known, *(one for one in known.values() if isinstance(one, dict))]
    return {table["rope_type"] for table in tables if "rope_type" in table}


def base_of(model: Any) -> Any:
    """Returns the transformers model itself, without the adapters around it."""
    return model.get_base_model() if hasattr(model, "peft_config") else model
