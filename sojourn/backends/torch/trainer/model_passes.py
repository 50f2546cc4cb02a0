"""Computes forward passes of the policy, and of its critic, over a batch.

A batch is divided into micro-batches, in each of which a shared prefix is computed once.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch

from sojourn.backends.torch.trainer import activations, head, pass_columns, shards
from sojourn.backends.torch.trainer.critic import Critic
from sojourn.backends.torch.trainer.decoder import Decoder
from sojourn.backends.torch.trainer.pass_io import MicroBatch
from sojourn.backends.torch.trainer.rounds import rounds_of_ranks
from sojourn.backends.torch.trainer.team import Alone, Team
from sojourn.backends.torch.trainer.worker_pool import WorkerPool
from sojourn.protocols import Forward, PassOutput
from sojourn.types import Batch, FloatArray, IntArray

T = TypeVar("T")


def _nothing(where: IntArray) -> Mapping[str, pass_columns.Compute]:
    return {}


class ModelPasses:
    """A model, its critic if it has one, and the limits within which a batch passes through them.

    At most `token_budget` distinct tokens are computed at once, in one micro-batch or in several side by side, as many
    as the cores allow. The activations that layers keep for the backward pass stay within `activation_bytes`, and the
    logits of a chunk within `logits_bytes`. Of a `team`, each process computes its micro-batches of the batch, or its
    part of them, and all get what all computed. With `shard`, each holds a part of the weights; `inside` then runs what
    reads them.
    """

    def __init__(
        self,
        model: Any,
        *,
        bf16: bool,
        token_budget: int,
        activation_bytes: float = float("inf"),
        logits_bytes: int = head.CHUNK_BYTES,
        kernel: bool = True,
        critic: Critic | None = None,
        team: Team | None = None,
        shard: bool = False,
    ) -> None:
        self.model, self.critic, self.token_budget, self.team = model, critic, token_budget, team or Alone()
        self.decoder = Decoder(model, bf16=bf16, kernel=kernel, activation_bytes=activation_bytes)
        self.device = self.decoder.device
        self.context = self.team.context
        for decoder in self._decoders:
            decoder.share(self.context)
        self.pool = WorkerPool(self.device)
        self._bf16, self._logits_bytes = bf16, logits_bytes
        self.root = self._shard() if shard else None

    def copy(self) -> ModelPasses:
        """Returns passes of a copy of the model within the same limits, without a critic; frozen weights are shared."""
        frozen = {id(p): p for p in self.model.parameters() if not p.requires_grad}
        return ModelPasses(
            copy.deepcopy(self.model, frozen),
            bf16=self._bf16,
            token_budget=self.token_budget,
            activation_bytes=self.decoder.activation_bytes,
            logits_bytes=self._logits_bytes,
            kernel=self.decoder.kernel,
            team=self.team,
        )

    @property
    def sharded(self) -> bool:
        return self.root is not None

    def gathered(self) -> Iterator[None]:
        """Yields once all weights are whole; of sharded ones once for each part of the model, while it is gathered in
        every process of the team."""
        return iter([None]) if self.root is None else shards.gathered(self.root)

    def inside(self, work: Callable[[], T]) -> T:
        """Runs work that reads weights, and returns its result; tensors in tuples and dicts may be differentiated."""
        return work() if self.root is None else self.root(work)

    @property
    def speaks(self) -> bool:
        """Returns whether what is computed here counts: of processes that compute the same, one does."""
        return self.context is None or self.context.rank == 0

    @property
    def _decoders(self) -> list[Decoder]:
        own = None if self.critic is None else self.critic.decoder
        return [self.decoder, *([own] if own else [])]

    def _shard(self) -> shards.Root:
        layers = [layer for decoder in self._decoders for layer in activations.layers_of(decoder.base.get_decoder())]
        own = () if self.critic is None else (self.critic.head, self.critic.model)
        return shards.shard([self.model, *(part for part in own if part is not None)], layers, self.device)

    def close(self) -> None:
        self.pool.close()

    def score(self, batch: Batch, needs: frozenset[str], tokens: IntArray) -> Forward:
        """Scores `tokens` (N,) at the indices of those with weight. `needs` may name "critic" and pass columns."""
        logprobs, entropy, values, next_values = np.zeros((4, len(batch)), dtype=np.float32)
        columns = {
            name: np.zeros(len(batch), dtype=pass_columns.COLUMNS[name].dtype) for name in sorted(needs - {"critic"})
        }
        scored = {"logprobs": logprobs, "entropy": entropy, "values": values, "next_values": next_values, **columns}

        @torch.no_grad()
        def score_micro_batch(micro_batch: MicroBatch) -> None:
            where = micro_batch.where
            out = self.forward(micro_batch, where, needs, tokens[micro_batch.indices[where]], after="critic" in needs)
            computed = {"logprobs": out.logprobs, "entropy": out.entropy, **out.columns}
            if "critic" in needs:
                computed["values"], computed["next_values"] = out.values.split(len(where))
            for name, tensor in computed.items() if self.speaks and not micro_batch.fills else ():
                scored[name][micro_batch.indices[where]] = tensor.cpu().numpy()

        for _ in self.run(list(self.rounds(batch)), score_micro_batch):
            pass
        self.team.sum_arrays(scored.values())
        return Forward(logprobs, entropy, values, next_values, columns)

    def hidden_states(self, batch: Batch, indices: IntArray, layer: int | None = None) -> FloatArray:
        """Returns the last hidden states (P, H), in fp32, after the tokens at these indices; or the residual stream
        after the layer of this number (0: the first)."""
        distinct, back = np.unique(indices, return_inverse=True)
        row_of = np.full(len(batch), -1)
        row_of[distinct] = np.arange(len(distinct))
        marked = replace(batch, weight=(row_of >= 0).astype(np.float32))
        size = self.model.config.get_text_config().hidden_size
        states = np.zeros((len(distinct), size), dtype=np.float32)

        @torch.no_grad()
        def read_micro_batch(micro_batch: MicroBatch) -> None:
            where, division = micro_batch.where, self.decoder.divide(micro_batch.tree)
            if division is not None:
                where = where[division.here(micro_batch.tree.node[where])]
            nodes, row = np.unique(micro_batch.tree.node[where], return_inverse=True)
            hidden = self.inside(lambda: read(micro_batch.tree, torch.from_numpy(nodes).to(self.device)))
            if not micro_batch.fills:
                states[row_of[micro_batch.indices[where]]] = hidden.float().cpu().numpy()[row]

        with self.decoder.reading(layer) as read:
            for _ in self.run(list(self.rounds(marked)), read_micro_batch):
                pass
        self.team.sum_arrays([states])
        return states[back]

    def rounds(self, batch: Batch) -> Iterator[list[MicroBatch]]:
        """Divides the sequences that carry weight, each cut after its last such token, into the micro-batches of this
        process; those of one round pass side by side."""
        weighed = [np.flatnonzero(batch.weight[a:b]) for a, b in zip(batch.offsets, batch.offsets[1:], strict=False)]
        spans = [a + np.arange(w[-1] + 1) for a, w in zip(batch.offsets, weighed, strict=False) if len(w)]
        together, sharing = self.sharded or self.context is not None, 1 if self.context is None else self.context.count
        cut, workers = batch.pick(spans), 1 if together else self.pool.count
        divided = rounds_of_ranks(cut, self.token_budget * sharing, workers, self.team.count // sharing)
        own = divided[self.team.rank // sharing]
        for micro_batches in own:
            yield [MicroBatch.of(cut, numbers, spans) for numbers in micro_batches]
        for _ in range(max(map(len, divided)) - len(own) if self.sharded else 0):
            yield [MicroBatch.filler(cut, spans)]

    def run(
        self, rounds: Sequence[Sequence[MicroBatch]], work: Callable[[MicroBatch], T]
    ) -> Iterator[tuple[MicroBatch, T]]:
        """Yields each micro-batch and the result of `work` on it, in order; uses the worker pool where any round has
        several micro-batches."""
        micro_batches = [micro_batch for together in rounds for micro_batch in together]
        tasks = [partial(work, micro_batch) for micro_batch in micro_batches]
        parallel = any(len(together) > 1 for together in rounds)
        return zip(micro_batches, self.pool.run(tasks) if parallel else (task() for task in tasks), strict=True)

    def forward(
        self,
        micro_batch: MicroBatch,
        where: IntArray,
        needs: frozenset[str],
        tokens: IntArray,
        *,
        after: bool = False,
        further: Callable[[IntArray], Mapping[str, pass_columns.Compute]] = _nothing,
    ) -> PassOutput:
        """Passes a micro-batch's tree through the model, and scores `tokens` (n,) at the indices `where` (n,) of it.

        Only hidden states that predict one of them go through the vocabulary head. The critic's values are those before
        each token; with `after`, those after each follow them: (2 n,). `further` gives columns beside those of
        `pass_columns` for the tokens at some indices.
        """
        batch, tree, base = micro_batch.batch, micro_batch.tree, self.decoder.base
        if np.isin(where, batch.offsets).any():
            raise ValueError("a sequence begins with a trained token: its context must hold at least one token")
        read = np.concatenate([tree.node[where - 1], *([tree.node[where]] if after else ())])
        division = self.decoder.divide(tree)
        here = np.arange(len(read)) if division is None else np.flatnonzero(division.here(read))
        scored = here[here < len(where)]
        distinct, back = np.unique(read[here], return_inverse=True)
        nodes, row = torch.from_numpy(distinct).to(self.device), torch.from_numpy(back).to(self.device)
        asked = {name: column.compute for name, column in pass_columns.COLUMNS.items() if name in needs}
        asked |= further(where[scored])

        def of_all(computed: torch.Tensor) -> torch.Tensor:
            return computed if division is None else division.collect(computed, tree.node[where - 1])

        def compute() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
            hidden = self.decoder(tree, nodes)
            # index_select: its gradient adds up repeated rows in one order, that of indexing does not
            before = hidden.index_select(0, row[: len(scored)])
            linear, query = base.get_output_embeddings(), self.query(batch, where[scored], tokens[scored])
            logprobs, entropy = head.score(before, linear, query)
            columns = {name: of_all(column(before, linear, query)) for name, column in asked.items()}
            values = torch.zeros(0)
            if "critic" in needs:
                if self.critic is None:
                    raise ValueError("values are asked for, but there is no critic: give the trainer one")
                values = self.critic(tree, nodes, hidden).index_select(0, row)
                values = values if division is None else division.collect(values, read)
            entropy = entropy if "entropy" in needs else entropy.detach()
            return of_all(logprobs), of_all(entropy), values, columns

        return PassOutput(*self.inside(compute))

    def query(self, batch: Batch, where: IntArray, tokens: IntArray) -> head.HeadQuery:
        """Asks the vocabulary head for `tokens` (n,) at the indices `where` (n,) of a batch."""
        return head.HeadQuery.of_model(
            self.decoder.base, batch, where, tokens, bf16=self._bf16, chunk_bytes=self._logits_bytes
        )

    def layers_to_recompute(self, tokens: int, needs: frozenset[str]) -> list[Any]:
        """Returns the layers to checkpoint (recompute in the backward pass) in a pass of this many tokens."""
        each = tokens if self.context is None else -(-tokens // self.context.count)
        decoders = self._decoders if "critic" in needs else [self.decoder]
        return self.inside(lambda: [layer for decoder in decoders for layer in decoder.layers_to_recompute(each)])
