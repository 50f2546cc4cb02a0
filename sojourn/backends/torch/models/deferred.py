"""Builds models without their weights, which are read tensor by tensor once the model is divided between processes.

Until then each parameter is a placeholder: it has its shape, type and device, but a single element of memory.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

from sojourn.backends.torch.models.stored import StoredTensor, stored
from sojourn.errors import ModelError

WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"  # the names that transformers gives
Weights = Iterable[tuple[str, StoredTensor]]  # in an order in which they must be read


class Deferred(NamedTuple):
    """A model of placeholders, and what yields the values of its parameters and persistent buffers."""

    model: Any
    weights: Callable[[], Weights]


def outline(build: Callable[[], Any]) -> Any:
    """Returns the model of transformers that `build` makes, without its weights: with placeholders instead. Buffers
    that no file holds are computed."""
    with torch.device("meta"):
        model = build()
    _replace(model, lambda parameter: _placeholder(parameter, parameter.dtype, torch.device("cpu")))
    for parameter in model.parameters():
        parameter._is_hf_initialized = True  # so that transformers computes buffers alone
    for module in model.modules():
        for name, buffer in module.named_buffers(recurse=False):
            setattr(module, name, torch.zeros_like(buffer, device="cpu"))
            module._is_hf_initialized = False
    model.initialize_weights()
    return model


def of_folder(name: str, folder: Path, config: Any, dtype: torch.dtype) -> Deferred | None:
    """Returns the model of a folder without its weights; None where its files name or hold them otherwise than the
    model does, so that transformers must read them all. Raises `ModelError` where weights are missing."""
    from transformers import AutoModelForCausalLM
    from transformers.conversion_mapping import get_model_conversion_mapping

    files = _files(folder)
    if not files or (folder / "adapter_config.json").exists() or getattr(config, "quantization_config", None):
        return None
    model = outline(lambda: AutoModelForCausalLM.from_config(config, dtype=dtype, trust_remote_code=False))
    if get_model_conversion_mapping(model, add_legacy=False):
        return None
    found = {key: tensor for file in files for key, tensor in stored(file)}
    wanted = {key: tuple(tensor.shape) for key, tensor in tensors_of(model).items()}
    absent = wanted.keys() - found.keys()
    if absent and found.keys() - wanted.keys():
        return None  # perhaps under other names
    if absent := sorted(key for key, shape in wanted.items() if key in absent or found[key].shape != shape):
        raise lacking(name, folder, absent)
    return Deferred(model, lambda: ((key, found[key]) for key in wanted))


def lacking(name: str, folder: Path, absent: list[str]) -> ModelError:
    """Returns the error of a folder that lacks weights, or has them in another shape."""
    return ModelError(
        f"model '{name}': {len(absent)} weights do not come from {folder} ({', '.join(absent[:3])}): "
        "expected all that its config.json describes: check that both belong together"
    )


def tensors_of(model: Any) -> dict[str, torch.Tensor]:
    """Returns the parameters and persistent buffers of a model of transformers by their names in its files, without
    those of adapters; one that is tied to another is left out."""
    kept = model.state_dict(keep_vars=True)
    own = {**dict(model.named_parameters()), **{name: kept[name] for name, _ in model.named_buffers() if name in kept}}
    return {name.replace(".base_layer.", "."): tensor for name, tensor in own.items() if ".lora_" not in name}


def filled(deferred: Deferred) -> Any:
    """Returns the whole model."""
    _replace(
        deferred.model,
        lambda p: torch.nn.Parameter(torch.empty_like(p, memory_format=torch.contiguous_format), p.requires_grad),
    )
    own = tensors_of(deferred.model)
    with torch.no_grad():
        for name, tensor in deferred.weights():
            own[name].copy_(tensor.whole())
    return deferred.model


def move(model: Any, device: Any = None, dtype: torch.dtype | None = None) -> Any:
    """Does what `model.to` does, without giving placeholders memory."""

    def moved(tensor: torch.Tensor) -> torch.Tensor:
        wanted = dtype if dtype is not None and tensor.is_floating_point() else tensor.dtype
        where = torch.device(device or tensor.device)
        return _expanded(tensor.shape, wanted, where) if is_placeholder(tensor) else tensor.to(where, wanted)

    return model._apply(moved)


def to_meta(module: torch.nn.Module) -> None:
    """Turns placeholders into tensors of torch's meta device."""

    def changed(parameter: torch.nn.Parameter) -> torch.nn.Parameter:
        if not is_placeholder(parameter):
            return parameter
        return torch.nn.Parameter(
            torch.empty(parameter.shape, dtype=parameter.dtype, device="meta"), parameter.requires_grad
        )

    _replace(module, changed)


def is_placeholder(tensor: torch.Tensor) -> bool:
    return tensor.numel() > 1 and not any(tensor.stride())


def _placeholder(parameter: torch.nn.Parameter, dtype: torch.dtype, device: torch.device) -> torch.nn.Parameter:
    return torch.nn.Parameter(_expanded(parameter.shape, dtype, device), parameter.requires_grad)


def _expanded(shape: torch.Size, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return torch.zeros((), dtype=dtype, device=device).expand(shape)


def _replace(module: torch.nn.Module, change: Callable[[torch.nn.Parameter], torch.nn.Parameter]) -> None:
    """Replaces the parameters inside, a tied one by the same in all places."""
    changed: dict[torch.nn.Parameter, torch.nn.Parameter] = {}
    for one in module.modules():
        for name, parameter in list(one.named_parameters(recurse=False, remove_duplicate=False)):
            if parameter not in changed:
                changed[parameter] = change(parameter)
            setattr(one, name, changed[parameter])


def _files(folder: Path) -> list[Path]:
    """Returns the files of weights that transformers would read; none where it would look elsewhere."""
    if (folder / WHOLE).is_file():
        return [folder / WHOLE]
    try:
        index: Mapping[str, Any] = json.loads((folder / INDEX).read_text(encoding="utf-8"))
        names = sorted(set(index["weight_map"].values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return []
    files = [folder / name for name in names]
    return files if all(file.parent == folder and file.is_file() for file in files) else []
