"""The folder of one run: config, versions, seeds, metrics, episodes, blobs, checkpoints; one writer at a time.

What a run saw and said is its owner's alone: the folder is made so that no other user may look into it, and what is
written there later likewise. Whoever gives the folder another mode afterwards keeps that: it is not changed again.
"""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import hashlib
import json
import os
import platform
import shutil
import time
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import tomli_w

import sojourn
from sojourn.config import plugins
from sojourn.config.toml import LARGEST, parsed
from sojourn.errors import RecordError
from sojourn.files import descriptor as opened
from sojourn.files import read_bytes, read_text
from sojourn.record.atomic import FOLDER, make_private, sync_tree, write_bytes
from sojourn.record.blobs import Blobs
from sojourn.record.source import revision, source_of
from sojourn.record.summary import Summary
from sojourn.secrets import masked, masked_table

PACKAGES = (
    "numpy",
    "torch",
    "transformers",
    "tokenizers",
    "safetensors",
    "peft",
    "playwright",
    "miniwob",
    "vllm",
    "ray",
)


def versions() -> dict[str, str]:
    """What a run's numbers depend on beside its config: our code, Python, the machine, and the packages that are
    installed; and when it began."""
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    found = {"sojourn": sojourn.__version__, **revision(), "python": platform.python_version()}
    found |= {"machine": platform.platform(), "began": now, **plugins.distributions()}
    found |= {f"source of {folder.name}": source_of(folder) for folder in plugins.folders() if folder.is_dir()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


class RunFolder:
    """An open run folder. Made by `create`, `open` or `read`; only `read` does not lock it.

    The lock is `flock` on the file `lock`: the system frees it when the process ends, however it ends.
    """

    def __init__(self, path: Path, lock: int | None) -> None:
        self.path = path
        self._lock = lock

    @classmethod
    def create(
        cls,
        path: str | Path,
        config: str,
        *,
        seeds: Mapping[str, int] | None = None,
        versions: Mapping[str, str] | None = None,
    ) -> RunFolder:
        """Makes the folder, complete or not at all, and locks it; `config` is the resolved configuration as TOML."""
        path = Path(path)
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise RecordError(f"{path} exists and is not empty: resume it, or give the run another folder")
        told = _parse(config, path / "config.toml")
        config = config if masked_table(told) == told else tomli_w.dumps(masked_table(told))
        temporary = path.with_name(f".{path.name}.new-{os.getpid()}")
        lock = None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary.mkdir(FOLDER)
            lock = _lock(temporary)
            _fill(temporary, config, dict(seeds or {}), dict(versions or globals()["versions"]()))
            os.rename(temporary, path)
        except BaseException as error:
            if lock is not None:
                os.close(lock)
            shutil.rmtree(temporary, ignore_errors=True)
            if isinstance(error, OSError):
                raise RecordError(f"{path} cannot be created: {error}; choose another folder") from error
            raise
        return cls(path, lock)

    @classmethod
    def open(cls, path: str | Path) -> RunFolder:
        """Opens an existing folder to go on writing; refuses one whose config was edited since the run began."""
        found = cls.read(path)
        begun = found.versions.get("config")
        if begun is not None and begun != _digest(found._config_text()):
            raise RecordError(
                f"{found.path / 'config.toml'} was edited since the run began: put it back as it was, or start a new "
                "run from it"
            )
        return cls(found.path, _lock(found.path))

    @classmethod
    def read(cls, path: str | Path) -> RunFolder:
        """Opens an existing folder to look, also while another process writes."""
        return cls(_existing(path), None)

    @staticmethod
    def next(name: str, parent: str | Path = "runs") -> Path:
        """The first unused `<parent>/<name>-<date>-<n>`; nothing is made."""
        stem = f"{name}-{datetime.date.today().isoformat()}-"
        used = [p.name.removeprefix(stem) for p in Path(parent).glob(f"{stem}*")]
        number = 1 + max((int(n) for n in used if n.isdigit()), default=0)
        return Path(parent) / f"{stem}{number}"

    @property
    def writable(self) -> bool:
        return self._lock is not None

    @property
    def config(self) -> dict[str, Any]:
        """What the run was told, without keys, which older runs may hold."""
        return masked_table(_parse(self._config_text(), self.path / "config.toml"))

    @property
    def config_text(self) -> str:
        """The file config.toml for whoever reads it, without keys; also one that is damaged."""
        text = read_bytes(self.path / "config.toml", 4 * LARGEST).decode(errors="replace")
        with contextlib.suppress(RecordError):
            found = _parse(text, self.path / "config.toml")
            return text if masked_table(found) == found else tomli_w.dumps(masked_table(found))
        return masked(text)

    @property
    def versions(self) -> dict[str, str]:
        """What was installed as the run began, and under `config` the SHA-256 of its config.toml."""
        return self._table("versions.json")

    @property
    def models(self) -> dict[str, str]:
        """Which weights were loaded, by the role of each model: commit, version or digest."""
        return self._table("models.json")

    @property
    def seeds(self) -> dict[str, int]:
        return self._table("seeds.json")

    @property
    def blobs(self) -> Blobs:
        return Blobs(self.path / "blobs")

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    def write_json(self, name: str, value: Any) -> None:
        """Replaces a small JSON file of the folder, whole or not at all."""
        self._must_write()
        write_bytes(self.path / name, (json.dumps(value, indent=1) + "\n").encode())

    def read_json(self, name: str, default: Any = None) -> Any:
        path = self.path / name
        if not path.exists():
            return default
        try:
            return json.loads(read_text(path))
        except (OSError, ValueError, RecursionError) as error:
            raise RecordError(f"{path} is not JSON ({error}): it is damaged, restore it from a copy") from error

    def _table(self, name: str) -> dict[str, Any]:
        found = self.read_json(name, {})
        if not isinstance(found, dict):
            raise RecordError(f"{self.path / name} holds {found!r:.40}, not an object: restore it from a copy")
        return found

    def _config_text(self) -> str:
        path = self.path / "config.toml"
        try:
            return read_text(path)
        except (OSError, ValueError) as error:
            raise RecordError(f"{path} cannot be read ({error}): restore it from a copy") from error

    def add_evaluation(self, name: str, stage: str, step: int, summary: Summary) -> None:
        """Adds to evaluations.json; the same name, stage and step replaces what was there."""
        key = {"name": name, "stage": stage, "step": step}
        kept = [e for e in self.evaluations() if {k: e[k] for k in key} != key]
        self.write_json("evaluations.json", [*kept, {**key, "summary": summary.to_json()}])

    def evaluations(self) -> list[dict[str, Any]]:
        """The evaluations so far, oldest first: name, stage, step, and a summary for `Summary.from_json`."""
        found = self.read_json("evaluations.json", [])
        if not isinstance(found, list) or not all(map(_is_evaluation, found)):
            raise RecordError(
                f"{self.path / 'evaluations.json'} holds something else than evaluations (name, stage, step, summary): "
                "it is damaged, restore it from a copy or delete it"
            )
        return found

    def discard(self) -> None:
        """Removes the folder and all that is in it."""
        self._must_write()
        shutil.rmtree(self.path)

    def close(self) -> None:
        if self._lock is not None:
            fcntl.flock(self._lock, fcntl.LOCK_UN)  # children that were forked meanwhile hold the descriptor too
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _must_write(self) -> None:
        if not self.writable:
            raise RecordError(f"{self.path} was opened to read, not to write: open it with RunFolder.open")


def _fill(folder: Path, config: str, seeds: Mapping[str, int], found: Mapping[str, str]) -> None:
    (folder / "config.toml").write_bytes(config.encode())
    (folder / "versions.json").write_text(json.dumps({**found, "config": _digest(config)}, indent=1) + "\n")
    (folder / "seeds.json").write_text(json.dumps(seeds, indent=1) + "\n")
    (folder / "metrics.jsonl").touch()
    for name in ("tokens", "blobs", "checkpoints"):
        (folder / name).mkdir()
    make_private(folder)
    sync_tree(folder)


def _digest(config: str) -> str:
    return hashlib.sha256(config.encode()).hexdigest()


def _is_evaluation(value: Any) -> bool:
    try:
        success = Summary.from_json(value["summary"]).overall.success
        texts = (value["name"], value["stage"], success.percent)  # as text, which only numbers have
        return all(isinstance(text, str) for text in texts) and isinstance(value["step"], int)
    except (KeyError, TypeError, ValueError, AttributeError):
        return False


def _parse(text: str, path: Path) -> dict[str, Any]:
    try:
        return parsed(text)
    except ValueError as error:
        raise RecordError(f"{path} would not be TOML ({error}): a run folder must itself be a valid config") from error


def _existing(path: str | Path) -> Path:
    path = Path(path)
    if not (path / "config.toml").is_file():
        raise RecordError(f"{path} is not a run folder: expected a config.toml in it; give the folder of a run")
    return path


def _lock(folder: Path) -> int:
    try:
        descriptor = opened(folder / "lock", os.O_RDWR | os.O_CREAT)
    except OSError as error:
        raise RecordError(f"{folder} cannot be written: {error}; choose a folder that you may write to") from error
    try:
        _take(descriptor)
    except OSError as error:
        holder = os.read(descriptor, 32).decode().strip() or "unknown"
        os.close(descriptor)
        raise RecordError(
            f"{folder} is being written by process {holder}: wait for it or stop it, or give this run another folder"
        ) from error
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return descriptor


def _take(descriptor: int) -> None:
    """Takes the lock; whoever only looks whether a run goes on (`run_status.locked`) holds it for a moment."""
    for _ in range(30):
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.01)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
