"""Runs our commands, and scripts of tests, in processes that `forks` forking.

Tests of imports, threads, signals and encodings start an interpreter of their own.
"""

from __future__ import annotations

import atexit
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import forking

EARLY = (  # variables that are read when an interpreter starts, or a library is imported
    "OMP_NUM_THREADS", "ATEN_CPU_CAPABILITY", "MKL_CBWR", "ONEDNN_MAX_CPU_ISA", "OPENBLAS_CORETYPE",
    "NPY_DISABLE_CPU_FEATURES", "GLIBC_TUNABLES", "PYTHONHASHSEED",
)  # fmt: skip
LONGEST_S = 800.0  # of a training, on a busy machine


def sojourn(
    folder: Path,
    *words: str,
    environment: Mapping[str, str] | None = None,
    timeout: float = 200,
    forked: bool = True,
) -> subprocess.CompletedProcess[str]:
    """Runs `sojourn words` in a folder, and returns how it ended and what it printed; with `forked` = False in an
    interpreter of its own, as several at once, and commands that find other libraries, need."""
    environment = _environment(environment)
    if not forked:
        command = [sys.executable, "-m", "sojourn", *words]
        return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=timeout)
    return _forked({"module": "sojourn"}, folder, words, environment, timeout)


def resumed(path: Path, environment: Mapping[str, str] | None = None) -> None:
    """Goes on with the run of a folder to its end, by a command."""
    done = sojourn(path.parent, "train", "--resume", str(path), environment=environment, timeout=LONGEST_S)
    assert done.returncode == 0, done.stderr[-3000:]


def script(path: Path, *words: str, environment: Mapping[str, str], timeout: float = 200) -> str:
    """Returns what a script prints in an environment; raises AssertionError where it fails."""
    done = _forked({"script": str(path)}, path.parents[2], words, environment, timeout)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def killed(code: str, folder: Path, *words: str, environment: Mapping[str, str] | None = None) -> None:
    """Runs a program with words, as `python -c` does, and `sojourn`; raises AssertionError unless SIGKILL ends it."""
    done = _forked({"code": code}, folder, words, _environment(environment), LONGEST_S)
    assert done.returncode == -signal.SIGKILL, done.stderr[-3000:]


def _environment(more: Mapping[str, str] | None) -> dict[str, str]:
    """Returns the variables of commands: those of this process, where our packages are, and more."""
    root = Path(__file__).parent.parent
    own = {"PYTHONPATH": os.pathsep.join(map(str, (root, root / "worlds"))), "COLUMNS": "200"}
    return {**os.environ, **own, **(more or {})}


def _forked(
    what: Mapping[str, str], folder: Path, words: Sequence[str], environment: Mapping[str, str], timeout: float
) -> subprocess.CompletedProcess[str]:
    server = server_of(environment)
    with tempfile.TemporaryDirectory() as place:
        out, err = Path(place, "out"), Path(place, "err")
        asked = {**what, "words": words, "folder": str(folder), "out": str(out), "err": str(err)}
        try:
            code = forking.ask(server, {**asked, "environment": {**environment, forking.SOCKET: server}}, timeout)
        except TimeoutError:
            raise subprocess.TimeoutExpired(["sojourn", *words], timeout) from None
        told = [file.read_text("utf-8") for file in (out, err)]
    return subprocess.CompletedProcess(["sojourn", *words], code, *told)


def server_of(environment: Mapping[str, str]) -> str:
    """Returns where processes of an environment are forked."""
    return _server(tuple((name, environment[name]) for name in EARLY if name in environment))


@cache
def _server(early: tuple[tuple[str, str], ...]) -> str:
    """Starts the process that forks, one for each of the tests' processes and for each value of the variables that are
    read early; it ends when its input does."""
    environment = {**{name: value for name, value in os.environ.items() if name not in EARLY}, **dict(early)}
    folder = tempfile.TemporaryDirectory()
    path = os.path.join(folder.name, "socket")
    command, pipe = [sys.executable, forking.__file__, "--serve", path], subprocess.PIPE
    server = subprocess.Popen(command, stdin=pipe, stdout=pipe, env=environment)
    atexit.register(_end, server, folder)
    assert server.stdout is not None
    assert server.stdout.readline(), "the process that forks did not start"
    return path


def _end(server: subprocess.Popen[bytes], folder: tempfile.TemporaryDirectory[str]) -> None:
    assert server.stdin is not None
    server.stdin.close()
    server.wait(20)
    folder.cleanup()
