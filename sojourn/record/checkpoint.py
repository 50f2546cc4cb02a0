"""Checkpoints: a folder per step that is there complete or not at all; JSON, arrays and what the backend writes.

Nothing is pickled. The last `keep` are kept, and those that are marked. Names carry a step that only grows, so a run
of several stages counts its steps through.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import zipfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sojourn.errors import RecordError
from sojourn.record.atomic import sync, sync_tree

ARRAY = "__array__"
State = Mapping[str, Any]


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint on disk; `weights` is the folder that the backend wrote."""

    path: Path
    step: int

    @property
    def weights(self) -> Path:
        return self.path / "weights"

    @property
    def marked(self) -> bool:
        return (self.path / "marked").exists()

    def state(self) -> dict[str, Any]:
        """The state that was saved; tuples come back as lists."""
        try:
            data = json.loads((self.path / "state.json").read_text())
            with (self.path / "state.npz").open("rb") as file, np.load(file, allow_pickle=False) as arrays:
                return _unpack(data, arrays)
        except (OSError, ValueError, KeyError, zipfile.BadZipFile, zlib.error) as error:
            raise RecordError(f"{self.path} cannot be read ({error}): resume from an earlier checkpoint") from error

    def mark(self) -> None:
        """Keeps this checkpoint however many follow."""
        (self.path / "marked").touch()


def save(
    folder: str | Path, step: int, write: Callable[[Path], None], state: State, *, keep: int = 2, mark: bool = False
) -> Checkpoint:
    """Writes a checkpoint; `write` is given the folder for the weights. It counts only once all of it is on the disk.

    `state` may nest mappings, sequences, numbers, text, None and numpy arrays. Marked ones do not count in `keep`.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"step-{step:06d}"
    temporary = folder / f".{target.name}.new"
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        (temporary / "weights").mkdir(parents=True)
        write(temporary / "weights")
        _write_state(temporary, state)
        if mark:
            (temporary / "marked").touch()
        files = {str(p.relative_to(temporary)): p.stat().st_size for p in sorted(temporary.rglob("*")) if p.is_file()}
        (temporary / "checkpoint.json").write_text(json.dumps({"step": step, "files": files}, indent=1))
        sync_tree(temporary)
        if target.exists():
            os.rename(target, folder / f".{target.name}.old")
        os.rename(temporary, target)
        sync(folder)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    for leftover in folder.glob(".step-*"):
        shutil.rmtree(leftover)
    _prune(folder, keep)
    return Checkpoint(target, step)


def checkpoints(folder: str | Path) -> list[Checkpoint]:
    """The complete checkpoints of a folder, oldest first."""
    found: dict[int, Checkpoint] = {}
    for path in sorted(Path(folder).glob("*step-*")):  # .step-N.old, left where a replacement was cut off, comes first
        match = re.fullmatch(r"\.step-(\d+)\.old|step-(\d+)", path.name)
        if match and _complete(path):
            step = int(match[1] or match[2])
            found[step] = Checkpoint(path, step)
    return [found[step] for step in sorted(found)]


def latest(folder: str | Path) -> Checkpoint | None:
    """The newest complete checkpoint; what is incomplete is skipped."""
    found = checkpoints(folder)
    return found[-1] if found else None


def truncate(folder: str | Path, step: int) -> None:
    """Removes the checkpoints after `step`, for a run that resumes there."""
    for checkpoint in checkpoints(folder):
        if checkpoint.step > step:
            shutil.rmtree(checkpoint.path)


def _complete(path: Path) -> bool:
    try:
        files = json.loads((path / "checkpoint.json").read_text())["files"]
        return all((path / name).stat().st_size == size for name, size in files.items())
    except (OSError, ValueError, KeyError):
        return False


def _prune(folder: Path, keep: int) -> None:
    unmarked = [checkpoint for checkpoint in checkpoints(folder) if not checkpoint.marked]
    for checkpoint in unmarked[: len(unmarked) - max(keep, 1)]:
        shutil.rmtree(checkpoint.path)


def _write_state(folder: Path, state: State) -> None:
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    (folder / "state.json").write_text(json.dumps(_pack(state, arrays, "state")))
    with (folder / "state.npz").open("wb") as file:
        np.savez(file, allow_pickle=False, **arrays)


def _pack(value: Any, arrays: dict[str, np.ndarray[Any, Any]], where: str) -> Any:
    """The value as JSON, with its arrays moved to `arrays` and their names left in their places."""
    if isinstance(value, np.ndarray):
        if value.dtype.hasobject:
            raise RecordError(f"{where} is an array of objects: a checkpoint holds arrays of numbers, booleans or text")
        name = f"a{len(arrays)}"
        arrays[name] = value
        return {ARRAY: name}
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str) or key == ARRAY:
                raise RecordError(f"{where} has the key {key!r}: keys of a checkpoint's state are text, not {ARRAY!r}")
        return {key: _pack(item, arrays, f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_pack(item, arrays, f"{where}.{number}") for number, item in enumerate(value)]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise RecordError(f"{where} is a {type(value).__name__}: a checkpoint holds JSON values and numpy arrays")


def _unpack(value: Any, arrays: Mapping[str, Any]) -> Any:
    if isinstance(value, dict):
        return arrays[value[ARRAY]] if ARRAY in value else {key: _unpack(item, arrays) for key, item in value.items()}
    if isinstance(value, list):
        return [_unpack(item, arrays) for item in value]
    return value
