"""The trainer: packed forward and backward passes, AdamW, and the weights that samplers are given."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from sojourn.backends.torch import activations, head, layers, packed
from sojourn.backends.torch.team import Team
from sojourn.batch import share
from sojourn.errors import ModelError, RecordError
from sojourn.protocols import Loss
from sojourn.timeline import Timeline
from sojourn.types import Batch, FloatArray, Forward, IntArray

T = TypeVar("T")
Weights = Iterator[tuple[str, torch.Tensor]]


@dataclass(frozen=True)
class Out:
    """For the n tokens that carry weight, in order (see `protocols.Output`)."""

    logprobs: torch.Tensor
    entropy: torch.Tensor


@dataclass(frozen=True)
class Chosen:
    """The batch's columns at the n tokens that carry weight (see `protocols.Selected`)."""

    weight: torch.Tensor
    logprobs: torch.Tensor
    advantages: torch.Tensor
    turn: torch.Tensor
    sequence: torch.Tensor
    streams: Mapping[str, torch.Tensor]

    @classmethod
    def of(cls, batch: Batch, where: IntArray, device: torch.device | str = "cpu") -> Chosen:
        def column(values: FloatArray) -> torch.Tensor:
            return torch.from_numpy(np.ascontiguousarray(values[where], dtype=np.float32)).to(device)

        def numbers(values: IntArray) -> torch.Tensor:
            return torch.from_numpy(np.unique(values[where], return_inverse=True)[1]).to(device)

        return cls(
            column(batch.weight),
            column(batch.logprobs),
            column(batch.advantages),
            numbers(batch.turn),
            numbers(batch.sequence),
            {name: column(values) for name, values in batch.streams.items()},
        )


class Part(NamedTuple):
    """Some sequences of a batch, where their tokens stand in it, and the tree that they are."""

    batch: Batch
    places: IntArray
    tree: share.Tree

    @classmethod
    def of(cls, batch: Batch, numbers: IntArray, spans: Sequence[IntArray]) -> Part:
        taken = batch.take(numbers)
        return cls(taken, np.concatenate([spans[s] for s in numbers]), share.merge(taken))


