"""Saves and loads checkpoints: one folder per step, written whole or not at all, of JSON, arrays and backend files.

A manifest holds the length and the CRC-32 of every file, so that later damage is found before a checkpoint is used.
Nothing is pickled. The last `keep` checkpoints are kept, those that are marked, and the best. Steps are
counted over all stages of a run, so that the names of its checkpoints only grow.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sojourn.errors import RecordError
from sojourn.files import open_regular, read_text
from sojourn.record.atomic import FILE_MODE, new_folder, writing
from sojourn.record.episodes.step_file import UNREADABLE

ARRAY = "__array__"
BEST = "best"  # a file in the checkpoint
MAX_STATE_BYTES = 1 << 30  # of a state without its arrays
MALFORMED = (OSError, ValueError, KeyError, TypeError, AttributeError)  # raised by reading a damaged manifest
# raised by restoring a state of another version
INCOMPATIBLE = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
State = Mapping[str, Any]


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint on disk; `weights` is the folder that the backend wrote."""

    path: Path
    step: int

    @property
    def weights(self) -> Path:
        return self.path / "weights"

    @property
    def marked(self) -> bool:
        return (self.path / "marked").exists()

    @property
    def best(self) -> bool:
        """Returns whether this checkpoint did best of those that the run evaluated."""
        return (self.path / BEST).exists()

    @property
    def checksum(self) -> str:
        """Returns a checksum of the files of the weights, as the manifest has them."""
        try:
            manifest = _manifest(self.path)
            known = [sorted(manifest.get(key, {}).items()) for key in ("files", "crc32")]
        except MALFORMED as error:
            raise self._damaged(str(error)) from error
        weights = [[entry for entry in entries if str(entry[0]).startswith("weights")] for entries in known]
        return f"crc32 {zlib.crc32(json.dumps(weights).encode()):08x}"

    def state(self) -> dict[str, Any]:
        """Returns the state that was saved; tuples come back as lists."""
        try:
            data = json.loads(read_text(self.path / "state.json", MAX_STATE_BYTES))
            if not isinstance(data, dict):
                raise TypeError(f"state.json holds {data!r:.40}, not an object")
            with open_regular(self.path / "state.npz") as file, np.load(file, allow_pickle=False) as arrays:
                return _unpack(data, arrays)
        except (*UNREADABLE, TypeError) as error:
            raise self._damaged(f"its state cannot be read: {error}") from error

    def verify(self) -> None:
        """Reads every file once; raises RecordError if one is missing or changed."""
        if not _complete(self.path):
            raise self._damaged("a file is missing or has another length")
        try:
            digests = _manifest(self.path).get("crc32", {})  # older manifests hold lengths alone
            changed = [name for name, digest in digests.items() if _crc32(self.path / name) != digest]
        except MALFORMED as error:
            raise self._damaged(str(error)) from error
        if changed:
            raise self._damaged(f"{changed[0]} has another checksum than when it was written")
        self.state()

    def _damaged(self, why: str) -> RecordError:
        return RecordError(f"{self.path} is damaged ({why}): restore it from a copy, or delete it to go on without it")

    def mark(self) -> None:
        """Marks this checkpoint, so that it is never pruned."""
        (self.path / "marked").touch(FILE_MODE)

    def mark_best(self) -> None:
        """Marks this checkpoint as the best one, in place of another, so that it is not pruned meanwhile."""
        (self.path / BEST).touch(FILE_MODE)
        for other in checkpoints(self.path.parent):
            if other.best and other.step != self.step:
                (other.path / BEST).unlink(missing_ok=True)


def save(
    folder: str | Path, step: int, write: Callable[[Path], None], state: State, *, keep: int = 2, mark: bool = False
) -> Checkpoint:
    """Writes a checkpoint; `write` writes the weights into the folder whose path it gets.

    The checkpoint appears only once all of it is on the disk. `state` may nest mappings, sequences, numbers, text, None
    and numpy arrays. Marked checkpoints do not count towards `keep`.
    """
    target = Path(folder) / f"step-{step:06d}"
    with writing(target):
        with new_folder(target, replace=True) as temporary:
            (temporary / "weights").mkdir()
            write(temporary / "weights")
            _write_state(temporary, state)
            if mark:
                (temporary / "marked").touch()
            _write_manifest(temporary, step)
        for leftover in target.parent.glob(".step-*"):
            shutil.rmtree(leftover)
        prune(target.parent, step, keep)
    return Checkpoint(target, step)


def checkpoints(folder: str | Path) -> list[Checkpoint]:
    """Returns the complete checkpoints of a folder, oldest first; only the lengths of their files are checked."""
    by_step = {candidate.step: candidate for candidate in _candidates(Path(folder)) if _complete(candidate.path)}
    return list(by_step.values())


def warn(sentence: str) -> None:
    warnings.warn(sentence, RuntimeWarning, stacklevel=3)


