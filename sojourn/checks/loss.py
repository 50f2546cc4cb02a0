"""Checks a loss on synthetic tokens and reports, for each promise of the protocol, whether it is kept.

The tokens come as the trainer's own records (`PassOutput`, `SelectedTokens`), so a loss sees what it sees in a run.
The check cannot see whether the loss is that of the paper.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch

from sojourn.abilities import Chooses, HasColumns
from sojourn.backends.torch.trainer.pass_columns import COLUMNS, OF_DISTRIBUTIONS
from sojourn.backends.torch.trainer.pass_io import select_tokens
from sojourn.batch import Aggregate, to_batch
from sojourn.checks import synthetic
from sojourn.checks.promise import BrokenError, DoubtfulError, Promise, judge_all, require_declared
from sojourn.checks.report import Report
from sojourn.checks.synthetic import DeclaredStreams, Shape
from sojourn.protocols import PassOutput, SelectedTokens
from sojourn.train.requirements import PASS_COLUMNS
from sojourn.types import Batch, Credit, FloatArray

SHAPES = ((Shape(), Shape(turns=1, tokens=1)), (Shape(turns=2), Shape(turns=1)))  # one sequence for each shape
NEAR = 0.1  # nats between the policy and the sampler, inside any clip
FAR = 30.0  # nats between them: a token that is likely under one has a probability of 1e-13 under the other
ATOL, RTOL = 1e-6, 1e-4
FURTHER = COLUMNS.keys() | OF_DISTRIBUTIONS
PASS_NEEDS = PASS_COLUMNS | FURTHER  # the needs that the loss's own forward pass provides


class Passed(NamedTuple):
    """A batch and the model's outputs for its tokens, each of shape (N,)."""

    batch: Batch
    logprobs: FloatArray
    entropy: FloatArray
    values: FloatArray
    columns: Mapping[str, FloatArray]

    def take(self, sequence: int) -> Passed:
        span = np.arange(*self.batch.offsets[sequence : sequence + 2])
        columns = {name: column[span] for name, column in self.columns.items()}
        taken = self.batch.pick([span])
        return Passed(taken, self.logprobs[span], self.entropy[span], self.values[span], columns)

    def changed(self, **columns: FloatArray) -> Passed:
        return self._replace(batch=replace(self.batch, **columns))


class Answer(NamedTuple):
    """Holds what the loss returned for the n tokens that carry weight, and the inputs that it was called with."""

    per_token: Any
    metrics: Any
    out: PassOutput
    chosen: SelectedTokens
    streams: DeclaredStreams

    def gradient(self) -> torch.Tensor:
        """Returns the gradient of the sum of the per-token losses by logprobs, entropy, values and further columns of
        the pass: (3 + columns, n), 0 where none flows."""
        columns = (self.out.logprobs, self.out.entropy, self.out.values, *self.out.columns.values())
        inputs = [t for t in columns if t.requires_grad]
        if not self.per_token.requires_grad:
            return torch.zeros(len(columns), len(self.out.logprobs))
        gradients = torch.autograd.grad(self.per_token.sum(), inputs, allow_unused=True)
        by_input = {id(t): g for t, g in zip(inputs, gradients, strict=True) if g is not None}
        return torch.stack([by_input.get(id(t), torch.zeros_like(self.out.logprobs)) for t in columns])


@dataclass(frozen=True)
class Case:
    loss: Any

    @property
    def near(self) -> Passed:
        """Returns a batch in which the policy is close to the sampler's."""
        rng = np.random.default_rng(0)
        step = synthetic.step(SHAPES, self.loss.needs - PASS_NEEDS)
        credit = [[Credit.per_turn(t, rng.normal(size=len(t.turns))) for t in g.trajectories] for g in step.groups]
        batch = to_batch(step.groups, credit, step.streams, aggregate=Aggregate(), losses=[copy.deepcopy(self.loss)])
        gap = rng.uniform(-NEAR, NEAR, len(batch))
        entropy, values = rng.uniform((0, -1), (4, 1), (len(batch), 2)).astype("f4").T
        logprobs = (batch.logprobs + gap).astype(np.float32)
        columns = dict.fromkeys(sorted(self.loss.needs & FURTHER), np.maximum(logprobs, np.float32(-0.3)))
        if isinstance(self.loss, Chooses) and self.loss.chooses:
            batch = replace(batch, streams={**batch.streams, **copy.deepcopy(self.loss).choose(batch, logprobs)})
        return Passed(batch, logprobs, entropy, values, columns)

    @property
    def far(self) -> Passed:
        """Returns a batch in which tokens are in turn nearly certain to the policy and impossible to the sampler, and
        the reverse."""
        near = self.near
        even = np.arange(len(near.batch)) % 2 == 0
        certain, impossible = np.float32(-0.1), np.float32(-0.1 - FAR)
        return near.changed(logprobs=np.where(even, certain, impossible))._replace(
            logprobs=np.where(even, impossible, certain)
        )

    def call(self, passed: Passed) -> Answer:
        """Calls the loss as the trainer does: only outputs that it needs are given, and have a gradient."""
        where = np.flatnonzero(passed.batch.weight)
        whole = select_tokens(passed.batch, where)
        streams = DeclaredStreams(whole.streams)
        chosen = replace(whole, streams=streams)
        logprobs = torch.from_numpy(passed.logprobs[where]).requires_grad_()
        entropy = torch.from_numpy(passed.entropy[where]).requires_grad_("entropy" in self.loss.needs)
        values = torch.from_numpy(passed.values[where]).requires_grad_() if "critic" in self.loss.needs else None
        columns = {name: torch.from_numpy(column[where]).requires_grad_() for name, column in passed.columns.items()}
        out = PassOutput(logprobs, entropy, torch.zeros(0) if values is None else values, columns)
        answer = self.loss(out, chosen)
        if not (isinstance(answer, tuple) and len(answer) == 2):
            raise BrokenError(f"it gave a {type(answer).__name__}: expected the per-token losses and the metrics")
        return Answer(*answer, out, whole, streams)


