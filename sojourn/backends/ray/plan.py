"""Says what a run on Ray takes, of a cluster that need not be there: places, memory, and what moves each step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from sojourn.abilities import FurtherModel
    from sojourn.backends.ray.cluster import Needs
    from sojourn.backends.ray.processes import ModelRanks
    from sojourn.backends.torch.backend import Torch
    from sojourn.models.spec import Critic, Model

TRAINED_BYTES = 16  # of a trained parameter: its value, gradient and Adam's two moments, in fp32
FROZEN_BYTES = 4


class Size(NamedTuple):
    """The parameters of a model, those of them that are trained, and the bytes of each where it samples."""

    parameters: int
    trained: int
    sampled_bytes: int


def size_of(model: Model, device: str) -> Size | None:
    """Counts the parameters of a model without its weights; None for a model whose config is not on this machine."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from sojourn.backends.torch.backend import compute_dtype, device_of
    from sojourn.backends.torch.models import deferred, loading, lora, tiny

    source = loading.resolve(model.name, model.revision)
    if not source.ready:
        return None
    with loading.quiet():
        if source.kind is loading.Kind.TINY:
            built: Any = tiny.defer_model(tiny.read_size(model.name), tiny.build_tokenizer(), 0).model
        else:
            folder = loading.ensure_folder(source)
            config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
            built = deferred.outline(lambda: AutoModelForCausalLM.from_config(config, trust_remote_code=False))
        count = sum(parameter.numel() for parameter in built.parameters())
        if model.lora is not None:
            with torch.device("meta"):
                built = lora.adapted(built, model.lora, torch.float32)
    trained = sum(parameter.numel() for parameter in built.parameters() if parameter.requires_grad)
    return Size(count, trained, compute_dtype(model.dtype, device_of(device)).itemsize)


def places(needs: Mapping[str, Needs], address: str) -> str:
    """Returns what a cluster must have room for."""
    where = f"the cluster at {address}" if address else "a cluster, started on this machine,"
    return f"{where} holds {listed(list(needs.values()))}"


def further_sizes(backend: Torch, name: str, further: FurtherModel, trainer: ModelRanks) -> Iterator[str]:
    """Yields what each process of a further model holds."""
    if further.model is None or not (further.samplers or further.trainers):
        return
    size = size_of(further.model, backend.device)
    if size is None:
        yield f"what models.{name} takes is known once it is on this machine"
        return
    if further.samplers:
        weights = _bytes(size.parameters * size.sampled_bytes)
        yield f"each sampler of models.{name} holds {weights} of weights and at most {backend.memory_gb:g} GB of cache"
    if further.trainers:
        held = _held(size, further.model) / (trainer.ranks if trainer.shard else 1)
        yield f"each trainer rank of models.{name} holds at most {_bytes(held)} of weights, gradients and moments"


def listed(needs: Sequence[Needs]) -> str:
    """Returns, in words, what processes reserve, each and all together."""
    wanted = [one for one in needs if one.count]
    each = ", ".join(f"{one.count} {one.what} of {_amounts(one.cpus, one.gpus)} each" for one in wanted)
    total = _amounts(sum(one.count * one.cpus for one in wanted), sum(one.count * one.gpus for one in wanted))
    return f"{each}: {total} together"


def sizes(
    backend: Torch,
    model: Model,
    critic: Critic | None,
    *,
    replicas: int,
    ranks: int,
    shard: bool,
    context_parallel: int,
) -> Iterator[str]:
    """Yields what each process holds, and what moves between them."""
    size = size_of(model, backend.device)
    if size is None:
        yield f"what '{model.name}' takes is known once it is on this machine"
        return
    weights = size.parameters * size.sampled_bytes
    yield f"each sampler holds {_bytes(weights)} of weights and at most {backend.memory_gb:g} GB of cache"
    held = _held(size, model)
    part = held / ranks if shard else held
    beside = ", and the critic's model beside them" if critic is not None and critic.model else ""
    yield (
        f"each trainer rank holds {_bytes(part)} of weights, gradients and moments, and at most "
        f"{backend.activation_gb:g} GB of activations{beside}"
    )
    if context_parallel > 1:
        shared = backend.token_budget * context_parallel
        yield f"{context_parallel} ranks share each sequence, and compute up to {shared:,} tokens at once"
    if ranks > 1:
        yield f"at each update the ranks add up {_bytes(4 * size.trained)} of gradients"
    yield f"after each step {_bytes(weights)} of weights go to each of {replicas} samplers"


def _held(size: Size, model: Model) -> float:
    """Returns how many bytes of weights, gradients and moments a trainer holds."""
    return TRAINED_BYTES * size.trained + FROZEN_BYTES * (size.parameters - size.trained if model.lora else 0)


def _amounts(cpus: float, gpus: float) -> str:
    named = [f"{count:g} {name}{'' if count == 1 else 's'}" for count, name in ((cpus, "CPU"), (gpus, "GPU"))]
    return " and ".join(named if gpus else named[:1])


def _bytes(count: float) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"
