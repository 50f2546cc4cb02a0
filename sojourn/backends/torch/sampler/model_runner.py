"""Runs the model in the engine's thread: one step at a time, and new weights between steps."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from transformers.pytorch_utils import Conv1D

from sojourn.activation_steering import Steering
from sojourn.backends.torch.kernels import kernel as kernels
from sojourn.backends.torch.kernels.cache import PAGE, KeyValues
from sojourn.backends.torch.models.adapters import Adapter
from sojourn.backends.torch.models.known_scores import KnownScores
from sojourn.backends.torch.sampler import decoders, sampling
from sojourn.backends.torch.sampler.attention import Piece, Probe, StepLayout
from sojourn.backends.torch.sampler.decoders import Weights
from sojourn.backends.torch.sampler.prefix_cache import Claim, Copy, PrefixTree
from sojourn.backends.torch.sampler.request import Request
from sojourn.backends.torch.sampler.sampling import Row
from sojourn.backends.torch.sampler.steering import Mark, Steerings
from sojourn.errors import ConfigError, ModelError
from sojourn.types import FloatArray, IntArray


class ScheduledPiece(NamedTuple):
    """The tokens of one request that a step computes."""

    request: Request
    piece: Piece

    @property
    def rows(self) -> int:
        """Returns how many of the piece's last tokens need logits."""
        if self.request.params is None:
            return self.piece.end - self.piece.begin
        return int(self.piece.end == self.piece.context.known)


class DrawnToken(NamedTuple):
    """A token that was sampled, and the parameters by which it was."""

    token: int
    logprob: float
    row: Row


class Outcome(NamedTuple):
    """The result of a step for one request, whose context is now computed up to token `end`."""

    request: Request
    end: int
    drawn: DrawnToken | None = None
    scores: FloatArray | None = None


