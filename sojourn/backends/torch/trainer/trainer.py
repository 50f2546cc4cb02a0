"""The trainer: gradients of losses over a batch, AdamW, and the weights that samplers are given."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from functools import partial, reduce
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch

from sojourn.abilities import PartLoad
from sojourn.backends.torch.models.loading import max_context
from sojourn.backends.torch.models.lora import merged
from sojourn.backends.torch.models.stored import stored
from sojourn.backends.torch.place import device_memory, place_of
from sojourn.backends.torch.trainer import activations, pass_columns, shards
from sojourn.backends.torch.trainer.critic import PREFIX
from sojourn.backends.torch.trainer.gradient_division import GradientDivision, Gradients, gradients_of
from sojourn.backends.torch.trainer.model_passes import ModelPasses
from sojourn.backends.torch.trainer.optimizer import Optimizer
from sojourn.backends.torch.trainer.pass_io import MicroBatch, select_tokens
from sojourn.backends.torch.trainer.teachers import Teachers
from sojourn.backends.torch.trainer.weight_files import OPTIMIZER, REFERENCE, load_weights, save, save_weights
from sojourn.gauge import Gauge, Work
from sojourn.protocols import Forward, Loss
from sojourn.timeline import Timeline
from sojourn.types import Batch, FloatArray, IntArray

T = TypeVar("T")
UPDATE = "update"  # the name of the objective that is minimised; losses may name further ones
COUNTS = ("loss", "trained_tokens", "sequence_tokens", "computed_tokens", "weight")  # what micro-batches add up
Weights = Iterator[tuple[str, torch.Tensor]]


class MicroBatchResult(NamedTuple):
    """Holds the results of a micro-batch: gradients by objective, the value of the objective that is minimised, the
    weighted sums of metrics, and the sum of weights."""

    gradients: Mapping[str, Gradients]
    objective: float
    sums: Mapping[str, float]
    weight: float


class TorchTrainer:
    """Trains one model, and its critic, in one process or in each process of a team (`protocols.Trainer`).

    The work is done in a thread of its own, so that rollouts can go on beside it. `send` gives published weights to the
    samplers; the attribute `send` may be replaced by what gives them the present weights in another form. The processes
    of a team are told the same in the same order: each computes gradients of its share of a batch, and they are added
    up before an update, so that all take the same one.
    """

    def __init__(
        self, passes: ModelPasses, send: Callable[[Weights, int], Awaitable[None]], timeline: Timeline | None = None
    ) -> None:
        self.passes, self.model, self.critic, self.version = passes, passes.model, passes.critic, 0
        self.team = passes.team
        self.teachers = Teachers()
        self._timeline = timeline or Timeline()
        self.send: Callable[[int], Awaitable[None]] = lambda version: send(self.weights(), version)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="trainer")
        self._optimizers: dict[str, Optimizer] = {}  # "policy", and "critic" where there is one
        self._step = 0
        self._gauge, self._passes, self._pass_s, self._loaded = Gauge(), 0, 0.0, Work()
        self._division = GradientDivision()
        self._reference: dict[str, torch.Tensor] | None = None

    @property
    def trainable(self) -> dict[str, torch.nn.Parameter]:
        """Returns the policy's trained parameters by name."""
        return {name: p for name, p in self.model.named_parameters() if p.requires_grad}

    @property
    def parameters(self) -> dict[str, torch.nn.Parameter]:
        """Returns all trained parameters by name: the policy's, then the critic's."""
        return {**self.trainable, **(self.critic.parameters if self.critic is not None else {})}

    # -- passes, updates, publishing

    async def forward(
        self,
        batch: Batch,
        *,
        reference: bool = False,
        critic: bool = False,
        columns: Sequence[str] = (),
        tokens: IntArray | None = None,
    ) -> Forward:
        """Returns the log-probabilities of the tokens that carry weight, or of other `tokens` (N,) in their positions,
        under the present weights or those that the stage began with. `critic` asks for its values too, `columns` for
        those of `pass_columns`."""
        if unknown := set(columns) - pass_columns.COLUMNS.keys():
            known = ", ".join(pass_columns.COLUMNS)
            raise ValueError(f"a pass has no column '{min(unknown)}': expected some of {known}")
        needs = frozenset(columns) | ({"critic"} if critic else set())
        scored = batch.tokens if tokens is None else tokens

        def score() -> Forward:
            with self._reference_weights() if reference else nullcontext():
                return self.passes.score(batch, needs, scored)

        return await self._run(score)

    async def hidden_states(
        self, batch: Batch, indices: IntArray, *, reference: bool = False, layer: int | None = None
    ) -> FloatArray:
        """Returns the last hidden states (P, H), in fp32, after the tokens at these indices, of the present weights or
        of those that the stage began with; with `layer` the residual stream after that layer (`HasHiddenStates`)."""

        def read() -> FloatArray:
            with self._reference_weights() if reference else nullcontext():
                return self.passes.hidden_states(batch, indices, layer)

        return await self._run(read)

    @property
    def vocabulary(self) -> int:
        """Returns how many tokens the policy's head knows."""
        return self.passes.decoder.base.get_output_embeddings().out_features

    def context_of(self, model: str) -> int:
        """Returns how many tokens a model can read (`ScoresTokens`)."""
        own = model in ("policy", "reference")
        return max_context(self.passes.decoder.base.config) if own else self.teachers.context_of(model)

    async def ask_models(self, batches: Mapping[str, Batch]) -> FloatArray:
        """Returns the log-probabilities (N,) that models give to the tokens that carry weight (`ScoresTokens`)."""

        def ask(model: str, batch: Batch) -> FloatArray:
            if model == "reference":
                with self._reference_weights():
                    return self.teachers.ask(self.passes, batch, changes=False)
            own = model == "policy"
            return self.teachers.ask(self.passes if own else self.teachers.of_name(model), batch, changes=own)

        here, said = await self.teachers.ask_servers(batches)
        said += await self._run(lambda: [ask(model, batch) for model, batch in here.items()])
        return reduce(np.add, said)

    async def forward_backward(self, batch: Batch, losses: Sequence[Loss]) -> Mapping[str, float]:
        """Adds the gradient of `(loss * weight).sum()`; returns metrics, which are means under the same weights.

        Where all losses are 0 at advantage 0, sequences without any advantage are not computed, and so are in none of
        the metrics: entropy, KL and clip fraction are then those of the other sequences. `trained_tokens` counts the
        tokens that carried loss, `sequence_tokens` those of their sequences, contexts included, and `computed_tokens`
        the same with every shared prefix counted once.
        """
        began = time.monotonic()
        metrics = await self._run(lambda: self._accumulate(batch, losses))
        self._passes, self._pass_s = self._passes + 1, time.monotonic() - began
        return metrics

    async def optim_step(self) -> Mapping[str, float]:
        """Takes one AdamW step on the gradient so far, clipped, the critic's by itself; without any gradient no weight
        changes, but the update counts in the schedule. Raises `ModelError`, with the weights as they were, where the
        gradient is not finite."""
        return await self._run(self._update)

    async def publish(self) -> int:
        """Gives the samplers the present weights, under the next version number."""
        self.version += 1
        await self.send(self.version)
        return self.version

    @torch.no_grad()
    def weights(self) -> Weights:
        """Yields the policy's weights as samplers take them, with adapters merged in. Where they are sharded, they are
        gathered layer by layer, and every process must take them all."""
        for _ in self.passes.gathered():
            for name, weight in merged(self.model):
                yield name, weight.clone() if self.passes.sharded else weight

    # -- stages and persistence

    def begin(self, optim: Any, updates: int, *, reference: bool) -> None:
        """Begins a stage of `updates` updates: new optimisers, and the present weights as the reference if asked."""
        self._step = 0
        self._optimizers = {"policy": Optimizer(self.trainable, optim, updates)}
        if self.critic is not None:
            self._optimizers["critic"] = Optimizer(self.critic.parameters, self.critic.optim, updates)
        self._reference = {n: p.detach().clone() for n, p in self.trainable.items()} if reference else None

    def save(self, folder: Path, *, weights_only: bool = False) -> None:
        """Writes trained weights and, unless they are enough, reference weights and the optimisers' moments. Of a team,
        the first process does. What the trainer is asked meanwhile waits, as this does for what it was asked before, so
        that it may be called in any thread."""
        self._thread.submit(self._save, folder, weights_only).result()

    def _save(self, folder: Path, weights_only: bool) -> None:
        first = self.team.rank == 0
        save_weights(folder, self.trainable, self.critic.parameters if self.critic is not None else None, write=first)
        if weights_only:
            return
        if self._reference is not None:
            save(self._reference.items(), folder / REFERENCE, write=first)
        moments = (moment for optimizer in self._optimizers.values() for moment in optimizer.moments())
        save(moments, folder / OPTIMIZER, write=first)

    def load(self, folder: Path, *, weights_only: bool = False) -> None:
        """Restores what `save` wrote; call `begin` first unless only weights are wanted. Weights of a run without a
        critic leave the critic as it is."""
        critic = self.critic.parameters if self.critic is not None else None
        load_weights(folder, self.trainable, critic, weights_only=weights_only)
        if weights_only:
            return
        if self._reference is not None:
            loaded = stored(folder / REFERENCE)
            self._reference = {name: shards.part_of(self.trainable[name], value) for name, value in loaded}
        assert self._optimizers, "call begin() before load()"
        for path, value in stored(folder / OPTIMIZER):
            self._optimizers["critic" if path.startswith(PREFIX) else "policy"].restore(path, value)

    def state(self) -> Mapping[str, Any]:
        return {"version": self.version, "step": self._step}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.version, self._step = state["version"], state["step"]

    def work(self) -> Work:
        """Returns what the trainer has done so far."""
        self._gauge.add(0)
        return Work(self._passes, self._pass_s, self._gauge.busy_s)

    async def part_loads(self) -> list[PartLoad]:
        """Returns what the trainer does (`ReportsParts`)."""
        before, work, busy = self._loaded, self.work(), self._gauge.take()
        self._loaded = work
        numbers = {"busy_share": busy.share, **work.numbers(before), **device_memory(self.passes.device)}
        return [PartLoad(name="trainer", kind="trainer", facts=place_of(self.passes.device), numbers=numbers)]

    def close(self) -> None:
        self._thread.shutdown(wait=True)
        self.passes.close()
        self.teachers.close()

    # -- inside

    async def _run(self, work: Callable[[], T]) -> T:
        with self._timeline.during("train"), self._gauge.during():
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    @contextmanager
    def _reference_weights(self) -> Iterator[None]:
        """Gives the parameters the reference weights inside the context."""
        if self._reference is None:
            raise ValueError(
                "no reference weights: the stage began without them: a stream that reads them says `reference = True`"
            )
        present = {name: p.detach().clone() if self.passes.sharded else p.data for name, p in self.trainable.items()}
        try:
            self._hold(self._reference)
            yield
        finally:
            self._hold(present)

    def _hold(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Makes the parameters refer to other weights or, sharded, copies these."""
        with torch.no_grad():
            for name, p in self.trainable.items():
                if self.passes.sharded:
                    p.copy_(weights[name])
                else:
                    p.data = weights[name]

    def _accumulate(self, batch: Batch, losses: Sequence[Loss]) -> Mapping[str, float]:
        """Adds the gradient of every micro-batch of the batch; returns the metrics of the whole."""
        needs = frozenset().union(*(loss.needs for loss in losses))
        self._division.begin(losses)
        if all(loss.zero_at_zero_advantage for loss in losses):
            batch = _without_zero_advantages(batch)
        counts: dict[str, float] = dict.fromkeys(COUNTS, 0.0)
        sums: dict[str, float] = {}
        rounds = list(self.passes.rounds(batch))
        largest_round = max(
            (sum(len(micro_batch.tree.tokens) for micro_batch in micro_batches) for micro_batches in rounds), default=0
        )
        with activations.checkpointed(self.passes.layers_to_recompute(largest_round, needs)):
            for micro_batch, result in self.passes.run(
                rounds, lambda micro_batch: self._differentiate(micro_batch, losses, needs)
            ):
                self._add(result.gradients)
                if micro_batch.fills or not self.passes.speaks:
                    continue
                trained = np.count_nonzero(micro_batch.batch.weight)
                tokens = (trained, len(micro_batch.batch), len(micro_batch.tree.tokens))
                for name, value in zip(COUNTS, (result.objective, *tokens, result.weight), strict=True):
                    counts[name] += value
                for name, value in result.sums.items():
                    sums[name] = sums.get(name, 0.0) + value
        *counted, weight = self.team.sum_numbers(counts).values()
        means = {name: value / weight for name, value in self.team.sum_numbers(sums).items()}
        return {**dict(zip(COUNTS, counted, strict=False)), **means}

    def _differentiate(
        self, micro_batch: MicroBatch, losses: Sequence[Loss], needs: frozenset[str]
    ) -> MicroBatchResult:
        """Passes a micro-batch through the model and the losses, and returns its gradients."""
        where = micro_batch.where
        selected = select_tokens(micro_batch.batch, where, self.passes.device)
        further = partial(self.teachers.compare, losses, micro_batch.batch, self.passes.device)
        out = self.passes.forward(micro_batch, where, needs, micro_batch.batch.tokens[where], further=further)
        total = torch.zeros((), device=self.passes.device)
        observed: dict[str, torch.Tensor] = {"entropy": out.entropy}
        for loss in losses:
            per_token, metrics = loss(out, selected)
            total = total + (per_token * selected.weight).sum()
            observed |= metrics
        objectives = {UPDATE: total, **self._division.objectives(out, selected)}
        differentiate = shards.gradients_of if self.passes.sharded else gradients_of
        gradients = differentiate(objectives, list(self.parameters.values()))
        sums = {name: float((values.detach() * selected.weight).sum()) for name, values in observed.items()}
        return MicroBatchResult(gradients, total.item(), sums, float(selected.weight.sum()))

    @torch.no_grad()
    def _add(self, gradients: Mapping[str, Gradients]) -> None:
        """Adds a micro-batch's gradients to those of the earlier ones, in their order."""
        for parameter, gradient in zip(self.parameters.values(), gradients[UPDATE], strict=True):
            if gradient is not None:
                parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)
        for name in gradients.keys() - {UPDATE}:
            self._division.add(name, self.parameters, gradients[name])

    def _add_up(self) -> None:
        """Adds up the gradients of the processes of the team."""
        parameters = self.parameters
        sums = self.team.sum_tensors([p.grad for p in parameters.values()], list(parameters.values()))
        for parameter, sum in zip(parameters.values(), sums, strict=True):
            parameter.grad = sum
        self._division.add_up(self.team, parameters)

    def _update(self) -> Mapping[str, float]:
        assert self._optimizers, "call begin() before the first step"
        self._add_up()
        divided = self._division.divide(self.trainable.values())
        norms = {whose: optimizer.clip(self._step + 1, whose) for whose, optimizer in self._optimizers.items()}
        rates = {whose: optimizer.update(self._step) for whose, optimizer in self._optimizers.items()}
        self._step += 1
        return {
            f"{'' if whose == 'policy' else f'{whose}_'}{name}": values[whose]
            for whose in norms
            for name, values in (("lr", rates), ("grad_norm", norms))
        } | divided


def _without_zero_advantages(batch: Batch) -> Batch:
    """Leaves out the sequences of which every advantage is 0: there, losses that are 0 at advantage 0 have no gradient.
    Their metrics are not computed either."""
    spans = list(zip(batch.offsets, batch.offsets[1:], strict=False))
    kept = [s for s, (start, stop) in enumerate(spans) if np.any(batch.advantages[start:stop])]
    return batch.take(np.array(kept, dtype=np.int64)) if len(kept) < len(spans) else batch
