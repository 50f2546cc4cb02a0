"""vLLM as a contender: its offline engine, in its process, with its own cache of prefixes.

    make vllm && .venvs/vllm/bin/python benchmarks/engine.py

Requests are tokens and answers are tokens: nothing is decoded to text. A context goes on from the pages that its last
turn left in the cache; what is after the last whole page (`BLOCK` tokens) is read again, as vLLM shares no parts of
pages. Its kernels are its own for CPUs; torch compiles what is between them ("vllm compiled"), or does not ("vllm
eager").
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from contenders import Setup, Tokens

from sojourn.backends.ray.installed_vllm import installed_vllm
from sojourn.backends.ray.vllm_start import BLOCK, SETTINGS, folder_of
from sojourn.models.spec import Model

SPARE = 20_000  # tokens of cache beyond what all contexts take
OPENING_S = 300  # what is compiled takes longer to open


class VLLM:
    """All contexts are handed over in one call, as its offline engine wants them."""

    def __init__(self, setup: Setup, eager: bool) -> None:
        from vllm import LLM

        with folder_of(Model(name=setup.model), 0) as folder:
            self.llm: Any = LLM(**arguments(setup, folder, eager))

    def greedy(self, prompts: Sequence[Tokens], count: int) -> list[Tokens]:
        return self._generate(prompts, count, temperature=0.0)

    def read(self, prompts: Sequence[Tokens]) -> None:
        self.llm.reset_prefix_cache()
        self._generate(prompts, 1)

    def prime(self, contexts: Sequence[Tokens]) -> None:
        self.contexts = contexts
        self.read(contexts)

    def choose(self, batch: int) -> None:
        self.prompts = self.contexts[:batch]
        self.more(2)  # where its pages were taken for others, they are computed again

    def more(self, count: int) -> None:
        self._generate(self.prompts, count)

    def episodes(self, shared: Tokens, shown: Sequence[Sequence[Tokens]], count: int) -> None:
        self.llm.reset_prefix_cache()
        contexts = [list(shared) for _ in shown]
        for turns in zip(*shown, strict=True):
            contexts = [[*c, *turn] for c, turn in zip(contexts, turns, strict=True)]
            said = self._generate(contexts, count)
            contexts = [[*c, *s] for c, s in zip(contexts, said, strict=True)]

    def close(self) -> None:
        self.llm.llm_engine.engine_core.shutdown()

    def _generate(self, prompts: Sequence[Tokens], count: int, temperature: float = 1.0) -> list[Tokens]:
        from vllm import SamplingParams

        params = SamplingParams(temperature=temperature, max_tokens=count, ignore_eos=True, detokenize=False)
        given = [{"prompt_token_ids": prompt} for prompt in prompts]
        return [list(o.outputs[0].token_ids) for o in self.llm.generate(given, params, use_tqdm=False)]


def arguments(setup: Setup, folder: Path, eager: bool) -> dict[str, Any]:
    """Returns what vLLM's engine is started with."""
    from transformers import AutoConfig

    text = AutoConfig.from_pretrained(folder, local_files_only=True).get_text_config()
    width = 2 if setup.dtype == "bf16" else 4
    token = 2 * text.num_hidden_layers * text.num_key_value_heads * text.head_dim * width
    return {
        "model": str(folder),
        "dtype": "bfloat16" if setup.dtype == "bf16" else "float32",
        "max_model_len": setup.max_context,
        "max_num_seqs": setup.batch,
        "kv_cache_memory_bytes": (setup.batch * setup.max_context + SPARE) * token,
        "block_size": BLOCK,
        "enable_prefix_caching": True,
        "enforce_eager": eager,
        "skip_tokenizer_init": True,
        "generation_config": "vllm",
        "disable_log_stats": True,
        "use_tqdm_on_load": False,
    }


def environment(own: Mapping[str, str | None]) -> dict[str, str | None]:
    """Returns the variables of its process: its engine is in there, as a contender's process may have no others, and
    Intel's OpenMP, which vLLM advises, is loaded before torch's where its packages brought one."""
    openmp = Path(sys.prefix) / "lib" / "libiomp5.so"
    loaded = {"LD_PRELOAD": str(openmp)} if openmp.exists() else {}
    return {**own, **SETTINGS, "VLLM_ENABLE_V1_MULTIPROCESSING": "0", **loaded}


def missing(device: str) -> str:
    """Says why vLLM cannot be measured here; nothing where it can."""
    found = installed_vllm()
    if found is None:
        return "vllm is not installed"
    return "" if found.for_cpus == (device == "cpu") else f"{found.distribution} {found.version} is for another device"