def check_loss(loss: Any) -> Report:
    """Returns the verdicts on a loss, or on an object that is called like one; its streams are synthetic."""
    return Report(type(loss).__name__, judge_all(PROMISES, Case(loss)))


def _declares(case: Case) -> str:
    needs = require_declared(case.loss, {"needs": frozenset, "zero_at_zero_advantage": bool})
    return f"{needs}, zero_at_zero_advantage = {case.loss.zero_at_zero_advantage}"


def _reads(case: Case) -> str:
    near, needs = case.near, case.loss.needs
    answer = case.call(near)
    if unread := sorted(needs - PASS_NEEDS - answer.streams.read - _read_for_columns(case.loss, near)):
        raise DoubtfulError(f"it declares the stream '{unread[0]}' and does not read it: it is computed for nothing")
    if not isinstance(answer.per_token, torch.Tensor):
        return "and from nothing else"
    depends = _differ(answer.per_token, case.call(near._replace(entropy=near.entropy + 1)).per_token)
    if depends and "entropy" not in needs:
        raise DoubtfulError("its value depends on the entropy, its gradient does not: to train on it, name it in needs")
    if "entropy" in needs and not answer.gradient()[1].any():
        raise DoubtfulError("it declares 'entropy', but no gradient flows to it: not declared, it costs less")
    return "and from nothing else"


def _read_for_columns(loss: Any, passed: Passed) -> set[str]:
    streams, loss = DeclaredStreams(passed.batch.streams), copy.deepcopy(loss)
    batch = replace(passed.batch, streams=streams)
    if isinstance(loss, HasColumns):
        loss.columns(batch)
    if isinstance(loss, Chooses) and loss.chooses:
        loss.choose(batch, passed.logprobs)
    return streams.read


def _per_token(case: Case) -> str:
    for passed in (case.near, case.near.take(1)):
        answer = case.call(passed)
        _require_tensor(answer.per_token, len(answer.out.logprobs), "the loss")
        _require_finite(answer.per_token, "the loss")
    return "one value for each token, one token too"


def _metrics(case: Case) -> str:
    answer = case.call(case.near)
    if not isinstance(answer.metrics, Mapping):
        raise BrokenError(f"its metrics are a {type(answer.metrics).__name__}: expected names and per-token values")
    for name, values in answer.metrics.items():
        _require_tensor(values, len(answer.out.logprobs), f"the metric '{name}'")
        _require_finite(values, f"the metric '{name}'")
        if values.requires_grad:
            raise BrokenError(f"the metric '{name}' holds the graph in memory: detach() it")
    return ", ".join(answer.metrics) or "none"


def _flows(case: Case) -> str:
    near = case.near
    on_policy = near._replace(logprobs=near.batch.logprobs)  # each of these batches gives no gradient to some losses
    gradients = torch.cat([case.call(p).gradient() for p in (near, on_policy)], 1)
    inputs = ("logprobs", "entropy", "critic's values", *near.columns)
    reached = [name for name, gradient in zip(inputs, gradients, strict=True) if gradient.any()]
    if not reached:
        raise BrokenError(
            "no gradient flows to the logprobs, nor to an entropy or a critic that needs names: nothing is learnt"
        )
    _require_finite(gradients, "its gradient")
    return f"to the {' and the '.join(reached)}"