def best(folder: str | Path, report: Callable[[str], None] = warn) -> Checkpoint | None:
    """Returns the checkpoint that is marked as the best, None if there is none, or if it is damaged, which `report` is
    told unless it is the newest, too, of which `latest` tells."""
    candidates = _candidates(Path(folder))
    marked = next((one for one in reversed(candidates) if one.best), None)
    if marked is None:
        return None
    try:
        marked.verify()
    except RecordError as error:
        if not marked.path.exists():  # a running run has a better one meanwhile
            return best(folder, report)
        if marked != candidates[-1]:
            report(f"{error}; the newest checkpoint is used instead of this one, which did best")
        return None
    return marked


def latest(folder: str | Path, report: Callable[[str], None] = warn) -> Checkpoint | None:
    """Returns the newest checkpoint that `verify` accepts, None if there are none at all.

    `report` gets a sentence for each newer one that is damaged. Raises RecordError if all are damaged, since only the
    owner of a run may decide to start it again over its records.
    """
    damaged: list[tuple[Checkpoint, RecordError]] = []
    candidates = _candidates(Path(folder))
    while candidates:
        candidate = candidates.pop()
        try:
            candidate.verify()
        except RecordError as error:
            if candidate.path.exists():
                damaged.append((candidate, error))
            else:  # a running run has replaced it by a newer one meanwhile
                candidates = [c for c in _candidates(Path(folder)) if c.step > candidate.step] or candidates
        else:
            for newer, error in damaged:
                if newer.step < candidate.step:
                    continue  # a running run has saved this one meanwhile
                steps = newer.step - candidate.step
                lost = f"{steps} step{'s' * (steps != 1)} earlier"
                report(f"{error}; {candidate.path.name} is used instead, {lost}")
            return candidate
    if damaged:
        raise damaged[0][1]
    return None


@contextmanager
def restoring(part: str, stage: str = "its stage") -> Iterator[None]:
    """Turns the error of restoring a state that was saved in another form into a RecordError that says how to go on."""
    try:
        yield
    except INCOMPATIBLE as error:
        why = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise RecordError(
            f"the saved state of {part} does not fit this version of Sojourn ({why}): resume the run with the version "
            "that wrote it (versions.json in the run folder names it), or delete the checkpoints from the middle of "
            f"{stage}, which then begins anew"
        ) from error


def truncate(folder: str | Path, step: int) -> None:
    """Removes the checkpoints after `step`, for a run that resumes there."""
    for checkpoint in checkpoints(folder):
        if checkpoint.step > step:
            _remove(checkpoint.path)


def _candidates(folder: Path) -> list[Checkpoint]:
    """Returns the folders with the name of a checkpoint, oldest first; some may be incomplete.

    An interrupted replacement leaves `.step-N.old`, which comes before `step-N`.
    """
    if folder.exists() and not folder.is_dir():
        raise RecordError(f"{folder} is a file, not a folder of checkpoints: move it away")
    candidates: list[Checkpoint] = []
    for path in folder.glob("*step-*"):
        match = re.fullmatch(r"\.step-(\d+)\.old|step-(\d+)", path.name)
        if match:
            candidates.append(Checkpoint(path, int(match[1] or match[2])))
    return sorted(candidates, key=lambda candidate: (candidate.step, candidate.path.name))


def _manifest(path: Path) -> dict[str, Any]:
    return json.loads(read_text(path / "checkpoint.json"))


def _complete(path: Path) -> bool:
    try:
        return all((path / name).stat().st_size == size for name, size in _manifest(path)["files"].items())
    except MALFORMED:
        return False


def _write_manifest(folder: Path, step: int) -> None:
    paths = {str(path.relative_to(folder)): path for path in sorted(folder.rglob("*")) if path.is_file()}
    sizes = {name: path.stat().st_size for name, path in paths.items()}
    digests = {name: _crc32(path) for name, path in paths.items()}
    (folder / "checkpoint.json").write_text(json.dumps({"step": step, "files": sizes, "crc32": digests}, indent=1))


def _crc32(path: Path) -> int:
    digest = 0
    with open_regular(path) as file:
        while block := file.read(1 << 20):
            digest = zlib.crc32(block, digest)
    return digest


def prune(folder: Path, step: int, keep: int) -> None:
    """Removes all but the last `keep` checkpoints up to `step` that are neither marked nor the best; later ones were
    skipped as damaged at a resume."""
    unmarked = [c for c in checkpoints(folder) if not (c.marked or c.best) and c.step <= step]
    for checkpoint in unmarked[: max(len(unmarked) - keep, 0)]:
        _remove(checkpoint.path)


def _remove(path: Path) -> None:
    """Removes a checkpoint at once for its readers; what an interruption leaves is removed by the next save."""
    gone = path.with_name(f".{path.name}.gone")
    os.rename(path, gone)
    shutil.rmtree(gone)


def _write_state(folder: Path, state: State) -> None:
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    (folder / "state.json").write_text(json.dumps(_pack(state, arrays, "state")))
    with (folder / "state.npz").open("wb") as file:
        np.savez(file, allow_pickle=False, **arrays)


def _pack(value: Any, arrays: dict[str, np.ndarray[Any, Any]], where: str) -> Any:
    """Returns the value as JSON, in which names stand for its arrays, which are moved to `arrays`."""
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
