"""Runs our commands, and scripts of tests, in processes forked from one that has imported torch and transformers.

These imports take two thirds of a command that trains a tiny model for a step, some seven seconds. Our own modules are
imported by each command anew. Tests of imports, threads, signals and encodings start an interpreter of their own.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

HEAVY = ("torch", "transformers.modeling_utils", "transformers.models.llama.modeling_llama", "tokenizers", "peft")
EARLY = (  # variables that are read when an interpreter starts, or a library is imported
    "OMP_NUM_THREADS", "ATEN_CPU_CAPABILITY", "MKL_CBWR", "ONEDNN_MAX_CPU_ISA", "OPENBLAS_CORETYPE",
    "NPY_DISABLE_CPU_FEATURES", "GLIBC_TUNABLES", "PYTHONHASHSEED",
)  # fmt: skip
LONGEST_S = 800.0  # of a training, on a busy machine
LIGHTER = ("typer", "rich.console", "pydantic", "scipy.stats", "matplotlib.pyplot", "httpx", "starlette.applications")


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
    with tempfile.TemporaryDirectory() as place:
        out, err = Path(place, "out"), Path(place, "err")
        asked = {**what, "words": words, "folder": str(folder), "out": str(out), "err": str(err)}
        early = tuple((name, environment[name]) for name in EARLY if name in environment)
        code = _ask(_parent(early), {**asked, "environment": dict(environment)}, timeout)
        told = [file.read_text("utf-8") for file in (out, err)]
    return subprocess.CompletedProcess(["sojourn", *words], code, *told)


def _ask(parent: subprocess.Popen[str], asked: Mapping[str, Any], timeout: float) -> int:
    assert parent.stdin is not None
    assert parent.stdout is not None
    parent.stdin.write(json.dumps(asked) + "\n")
    parent.stdin.flush()
    pid, late = int(parent.stdout.readline()), threading.Event()

    def end() -> None:
        late.set()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)

    timer = threading.Timer(timeout, end)
    timer.start()
    code = int(parent.stdout.readline())
    timer.cancel()
    if late.is_set():
        raise subprocess.TimeoutExpired(["sojourn", *asked["words"]], timeout)
    return code


@cache
def _parent(early: tuple[tuple[str, str], ...]) -> subprocess.Popen[str]:
    """Returns the process that forks, one for each of the tests' processes and for each value of the variables that are
    read early; it ends when its input does."""
    environment = {**{name: value for name, value in os.environ.items() if name not in EARLY}, **dict(early)}
    command, pipe = [sys.executable, __file__], subprocess.PIPE
    parent = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment)
    atexit.register(_end, parent)
    return parent


def _end(parent: subprocess.Popen[str]) -> None:
    assert parent.stdin is not None
    parent.stdin.close()
    parent.wait(20)


def serve() -> None:
    """Forks a process for each line of the input, and prints its number, then its exit code.

    Garbage is not looked for among what the libraries made: each process would do so when it ends, for over a second.
    """
    del sys.path[0]  # the folder of the tests
    gc.disable()
    for name in (*HEAVY, *LIGHTER):
        with contextlib.suppress(ImportError):
            __import__(name)
    gc.freeze()
    gc.enable()
    paths = [path for path in sys.path if path not in os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    for line in sys.stdin:
        asked = json.loads(line)
        pid = os.fork()
        if not pid:
            _run(asked, paths)
        print(pid, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


def _run(asked: Mapping[str, Any], paths: Sequence[str]) -> NoReturn:
    """Becomes a command, as `python -m sojourn` would, a script, or a program that is given as text."""
    os.setsid()
    os.chdir(asked["folder"])
    os.environ.clear()
    os.environ.update(asked["environment"])
    own = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:] = [asked["folder"], *filter(None, own), *paths]
    for number, name, flags in (
        (0, os.devnull, os.O_RDONLY),
        (1, asked["out"], os.O_WRONLY | os.O_CREAT),
        (2, asked["err"], os.O_WRONLY | os.O_CREAT),
    ):
        os.dup2(os.open(name, flags, 0o600), number)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False)  # noqa: SIM115
    sys.argv = ["sojourn", *asked["words"]]
    if "module" in asked:
        runpy.run_module(asked["module"], run_name="__main__", alter_sys=True)
    elif "code" in asked:
        exec(compile(asked["code"], "<code>", "exec", dont_inherit=True), {"__name__": "__main__"})
    else:
        sys.path[0] = os.path.dirname(asked["script"])
        runpy.run_path(asked["script"], run_name="__main__")
    sys.exit(0)


if __name__ == "__main__":
    serve()
