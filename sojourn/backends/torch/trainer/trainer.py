"""The trainer: packed forward and backward passes, AdamW, and the weights that samplers are given."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from sojourn.backends.torch.models.lora import merged
from sojourn.backends.torch.trainer import activations, head, pass_columns
from sojourn.backends.torch.trainer.columns import Chosen, Out, Part, Passed
from sojourn.backends.torch.trainer.critic import PREFIX, Critic
from sojourn.backends.torch.trainer.decoder import Decoder
from sojourn.backends.torch.trainer.gradient_division import GradientDivision, gradients_of
from sojourn.backends.torch.trainer.optimizer import Optimizer
from sojourn.backends.torch.trainer.worker_pool import WorkerPool
from sojourn.batch import share
from sojourn.errors import RecordError
from sojourn.protocols import Loss
from sojourn.timeline import Timeline
from sojourn.types import Batch, FloatArray, Forward, IntArray

T = TypeVar("T")
UPDATE = "update"  # the objective that is minimised, beside further ones
WEIGHTS, CRITIC, REFERENCE, OPTIMIZER = (
    f"{name}.safetensors" for name in ("weights", "critic", "reference", "optimizer")
)
Weights = Iterator[tuple[str, torch.Tensor]]


class TorchTrainer:
    """One process, one model. Work happens in threads of its own, so that rollouts can go on beside it; of the parts
    of a batch, as many pass side by side as `token_budget` nodes and the cores allow."""

    def __init__(
        self,
        model: Any,
        send: Callable[[Weights, int], Awaitable[None]],
        *,
        bf16: bool,
        token_budget: int,
        activation_bytes: float = float("inf"),
        logits_bytes: int = head.CHUNK_BYTES,
        kernel: bool = True,
        critic: Critic | None = None,
        timeline: Timeline | None = None,
    ) -> None:
        self.model, self.critic, self.version = model, critic, 0
        self.decoder = Decoder(model, bf16=bf16, kernel=kernel, activation_bytes=activation_bytes)
        self.device = self.decoder.device
        self._send, self._bf16, self._token_budget, self._logits_bytes = send, bf16, token_budget, logits_bytes
        self._thread, self._team = ThreadPoolExecutor(1, thread_name_prefix="trainer"), WorkerPool(self.device)
        self._timeline = timeline or Timeline()
        self._optimizers: dict[str, Optimizer] = {}  # "policy", and "critic" where there is one
        self._step = 0
        self._division = GradientDivision()
        self._reference: dict[str, torch.Tensor] | None = None

    @property
    def trainable(self) -> dict[str, torch.nn.Parameter]:
        """The policy's trained parameters."""
        return {name: p for name, p in self.model.named_parameters() if p.requires_grad}

    @property
    def parameters(self) -> dict[str, torch.nn.Parameter]:
        """All that is trained: the policy's, then the critic's."""
        return {**self.trainable, **(self.critic.parameters if self.critic is not None else {})}

    # -- the four verbs

    async def forward(
        self,
        batch: Batch,
        *,
        reference: bool = False,
        critic: bool = False,
        columns: Sequence[str] = (),
        tokens: IntArray | None = None,
    ) -> Forward:
        """Scores the tokens that carry weight, or other `tokens` (N,) in their places, under the present weights or
        those that the stage began with; with `critic` its values too, and further `columns` (`pass_columns`)."""
        if unknown := set(columns) - pass_columns.COLUMNS.keys():
            known = ", ".join(pass_columns.COLUMNS)
            raise ValueError(f"a pass has no column '{min(unknown)}': expected some of {known}")
        needs = frozenset(columns) | ({"critic"} if critic else set())
        return await self._run(lambda: self._score(batch, reference, needs, tokens))

    async def states(self, batch: Batch, places: IntArray) -> FloatArray:
        """The last hidden states (P, H) after the tokens at these places, in fp32."""
        return await self._run(lambda: self._read_states(batch, places))

    async def forward_backward(self, batch: Batch, losses: Sequence[Loss]) -> Mapping[str, float]:
        """Adds the gradient of `(loss * weight).sum()`; metrics are means under the same weights."""
        return await self._run(lambda: self._backward(batch, losses))

    async def optim_step(self) -> Mapping[str, float]:
        """One AdamW step on the gradient so far, clipped, the critic's by itself; without any gradient nothing changes.
        Raises `ModelError`, with the weights as they were, where the gradient is not finite."""
        return await self._run(self._update)

    async def publish(self) -> int:
        """Gives the samplers the current weights, under the next version number."""
        self.version += 1
        await self._send(merged(self.model), self.version)
        return self.version

    # -- stages and persistence

    def begin(self, optim: Any, steps: int, *, reference: bool) -> None:
        """A stage: new optimisers, and the present weights as reference where a stream needs one."""
        self._step = 0
        self._optimizers = {"policy": Optimizer(self.trainable, optim, steps)}
        if self.critic is not None:
            self._optimizers["critic"] = Optimizer(self.critic.parameters, self.critic.optim, steps)
        self._reference = {n: p.detach().clone() for n, p in self.trainable.items()} if reference else None

    def save(self, folder: Path, *, weights_only: bool = False) -> None:
        """Trained weights and, unless they are enough, reference weights and optimisers' state, as safetensors."""
        save_file({name: p.detach().contiguous() for name, p in self.trainable.items()}, folder / WEIGHTS)
        if self.critic is not None:
            save_file({name: p.detach().contiguous() for name, p in self.critic.parameters.items()}, folder / CRITIC)
        if weights_only:
            return
        if self._reference is not None:
            save_file(self._reference, folder / REFERENCE)
        save_file(dict(m for optimizer in self._optimizers.values() for m in optimizer.moments()), folder / OPTIMIZER)

    def load(self, folder: Path, *, weights_only: bool = False) -> None:
        """Restores what `save` wrote; call `begin` first unless only weights are wanted. Those of a run without a
        critic leave the critic as it is."""
        self._copy_weights(load_file(folder / WEIGHTS), self.trainable, folder)
        there = (folder / CRITIC).exists()
        if self.critic is not None and not there and not weights_only:
            raise RecordError(f"the checkpoint '{folder}' has no critic: resume with the recipe that it was made with")
        if self.critic is not None and there:
            self._copy_weights(load_file(folder / CRITIC), self.critic.parameters, folder)
        if weights_only:
            return
        if self._reference is not None:
            loaded = load_file(folder / REFERENCE)
            self._reference = {name: value.to(self.device) for name, value in loaded.items()}
        assert self._optimizers, "call begin() before load()"
        for path, value in load_file(folder / OPTIMIZER).items():
            self._optimizers["critic" if path.startswith(PREFIX) else "policy"].restore(path, value)

    def state(self) -> Mapping[str, Any]:
        return {"version": self.version, "step": self._step}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.version, self._step = state["version"], state["step"]

    def close(self) -> None:
        self._thread.shutdown(wait=True)
        self._team.close()

    # -- inside

    async def _run(self, work: Callable[[], T]) -> T:
        with self._timeline.during("train"):
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    @torch.no_grad()
    def _copy_weights(
        self, weights: Mapping[str, torch.Tensor], own: Mapping[str, torch.nn.Parameter], folder: Path
    ) -> None:
        if set(weights) != set(own):
            odd = sorted(set(weights) ^ set(own))[0]
            raise RecordError(
                f"the checkpoint '{folder}' holds {len(weights)} tensors, this model trains {len(own)} (the first that "
                f"differs: {odd}): use the model and lora settings that it was made with"
            )
        for name, value in weights.items():
            if own[name].shape != value.shape:
                raise RecordError(
                    f"the checkpoint '{folder}' has '{name}' of shape {tuple(value.shape)}, this model "
                    f"{tuple(own[name].shape)}: use the model that it was made with"
                )
        for name, value in weights.items():
            own[name].copy_(value)

    def _score(self, batch: Batch, reference: bool, needs: frozenset[str], tokens: IntArray | None) -> Forward:
        asked = batch.tokens if tokens is None else tokens
        logprobs, entropy, values, next_values = np.zeros((4, len(batch)), dtype=np.float32)
        columns = {name: np.zeros(len(batch), dtype=pass_columns.COLUMNS[name].dtype) for name in needs - {"critic"}}
        scored = {"logprobs": logprobs, "entropy": entropy, "values": values, "next_values": next_values, **columns}

        @torch.no_grad()
        def score(part: Part) -> None:
            where = np.flatnonzero(part.batch.weight)
            out = self._forward(part, where, needs, asked[part.places[where]], after="critic" in needs)
            given = {"logprobs": out.logprobs, "entropy": out.entropy, **out.columns}
            if "critic" in needs:
                given["values"], given["next_values"] = out.values.split(len(where))
            for name, tensor in given.items():
                scored[name][part.places[where]] = tensor.cpu().numpy()

        with self._weights_of_reference() if reference else nullcontext():
            for _ in self._over(list(self._rounds(batch)), score):
                pass
        return Forward(logprobs, entropy, values, next_values, columns)

    def _read_states(self, batch: Batch, places: IntArray) -> FloatArray:
        each, back = np.unique(places, return_inverse=True)
        asked = np.full(len(batch), -1)
        asked[each] = np.arange(len(each))
        marked = replace(batch, weight=(asked >= 0).astype(np.float32))
        size = self.model.config.get_text_config().hidden_size
        found = np.zeros((len(each), size), dtype=np.float32)

        @torch.no_grad()
        def read(part: Part) -> None:
            where = np.flatnonzero(part.batch.weight)
            nodes, row = np.unique(part.tree.node[where], return_inverse=True)
            hidden = self.decoder(part.tree, torch.from_numpy(nodes).to(self.device))
            found[asked[part.places[where]]] = hidden.float().cpu().numpy()[row]

        for _ in self._over(list(self._rounds(marked)), read):
            pass
        return found[back]

    @contextmanager
    def _weights_of_reference(self) -> Iterator[None]:
        """Parameters point at the reference weights meanwhile; nothing is copied."""
        if self._reference is None:
            raise ValueError("no reference weights: call begin(reference=True) at the start of the stage")
        kept = {name: p.data for name, p in self.trainable.items()}
        try:
            for name, p in self.trainable.items():
                p.data = self._reference[name]
            yield
        finally:
            for name, p in self.trainable.items():
                p.data = kept[name]

    def _backward(self, batch: Batch, losses: Sequence[Loss]) -> Mapping[str, float]:
        needs = frozenset().union(*(loss.needs for loss in losses))
        self._division.begin(losses)
        if all(loss.zero_at_zero_advantage for loss in losses):
            batch = _without_idle(batch)
        sums: dict[str, float] = {}
        objective = mass = trained = computed = 0.0
        rounds = list(self._rounds(batch))
        at_once = max((sum(len(part.tree.tokens) for part in parts) for parts in rounds), default=0)
        with activations.checkpointed(self._recomputed(at_once, needs)):
            for part, one in self._over(rounds, lambda part: self._pass(part, losses, needs)):
                self._add(one)
                trained, computed = trained + len(part.batch), computed + len(part.tree.tokens)
                objective, mass = objective + one.objective, mass + one.mass
                for name, value in one.sums.items():
                    sums[name] = sums.get(name, 0.0) + value
        means = {name: value / mass for name, value in sums.items()}
        return {"loss": objective, "trained_tokens": trained, "computed_tokens": computed, **means}

    def _pass(self, part: Part, losses: Sequence[Loss], needs: frozenset[str]) -> Passed:
        where = np.flatnonzero(part.batch.weight)
        chosen = Chosen.of(part.batch, where, self.device)
        out = self._forward(part, where, needs, part.batch.tokens[where])
        total = torch.zeros((), device=self.device)
        observed: dict[str, torch.Tensor] = {"entropy": out.entropy}
        for loss in losses:
            per_token, metrics = loss(out, chosen)
            total = total + (per_token * chosen.weight).sum()
            observed |= metrics
        objectives = {UPDATE: total, **self._division.objectives(out, chosen)}
        gradients = gradients_of(objectives, list(self.parameters.values()))
        sums = {name: float((values.detach() * chosen.weight).sum()) for name, values in observed.items()}
        return Passed(gradients, total.item(), sums, float(chosen.weight.sum()))

    @torch.no_grad()
    def _add(self, passed: Passed) -> None:
        further = dict(passed.gradients)
        for parameter, gradient in zip(self.parameters.values(), further.pop(UPDATE), strict=True):
            if gradient is not None:
                parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)
        for name, gradients in further.items():
            self._division.add(name, self.parameters, gradients)

    def _over(self, rounds: Sequence[Sequence[Part]], work: Callable[[Part], T]) -> Iterator[tuple[Part, T]]:
        """Each part and what `work` gives for it, in order: side by side where rounds are of several."""
        parts, beside = [part for some in rounds for part in some], any(len(some) > 1 for some in rounds)
        works = [partial(work, part) for part in parts]
        return zip(parts, self._team.run(works) if beside else (one() for one in works), strict=True)

    def _rounds(self, batch: Batch) -> Iterator[list[Part]]:
        """The sequences that carry weight, cut after their last such token, in parts that pass side by side."""
        weighed = [np.flatnonzero(batch.weight[a:b]) for a, b in zip(batch.starts, batch.starts[1:], strict=False)]
        spans = [a + np.arange(w[-1] + 1) for a, w in zip(batch.starts, weighed, strict=False) if len(w)]
        cut = batch.pick(spans)
        for parts in share.rounds(cut, self._token_budget, self._team.count):
            yield [Part.of(cut, numbers, spans) for numbers in parts]

    def _forward(
        self, part: Part, where: IntArray, needs: frozenset[str], tokens: IntArray, *, after: bool = False
    ) -> Out:
        """Each distinct prefix passes once; only hidden states that predict a weighed token go through the head, which
        is asked about `tokens`. Values are those before each token, and `after` all of them, those after each."""
        batch, tree, base, count = part.batch, part.tree, self.decoder.base, len(where)
        if np.isin(where, batch.starts).any():
            raise ValueError("a sequence begins with a trained token: its context must hold at least one token")
        read = np.concatenate([tree.node[where - 1], *([tree.node[where]] if after else ())])
        nodes, places = np.unique(read, return_inverse=True)
        asked, row = torch.from_numpy(nodes).to(self.device), torch.from_numpy(places).to(self.device)
        hidden = self.decoder(tree, asked)
        # index_select: its gradient adds up repeated rows in one order, that of indexing does not
        rows = hidden.index_select(0, row[:count])
        linear, cap = base.get_output_embeddings(), getattr(base.config, "final_logit_softcapping", None)
        wanted = head.Asked.of(batch, where, linear, cap=cap, bf16=self._bf16, chunk=self._logits_bytes)
        wanted = replace(wanted, tokens=torch.from_numpy(tokens).to(self.device))
        found = head.read(rows, linear, wanted)
        columns = {
            name: column.compute(rows, linear, wanted) for name, column in pass_columns.COLUMNS.items() if name in needs
        }
        values = torch.zeros(0)
        if "critic" in needs:
            if self.critic is None:
                raise ValueError("values are asked for, but there is no critic: give the trainer one")
            values = self.critic(tree, asked, hidden).index_select(0, row)
        entropy = found.entropy if "entropy" in needs else found.entropy.detach()
        return Out(found.logprobs, entropy, values, columns)

    def _recomputed(self, tokens: int, needs: frozenset[str]) -> list[Any]:
        """The layers that would keep too much for the backward pass of so many tokens."""
        own = self.critic.decoder if self.critic is not None and "critic" in needs else None
        return [layer for decoder in (self.decoder, own) if decoder for layer in decoder.recomputed(tokens)]

    def _update(self) -> Mapping[str, float]:
        assert self._optimizers, "call begin() before the first step"
        divided = self._division.divide(self.trainable.values())
        norms = {whose: optimizer.clip(self._step + 1, whose) for whose, optimizer in self._optimizers.items()}
        rates = {whose: optimizer.update(self._step) for whose, optimizer in self._optimizers.items()}
        self._step += 1
        return {
            f"{'' if whose == 'policy' else f'{whose}_'}{name}": values[whose]
            for whose in norms
            for name, values in (("lr", rates), ("grad_norm", norms))
        } | divided


def _without_idle(batch: Batch) -> Batch:
    """Without the sequences whose every advantage is 0: losses in proportion to the advantage learn nothing there."""
    spans = list(zip(batch.starts, batch.starts[1:], strict=False))
    live = [s for s, (start, stop) in enumerate(spans) if np.any(batch.advantages[start:stop])]
    return batch.take(np.array(live, dtype=np.int64)) if len(live) < len(spans) else batch