def _extremes(case: Case) -> str:
    answer = case.call(case.far)
    _require_finite(answer.per_token, f"at ratios of e^{FAR:g} and e^-{FAR:g} the loss")
    _require_finite(answer.gradient(), f"at ratios of e^{FAR:g} and e^-{FAR:g} the gradient")
    return f"at ratios of e^{FAR:g} and e^-{FAR:g}"


def _proportional(case: Case) -> str:
    without = [p.changed(advantages=np.zeros_like(p.batch.advantages)) for p in (case.near, case.far)]
    answers = [case.call(passed) for passed in without]
    silent = not any(answer.per_token.any() or answer.gradient().any() for answer in answers)
    if case.loss.zero_at_zero_advantage and not silent:
        worst = max(float(answer.per_token.detach().abs().max()) for answer in answers)
        raise BrokenError(
            f"zero_at_zero_advantage = True, but without advantage the loss is up to {worst:.3g}, or has a gradient: "
            "sequences that are skipped would have taught something"
        )
    if silent and not case.loss.zero_at_zero_advantage:
        raise DoubtfulError(
            "without advantage there is no loss: with zero_at_zero_advantage = True such sequences are skipped"
        )
    return "no advantage, no loss" if silent else "it teaches without advantage, and says so"


def _parts(case: Case) -> str:
    for passed in (case.near, case.far):
        whole = case.call(passed)
        parts = [case.call(passed.take(s)) for s in range(len(passed.batch.offsets) - 1)]
        values, gradients = [p.per_token for p in parts], [p.gradient() for p in parts]
        _require_same(whole.per_token, torch.cat(values), "with each sequence in a batch alone, the loss")
        _require_same(whole.gradient(), torch.cat(gradients, 1), "with each sequence in a batch alone, the gradient")
    return f"{len(parts)} sequences together, and each alone"


def _weights(case: Case) -> str:
    near = case.near
    heavier = near.changed(weight=near.batch.weight * np.float32(3))
    _require_same(case.call(near).per_token, case.call(heavier).per_token, "with three times the weight, the loss")
    return "it does not weigh what the trainer weighs"


def _leaves_inputs(case: Case) -> str:
    near = case.near
    first = case.call(near)
    untouched = select_tokens(near.batch, np.flatnonzero(near.batch.weight))
    columns = {**vars(first.chosen), **first.chosen.streams}
    for name, column in {**vars(untouched), **untouched.streams}.items():
        if isinstance(column, torch.Tensor) and not torch.equal(column, columns[name]):
            raise BrokenError(f"the batch's {name} are not what they were before the call: give new tensors")
    _require_same(first.per_token, case.call(near).per_token, "called again with the same batch, the loss")
    return "the same batch, the same loss"


def _require_tensor(value: Any, count: int, what: str) -> None:
    if not isinstance(value, torch.Tensor):
        raise BrokenError(f"{what} is a {type(value).__name__}: expected a tensor of ({count},)")
    if value.shape != (count,):
        raise BrokenError(
            f"{what} has the shape {tuple(value.shape)}: expected ({count},), one value per token and never a mean"
        )


def _require_finite(values: torch.Tensor, what: str) -> None:
    values = values.detach()
    if wrong := values[~torch.isfinite(values)].tolist():
        raise BrokenError(f"{what} is {wrong[0]} for {len(wrong)} of {values.numel()} values: expected finite numbers")


def _require_same(then: torch.Tensor, now: torch.Tensor, what: str) -> None:
    if difference := _differ(then, now):
        raise BrokenError(f"{what} {difference}")


def _differ(then: torch.Tensor, now: torch.Tensor) -> str:
    """Describes the largest difference; empty where it is within tolerance."""
    then, now = then.detach(), now.detach()
    if then.shape != now.shape:
        return f"has the shape {tuple(now.shape)}, but it had {tuple(then.shape)}"
    if torch.allclose(then, now, atol=ATOL, rtol=RTOL, equal_nan=True):
        return ""
    worst = int((then - now).abs().argmax())
    return f"is {now.flatten()[worst]:.6g}, but it was {then.flatten()[worst]:.6g}"


CALLED = ("it declares what it needs", "it reads what it declares")
SOUND = (*CALLED, "one value per token, never a mean")
PROMISES = (
    Promise(CALLED[0], (), _declares),
    Promise(CALLED[1], CALLED[:1], _reads),
    Promise(SOUND[2], CALLED, _per_token),
    Promise("metrics are per token, without a graph", SOUND, _metrics),
    Promise("a gradient reaches what is trained", SOUND, _flows),
    Promise("it is finite at extreme ratios", SOUND, _extremes),
    Promise("zero_at_zero_advantage is correct", SOUND, _proportional),
    Promise("a divided batch gives the same loss", SOUND, _parts),
    Promise("weights are left to the trainer", SOUND, _weights),
    Promise("its inputs are not modified", SOUND, _leaves_inputs),
)
