"""Models whose weights are read tensor by tensor are those that are loaded whole."""

import json

import made_gguf
import pytest
import torch
from engine_models import build
from safetensors.torch import load_file, save_file
from transformers import LlamaForCausalLM

from sojourn.backends.torch.models import deferred, loading, lora, tiny
from sojourn.backends.torch.models.stored import held, stored
from sojourn.errors import ModelError
from sojourn.models.spec import Lora

FAMILIES = ["llama", "qwen2", "qwen3", "mistral", "gpt2", "phi", "stablelm", "gemma"]
TINY = "tiny:layers=2,hidden=64"


def tensors(model) -> dict[str, torch.Tensor]:
    """Its parameters, and all buffers, those that no file holds included."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def require_same(one, other) -> None:
    ours, theirs = tensors(one), tensors(other)
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        assert tensor.dtype == theirs[name].dtype, name
        assert torch.equal(tensor, theirs[name]), name
    assert one.config.to_dict() == other.config.to_dict()
    assert {p.requires_grad for p in one.parameters()} == {True}


def read(name: str, dtype: str = "fp32", seed: int = 0):
    """Loads a model by its parts."""
    loaded = loading.load(name, dtype, seed, defer=True)
    assert loaded.weights is not None
    assert all(deferred.is_placeholder(p) for p in loaded.model.parameters())
    return deferred.filled(deferred.Deferred(loaded.model, loaded.weights))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_folder_read_by_parts_is_the_model(family, tmp_path):
    """In one file and in several: tied heads, biases, rotary tables, scales of embeddings."""
    model = build(family)
    for size in ("1GB", "20KB"):
        folder = tmp_path / size
        model.save_pretrained(folder, max_shard_size=size)
        assert (len(list(folder.glob("*.safetensors"))) > 1) == (size == "20KB")
        for dtype in ("fp32", "bf16"):
            whole, parts = loading.load(str(folder), dtype).model, read(str(folder), dtype)
            require_same(parts, whole)
            tied = [m.get_output_embeddings().weight is m.get_input_embeddings().weight for m in (parts, whole)]
            assert tied[0] == tied[1]


@pytest.mark.parametrize(("size", "seed"), [(tiny.Size(2, 64), 0), (tiny.Size(1, 128, 64), 7)])
def test_a_model_from_scratch_has_the_weights_that_transformers_draws(size, seed):
    tokenizer = tiny.build_tokenizer()
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        expected = LlamaForCausalLM(tiny.model_config(size, tokenizer))
        for name, parameter in expected.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                parameter /= (2 * size.layers) ** 0.5
    before = torch.get_rng_state()
    found = tiny.build_model(size, tokenizer, seed)
    assert torch.equal(torch.get_rng_state(), before)
    require_same(found, expected)
    assert found.lm_head.weight is found.model.embed_tokens.weight
    require_same(read(f"tiny:layers={size.layers},hidden={size.hidden},context={size.context}", seed=seed), expected)


def test_placeholders_take_no_memory():
    """A model of 200 billion parameters, of which each tensor has one element; adapters are whole, and drawn alike."""
    loaded = loading.load("tiny:layers=250,hidden=8192", defer=True)
    model = deferred.move(loaded.model, "cpu", torch.bfloat16)
    assert sum(p.numel() for p in model.parameters()) > 2e11
    assert sum(p.untyped_storage().nbytes() for p in model.parameters()) < 10_000
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}


def test_adapters_of_a_model_without_weights_are_those_of_the_model():
    adapted = []
    for defer in (False, True):
        torch.manual_seed(3)
        model = loading.load(TINY, defer=defer).model
        adapted.append(dict(lora.adapted(model, Lora(rank=2), torch.float32).named_parameters()))
    whole, parts = adapted
    assert whole.keys() == parts.keys()
    for name, tensor in whole.items():
        assert deferred.is_placeholder(parts[name]) == (".lora_" not in name)
        assert (parts[name].shape, parts[name].requires_grad) == (tensor.shape, tensor.requires_grad)
        assert ".lora_" not in name or torch.equal(tensor, parts[name])


def test_gguf_files_are_read_by_parts_once_they_are_converted(tmp_path, monkeypatch):
    monkeypatch.setenv("SOJOURN_CACHE", str(tmp_path / "cache"))
    made_gguf.write(tmp_path / "small.gguf")
    require_same(read(str(tmp_path / "small.gguf")), loading.load(str(tmp_path / "small.gguf")).model)


def lacking(weights: dict[str, torch.Tensor]) -> None:
    del weights["model.layers.0.mlp.up_proj.weight"], weights["model.norm.weight"]


def reshaped(weights: dict[str, torch.Tensor]) -> None:
    name = "model.layers.0.mlp.up_proj.weight"
    weights[name] = weights[name][:-1].clone()


@pytest.mark.parametrize("change", [lacking, reshaped])
def test_a_file_that_does_not_fit_is_refused_with_one_sentence(change, tmp_path):
    folder = saved(tmp_path)
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    said = []
    for defer in (False, True):
        with pytest.raises(ModelError) as caught:
            loading.load(str(folder), defer=defer)
        said.append(str(caught.value))
    assert said[0] == said[1]
    assert "model.layers.0.mlp.up_proj.weight" in said[0]


def saved(folder):
    loading.load(TINY).model.save_pretrained(folder / "saved")
    return folder / "saved"


def other_names(folder) -> None:
    """As a model without its head is saved."""
    weights = load_file(folder / "model.safetensors")
    renamed = {name.removeprefix("model."): tensor for name, tensor in weights.items()}
    save_file(renamed, folder / "model.safetensors", {"format": "pt"})


def indexed_outside(folder) -> None:
    (folder / "model.safetensors").rename(folder.parent / "elsewhere.safetensors")
    found = dict.fromkeys(load_file(folder.parent / "elsewhere.safetensors"), "../elsewhere.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": found}))


def test_what_only_transformers_reads_is_left_to_it(tmp_path):
    folder = saved(tmp_path)
    other_names(folder)
    loaded = loading.load(str(folder), defer=True)
    assert loaded.weights is None
    require_same(loaded.model, loading.load(str(folder)).model)


def test_files_outside_of_the_folder_are_not_read_by_parts(tmp_path):
    folder = saved(tmp_path)
    indexed_outside(folder)
    config = loading.load(TINY).model.config
    assert deferred.of_folder("name", folder, config, torch.float32) is None


def test_stored_tensors_are_read_row_by_row(tmp_path):
    whole = {"a": torch.arange(12.0).view(4, 3), "scalar": torch.tensor(2.0), "int": torch.arange(5)}
    save_file(whole, tmp_path / "some.safetensors")
    for found in (dict(stored(tmp_path / "some.safetensors")), {name: held(tensor) for name, tensor in whole.items()}):
        assert found.keys() == whole.keys()
        for name, tensor in whole.items():
            assert found[name].shape == tuple(tensor.shape)
            assert torch.equal(found[name].whole(), tensor)
        assert torch.equal(found["a"].read(1, 3), whole["a"][1:3])
        assert found["a"].read(4, 4).shape == (0, 3)
