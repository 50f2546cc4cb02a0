"""The models that score what the policy sampled: frozen ones beside it, ones behind servers, and the policy itself with
other weights or another context."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch

from sojourn.abilities import ComparesDistributions
from sojourn.ability import Ability
from sojourn.backends.torch.models.loading import max_context
from sojourn.backends.torch.trainer import head, pass_columns
from sojourn.backends.torch.trainer.divergence import TeacherRows, TeacherStates, TeacherTopTokens, divergences
from sojourn.backends.torch.trainer.model_passes import ModelPasses
from sojourn.backends.torch.trainer.shards import full
from sojourn.composite import with_bases
from sojourn.errors import ConfigError
from sojourn.models.prompt_scorer import ABSENT, PromptScorer
from sojourn.protocols import Loss
from sojourn.types import Batch, FloatArray, IntArray


class Scored(NamedTuple):
    """Holds what a model says of the n tokens of a batch that carry weight: no distributions, but what computes them,
    so that those are never held at once."""

    tokens: IntArray  # (n,)
    first: dict[int, int]  # the index of the first token of each turn
    said: TeacherStates | TeacherTopTokens

    @classmethod
    def of(cls, batch: Batch, where: IntArray, said: TeacherStates | TeacherTopTokens) -> Scored:
        turns, first = np.unique(batch.turn[where], return_index=True)
        return cls(batch.tokens[where], dict(zip(turns.tolist(), first.tolist(), strict=True)), said)


class ServedTeacher(NamedTuple):
    """A model behind a server, the longest context that it reads, and the length of the policy's vocabulary."""

    scorer: PromptScorer
    max_context: int
    vocabulary: int


@runtime_checkable
class HasTeachers(Ability, Protocol):
    """A trainer whose losses compare the policy with `teachers`, and the number of tokens in the policy's head."""

    teachers: Teachers

    @property
    def vocabulary(self) -> int: ...
    def context_of(self, model: str) -> int: ...


class Teachers:
    """The frozen models that are open and those behind servers, by their names, and what those that were asked last
    said of a step."""

    def __init__(self) -> None:
        self.frozen: dict[str, ModelPasses] = {}
        self.served: dict[str, ServedTeacher] = {}
        self.scored: list[Scored] = []  # of each model that was asked

    def ask(self, passes: ModelPasses, batch: Batch, *, changes: bool) -> FloatArray:
        """Returns the log-probabilities (N,) of the tokens that carry weight, 0 at the others, and adds the rest of
        what the model says to `scored`. `changes` says whether its weights may change before that is read."""
        _check_lengths(batch, max_context(passes.decoder.base.config))
        where = np.flatnonzero(batch.weight)
        linear = passes.decoder.base.get_output_embeddings()
        query = passes.query(batch, where, batch.tokens[where])
        with torch.no_grad():
            states = torch.from_numpy(passes.hidden_states(batch, where - 1))
            logprobs = passes.inside(lambda: head.score(states.to(passes.device), linear, query).logprobs)
            weight, bias = (None if part is None else full(part.detach()) for part in (linear.weight, linear.bias))
        assert weight is not None
        said = TeacherStates(
            states,
            weight.clone() if changes and linear.weight.requires_grad else weight,
            None if bias is None else bias.clone(),
            query.cap,
            query.scale,
        )
        self.scored.append(Scored.of(batch, where, said))
        scored = np.zeros(len(batch), dtype=np.float32)
        scored[where] = logprobs.cpu().numpy()
        return scored

    async def ask_servers(self, batches: Mapping[str, Batch]) -> tuple[dict[str, Batch], list[FloatArray]]:
        """Asks the models behind servers, and forgets what models said before. Returns the batches of the others, which
        are to be asked next, and the log-probabilities of each server's tokens."""
        self.scored = []
        said = [await self.ask_server(model, batch) for model, batch in batches.items() if model in self.served]
        return {model: batch for model, batch in batches.items() if model not in self.served}, said

    async def ask_server(self, name: str, batch: Batch) -> FloatArray:
        """Does as `ask` with a model behind a server. Each sequence is a request, cut after its last token that carries
        weight."""
        scorer, limit, vocabulary = self.served[name]
        _check_lengths(batch, limit)
        _check_unconstrained(name, batch)
        inside = [a + np.flatnonzero(batch.weight[a:b]) for a, b in pairwise(batch.offsets)]
        prompts = [batch.tokens[a : w[-1] + 1] for a, w in zip(batch.offsets, inside, strict=False) if len(w)]
        indices = [w - a for a, w in zip(batch.offsets, inside, strict=False) if len(w)]
        found = await scorer.score(prompts, indices)
        where, scored = np.flatnonzero(batch.weight), np.zeros(len(batch), dtype=np.float32)
        if found:
            logprobs, tokens, top = (np.concatenate(part) for part in zip(*found, strict=True))
            scored[where] = logprobs
            self.scored.append(Scored.of(batch, where, _within(name, vocabulary, tokens, top)))
        return scored

    def compare(
        self, losses: Sequence[Loss], batch: Batch, device: torch.device, where: IntArray
    ) -> Mapping[str, pass_columns.Compute]:
        """Returns, for losses that compare distributions, how a pass computes their columns (n,) for the tokens of a
        batch at `where`."""
        comparing = [loss for loss in with_bases(losses) if isinstance(loss, ComparesDistributions)]
        if not comparing:
            return {}
        rows = self._rows(batch, where, device)
        return {loss.column: partial(divergences, teachers=rows, loss=loss) for loss in comparing}

    def _rows(self, batch: Batch, where: IntArray, device: torch.device) -> list[TeacherRows]:
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
                said = scored.said.pick(torch.from_numpy(row)).to(device)
                rows.append(TeacherRows(torch.from_numpy(at).to(device), said))
        if known != len(where):
            raise ValueError("a loss compares distributions of tokens of which no teacher was asked: ask one first")
        return rows

    def context_of(self, name: str) -> int:
        """Returns how many tokens a model beside the policy can read."""
        if name in self.served:
            return self.served[name].max_context
        return max_context(self.of_name(name).decoder.base.config)

    def of_name(self, name: str) -> ModelPasses:
        """Returns the passes of a frozen model. Raises `ConfigError` where there is none of this name."""
        if name not in self.frozen:
            known = ", ".join(("policy", "reference", *self.frozen, *self.served))
            raise ConfigError(f"no model '{name}' is open: expected one of {known}: add a table [models.{name}]")
        return self.frozen[name]

    def close(self) -> None:
        for passes in self.frozen.values():
            passes.close()


