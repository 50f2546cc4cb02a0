"""The models that score what the policy sampled: frozen ones beside it, and the policy itself with other weights or
another context."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch

from sojourn.abilities import ComparesDistributions
from sojourn.backends.torch.models.loading import max_context
from sojourn.backends.torch.trainer import head, pass_columns
from sojourn.backends.torch.trainer.divergence import TeacherRows, divergences
from sojourn.backends.torch.trainer.model_passes import ModelPasses
from sojourn.composite import with_bases
from sojourn.errors import ConfigError
from sojourn.protocols import Loss
from sojourn.types import Batch, FloatArray, IntArray


class Scored(NamedTuple):
    """Holds what a model says of the n tokens of a batch that carry weight: its last hidden states before them, from
    which `weight` and `bias` of its vocabulary head compute its distributions, so that those are never held at once."""

    tokens: IntArray  # (n,)
    states: torch.Tensor  # (n, H)
    first: dict[int, int]  # the index of the first token of each turn
    weight: torch.Tensor  # (V, H)
    bias: torch.Tensor | None  # (V,)
    cap: float | None  # soft cap of the logits


class Teachers:
    """The frozen models that are open, by their names, and what those that were asked last said of a step."""

    def __init__(self) -> None:
        self.frozen: dict[str, ModelPasses] = {}
        self.scored: list[Scored] = []  # of each model that was asked

    def ask(self, passes: ModelPasses, batch: Batch, *, changes: bool) -> FloatArray:
        """Returns the log-probabilities (N,) of the tokens that carry weight, 0 at the others, and adds the rest of
        what the model says to `scored`. `changes` says whether its weights may change before that is read."""
        longest, limit = int(np.diff(batch.offsets).max(initial=0)), self.context_of(passes)
        if longest > limit:
            raise ConfigError(
                f"a teacher is to read {longest} tokens, the text that is added for it included, but reads at most "
                f"{limit}: lower backend.max_context, give it a shorter text, or take another teacher"
            )
        where = np.flatnonzero(batch.weight)
        linear = passes.decoder.base.get_output_embeddings()
        query = passes.query(batch, where, batch.tokens[where])
        with torch.no_grad():
            states = torch.from_numpy(passes.hidden_states(batch, where - 1))
            logprobs = head.score(states.to(passes.device), linear, query).logprobs
        weight = linear.weight.detach()
        turns, first = np.unique(batch.turn[where], return_index=True)
        self.scored.append(
            Scored(
                batch.tokens[where],
                states,
                dict(zip(turns.tolist(), first.tolist(), strict=True)),
                weight.clone() if changes and linear.weight.requires_grad else weight,
                None if linear.bias is None else linear.bias.detach().clone(),
                query.cap,
            )
        )
        scored = np.zeros(len(batch), dtype=np.float32)
        scored[where] = logprobs.cpu().numpy()
        return scored

    def compare(self, losses: Sequence[Loss], batch: Batch, where: IntArray) -> Mapping[str, pass_columns.Compute]:
        """Returns, for losses that compare distributions, how a pass computes their columns (n,) for the tokens of a
        batch at `where`."""
        comparing = [loss for loss in with_bases(losses) if isinstance(loss, ComparesDistributions)]
        if not comparing:
            return {}
        rows = self._rows(batch, where)
        return {loss.column: partial(divergences, teachers=rows, compare=loss.compare) for loss in comparing}

    def _rows(self, batch: Batch, where: IntArray) -> list[TeacherRows]:
        """Finds what the models that were asked last say of the tokens of a batch at `where`: each is known by its
        turn, and by its place in the turn."""
        begins = np.flatnonzero(np.diff(batch.turn, prepend=-2))
        place = where - begins[np.searchsorted(begins, where, "right") - 1]
        rows, known = list[TeacherRows](), 0
        for scored in self.scored:
            first = np.array([scored.first.get(int(turn), -1) for turn in batch.turn[where]], dtype=np.int64)
            at = np.flatnonzero(first >= 0)
            row = (first + place)[at]
            if len(at) and (row < len(scored.tokens)).all():
                known += np.count_nonzero(scored.tokens[row] == batch.tokens[where[at]])
                device = scored.weight.device
                states = scored.states[torch.from_numpy(row)].to(device)
                rows.append(
                    TeacherRows(torch.from_numpy(at).to(device), states, scored.weight, scored.bias, scored.cap)
                )
        if known != len(where):
            raise ValueError("a loss compares distributions of tokens of which no teacher was asked: ask one first")
        return rows

    @staticmethod
    def context_of(passes: ModelPasses) -> int:
        """Returns how many tokens a model can read."""
        return max_context(passes.decoder.base.config)

    def of_name(self, name: str) -> ModelPasses:
        """Returns the passes of a frozen model. Raises `ConfigError` where there is none of this name."""
        if name not in self.frozen:
            known = ", ".join(("policy", "reference", *self.frozen))
            raise ConfigError(f"no model '{name}' is open: expected one of {known}: add a table [models.{name}]")
        return self.frozen[name]

    def close(self) -> None:
        for passes in self.frozen.values():
            passes.close()