class ModelRunner:
    """A model that attends through a cache, which fits into `memory_bytes` and holds at most `tokens` tokens."""

    def __init__(
        self, model: Any, length: int, memory_bytes: int, tokens: int, *, kernel: bool, compiled: bool
    ) -> None:
        self._model = model.eval().requires_grad_(False)
        known = KnownScores.of(self._model, length)
        shapes = Probe().run(self._model)
        first = next(self._model.parameters())
        self.device = first.device
        token_bytes = sum(shape.size(first.dtype) for shape in shapes)
        pages, needed = min(memory_bytes // token_bytes, tokens) // PAGE, -(-length // PAGE)
        if pages < needed:
            raise ConfigError(
                f"one context of {length} tokens takes {needed * PAGE * token_bytes / 2**20:.2f} MiB of cache, but the "
                f"sampler has {memory_bytes / 2**20:.2f}: raise its memory or lower max_context"
            )
        self.tree = PrefixTree(pages, PAGE, length)
        self.vocab_size = self._model.get_input_embeddings().num_embeddings
        self._steerings = Steerings(self._model)
        self._cache = KeyValues(shapes, pages, first.dtype, self.device)
        heads = self._model.config.get_text_config().num_attention_heads
        self._kernel = kernels.load(shapes, heads, first.dtype, self.device) if kernel else None
        self._decoder = decoders.build(self._model, self._kernel, self._cache, by_inductor=compiled)
        self._compiled = compiled and type(self._decoder) is decoders.TransformersDecoder
        self._linear = dict(_linear_layers(self._model))
        self._shapes = {name: p.shape for name, p in self._model.named_parameters(remove_duplicate=False)}
        if known is not None:
            known.require(self._logprobs, self._model, "the sampler of backend 'torch'")

    @torch.inference_mode()
    def step(self, scheduled: list[ScheduledPiece], copies: list[Copy]) -> list[Outcome]:
        """Copies pages, then computes all pieces in one pass of the model, draws tokens and computes scores."""
        for copy in copies:
            self._cache.copy(copy.source, copy.target)
        by_length = self._kernel is None
        scheduled = sorted(scheduled, key=lambda one: (by_length and one.piece.is_long, one.piece.context.model))
        layout = StepLayout(self._cache, [piece for _, piece in scheduled], self.device, self._kernel)
        known = np.concatenate([self.tree.tokens(*piece) for piece in layout.pieces])
        tokens, steered = self._steerings.read(known)
        logit_counts = [one.rows for one in scheduled]
        stops = np.cumsum(logit_counts)  # the end of each piece's rows of logits
        index = np.arange(stops[-1]) + np.repeat(np.cumsum(layout.counts) - stops, logit_counts)
        row, logit_rows = (torch.from_numpy(array).to(self.device) for array in (tokens, index))
        return self._outcomes(self._decoder(row, layout, logit_rows, steered), scheduled, logit_counts, stops)

    def _outcomes(
        self, logits: torch.Tensor, scheduled: list[ScheduledPiece], logit_counts: list[int], stops: np.ndarray
    ) -> list[Outcome]:
        """Draws tokens and computes scores from a step's logits. Request n has `logit_counts[n]` of its rows, up to row
        `stops[n]`."""
        sampled = [n for n, one in enumerate(scheduled) if logit_counts[n] and one.request.params is not None]
        drawn: dict[int, DrawnToken] = {}
        if sampled:
            rows = [scheduled[n].request.row() for n in sampled]
            chosen = logits if len(rows) == len(logits) else logits[stops[sampled] - 1]
            result = sampling.draw(chosen, rows, self._kernel)
            drawn = dict(zip(sampled, map(DrawnToken, result.tokens, result.logprobs, rows), strict=True))
        outcomes = []
        for n, (request, piece) in enumerate(scheduled):
            scores = None
            if request.params is None:
                targets = torch.from_numpy(request.prompt[piece.begin + 1 : piece.end + 1]).to(self.device)
                scores = sampling.score(logits[stops[n] - logit_counts[n] : stops[n]], targets)
            outcomes.append(Outcome(request, piece.end, drawn.get(n), scores))
        return outcomes

    @torch.inference_mode()
    def _logprobs(self, tokens: IntArray) -> FloatArray:
        """Returns the log-probabilities (S, L - 1) of the tokens of sequences (S, L), given those before; to be asked
        before any context is in the cache."""
        scores, count = [], tokens.shape[1] - 1
        for row in torch.from_numpy(tokens).to(self.device):
            claim = PrefixTree(-(-count // PAGE), PAGE, count).claim(row[:-1].cpu().numpy(), 0, reuse=False)
            assert isinstance(claim, Claim), "an empty tree has room"
            for begin, end in pairwise((0, count // 2, count // 2 + 1, count)):  # as a chunk, a token, a chunk
                layout = StepLayout(self._cache, [Piece(claim.context, begin, end)], self.device, self._kernel)
                logits = self._decoder(row[begin:end], layout, torch.arange(end - begin, device=self.device))
                scores.append(sampling.score(logits, row[begin + 1 : end + 1]))
        return np.concatenate(scores).reshape(len(tokens), count)

    @torch.no_grad()
    def load(self, weights: Weights) -> None:
        self._decoder.load(self._checked(weights))

    @torch.no_grad()
    def add_adapter(self, name: str, adapter: Adapter) -> None:
        """Adds an adapter, or replaces the one of that name. Raises `ModelError` where it is not of this model."""
        if self._compiled:
            raise ModelError(f"adapter '{name}': parts of the model are compiled, which take none: set compile = false")
        for layer, pair in adapter.items():
            module = self._linear.get(layer)
            sizes = pair.down.shape[1], len(pair.up)
            if module != sizes:
                actual = "no such layer that takes one" if module is None else f"one from {module[0]} to {module[1]}"
                raise ModelError(
                    f"adapter '{name}' adds to a linear layer '{layer}' from {sizes[0]} to {sizes[1]} numbers, but the "
                    f"sampler's model has {actual}: an adapter must be trained over the same model"
                )
        self._decoder.add_adapter(name, adapter)

    def drop_adapter(self, name: str) -> None:
        self._decoder.drop_adapter(name)

    def mark(self, steering: Steering) -> Mark:
        """Returns how the prefix tree knows tokens that are steered so. Raises `ModelError` where the steering is not
        of this model."""
        if self._compiled:
            raise ModelError("steering: parts of the model are compiled, which add nothing: set compile = false")
        return self._steerings.mark(steering, kernel=isinstance(self._decoder, decoders.CDecoder))

    def _checked(self, weights: Weights) -> Weights:
        for name, tensor in weights:
            shape = self._shapes.get(name)
            if shape != tensor.shape:
                actual = "no such parameter" if shape is None else f"shape {tuple(shape)} there"
                raise ModelError(
                    f"published '{name}' of shape {tuple(tensor.shape)}, but the sampler's model has {actual}: "
                    "trainer and sampler must be copies of one model"
                )
            yield name, tensor


def _linear_layers(model: Any) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yields the names of the linear layers but the head, with the number of inputs and of outputs."""
    for name, module in model.named_modules():
        if module is model.get_output_embeddings():
            continue
        if isinstance(module, torch.nn.Linear):
            yield name, (module.in_features, module.out_features)
        elif isinstance(module, Conv1D):
            yield name, (module.nx, module.nf)
