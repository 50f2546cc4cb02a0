"""Forks processes from one that has imported torch, transformers and Ray: commands of ours, scripts, workers of Ray.

The imports take two thirds of a command that trains a tiny model for a step, some seven seconds, and nine tenths of the
start of one of Ray's actors. Our own modules are imported by each process anew.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

SOCKET = "SOJOURN_TEST_FORKS"  # the variable that names where the server of a process and its children is asked
HEAVY = (
    "torch", "torch.distributed.tensor", "torch.distributed.fsdp", "transformers.modeling_utils",
    "transformers.models.llama.modeling_llama", "tokenizers", "peft",
)  # fmt: skip
OF_RAY = ("requests", "jsonschema", "psutil", "yaml", "google.protobuf.json_format", "google.protobuf.timestamp_pb2")
LIGHTER = (
    *OF_RAY,
    "typer",
    "rich.console",
    "pydantic",
    "scipy.stats",
    "matplotlib.pyplot",
    "httpx",
    "starlette.applications",
)


def ask(server: str, asked: Mapping[str, Any], timeout: float | None = None) -> int:
    """Has a process forked, and returns how it ended; it is killed, with its group, where this process is before.
    Raises TimeoutError where it takes longer than the timeout, in seconds."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(server)
        connection.settimeout(timeout)
        connection.sendall(json.dumps(asked).encode() + b"\n")
        told = connection.recv(100)
    assert told, "the server ended"
    return int(told)


def serve(path: str) -> None:
    """Forks a process for each connection to a path, until the input ends."""
    paths = _prepared()
    running = dict[int, tuple[int, socket.socket]]()  # by the file number of a process: its own, and who asked
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(1000)
        print(flush=True)
        while True:
            asking = {connection.fileno(): process for process, connection in running.values()}
            ready, _, _ = select.select([0, listener.fileno(), *running, *asking], [], [])
            if 0 in ready:
                return
            for number in ready:
                if number == listener.fileno():
                    connection, _ = listener.accept()
                    asked = json.loads(connection.makefile().readline())
                    if not (process := os.fork()):
                        _run(asked, paths)
                    running[os.pidfd_open(process)] = process, connection
                elif number in running:
                    _tell(number, *running.pop(number))
                elif number in asking:
                    _kill(asking[number])


def _tell(number: int, process: int, connection: socket.socket) -> None:
    code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    with connection, contextlib.suppress(OSError):
        connection.sendall(str(code).encode())
    os.close(number)


def _kill(process: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)  # before it has a group of its own
        os.killpg(process, signal.SIGKILL)


def _prepared() -> list[str]:
    """Imports the libraries, and returns where they are found.

    Garbage is not looked for among what the libraries made: each process would do so when it ends, for over a second.
    """
    import gc

    del sys.path[0]  # the folder of the tests
    gc.disable()
    for name in (*HEAVY, *LIGHTER):
        with contextlib.suppress(ImportError):
            __import__(name)
    gc.freeze()
    gc.enable()
    return [path for path in sys.path if path not in os.environ.get("PYTHONPATH", "").split(os.pathsep)]


def _run(asked: Mapping[str, Any], paths: Sequence[str]) -> NoReturn:
    """Becomes a command, as `python -m sojourn` would, a script, or a program that is given as text."""
    import runpy

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
        sys.argv[0] = asked["script"]
        sys.path[0] = os.path.dirname(asked["script"])
        runpy.run_path(asked["script"], run_name="__main__")
    sys.exit(0)


def fork_workers() -> None:
    """Has the workers of each Ray that this process starts forked, where the environment names a server."""
    from ray._private.parameter import RayParams

    made = RayParams.__init__

    def init(self: RayParams, *args: Any, **keys: Any) -> None:
        made(self, *args, **keys)
        if SOCKET in os.environ:
            self.setup_worker_path = __file__

    RayParams.__init__ = init


def worker() -> NoReturn:
    """Is what Ray starts in the place of its `setup_worker.py`, with the same words: its context, the language, and the
    command of the worker. Ends as the worker does."""
    context = dict[str, Any]()
    words = list[str]()
    for word in sys.argv[1:]:
        name, _, value = word.partition("=")
        if name == "--serialized-runtime-env-context":
            context = json.loads(value)
        elif name != "--language":
            words.append(word)
    environment = {**os.environ, **context.get("env_vars", {})}
    asked = {"script": words[0], "words": words[1:], "folder": os.getcwd(), "environment": environment}
    sys.exit(ask(os.environ[SOCKET], {**asked, "out": os.devnull, "err": os.devnull}) % 256)


if __name__ == "__main__":
    if sys.argv[1] == "--serve":
        serve(sys.argv[2])
    else:
        worker()
