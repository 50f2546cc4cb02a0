"""The torch backend as a component: a trainer and a sampler, each with its own copy of the weights."""

from __future__ import annotations

import copy
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from sojourn.abilities import ExportedModel
from sojourn.backends.torch import vocabularies
from sojourn.config.fields import Range
from sojourn.errors import ModelError
from sojourn.protocols import Opened, Renderer, RendererConfig, Sampler, Trainer
from sojourn.render.auto import Auto
from sojourn.timeline import Timeline

if TYPE_CHECKING:
    from sojourn.backends.torch.models.loading import Loaded
    from sojourn.backends.torch.sampler.engine import Engine
    from sojourn.backends.torch.trainer.copies import CopyableTrainer
    from sojourn.backends.torch.trainer.team import Team
    from sojourn.models.prompt_scorer import PromptScorer
    from sojourn.models.spec import Critic, Lora, Model

MODEL_FORMATS = {
    "hf": "the whole model, as transformers loads it, with adapters merged into its weights",
    "merged": "the same, of a run that trains adapters",
    "lora": "the adapters alone, as peft loads them onto the base model",
    "gguf": "the whole model in one file, which llama.cpp runs",
}


@dataclass(frozen=True, kw_only=True)
class Torch:
    """Plain torch on one machine.

    `device` is where trainer and sampler work ("auto": a CUDA device where there is one). `token_budget` bounds the
    distinct tokens that the trainer computes at once, in one part or in several side by side, `max_context` the tokens
    of one context, `memory_gb` the sampler's key/value cache. `activation_gb` bounds what the layers keep for the
    backward pass meanwhile: beyond it, as many layers as needed are computed twice. `threads` is what the command sets
    before torch is imported (0: all cores). `kernel` lets both use kernels, which they compile where there is a
    C compiler; `compile` applies torch.compile to parts of the sampler's layers where our kernel does not support the
    model, and warns where that fails; adapters of such a model in bf16 are then merged and rounded, so that small
    updates of them are lost. `deterministic` has a CUDA device give the same bits for the same seed, more slowly; a CPU
    always does.

    `in_flight` says what becomes of samples that run while new weights are published: they go on with the keys and
    values of the old weights ("keep", the default), or with keys and values computed anew ("recompute"), or the weights
    wait for their end ("drain").
    """

    device: Literal["auto", "cpu", "cuda"] = "auto"
    threads: Annotated[int, Range(0)] = 0
    max_context: Annotated[int, Range(2)] = 2048
    token_budget: Annotated[int, Range(1)] = 4096
    activation_gb: Annotated[float, Range(above=0)] = 8.0
    memory_gb: Annotated[float, Range(above=0)] = 2.0
    max_batch: Annotated[int, Range(1)] = 64
    prefill_chunk: Annotated[int, Range(1)] = 512
    kernel: bool = True
    compile: bool = False
    deterministic: bool = False
    in_flight: Literal["", "keep", "recompute", "drain"] = ""  # "": as the engine does by default

    shares_base = True
    steers = True
    pass_columns = frozenset({"top_token", "top_logprob", "reverse_kl", "forward_kl", "jsd"})

    def check(self, model: Model, critic: Critic | None = None) -> None:
        """Raises where a model cannot be found or the device is missing, without loading anything (for --dry)."""
        from sojourn.backends.torch.models import loading

        loading.resolve(model.name, model.revision)
        if critic is not None and critic.model:
            loading.resolve(critic.model, critic.revision)
        if self.device == "cuda":
            device_of(self.device)

    def check_weights(self, model: Model, weights: Path) -> None:
        """Raises `ModelError` where the weights of a checkpoint are of another model."""
        from sojourn.backends.torch.models.fitting import check_weights

        check_weights(model, weights)

    def slowdowns(self, model: Model) -> tuple[str, ...]:
        """Returns a sentence where kernels are wanted but cannot be compiled, or cannot sample from models of this
        kind, as torch then computes the same more slowly. The kind of a model that is to be downloaded is unknown."""
        from sojourn.backends.torch.kernels import compiler
        from sojourn.backends.torch.models import loading

        if not self.kernel or device_of(self.device).type != "cpu":
            return ()
        if failure := compiler.failure():
            return (
                f"the kernels of backend 'torch' are not used, and torch computes the same more slowly: {failure}; or "
                "set backend.kernel = false to do without them",
            )
        kind = loading.model_type(loading.resolve(model.name, model.revision))
        if not kind or kind in loading.LLAMA_LIKE:
            return ()
        return (
            f"model '{model.name}' is of the kind '{kind}', from which no kernel of backend 'torch' samples: "
            f"transformers samples many times more slowly than from {', '.join(sorted(loading.LLAMA_LIKE))}: use a "
            "model of one of these kinds, or try backend.compile = true",
        )

    def identities(self, model: Model, critic: Critic | None) -> dict[str, str]:
        """Returns what identifies the weights that `open` loads, by the role of each model; empty for a model that is
        not on this machine yet."""
        from sojourn.backends.torch.models import loading

        wanted = {"policy": (model.name, model.revision)}
        if critic is not None and critic.model:
            wanted["critic"] = (critic.model, critic.revision)
        return {role: loading.identity(loading.resolve(*named)) for role, named in wanted.items()}

    def bind_renderer(self, model: Model, renderer: RendererConfig) -> Renderer | None:
        """Binds the renderer to the model's tokenizer alone; None for a model that must be fetched or converted, and
        for our own tiny model in its own format, which needs no proof and whose tokenizer takes long to import."""
        from sojourn.backends.torch.models import loading

        source = loading.resolve(model.name, model.revision)
        if not source.ready or (source.kind is loading.Kind.TINY and renderer == Auto()):
            return None
        tokenizer = loading.tokenizer(model.name, model.revision)
        return renderer.bind(tokenizer, loading.template_of(tokenizer))

    model_formats = MODEL_FORMATS

    def export_model(
        self,
        model: Model,
        renderer: RendererConfig,
        seed: int,
        weights: Path | None,
        format: str,
        dtype: str,
        out: Path,
    ) -> ExportedModel:
        """Writes the policy with these weights into a folder, in one of `model_formats`."""
        from sojourn.backends.torch.models import export

        return export.export(model, renderer, seed, weights, format, dtype, out)

    def open(
        self,
        model: Model,
        renderer: RendererConfig,
        seed: int,
        timeline: Timeline | None = None,
        critic: Critic | None = None,
    ) -> Opened:
        loaded = self.load(model, seed)
        bound = renderer.bind(loaded.tokenizer, loaded.template)
        return self._opened(loaded, model, seed, bound, timeline, critic)

    def _opened(
        self, loaded: Loaded, model: Model, seed: int, renderer: Renderer,
        timeline: Timeline | None, critic: Critic | None,
    ) -> Opened:  # fmt: skip
        from sojourn.backends.torch.sampler.adapter_sampler import publish_adapters

        engine = self.open_sampler(loaded, model, renderer.stops, timeline)  # before adapters change it
        trainer = self.open_trainer(loaded, model, seed, engine.publish, timeline, critic)
        if (lora := self.unmerged(model)) is not None:
            publish_adapters(trainer, engine, lora)
        return Opened(trainer, engine, renderer, min(self.max_context, loaded.max_context))

    def unmerged(self, model: Model) -> Lora | None:
        """Returns the adapters that samplers are given apart from their base: those of a model in bf16, where merging
        and rounding would change them, and lose small updates. Compiled layers take none."""
        import torch

        from sojourn.backends.torch.sampler import inductor

        device = device_of(self.device)
        rounded = compute_dtype(model.dtype, device) == torch.bfloat16
        compiled = self.compile and inductor.applies(model, kernel=self.kernel and device.type == "cpu")
        return model.lora if rounded and not compiled else None

    def load(self, model: Model, seed: int, *, defer: bool = False) -> Loaded:
        """Returns a model in fp32 on the device; with `defer` its weights are left unread where its files allow it."""
        import torch

        from sojourn.backends.torch.models import deferred, loading

        torch.manual_seed(seed)
        device = device_of(self.device)
        if device.type == "cuda":
            torch.use_deterministic_algorithms(self.deterministic)
            if self.deterministic:
                os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # torch asks for it
        loaded = loading.load(model.name, "fp32", seed, model.revision, defer=defer)
        deferred.move(loaded.model, device)
        return loaded

    def open_sampler(
        self, loaded: Loaded, model: Model, stops: tuple[int, ...], timeline: Timeline | None = None
    ) -> Engine:
        """Opens an engine on a copy of the weights of a loaded model, whose samples end with any of `stops`."""
        from sojourn.backends.torch.sampler.engine import Engine

        dtype = compute_dtype(model.dtype, next(loaded.model.parameters()).device)
        return Engine(
            copy.deepcopy(loaded.model).to(dtype).requires_grad_(False),
            stops=stops,
            max_context=min(self.max_context, loaded.max_context),
            memory_bytes=int(self.memory_gb * 2**30),
            prefill_chunk=self.prefill_chunk,
            max_batch=self.max_batch,
            kernel=self.kernel,
            compiled=self.compile,
            in_flight=self.in_flight or "keep",
            decode=loaded.tokenizer.decode,
            timeline=timeline,
        )

    def open_trainer(
        self,
        loaded: Loaded,
        model: Model,
        seed: int,
        send: Callable[[Any, int], Awaitable[None]],
        timeline: Timeline | None = None,
        critic: Critic | None = None,
        team: Team | None = None,
    ) -> CopyableTrainer:
        """Opens a trainer of a loaded model itself; `send` is given the weights that it publishes, with a version. The
        processes of a `team` train it together. Weights that are unread yet are read once the model is divided."""
        import torch

        from sojourn.backends.torch.models import deferred, lora
        from sojourn.backends.torch.trainer import critics, shards
        from sojourn.backends.torch.trainer.copies import CopyableTrainer
        from sojourn.backends.torch.trainer.decoder import base_of
        from sojourn.backends.torch.trainer.model_passes import ModelPasses

        device = next(loaded.model.parameters()).device
        dtype = compute_dtype(model.dtype, device)
        frozen = torch.float32 if self.kernel and device.type == "cpu" else dtype  # the kernel rounds fp32 itself
        trained = loaded.model if model.lora is None else lora.adapted(loaded.model, model.lora, frozen)
        sharded = team is not None and team.sharded
        judge, unread = None, [(trained, loaded.weights)]
        if critic is not None:
            own = critics.load(critic, loaded, seed, self.max_context, defer=sharded)
            half_bytes = self.activation_gb * 2**30 / 2  # the policy has the other half
            judge = critics.build(critic, loaded, own, dtype, frozen, kernel=self.kernel, activation_bytes=half_bytes)
            unread += [(judge.model, own.weights)] if own else []
        passes = ModelPasses(
            trained,
            bf16=dtype == torch.bfloat16,
            token_budget=self.token_budget,
            activation_bytes=self.activation_gb * 2**30 / (2 if critic is not None and critic.model else 1),
            kernel=self.kernel,
            critic=judge,
            team=team,
            shard=sharded,
        )
        for part, weights in unread:
            if weights is not None:
                shards.fill(deferred.tensors_of(base_of(part)), weights())
        return CopyableTrainer(passes, send, timeline=timeline)

    def check_model(self, name: str, model: Model, policy: Model) -> None:
        """Raises `ModelError` where a model cannot be found, or has another vocabulary than the policy's. Vocabularies
        are compared where both models are on this machine already."""
        from sojourn.backends.torch.models import loading

        sources = [loading.resolve(one.name, one.revision) for one in (model, policy)]
        if all(source.ready for source in sources):
            vocabularies.require_same(
                name, model, *(loading.tokenizer(one.name, one.revision) for one in (model, policy))
            )

    def open_model(
        self, name: str, model: Model, weights: Path | None, seed: int, policy: Model, trainer: Trainer
    ) -> None:
        """Opens a frozen model, which the trainer may then ask."""
        import torch

        from sojourn.backends.torch.models import export, loading
        from sojourn.backends.torch.trainer.model_passes import ModelPasses
        from sojourn.backends.torch.trainer.trainer import TorchTrainer

        assert isinstance(trainer, TorchTrainer), "the trainer that this backend opened"
        loaded = loading.load(model.name, "fp32", seed, model.revision)
        vocabularies.require_same(name, model, loaded.tokenizer, loading.tokenizer(policy.name, policy.revision))
        longest = min(self.max_context, loading.max_context(trainer.passes.decoder.base.config))
        vocabularies.require_context(name, model, loaded.max_context, longest)
        device = trainer.passes.device
        dtype = compute_dtype(model.dtype, device)
        held = torch.float32 if self.kernel and device.type == "cpu" else dtype  # the kernel rounds fp32 itself
        frozen = export.with_weights(loaded.model, model.lora, weights).to(device, held).requires_grad_(False)
        trainer.teachers.frozen[name] = ModelPasses(
            frozen,
            bf16=dtype == torch.bfloat16,
            token_budget=self.token_budget,
            kernel=self.kernel,
            team=trainer.team,
        )

    async def open_player(
        self, name: str, model: Model, weights: Path | None, seed: int, policy: Model, renderer: Renderer
    ) -> Sampler:
        """Opens a frozen model that samples beside the policy (`OpensPlayers`)."""
        from sojourn.backends.torch.models import loading
        from sojourn.backends.torch.sampler.adapter_sampler import open_trained

        loaded = self.load(model, seed)
        vocabularies.require_same(name, model, loaded.tokenizer, loading.tokenizer(policy.name, policy.revision))
        opens = partial(self.open_sampler, model=model, stops=renderer.stops)
        return open_trained(opens, loaded, model, weights, self.unmerged(model))

    def open_learner(
        self, name: str, model: Model, seed: int, policy: Model, renderer: Renderer, timeline: Timeline
    ) -> Opened:
        """Opens a model that is trained, too, beside the policy (`OpensPlayers`)."""
        from sojourn.backends.torch.models import loading

        loaded = self.load(model, seed)
        vocabularies.require_same(name, model, loaded.tokenizer, loading.tokenizer(policy.name, policy.revision))
        return self._opened(loaded, model, seed, renderer, timeline, None)

    def open_turn_model(
        self, name: str, model: Model, critic: Critic, weights: Path, seed: int, policy: Model, max_context: int
    ) -> Trainer:
        """Opens a frozen model with its value head (`OpensTurnModels`)."""
        from sojourn.backends.torch.models import loading

        loaded = self.load(model, seed)
        vocabularies.require_same(name, model, loaded.tokenizer, loading.tokenizer(policy.name, policy.revision))
        vocabularies.require_context(name, model, loaded.max_context, max_context)
        trainer = self.open_trainer(loaded, model, seed, _nowhere, critic=critic)
        trainer.load(weights, weights_only=True)
        return trainer

    def share_base(self, model: Model, opened: Opened) -> Callable[[str, Path], Awaitable[Sampler]]:
        """Lets the policy's sampler sample adapters of its checkpoints too (`SharesBase`)."""
        from sojourn.backends.torch.sampler.adapter_sampler import share_base
        from sojourn.backends.torch.sampler.engine import Engine
        from sojourn.backends.torch.trainer.trainer import TorchTrainer

        trainer, engine = opened.trainer, opened.sampler
        assert isinstance(trainer, TorchTrainer), "the trainer that this backend opened"
        assert isinstance(engine, Engine), "the sampler that this backend opened"
        assert model.lora is not None, "a policy that trains adapters"
        return share_base(trainer, engine, model.lora)

    async def open_endpoint(self, name: str, scorer: PromptScorer, policy: Model, trainer: Trainer) -> None:
        """Checks what a server says of its model against the policy; then the trainer may ask it."""
        from sojourn.backends.torch.models import loading
        from sojourn.backends.torch.trainer.teachers import HasTeachers, ServedTeacher

        assert isinstance(trainer, HasTeachers), "the trainer that this backend opened"
        await vocabularies.require_served(name, scorer, loading.tokenizer(policy.name, policy.revision))
        longest, context = await scorer.max_prompt(), min(self.max_context, trainer.context_of("policy"))
        if longest < context:
            raise ModelError(
                f"models.{name} = '{scorer.endpoint.model}' reads at most {longest} tokens before the one that its "
                f"server samples, but backend.max_context is {context}: start the server with --max-model-len "
                f"{context + 1} or more, or lower backend.max_context"
            )
        await vocabularies.require_top_k(name, scorer)
        trainer.teachers.served[name] = ServedTeacher(scorer, longest, trainer.vocabulary)


async def _nowhere(weights: Any, version: int) -> None:
    """Sends weights to no sampler, as those of a model that is never published."""


def device_of(name: str) -> Any:
    """Returns the torch device. Raises `ModelError` where a CUDA device is requested and there is none."""
    import torch

    available = torch.cuda.is_available()
    if name == "cuda" and not available:
        raise ModelError(
            f"device 'cuda': torch {torch.__version__} sees no CUDA device: install a torch built for it, or set "
            "backend.device to 'auto' or 'cpu'"
        )
    return torch.device("cuda" if available and name != "cpu" else "cpu")


def compute_dtype(name: str, device: Any) -> Any:
    """Returns the torch dtype for matrix products. Without bf16 instructions, bf16 is emulated, far slower than
    fp32."""
    import torch

    if name == "auto" and device.type == "cuda":
        name = "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp32"
    if name == "auto":
        fast = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
        name = "bf16" if fast else "fp32"
    return torch.bfloat16 if name == "bf16" else torch.float32
