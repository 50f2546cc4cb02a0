"""The tokenizers that renderers are tested on, without their models' weights."""

from functools import cache

from sojourn.backends.torch.models import gguf, loading, tiny


@cache
def tokenizer(name):
    if name == "tiny":
        return tiny.build_tokenizer()
    with loading.quiet():
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(gguf.ensure(name, gguf.packaged(name)), local_files_only=True)