class Passed(NamedTuple):
    """What a part gave: the gradient to each trainable parameter, the objective, and sums under the tokens' weights."""

    gradients: Sequence[torch.Tensor | None]
    objective: float
    sums: Mapping[str, float]
    mass: float


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
        timeline: Timeline | None = None,
    ) -> None:
        self.model, self.version = model, 0
        self.device = next(model.parameters()).device
        self._send, self._bf16, self._token_budget, self._logits_bytes = send, bf16, token_budget, logits_bytes
        self._activation_bytes = activation_bytes
        self._cost: activations.Cost | None = None
        self._thread, self._team = ThreadPoolExecutor(1, thread_name_prefix="trainer"), Team(self.device)
        self._timeline = timeline or Timeline()
        self._optimizer: torch.optim.AdamW | None = None
        self._optim: Any = None
        self._step, self._steps = 0, 1
        self._reference: dict[str, torch.Tensor] | None = None
        packed.use_packed(base_of(model))
        self._kernel, self._fused = kernel, kernel and not bf16 and layers.fuse(base_of(model))

    @property
    def trainable(self) -> dict[str, torch.nn.Parameter]:
        return {name: p for name, p in self.model.named_parameters() if p.requires_grad}

    # -- the four verbs

    async def forward(self, batch: Batch, *, reference: bool = False) -> Forward:
        """The tokens that carry weight, under the present weights or those that the stage began with."""
        return await self._run(lambda: self._score(batch, reference))

    async def forward_backward(self, batch: Batch, losses: Sequence[Loss]) -> Mapping[str, float]:
        """Adds the gradient of `(loss * weight).sum()`; metrics are means under the same weights."""
        return await self._run(lambda: self._backward(batch, losses))

    async def optim_step(self) -> Mapping[str, float]:
        """One AdamW step on the gradient so far, clipped; a step without any gradient changes nothing. Raises
        `ModelError`, with the weights as they were, where the gradient is not finite."""
        return await self._run(self._update)

    async def publish(self) -> int:
        """Gives the samplers the current weights, under the next version number."""
        self.version += 1
        await self._send(merged(self.model), self.version)
        return self.version

    # -- stages and persistence

    def begin(self, optim: Any, steps: int, *, reference: bool) -> None:
        """A stage: a new optimiser, and the present weights as reference where a stream needs one."""
        self._optim, self._step, self._steps = optim, 0, steps
        parameters, betas = list(self.trainable.values()), (optim.betas[0], optim.betas[1])
        self._optimizer = torch.optim.AdamW(
            parameters, lr=optim.lr, betas=betas, weight_decay=optim.weight_decay, fused=True
        )
        self._reference = {n: p.detach().clone() for n, p in self.trainable.items()} if reference else None

    def save(self, folder: Path, *, weights_only: bool = False) -> None:
        """Trained weights and, unless they are enough, reference weights and optimiser state, as safetensors."""
        save_file({name: p.detach().contiguous() for name, p in self.trainable.items()}, folder / "weights.safetensors")
        if weights_only:
            return
        if self._reference is not None:
            save_file(self._reference, folder / "reference.safetensors")
        moments = self._optimizer.state if self._optimizer is not None else {}
        state = {
            f"{name}/{key}": value.contiguous()
            for name, p in self.trainable.items()
            for key, value in moments.get(p, {}).items()
        }
        save_file(state, folder / "optimizer.safetensors")

    def load(self, folder: Path, *, weights_only: bool = False) -> None:
        """Restores what `save` wrote; call `begin` first unless only weights are wanted."""
        self._copy_weights(load_file(folder / "weights.safetensors"), folder)
        if weights_only:
            return
        if self._reference is not None:
            loaded = load_file(folder / "reference.safetensors")
            self._reference = {name: value.to(self.device) for name, value in loaded.items()}
        assert self._optimizer is not None, "call begin() before load()"
        parameters = self.trainable
        for path, value in load_file(folder / "optimizer.safetensors").items():
            name, _, key = path.rpartition("/")
            self._optimizer.state[parameters[name]][key] = value.to(self.device)

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
    def _copy_weights(self, weights: Mapping[str, torch.Tensor], folder: Path) -> None:
        own = self.trainable
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

    def _score(self, batch: Batch, reference: bool) -> Forward:
        scored = Forward(*(np.zeros(len(batch), dtype=np.float32) for _ in Forward._fields))

        @torch.no_grad()
        def score(part: Part) -> None:
            where = np.flatnonzero(part.batch.weight)
            out = self._forward(part, where, frozenset())
            scored.logprobs[part.places[where]] = out.logprobs.cpu().numpy()
            scored.entropy[part.places[where]] = out.entropy.cpu().numpy()

        with self._weights_of_reference() if reference else nullcontext():
            for parts in self._rounds(batch):
                self._team.run([partial(score, part) for part in parts])
        return scored

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
        if all(loss.proportional for loss in losses):
            batch = _without_idle(batch)
        sums: dict[str, float] = {}
        objective = mass = trained = computed = 0.0
        for parts in self._rounds(batch):
            nodes = sum(len(part.tree.tokens) for part in parts)
            with activations.checkpointed(self._recomputed(nodes)):
                passed = self._team.run([partial(self._pass, part, losses, needs) for part in parts])
            trained, computed = trained + sum(len(part.batch) for part in parts), computed + nodes
            for one in passed:
                self._add(one.gradients)
                objective, mass = objective + one.objective, mass + one.mass
                for name, value in one.sums.items():
                    sums[name] = sums.get(name, 0.0) + value
        means = {name: value / mass for name, value in sums.items()}
        return {"loss": objective, "trained_tokens": trained, "computed_tokens": computed, **means}

    def _pass(self, part: Part, losses: Sequence[Loss], needs: frozenset[str]) -> Passed:
        where = np.flatnonzero(part.batch.weight)
        chosen = Chosen.of(part.batch, where, self.device)
        out = self._forward(part, where, needs)
        total = torch.zeros((), device=self.device)
        observed: dict[str, torch.Tensor] = {"entropy": out.entropy}
        for loss in losses:
            per_token, metrics = loss(out, chosen)
            total = total + (per_token * chosen.weight).sum()
            observed |= metrics
        gradients = torch.autograd.grad(total, list(self.trainable.values()), allow_unused=True)
        sums = {name: float((values.detach() * chosen.weight).sum()) for name, values in observed.items()}
        return Passed(gradients, total.item(), sums, float(chosen.weight.sum()))

    @torch.no_grad()
    def _add(self, gradients: Sequence[torch.Tensor | None]) -> None:
        for parameter, gradient in zip(self.trainable.values(), gradients, strict=True):
            if gradient is not None:
                parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)

    def _rounds(self, batch: Batch) -> Iterator[list[Part]]:
        """The sequences that carry weight, cut after their last such token, in parts that pass side by side."""
        weighed = [np.flatnonzero(batch.weight[a:b]) for a, b in zip(batch.starts, batch.starts[1:], strict=False)]
        spans = [a + np.arange(w[-1] + 1) for a, w in zip(batch.starts, weighed, strict=False) if len(w)]
        cut = batch.pick(spans)
        for parts in share.rounds(cut, self._token_budget, self._team.count):
            yield [Part.of(cut, numbers, spans) for numbers in parts]

    def _forward(self, part: Part, where: IntArray, needs: frozenset[str]) -> Out:
        """Each distinct prefix passes once; only hidden states that predict a weighed token go through the head."""
        batch, tree, base = part.batch, part.tree, base_of(self.model)
        if np.isin(where, batch.starts).any():
            raise ValueError("a sequence begins with a trained token: its context must hold at least one token")
        asked, row = np.unique(tree.node[where - 1], return_inverse=True)
        hidden = self._decode(tree, torch.from_numpy(asked).to(self.device))
        # index_select: its gradient adds up repeated rows in one order, that of indexing does not
        rows = hidden.index_select(0, torch.from_numpy(row).to(self.device))
        linear, cap = base.get_output_embeddings(), getattr(base.config, "final_logit_softcapping", None)
        wanted = head.Asked.of(batch, where, linear, cap=cap, bf16=self._bf16, chunk=self._logits_bytes)
        found = head.read(rows, linear, wanted)
        entropy = found.entropy if "entropy" in needs else found.entropy.detach()
        return Out(found.logprobs, entropy)

    def _decode(self, tree: share.Tree, rows: torch.Tensor) -> torch.Tensor:
        """The last hidden states of some of the nodes: (R, H)."""
        decoder, tokens, positions = base_of(self.model).get_decoder(), tree.tokens, tree.positions
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self._bf16):
            passed = decoder(
                input_ids=torch.from_numpy(tokens).to(self.device)[None],
                position_ids=torch.from_numpy(positions).to(self.device)[None],
                use_cache=False,
                plan=packed.Plan(tree, self.device, rows, kernel=self._kernel),
            )
        hidden = passed.last_hidden_state[0]
        return hidden if self._fused else hidden.index_select(0, rows)

    def _recomputed(self, tokens: int) -> Sequence[Any]:
        """The layers that would keep too much for the backward pass of so many tokens."""
        each = activations.layers_of(base_of(self.model).get_decoder())
        if self._cost is None:
            self._cost = activations.measure(each, self._probe)
        return each[: self._cost.recomputed(tokens, self._activation_bytes)]

    def _probe(self, tokens: int) -> None:
        self._decode(share.line(tokens), torch.arange(tokens, device=self.device))

    def _update(self) -> Mapping[str, float]:
        assert self._optimizer is not None, "call begin() before the first step"
        lr = self._optim.lr * self._optim.schedule(self._step, self._steps)
        self._step += 1
        parameters = [p for p in self.trainable.values() if p.grad is not None]
        if not parameters:
            return {"lr": lr, "grad_norm": 0.0}
        norm = torch.nn.utils.clip_grad_norm_(parameters, self._optim.clip_norm or float("inf"))
        if not torch.isfinite(norm):
            raise ModelError(
                f"the gradient of update {self._step} of this stage is not finite: lower optim.lr, or look for huge "
                "rewards, advantages or coefficients"
            )
        for group in self._optimizer.param_groups:
            group["lr"] = lr
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        return {"lr": lr, "grad_norm": float(norm)}


