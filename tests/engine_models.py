"""Tiny random models of several families, and the plain forward pass that the engine must agree with."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PhiConfig,
    PhiForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    StableLmConfig,
    StableLmForCausalLM,
)

from sojourn.types import IntArray

VOCABULARY = 97
STOP = 3
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
}


def build(family: str, seed: int = 0, vocabulary: int = VOCABULARY) -> Any:
    torch.manual_seed(seed)
    sizes = {**SIZES, "vocab_size": vocabulary}
    if family == "llama":
        model = LlamaForCausalLM(LlamaConfig(**sizes, tie_word_embeddings=True))
    elif family == "qwen2":
        model = Qwen2ForCausalLM(Qwen2Config(**sizes))
    elif family == "qwen3":  # two layers of which one has a window, heads wider than their share
        layers = {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"], "max_window_layers": 0}
        window = {"use_sliding_window": True, "sliding_window": 8}
        model = Qwen3ForCausalLM(Qwen3Config(**sizes, **layers, **window, head_dim=16))
    elif family == "mistral":
        model = MistralForCausalLM(MistralConfig(**sizes, sliding_window=20, head_dim=12))
    elif family == "gpt2":
        shape = {
            "n_embd": 48,
            "n_layer": 3,
            "n_head": 4,
            "n_positions": 256,
            "initializer_range": 0.2,
            "bos_token_id": 0,
            "eos_token_id": STOP,
        }
        model = GPT2LMHeadModel(GPT2Config(vocab_size=vocabulary, **shape))
    elif family == "stablelm":
        model = StableLmForCausalLM(StableLmConfig(**sizes, partial_rotary_factor=0.5))
    elif family == "phi":
        model = PhiForCausalLM(PhiConfig(**{**sizes, "num_key_value_heads": 4}))
    else:
        layers = ["sliding_attention", "full_attention", "sliding_attention"]
        if family == "gemma3_of_six":  # layers, as the real ones repeat them
            layers, sizes = ["sliding_attention"] * 5 + ["full_attention"], {**sizes, "num_hidden_layers": 6}
        shape = {"head_dim": 12, "query_pre_attn_scalar": 12, "sliding_window": 8, "layer_types": layers}
        model = Gemma3ForCausalLM(Gemma3TextConfig(**sizes, **shape, final_logit_softcapping=5.0))
    with torch.no_grad():  # none of these begins at 0 or 1
        for name, parameter in model.named_parameters():
            if name.endswith("bias") or "_norm" in name or "layernorm" in name:
                parameter.add_(torch.randn_like(parameter), alpha=0.2)
    return model.eval()


def twin(model: Any) -> Any:
    return copy.deepcopy(model)


def logits_of(model: Any, tokens: IntArray) -> torch.Tensor:
    """(P, V), by transformers alone."""
    with torch.no_grad():
        return model(torch.from_numpy(np.asarray(tokens))[None]).logits[0].float()


def logprobs_of(model: Any, prompt: IntArray, sampled: IntArray, temperature: float = 1.0) -> np.ndarray:
    """Of the sampled tokens after the prompt: (A,)."""
    tokens = np.concatenate([prompt, sampled])
    table = (logits_of(model, tokens) / temperature).log_softmax(-1).numpy()
    return table[np.arange(len(prompt) - 1, len(tokens) - 1), sampled]
