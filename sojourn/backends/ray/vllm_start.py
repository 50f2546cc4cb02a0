"""What vLLM's engine is started with: its settings, its arguments, and the folder of the model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

from sojourn.backends.ray import vllm_mapping as mapping
from sojourn.errors import ModelError

if TYPE_CHECKING:
    from sojourn.backends.torch.backend import Torch
    from sojourn.backends.torch.sampler.request import Decode
    from sojourn.models.spec import Model

BLOCK = 32  # tokens of a page of vLLM's cache on a CPU, where it would take 128
MIN_BATCHED = 2048  # prompt tokens in a step on a CPU, where no prompt is read in pieces
SETTINGS = {  # variables that vLLM reads
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1",  # by one token, which is never computed: see `engine_arguments`
    "VLLM_USE_V2_MODEL_RUNNER": "0",  # the other one takes processors of another form
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # else all replicas of a node get the same cores
}


class ModelFacts(NamedTuple):
    """Holds what the actor knows of the model whose weights are vLLM's."""

    max_context: int
    vocab_size: int
    decode: Decode | None


SHARE = 0.9  # of a GPU's memory, or of the part of it that is given to samplers


def engine_arguments(
    backend: Torch, model: Model, folder: Path, max_context: int, gpus: float, seed: int
) -> dict[str, Any]:
    """Returns the arguments of vLLM's engine. Its contexts have a token more than ours, as it draws one after a prompt
    that is only scored. On a CPU it may not read a prompt in pieces, as it fails where a request with a seed is."""
    from vllm.config.weight_transfer import WeightTransferConfig

    from sojourn.backends.torch.backend import compute_dtype, device_of

    dtype = compute_dtype(model.dtype, device_of("cuda" if gpus else "cpu"))
    own, length = f"{__package__}.vllm_worker", max_context + 1
    cpu = {
        "enforce_eager": True,
        "block_size": BLOCK,
        "enable_chunked_prefill": False,
        "max_num_batched_tokens": max(length, MIN_BATCHED),
    }
    # how much of a GPU must be free at the start: vLLM's default, 92% of it, would keep two engines from sharing one
    gpu = {"gpu_memory_utilization": SHARE * min(gpus, 1.0)}
    return {
        "model": str(folder),
        "dtype": str(dtype).removeprefix("torch."),
        "seed": seed % 2**31,
        "max_model_len": length,
        "max_num_seqs": backend.max_batch,
        "kv_cache_memory_bytes": int(backend.memory_gb * 2**30),
        "tensor_parallel_size": max(int(gpus), 1),
        "distributed_executor_backend": "mp" if gpus > 1 else f"{own}.OneProcess",
        "skip_tokenizer_init": True,
        "generation_config": "vllm",
        "enable_prefix_caching": True,
        "logprobs_mode": "processed_logprobs",
        "disable_log_stats": True,
        "use_tqdm_on_load": False,
        "logits_processors": [f"{own}:ChoicesProcessor"],
        "worker_extension_cls": f"{own}.Extension",
        "weight_transfer_config": WeightTransferConfig(backend=mapping.WEIGHTS),
        **(gpu if gpus else cpu),
    }


@contextmanager
def folder_of(model: Model, seed: int) -> Iterator[Path]:
    """Gives the folder of a model; one that is built from scratch is written for the time being."""
    from sojourn.backends.torch.models import loading

    source = loading.resolve(model.name, model.revision)
    if source.kind is not loading.Kind.TINY:
        yield loading.ensure_folder(source)
        return
    with TemporaryDirectory(prefix="sojourn-") as folder:
        with loading.quiet():
            loading.load(model.name, "fp32", seed).model.save_pretrained(folder)
        yield Path(folder)


def facts_of(model: Model, folder: Path, max_context: int) -> ModelFacts:
    from transformers import AutoConfig

    from sojourn.backends.torch.models import loading

    config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    try:
        decode = loading.tokenizer(model.name, model.revision).decode
    except ModelError:  # it has none, which is told where a request has stop strings
        decode = None
    return ModelFacts(min(max_context, loading.max_context(config)), config.get_text_config().vocab_size, decode)
