"""Runs our commands, and scripts of tests, in processes that `forking` forks.

Tests of imports, threads, signals and encodings start an interpreter of their own.
"""

from __future__ import annotations

import atexit
import os
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import forking
import pytest

EARLY = (  # variables that are read when an interpreter starts, or a library is imported
    "OMP_NUM_THREADS", "ATEN_CPU_CAPABILITY", "MKL_CBWR", "ONEDNN_MAX_CPU_ISA", "OPENBLAS_CORETYPE",
    "NPY_DISABLE_CPU_FEATURES", "GLIBC_TUNABLES", "PYTHONHASHSEED",
)  # fmt: skip
ROOT = Path(__file__).parent.parent
PYTHON = [sys.executable, "-I", "-S", forking.__file__]  # its words are those of `python`
LONGEST_S = 800.0  # of a training, on a busy machine


def sojourn(
    folder: Path,
    *words: str,
    environment: Mapping[str, str] | None = None,
    timeout: float = 200,
    forked: bool = True,
) -> subprocess.CompletedProcess[str]:
    """Runs `sojourn words` in a folder, and returns how it ended and what it printed; with `forked` = False in an
    interpreter of its own, as commands that find other libraries need."""
    return _run(folder, "-m", "sojourn", *words, environment=environment, timeout=timeout, forked=forked)


def resumed(path: Path, environment: Mapping[str, str] | None = None) -> None:
    """Goes on with the run of a folder to its end, by a command."""
    done = sojourn(path.parent, "train", "--resume", str(path), environment=environment, timeout=LONGEST_S)
    assert done.returncode == 0, done.stderr[-3000:]


def script(path: Path, *words: str, environment: Mapping[str, str]) -> str:
    """Returns what a script prints; raises AssertionError where it fails."""
    done = _run(ROOT, str(path), *words, environment=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def killed(code: str, folder: Path, *words: str, environment: Mapping[str, str] | None = None) -> None:
    """Runs a program with words, as `python -c` does; raises AssertionError unless SIGKILL ends it."""
    done = _run(folder, "-c", code, *words, environment=environment, timeout=LONGEST_S)
    assert done.returncode == -signal.SIGKILL, done.stderr[-3000:]


def _run(
    folder: Path,
    *words: str,
    environment: Mapping[str, str] | None,
    timeout: float = 200,
    forked: bool = True,
) -> subprocess.CompletedProcess[str]:
    command = [*(PYTHON if forked else [sys.executable]), *words]
    variables = variables_of(environment) if forked else _environment(environment)
    return subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, timeout=timeout)


def variables_of(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Returns the variables that `PYTHON` needs: those of this process, where our packages are, those of an
    environment, and where processes are forked that have them."""
    variables = _environment(environment)
    return {**variables, forking.SOCKET: server_of(variables)}


def _environment(more: Mapping[str, str] | None) -> dict[str, str]:
    own = {"PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "worlds"))), "COLUMNS": "200"}
    return {**os.environ, **own, **(more or {})}


def server_of(variables: Mapping[str, str]) -> str:
    """Returns where processes that have such variables are forked."""
    return _server(tuple((name, variables[name]) for name in EARLY if name in variables))


def fork_children(patch: pytest.MonkeyPatch, folder: Path) -> None:
    """Has the programs forked that this process, and those forked for it, start by `sys.executable`: it is a program
    in the folder then, which does so."""
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nexec {shlex.join(PYTHON)} "$@"\n')
    python.chmod(0o700)
    patch.setenv(forking.SOCKET, server_of(os.environ))
    patch.setenv(forking.EXECUTABLE, str(python))
    patch.setattr(sys, "executable", str(python))


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