def _check_lengths(batch: Batch, limit: int) -> None:
    """Refuses sequences that a teacher cannot read."""
    longest = int(np.diff(batch.offsets).max(initial=0))
    if longest > limit:
        raise ConfigError(
            f"a teacher is to read {longest} tokens, the text that is added for it included, but reads at most "
            f"{limit}: lower backend.max_context, give it a shorter text, or take another teacher"
        )


def _check_unconstrained(name: str, batch: Batch) -> None:
    """Refuses tokens of which a server cannot say how likely they were: it knows neither the temperature, nor the
    tokens that were allowed, nor images."""
    where = np.flatnonzero(batch.weight)
    other = batch.temperature[where][batch.temperature[where] != 1]
    if len(other):
        raise ConfigError(
            f"models.{name} is to score tokens that were sampled at temperature {other[0]:g}, but servers score at "
            "temperature 1: set sampling.temperature = 1, or take a teacher without an endpoint"
        )
    if not batch.allowed.keys().isdisjoint(where.tolist()):
        raise ConfigError(
            f"models.{name} is to score tokens that were sampled among few (choices), but servers score among all "
            "tokens: let the agent sample without choices, or take a teacher without an endpoint"
        )
    if batch.images and any(batch.images[sequence] for sequence in np.unique(batch.sequence[where])):
        raise ConfigError(f"models.{name} is to score texts with images, which are not sent to servers: take another")


def _within(name: str, vocabulary: int, tokens: IntArray, logprobs: FloatArray) -> TeacherTopTokens:
    """Returns a teacher's likeliest tokens (n, k) without those that the policy does not have, which then count among
    all others."""
    order = np.argsort(tokens >= vocabulary, axis=1, kind="stable")  # unknown tokens come last
    ordered = np.take_along_axis(tokens, order, 1)
    known = np.where(ordered < vocabulary, ordered, ABSENT)
    if known.size and (known[:, 0] == ABSENT).any():
        raise ConfigError(
            f"models.{name}: in some places none of its {tokens.shape[1]} likeliest tokens is below {vocabulary}, the "
            "length of the policy's vocabulary: use a model of the same family"
        )
    return TeacherTopTokens(torch.from_numpy(known), torch.from_numpy(np.take_along_axis(logprobs, order, 1)))
