"""Writes a model of transformers as a GGUF file, which llama.cpp runs.

What llama.cpp would compute otherwise than the model is refused, or kept out by a shorter context.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sojourn.backends.torch.models.gguf_tokenizer import add_tokenizer
from sojourn.backends.torch.models.loading import max_context
from sojourn.errors import MissingExtraError, ModelError

FILE = "model.gguf"
GEMMA_PERIOD = 6  # every sixth layer of gemma3 sees its whole context


@dataclass(frozen=True)
class Architecture:
    """Says how llama.cpp names an architecture, and how its weights differ from those of transformers."""

    name: str
    neighbours: bool = False  # queries and keys are rotated in pairs of neighbours instead of halves
    norm_offset: float = 0.0  # is added to the weights of norms
    transposed: tuple[str, ...] = ()  # the ends of names of weights that are (in, out)


ARCHITECTURES = {
    "llama": Architecture("llama", neighbours=True),
    "mistral": Architecture("llama", neighbours=True),
    "qwen2": Architecture("qwen2"),
    "qwen3": Architecture("qwen3"),
    "gemma3_text": Architecture("gemma3", norm_offset=1.0),
    "gpt2": Architecture("gpt2", transposed=("c_attn.weight", "c_proj.weight", "c_fc.weight")),
    "phi": Architecture("phi2"),
}


def save_gguf(model: Any, tokenizer: Any, stops: Sequence[int], dtype: str, name: str, folder: Path) -> None:
    """Writes the model with its tokenizer to `model.gguf` in the folder. Matrices are fp32 or bf16, vectors fp32;
    `stops` end a turn."""
    try:
        import gguf
    except ImportError:
        raise MissingExtraError("--format gguf needs the package 'gguf': pip install 'sojourn[torch]'") from None
    config = model.config
    form = ARCHITECTURES.get(config.model_type)
    if form is None:
        raise ModelError(
            f"a model of the type {config.model_type} cannot be written as GGUF: expected {', '.join(ARCHITECTURES)}; "
            "export it as hf, which llama.cpp's own converter may read"
        )
    _check_rotation(config)
    writer = gguf.GGUFWriter(folder / FILE, form.name)
    writer.add_name(name)
    _add_shape(writer, config, gguf)
    bf16 = dtype == "bf16"
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16 if bf16 else gguf.LlamaFileType.ALL_F32)
    add_tokenizer(writer, tokenizer, config.vocab_size, stops)
    for tensor, values in _tensors(model, form, gguf):
        if bf16 and values.ndim == 2:
            kind = gguf.GGMLQuantizationType.BF16
            writer.add_tensor(tensor, gguf.quants.quantize(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(tensor, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_shape(writer: Any, config: Any, gguf: Any) -> None:
    """Adds the sizes of the model under the names of its architecture."""
    heads = config.num_attention_heads
    head = getattr(config, "head_dim", None) or config.hidden_size // heads
    inner = getattr(config, "intermediate_size", None) or getattr(config, "n_inner", None) or 4 * config.hidden_size
    writer.add_vocab_size(config.vocab_size)
    writer.add_context_length(_context(config))
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(inner)
    writer.add_head_count(heads)
    writer.add_head_count_kv(getattr(config, "num_key_value_heads", None) or heads)
    if head * heads != config.hidden_size or config.model_type in ("qwen3", "gemma3_text"):
        writer.add_key_length(head)
        writer.add_value_length(head)
    if (epsilon := getattr(config, "rms_norm_eps", None)) is not None:
        writer.add_layer_norm_rms_eps(epsilon)
    else:
        writer.add_layer_norm_eps(getattr(config, "layer_norm_eps", None) or config.layer_norm_epsilon)
    if rotary := _rotary(config):
        writer.add_rope_freq_base(rotary["rope_theta"])
        writer.add_rope_dimension_count(int(head * rotary.get("partial_rotary_factor", 1.0)))
    if config.model_type == "gemma3_text":
        writer.add_sliding_window(config.sliding_window)
        if config.final_logit_softcapping:
            writer.add_final_logit_softcapping(config.final_logit_softcapping)


def _rotary(config: Any) -> dict[str, Any]:
    """Returns the parameters of the rotary embedding, of the layers that see all, where kinds of layers differ."""
    rotary = getattr(config, "rope_parameters", None) or {}
    return rotary.get("full_attention", rotary)


def _check_rotation(config: Any) -> None:
    """Refuses a scaled rotary embedding, and a gemma3 whose constants are not those that llama.cpp has built in."""
    if (kind := _rotary(config).get("rope_type", "default")) != "default":
        raise ModelError(f"a model with rotary embeddings of the type '{kind}' cannot be written as GGUF: export as hf")
    if config.model_type != "gemma3_text":
        return
    local = config.rope_parameters["sliding_attention"]["rope_theta"]
    head = config.head_dim
    windowed = [kind == "sliding_attention" for kind in config.layer_types]
    if local != 10_000 or config.query_pre_attn_scalar != head or windowed != _gemma_windows(len(windowed)):
        raise ModelError(
            f"this gemma3 has local rope_theta {local:g}, query_pre_attn_scalar {config.query_pre_attn_scalar} and "
            f"layer_types {''.join('FS'[int(one)] for one in windowed)}, but llama.cpp computes with 10000, {head} and "
            f"{''.join('FS'[int(one)] for one in _gemma_windows(len(windowed)))}: export it as hf"
        )


def _gemma_windows(layers: int) -> list[bool]:
    """Returns which layers of a gemma3 have a window in llama.cpp."""
    return [(number + 1) % GEMMA_PERIOD != 0 for number in range(layers)]


def _context(config: Any) -> int:
    """Returns the longest context in which llama.cpp sees what the model sees: beyond it, windows that llama.cpp does
    not know would begin to matter."""
    context = max_context(config)
    layers = getattr(config, "layer_types", None) or []
    windowed = [kind == "sliding_attention" for kind in layers]
    window = getattr(config, "sliding_window", None)
    if config.model_type == "gemma3_text":
        return context
    uses = any(windowed) or (config.model_type == "mistral" and not layers)
    return min(context, window) if window and uses else context


def _tensors(model: Any, form: Architecture, gguf: Any) -> Iterator[tuple[str, np.ndarray]]:
    """Yields the weights in fp32, under the names and in the layouts of llama.cpp."""
    config = model.config
    arch = next(a for a, name in gguf.MODEL_ARCH_NAMES.items() if name == form.name)
    names = gguf.get_tensor_name_map(arch, config.num_hidden_layers)
    change = _layouts(form, config)
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        known = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if known is None:
            raise ModelError(f"llama.cpp has no place for the weight '{name}' of {config.model_type}: export it as hf")
        yield known, np.ascontiguousarray(change(name, tensor.detach().float().numpy()))


def _layouts(form: Architecture, config: Any) -> Callable[[str, np.ndarray], np.ndarray]:
    """Returns a function that changes a weight's layout to llama.cpp's."""

    def change(name: str, values: np.ndarray) -> np.ndarray:
        if name.endswith(form.transposed or ("\0",)):
            return values.T
        if form.norm_offset and name.endswith("norm.weight"):
            return values + np.float32(form.norm_offset)
        if form.neighbours and ".q_proj." in name:
            return _interleaved(values, config.num_attention_heads)
        if form.neighbours and ".k_proj." in name:
            return _interleaved(values, config.num_key_value_heads)
        return values

    return change


def _interleaved(values: np.ndarray, heads: int) -> np.ndarray:
    """Reorders the rows of each head: those that are rotated together, half a head apart, become neighbours."""
    halves = values.reshape(heads, 2, len(values) // heads // 2, -1)
    return halves.transpose(0, 2, 1, 3).reshape(values.shape)
