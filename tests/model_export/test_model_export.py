"""An exported model is that of the run: transformers and peft give the same logits and log-probabilities."""

import inspect
import json
import os
import re
import shutil
import stat
from pathlib import Path

import engine_models
import exported_run
import gguf
import numpy as np
import pytest
import tomli_w
import torch
from peft import PeftModel
from safetensors.torch import load_file
from spawned import sojourn
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from sojourn.backends.torch.backend import Torch
from sojourn.backends.torch.models import loading
from sojourn.backends.torch.models.gguf_export import save_gguf
from sojourn.envs.toy import Toy
from sojourn.errors import ConfigError, ModelError, RecordError
from sojourn.model_export import export_model
from sojourn.record.episodes.store import EpisodeStore
from sojourn.record.episodes.vocabulary import read as read_vocabulary
from sojourn.record.run import RunFolder

FAMILIES = ["llama", "qwen2", "qwen3", "mistral", "gemma3", "gpt2", "phi"]


def logits_of(model):
    with torch.no_grad():
        return model(torch.from_numpy(exported_run.TOKENS)[None]).logits[0]


def scores_of(logits):
    tokens = exported_run.TOKENS
    return logits.log_softmax(-1).numpy()[np.arange(len(tokens) - 1), tokens[1:]]


@pytest.mark.parametrize("family", FAMILIES)
def test_transformers_gives_the_same_logits(tmp_path, family):
    base = exported_run.base(tmp_path / "base", family)
    run, logits, scores = exported_run.run(tmp_path / "run", f"model.name={base}")
    export_model(run, tmp_path / "out")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    torch.testing.assert_close(logits_of(model), logits, rtol=0, atol=1e-5)
    np.testing.assert_allclose(scores_of(logits_of(model)), scores, rtol=0, atol=1e-5)
    untrained = logits_of(AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32))
    assert (untrained - logits).abs().max() > 1e-2
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert tokenizer.encode(exported_run.TEXT) == AutoTokenizer.from_pretrained(base).encode(exported_run.TEXT)
    assert tokenizer.apply_chat_template([{"role": "user", "content": "x"}], tokenize=False)
    assert model.generation_config.eos_token_id == tokenizer.convert_tokens_to_ids("<|im_end|>")


@pytest.fixture(scope="module")
def adapted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("adapted")
    base = exported_run.base(folder / "base", "llama")
    return (base, *exported_run.run(folder / "run", f"model.name={base}", "model.lora={rank=4}"))


def test_adapters_merged_and_alone_give_the_same_logits(adapted, tmp_path):
    base, run, logits, scores = adapted
    export_model(run, tmp_path / "merged", "merged")
    export_model(run, tmp_path / "lora", "lora")
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged", dtype=torch.float32)
    loaded = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), tmp_path / "lora")
    assert json.loads((tmp_path / "lora" / "adapter_config.json").read_text())["base_model_name_or_path"] == str(base)
    torch.testing.assert_close(logits_of(loaded), logits, rtol=0, atol=1e-5)  # the trainer does not merge
    np.testing.assert_allclose(scores_of(logits_of(merged)), scores, rtol=0, atol=1e-5)  # the sampler does
    torch.testing.assert_close(logits_of(merged), logits, rtol=0, atol=1e-4)
    export_model(f"{run}@before", tmp_path / "before")
    before = AutoModelForCausalLM.from_pretrained(tmp_path / "before", dtype=torch.float32)
    torch.testing.assert_close(logits_of(before), logits_of(AutoModelForCausalLM.from_pretrained(base)))


def test_whoever_may_read_one_file_of_a_model_may_read_all(adapted, tmp_path):
    """Of safetensors' own making the weights would be their owner's alone."""
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o755)
    before = os.umask(0o022)
    try:
        export_model(adapted[1], shared / "hf")
    finally:
        os.umask(before)
    assert {stat.S_IMODE(file.stat().st_mode) for file in (shared / "hf").iterdir()} == {0o644}