def base_of(model: Any) -> Any:
    """The transformers model itself, under an adapter or not."""
    return model.get_base_model() if hasattr(model, "peft_config") else model


@torch.no_grad()
def merged(model: Any) -> Weights:
    """The weights by the names of the bare transformers model, adapters added in."""
    from peft.tuners.lora import Linear as LoraLinear

    adapted: dict[str, torch.Tensor] = {}
    for name, module in base_of(model).named_modules():
        if isinstance(module, LoraLinear):
            layer: Any = module
            weight = layer.get_base_layer().weight.detach()
            adapted[f"{name}.weight"] = weight + layer.get_delta_weight(layer.active_adapters[0]).to(weight.dtype)
    for name, parameter in base_of(model).named_parameters():
        if ".lora_" in name:
            continue
        name = name.replace(".base_layer.", ".")
        yield name, adapted[name] if name in adapted else parameter.detach()


def _without_idle(batch: Batch) -> Batch:
    """Without the sequences whose every advantage is 0: losses in proportion to the advantage learn nothing there."""
    spans = list(zip(batch.starts, batch.starts[1:], strict=False))
    live = [s for s, (start, stop) in enumerate(spans) if np.any(batch.advantages[start:stop])]
    return batch.take(np.array(live, dtype=np.int64)) if len(live) < len(spans) else batch
