"""Refuses trained weights of another model than that of a recipe, by their names and shapes, without loading either."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from sojourn.backends.torch.models import loading
from sojourn.backends.torch.models.tiny import read_size
from sojourn.errors import ModelError
from sojourn.models.spec import Model

WEIGHTS = "weights.safetensors"
LAYER = re.compile(r"\.(?:layers|h)\.(\d+)\.")
WIDE = re.compile(r"(?:embed_tokens|wte)\.weight$|(?:q_proj|c_attn|qkv_proj)\.lora_A\.")  # whose last axis is the width
ADAPTER = ".lora_A."


class Size(NamedTuple):
    """The number of layers of a model, and its width; 0 where it is not known."""

    layers: int
    width: int

    def __str__(self) -> str:
        return f"{self.layers} layers of width {self.width}"


def check_weights(model: Model, weights: Path) -> None:
    """Raises `ModelError` where a checkpoint's weights are of a model of another size, or adapters of another rank."""
    shapes = _shapes(weights / WEIGHTS)
    ranks = {shape[0] for name, shape in shapes.items() if ADAPTER in name}
    wanted = {model.lora.rank} if model.lora is not None else set[int]()
    if ranks != wanted:
        raise ModelError(
            f"model.weights = '{model.weights}' has {_kind(ranks)}, and this recipe trains {_kind(wanted)}: set "
            "model.lora as that run does"
        )
    found, own = _size(shapes), _size_of_model(model)
    if any(a and b and a != b for a, b in zip(found, own, strict=True)):
        raise ModelError(
            f"model.weights = '{model.weights}' is of a model with {found}, and '{model.name}' has {own}: set "
            "model.name to the model of that run"
        )


def _kind(ranks: set[int]) -> str:
    return f"adapters of rank {', '.join(map(str, sorted(ranks)))}" if ranks else "all weights of a model"


def _shapes(file: Path) -> Mapping[str, Sequence[int]]:
    from safetensors import safe_open

    with safe_open(file, "numpy") as opened:
        return {name: opened.get_slice(name).get_shape() for name in opened.keys()}  # noqa: SIM118  (it is no mapping)


def _size(shapes: Mapping[str, Sequence[int]]) -> Size:
    layers = {int(match[1]) for match in map(LAYER.search, shapes) if match}
    width = next((shape[-1] for name, shape in shapes.items() if WIDE.search(name)), 0)
    return Size(max(layers, default=-1) + 1, width)


def _size_of_model(model: Model) -> Size:
    """Returns the size of the recipe's model as its name or its config.json says it."""
    source = loading.resolve(model.name, model.revision)
    if source.kind is loading.Kind.TINY:
        size = read_size(model.name)
        return Size(size.layers, size.hidden)
    if not source.ready:
        return Size(0, 0)
    try:
        config: Any = json.loads((loading.ensure_folder(source) / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):  # told where the model is loaded
        return Size(0, 0)
    config = config.get("text_config", config)
    layers = config.get("num_hidden_layers", config.get("n_layer", 0))
    return Size(int(layers), int(config.get("hidden_size", config.get("n_embd", 0))))
