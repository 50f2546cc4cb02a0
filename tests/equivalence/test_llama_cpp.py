"""llama.cpp reads an exported GGUF: it gives the logits of the trained model, and the tokens of its tokenizer."""

import exported_run
import numpy as np
import pytest

from sojourn.backends.torch.models import loading, tiny
from sojourn.errors import ModelError
from sojourn.model_export import export_model

llama_cpp = pytest.importorskip("llama_cpp")
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")
F32 = 0  # of ggml: llama.cpp keeps keys and values in fp16 unless told otherwise
GELU = ("gemma3_of_six", "gpt2", "phi")  # llama.cpp reads GELU from a table in fp16
TEXTS = (
    "Open the red door, then answer.",
    "two  spaces\n\n and lines\t",
    "room5 Room 12345 + 67 = 89.0",
    '<tool_call>\n{"name": "go"}\n</tool_call>',
    "<|im_start|>user\nthe door's key<|im_end|>\n",
)


def read(folder):
    return llama_cpp.Llama(
        str(folder / "model.gguf"), n_ctx=256, logits_all=True, type_k=F32, type_v=F32, verbose=False, n_threads=1
    )


def logits_of(model, tokens):
    model.reset()
    model.eval(tokens.tolist())
    return np.array(model.scores[: len(tokens)])


def tokens_of(model, text):
    return model.tokenize(text.encode(), add_bos=False, special=True)


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "mistral", "gemma3_of_six", "gpt2", "phi"])
def test_llama_cpp_gives_the_same_logits_and_tokens(tmp_path, family):
    base = exported_run.base(tmp_path / "base", family, exported_run.byte_level())
    run, logits, _ = exported_run.run(tmp_path / "run", f"model.name={base}")
    export_model(run, tmp_path / "out", "gguf")
    model = read(tmp_path / "out")
    context = next(int(value) for key, value in model.metadata.items() if key.endswith(".context_length"))
    assert context == {"qwen3": 8, "mistral": 20}.get(family, 256)  # no longer than a window that llama.cpp ignores
    tokens = exported_run.TOKENS[:context]
    atol = 1e-2 if family in GELU else 1e-4
    np.testing.assert_allclose(logits_of(model, tokens), logits[: len(tokens)].numpy(), rtol=0, atol=atol)
    tokenizer = loading.tokenizer(str(base))
    for text in TEXTS:
        assert tokens_of(model, text) == tokenizer.encode(text, add_special_tokens=False), text


def test_adapters_are_merged_and_the_tokens_of_tiny_are_kept(tmp_path):
    run, logits, _ = exported_run.run(tmp_path / "run", "model.lora={rank=4}")
    export_model(run, tmp_path / "out", "gguf")
    model = read(tmp_path / "out")
    got = logits_of(model, exported_run.TOKENS)
    np.testing.assert_allclose(got, logits.numpy(), rtol=0, atol=1e-4)
    tokenizer = tiny.build_tokenizer()
    for text in TEXTS[:-1]:
        tokens = tokenizer.encode(text, add_special_tokens=False)
        assert tokens_of(model, text) == tokens, text
        assert model.detokenize(tokens, special=True).decode() == text
    export_model(run, tmp_path / "bf16", "gguf", "bf16")
    rounded = logits_of(read(tmp_path / "bf16"), exported_run.TOKENS)
    assert 1e-4 < np.abs(rounded - got).max() < 0.1


def test_what_llama_cpp_would_compute_otherwise_is_refused(tmp_path):
    base = exported_run.base(tmp_path / "base", "gemma3")
    run, _, _ = exported_run.run(tmp_path / "run", f"model.name={base}")
    with pytest.raises(ModelError, match=r"layer_types SFS, but llama\.cpp computes with 10000, 12 and SSS"):
        export_model(run, tmp_path / "out", "gguf")
    assert not (tmp_path / "out").exists()
