"""Makes and opens the folder of a run: config, versions, seeds, metrics, episodes, blobs, checkpoints.

One process writes at a time. Only its owner may read the folder and what is written there later; if the owner changes
the mode of the folder, it stays so.
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
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from types import MappingProxyType
from typing import Any

import tomli_w

from sojourn.config import plugins
from sojourn.config.old_keys import upgraded
from sojourn.config.toml import MAX_CHARACTERS, parsed
from sojourn.errors import RecordError
from sojourn.files import descriptor as open_descriptor
from sojourn.files import read_bytes, read_text
from sojourn.record.atomic import FOLDER_MODE, make_private, new_folder, write_bytes
from sojourn.record.blobs import Blobs
from sojourn.record.source import revision, source_of
from sojourn.record.summary import Summary
from sojourn.secrets import masked, masked_table
from sojourn.version import VERSION

READERS_S, WRITER_S = 10.0, 0.3  # for which a writer waits for those who look at the lock, and for another writer
NEXT_CONFIG = "next config"  # in versions.json while the config is replaced: the digest of the new one
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


def timestamp() -> str:
    """Returns the present time in UTC, to the second, as ISO 8601."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def versions() -> dict[str, str]:
    """Returns what a run's results depend on beside its config: the versions of Sojourn, Python and the installed
    packages, the machine, and the time."""
    known = {"sojourn": VERSION, **revision(), "python": platform.python_version()}
    known |= {"machine": platform.platform(), "began": timestamp(), **plugins.distributions()}
    known |= {f"source of {folder.name}": source_of(folder) for folder in plugins.folders() if folder.is_dir()}
    for package in PACKAGES:
        try:
            known[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return known


class RunFolder:
    """An open run folder. `create` and `open` lock it, to write; `read` does not.

    The lock is `flock` on the file `lock`, which the system releases however the process ends.
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
        """Creates the folder, whole or not at all, and locks it; `config` is the resolved configuration as TOML."""
        path = Path(path)
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise RecordError(f"{path} exists and is not empty: resume it, or give the run another folder")
        table = _parse(config, path / "config.toml")
        config = config if masked_table(table) == table else tomli_w.dumps(masked_table(table))
        lock = None
        try:
            with new_folder(path) as temporary:
                temporary.chmod(FOLDER_MODE)
                lock = _lock(temporary)
                _write_files(temporary, config, dict(seeds or {}), dict(versions or globals()["versions"]()))
        except BaseException as error:
            if lock is not None:
                os.close(lock)
            if isinstance(error, OSError):
                raise RecordError(f"{path} cannot be created: {error}; choose another folder") from error
            raise
        return cls(path, lock)

    @classmethod
    def create_next(cls, name: str, parent: str | Path, config: str, *, seeds: Mapping[str, int]) -> RunFolder:
        """Creates and locks the first unused folder that `next` names; one that another process takes meanwhile is
        left to it."""
        while True:
            path = cls.next(name, parent)
            try:
                return cls.create(path, config, seeds=seeds)
            except RecordError:
                if not path.exists():
                    raise

    @classmethod
    def open(cls, path: str | Path) -> RunFolder:
        """Opens an existing folder to continue the run; raises RecordError if its config was edited meanwhile."""
        folder = cls.read(path)
        recorded = folder.versions.get("config")
        known = {recorded, folder.versions.get(NEXT_CONFIG)}  # the second where a change of it was interrupted
        if recorded is not None and _digest(folder._config_text()) not in known:
            raise RecordError(
                f"{folder.path / 'config.toml'} was edited since the run began: put it back as it was, or start a new "
                "run from it"
            )
        return cls(folder.path, _lock(folder.path))

    @classmethod
    def read(cls, path: str | Path) -> RunFolder:
        """Opens an existing folder to read it, also while another process writes."""
        return cls(_existing(path), None)

    @staticmethod
    def next(name: str, parent: str | Path = "runs") -> Path:
        """Returns the first unused path `<parent>/<name>-<date>-<n>`, without creating it."""
        stem = f"{name}-{datetime.date.today().isoformat()}-"
        used = [p.name.removeprefix(stem) for p in Path(parent).glob(f"{stem}*")]
        number = 1 + max((int(n) for n in used if n.isdigit()), default=0)
        return Path(parent) / f"{stem}{number}"

    @property
    def writable(self) -> bool:
        return self._lock is not None

    @property
    def config(self) -> dict[str, Any]:
        """Returns the run's config under today's names of its keys, without secrets, which older runs may hold."""
        return _config(self._config_text(), self.path / "config.toml")

    @property
    def stage_starts(self) -> Mapping[str, int]:
        """Returns how many steps come before each stage of the config, by the name of the stage."""
        return _stage_starts(self._config_text(), self.path / "config.toml")

    @property
    def config_text(self) -> str:
        """Returns the text of config.toml for people, without secrets; also of a damaged one."""
        text = read_bytes(self.path / "config.toml", 4 * MAX_CHARACTERS).decode(errors="replace")
        with contextlib.suppress(RecordError):
            table = _parse(text, self.path / "config.toml")
            return text if masked_table(table) == table else tomli_w.dumps(masked_table(table))
        return masked(text)

    @property
    def versions(self) -> dict[str, str]:
        """Returns what `versions` gave when the run began, and under `config` the SHA-256 of its config.toml."""
        return self._table("versions.json")

    @property
    def models(self) -> dict[str, str]:
        """Returns the commit, version or digest of the weights that were loaded, by the role of each model."""
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
        self._require_writable()
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
        value = self.read_json(name, {})
        if not isinstance(value, dict):
            raise RecordError(f"{self.path / name} holds {value!r:.40}, not an object: restore it from a copy")
        return value

    def _config_text(self) -> str:
        path = self.path / "config.toml"
        try:
            return read_text(path)
        except (OSError, ValueError) as error:
            raise RecordError(f"{path} cannot be read ({error}): restore it from a copy") from error

    def add_evaluation(self, name: str, stage: str, step: int, summary: Summary) -> None:
        """Adds to evaluations.json; an evaluation with the same name, stage and step is replaced."""
        key = {"name": name, "stage": stage, "step": step}
        kept = [e for e in self.evaluations() if {k: e[k] for k in key} != key]
        self.write_json("evaluations.json", [*kept, {**key, "summary": summary.to_json()}])

    def repeat_evaluation(self, stage: str, step: int) -> None:
        """Gives a stage that left the weights as they were the numbers of the newest evaluation under its own name."""
        newest = self.evaluations()[-1]
        same = {**newest, "name": stage, "stage": stage, "step": step, "same_as": newest.get("same_as", newest["name"])}
        self.write_json("evaluations.json", [*(e for e in self.evaluations() if e["name"] != stage), same])

    def evaluations(self) -> list[dict[str, Any]]:
        """Returns the evaluations so far, oldest first: name, stage, step, and a summary for `Summary.from_json`."""
        evaluations = self.read_json("evaluations.json", [])
        if not isinstance(evaluations, list) or not all(map(_is_evaluation, evaluations)):
            raise RecordError(
                f"{self.path / 'evaluations.json'} holds something else than evaluations (name, stage, step, summary): "
                "it is damaged, restore it from a copy or delete it"
            )
        return evaluations

    def rename_evaluation(self, name: str, new: str) -> None:
        """Gives the numbers of an evaluation another name."""
        named = [{**e, "name": new} if e["name"] == name else e for e in self.evaluations()]
        self.write_json("evaluations.json", named)

    def replace_config(self, config: str) -> None:
        """Replaces config.toml and its digest, so that an interruption leaves either the old config or the new one."""
        recorded = {key: value for key, value in self.versions.items() if key != NEXT_CONFIG}
        self.write_json("versions.json", {**recorded, NEXT_CONFIG: _digest(config)})
        write_bytes(self.path / "config.toml", config.encode())
        self.write_json("versions.json", {**recorded, "config": _digest(config)})

    def discard(self) -> None:
        """Deletes the folder."""
        self._require_writable()
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

    def _require_writable(self) -> None:
        if not self.writable:
            raise RecordError(f"{self.path} was opened to read, not to write: open it with RunFolder.open")


def _write_files(folder: Path, config: str, seeds: Mapping[str, int], versions: Mapping[str, str]) -> None:
    (folder / "config.toml").write_bytes(config.encode())
    (folder / "versions.json").write_text(json.dumps({**versions, "config": _digest(config)}, indent=1) + "\n")
    (folder / "seeds.json").write_text(json.dumps(seeds, indent=1) + "\n")
    (folder / "metrics.jsonl").touch()
    for name in ("tokens", "blobs", "checkpoints"):
        (folder / name).mkdir()
    make_private(folder)


def _digest(config: str) -> str:
    return hashlib.sha256(config.encode()).hexdigest()


def _is_evaluation(value: Any) -> bool:
    try:
        success = Summary.from_json(value["summary"]).overall.success
        texts = (value["name"], value["stage"], success.percent)  # `percent` raises for what is no number
        return all(isinstance(text, str) for text in texts) and isinstance(value["step"], int)
    except (KeyError, TypeError, ValueError, AttributeError):
        return False


def _config(text: str, path: Path) -> dict[str, Any]:
    return masked_table(upgraded(_parse(text, path)))


@lru_cache(maxsize=4)  # a run asks at each of its steps
def _stage_starts(text: str, path: Path) -> Mapping[str, int]:
    done, starts = 0, dict[str, int]()
    stages = _config(text, path).get("stages")
    for stage in stages if isinstance(stages, list) else ():
        if isinstance(stage, dict):
            starts[str(stage.get("name", ""))] = done
            done += steps if isinstance(steps := stage.get("steps"), int) else 0
    return MappingProxyType(starts)


def _parse(text: str, path: Path) -> dict[str, Any]:
    try:
        return parsed(text)
    except ValueError as error:
        raise RecordError(
            f"{path} is not valid TOML ({error}): the config of a run folder must be readable as a config"
        ) from error


def _existing(path: str | Path) -> Path:
    path = Path(path)
    if not (path / "config.toml").is_file():
        raise RecordError(f"{path} is not a run folder: expected a config.toml in it; give the folder of a run")
    return path


def _lock(folder: Path) -> int:
    try:
        descriptor = open_descriptor(folder / "lock", os.O_RDWR | os.O_CREAT)
    except OSError as error:
        raise RecordError(f"{folder} cannot be written: {error}; choose a folder that you may write to") from error
    try:
        _acquire(descriptor)
    except OSError as error:
        holder = os.read(descriptor, 32).decode().strip() or "unknown"
        os.close(descriptor)
        raise RecordError(
            f"{folder} is being written by process {holder}: wait for it or stop it, or give this run another folder"
        ) from error
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return descriptor


def _acquire(descriptor: int) -> None:
    """Acquires the lock. It waits for readers, since `run_status.locked` shares it for a moment to see whether a run is
    active, and for a writer that is about to end."""
    began = time.monotonic()
    while True:
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() - began > (READERS_S if _is_shared(descriptor) else WRITER_S):
                raise
            time.sleep(0.01)


def _is_shared(descriptor: int) -> bool:
    """Returns whether readers alone hold the lock."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    return True