def test_bf16_halves_the_file(adapted, tmp_path):
    _, run, _, _ = adapted
    for dtype in ("fp32", "bf16"):
        export_model(run, tmp_path / dtype, "hf", dtype)
    sizes = [(tmp_path / dtype / "model.safetensors").stat().st_size for dtype in ("fp32", "bf16")]
    assert sizes[1] < 0.6 * sizes[0]
    whole, rounded = (load_file(tmp_path / dtype / "model.safetensors") for dtype in ("fp32", "bf16"))
    assert whole.keys() == rounded.keys()
    assert [name for name in whole if not torch.equal(whole[name].bfloat16(), rounded[name])] == []


def test_the_card_says_what_was_trained_on_what_and_how_well(trained, tmp_path, monkeypatch, capsys):
    done = sojourn(tmp_path, "export", f"{trained}@rl", "--format", "hf", "--out", "model")
    assert done.returncode == 0, done.stderr
    assert "the weights 'rl' as hf" in done.stdout
    card = (tmp_path / "model" / "README.md").read_text()
    assert card.startswith("---\nlicense: apache-2.0\nlibrary_name: transformers\n")
    assert (tmp_path / "model" / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert "![success over the steps of the whole run](curve.png)" in card
    assert re.search(r"^\| warmup \| 1 \| 2 \| `experts` \| `constant` \| `nll` \|$", card, re.MULTILINE), card
    assert [
        re.search(rf"^\| {name} \| {step} \| \d+% \[", card, re.MULTILINE) is not None
        for name, step in (("before", 0), ("warmup", 1), ("rl", 2))
    ] == [True] * 3
    assert f"**toy**\n\n{inspect.cleandoc(Toy.__doc__ or '')}\n\nSource: " in card
    with EpisodeStore(trained) as store:
        row = next(store.query(failed=False))
        seen = store.read(row).episode.trajectories[0].prompt(0)
    text = read_vocabulary(trained).text(seen)
    assert f"in one task of the split '{row.split}' ({len(seen):,} tokens):\n\n~~~~text\n{text.rstrip()}\n~~~~" in card
    monkeypatch.chdir(tmp_path / "model")
    exec(re.search(r"```python\n(.*?)```", card, re.DOTALL)[1], {})
    assert capsys.readouterr().out
    assert tomli_w.dumps(RunFolder.read(trained).config).splitlines()[0] in card
    export_model(f"{trained}@warmup", tmp_path / "earlier")
    assert "| rl |" not in (tmp_path / "earlier" / "README.md").read_text()


def test_a_model_is_exported_where_the_code_of_its_world_is_gone(trained, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    config = RunFolder.read(run).config
    config["env"] = {"name": "gone_from_here:World", "size": 3}
    config["stages"][0]["losses"] = [{"name": "gone_from_here:Loss"}]
    (run / "config.toml").write_text(tomli_w.dumps(config))
    export_model(run, tmp_path / "model")
    card = (tmp_path / "model" / "README.md").read_text()
    assert "**gone_from_here:World**, of which this card says no more, as its code is not there: env" in card
    assert "no module 'gone_from_here'" in card
    assert "`gone_from_here:Loss`" in card


@pytest.mark.parametrize(
    ("file", "said"),
    [
        ("SmolLM2-135M-Instruct.Q4_1.gguf", "rounded to 4 bits there and made whole again"),
        ("model-IQ3_XS.gguf", "rounded to 3 bits there"),
        ("model-f16.gguf", ""),
    ],
)
def test_a_base_of_rounded_weights_is_named_as_such(file, said):
    told = loading.quantised(loading.Source("smollm2", loading.Kind.PACKAGE, (Path(file),), True))
    assert said in told
    assert bool(told) == bool(said)


def test_what_cannot_be_exported_is_said(trained, tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match="needs a run that trains adapters, and this one trains all weights"):
        export_model(trained, tmp_path / "out", "lora")
    with pytest.raises(ConfigError, match="--dtype fp8: expected fp32 or bf16"):
        export_model(trained, tmp_path / "out", "hf", "fp8")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").touch()
    with pytest.raises(RecordError, match="exists and is not empty"):
        export_model(trained, tmp_path / "full")
    assert [path.name for path in tmp_path.iterdir()] == ["full"]
    refused = sojourn(tmp_path, "export", str(trained), "rl:0/0/0", "--format", "hf", "--out", "x")
    assert (refused.returncode, "leave episodes, --where and --tokens out" in refused.stderr) == (2, True)
    refused = sojourn(tmp_path, "export", str(trained), "--format", "chat", "--dtype", "bf16", "--out", "x")
    assert (refused.returncode, "--dtype is of models, not of episodes" in refused.stderr) == (2, True)
    refused = sojourn(tmp_path, "export", str(trained), "--format", "hff", "--out", "x")
    assert (refused.returncode, "did you mean 'hf'?" in refused.stderr) == (2, True)
    assert "lora, the adapters alone, as peft loads them" in " ".join(refused.stderr.split())
    monkeypatch.setattr(Torch, "export_model", None)  # an ability that a subclass does not offer
    with pytest.raises(ConfigError, match="the backend of this run, Torch, writes no models"):
        export_model(trained, tmp_path / "out")


def test_a_gguf_holds_the_weights_the_tokens_and_what_ends_a_turn(adapted, tmp_path):
    """What llama.cpp computes of it: tests/equivalence/test_llama_cpp.py."""
    _, run, _, _ = adapted
    export_model(run, tmp_path / "gguf", "gguf")
    export_model(run, tmp_path / "hf")
    assert sorted(path.name for path in (tmp_path / "gguf").iterdir()) == ["README.md", "model.gguf"]
    read = gguf.GGUFReader(tmp_path / "gguf" / "model.gguf")
    weights = load_file(tmp_path / "hf" / "model.safetensors")
    tensors = {tensor.name: tensor.data for tensor in read.tensors}
    assert len(tensors) == len(weights)
    np.testing.assert_array_equal(tensors["token_embd.weight"], weights["model.embed_tokens.weight"].numpy())
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "hf")
    stop = read.fields["tokenizer.ggml.eos_token_id"].contents()
    assert read.fields["tokenizer.ggml.tokens"].contents()[stop] == tokenizer.eos_token == "<|im_end|>"
    assert read.fields["tokenizer.chat_template"].contents() == tokenizer.chat_template


TWO_STOPS = """
{%- for tool in tools or [] %}{{- tool | tojson + '\\n' }}{%- endfor %}
{%- for m in messages %}
    {{- '<|im_start|>' + m.role + '\\n' + (m.content or '') }}
    {%- for call in m.tool_calls or [] %}
        {{- '{"name": "' + call.function.name + '", "arguments": ' }}{{- call.function.arguments | tojson }}{{- '}' }}
    {%- endfor %}
    {{- '<|im_end|>' if m.tool_calls else '<|end|>' }}{{- '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""


def test_a_turn_ends_at_each_stop_of_its_template(tmp_path):
    tokenizer = exported_run.byte_level()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|end|>"]})  # after <|im_end|>, so the greater number
    tokenizer.chat_template = TWO_STOPS
    base = exported_run.base(tmp_path / "base", "llama", tokenizer)
    run, _, _ = exported_run.run(tmp_path / "run", f"model.name={base}", "renderer.name=template")
    export_model(run, tmp_path / "gguf", "gguf")
    export_model(run, tmp_path / "hf")
    text, call = (tokenizer.convert_tokens_to_ids(token) for token in ("<|end|>", "<|im_end|>"))
    assert call < text
    read = gguf.GGUFReader(tmp_path / "gguf" / "model.gguf")
    ends = [read.fields[f"tokenizer.ggml.{end}_token_id"].contents() for end in ("eos", "eot")]
    assert ends == [text, call]  # the first ends a text
    assert GenerationConfig.from_pretrained(tmp_path / "hf").eos_token_id == [call, text]


def test_an_architecture_that_llama_cpp_is_not_known_to_read_is_refused(tmp_path):
    model = engine_models.build("stablelm")
    with pytest.raises(ModelError, match="a model of the type stablelm cannot be written as GGUF: expected llama"):
        save_gguf(model, exported_run.byte_level(), (), "fp32", "odd", tmp_path)
