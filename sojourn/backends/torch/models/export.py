"""Writes a trained policy as transformers and peft load it: weights, config, tokenizer, chat template, and what ends a
turn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sojourn.abilities import ExportedModel, HasChatTemplate
from sojourn.backends.torch.models import loading, lora
from sojourn.backends.torch.models.gguf_export import save_gguf
from sojourn.errors import ConfigError, ModelError
from sojourn.models.spec import Model
from sojourn.protocols import RendererConfig

USE_WHOLE = """from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained(".")
tokenizer = AutoTokenizer.from_pretrained(".")
messages = [{"role": "user", "content": "Hello"}]
prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)
reply = model.generate(**prompt, max_new_tokens=64)[0, prompt["input_ids"].shape[1] :]
print(tokenizer.decode(reply, skip_special_tokens=True))
"""
USE_ADAPTERS = """from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

base = AutoModelForCausalLM.from_pretrained("BASE")  # sojourn export RUN@before --format hf --out BASE
model = PeftModel.from_pretrained(base, ".")
tokenizer = AutoTokenizer.from_pretrained(".")
"""
USE_GGUF = """from llama_cpp import Llama

model = Llama("model.gguf", verbose=False)
reply = model.create_chat_completion([{"role": "user", "content": "Hello"}], max_tokens=64)
print(reply["choices"][0]["message"]["content"])
"""
USES = {"lora": ("peft", USE_ADAPTERS), "gguf": ("llama.cpp", USE_GGUF)}  # of formats that transformers does not load


def export(
    model: Model, renderer: RendererConfig, seed: int, weights: Path | None, format: str, dtype: str, out: Path
) -> ExportedModel:
    """Writes the model with the weights of a checkpoint, or as it was before training, into an empty folder."""
    if format in ("merged", "lora") and model.lora is None:
        raise ConfigError(
            f"--format {format} needs a run that trains adapters, and this one trains all weights: use hf"
        )
    loaded = loading.load(model.name, "fp32", seed, model.revision)
    if loaded.tokenizer is None:
        raise ModelError(f"model '{model.name}' has no tokenizer: expected a tokenizer.json beside its weights")
    bound = renderer.bind(loaded.tokenizer, loaded.template)
    stops = bound.stops
    if isinstance(bound, HasChatTemplate):
        loaded.tokenizer.chat_template = bound.chat_template
    trained = with_weights(loaded.model, model.lora, weights)
    parameters = sum(parameter.numel() for parameter in loaded.model.parameters())
    with loading.quiet():
        if format == "lora":
            _save_adapters(trained, model, out)
        else:
            whole = trained if model.lora is None else trained.merge_and_unload()
            if format == "gguf":
                save_gguf(whole, loaded.tokenizer, stops, dtype, model.name, out)
            else:
                _save_whole(whole, sorted(stops), dtype, out)
        if format != "gguf":
            loaded.tokenizer.save_pretrained(out)
    source = loading.resolve(model.name, model.revision)
    library, use = USES.get(format, ("transformers", USE_WHOLE))
    return ExportedModel(
        base=f"{model.name} ({'; '.join(filter(None, (loading.quantised(source), loading.identity(source))))})",
        licence=loading.licence(source),
        architecture=str(loaded.model.config.model_type),
        parameters=parameters,
        library=library,
        use=use,
    )


def with_weights(model: Any, spec: Any, weights: Path | None) -> Any:
    """Returns the model, with adapters where `spec` is given, with the trained weights of a checkpoint in fp32."""
    import torch

    from sojourn.backends.torch.trainer.weight_files import load_weights

    trained = model if spec is None else lora.adapted(model, spec, torch.float32)
    if weights is not None:
        parameters = {name: p for name, p in trained.named_parameters() if p.requires_grad}
        load_weights(weights, parameters, None, weights_only=True)
    return trained.eval()


def _save_whole(model: Any, stops: list[int], dtype: str, out: Path) -> None:
    """Saves the model. Its `generate` ends where the policy's turns ended."""
    import torch

    model.to(getattr(torch, loading.DTYPES[dtype]))
    model.generation_config.eos_token_id = stops if len(stops) > 1 else stops[0] if stops else None
    model.save_pretrained(out)


def _save_adapters(model: Any, spec: Model, out: Path) -> None:
    """Saves the adapters, always in fp32, in which they are trained."""
    source = loading.resolve(spec.name, spec.revision)
    config = model.peft_config["default"]
    config.base_model_name_or_path = spec.name if source.kind is loading.Kind.HUB else _base_folder(source)
    config.revision = spec.revision or None
    config.inference_mode = True
    model.save_pretrained(out)


def _base_folder(source: loading.Source) -> str:
    """Returns the folder of the base model on this machine, and its name where it is in none."""
    if source.kind is loading.Kind.TINY:
        return source.name
    return str(loading.ensure_folder(source).absolute())
