"""Starts Python's programs by a fork of a process that has imported torch, transformers, what Ray builds on, and us.

Run as a program, with the words of `python`, it asks the server of `SOCKET` for a process that has its input, its
outputs, its environment and its folder; it hands on signals, and ends as that does. Where it is killed, that is, too.
The imports take two thirds of a command that trains a tiny model for a step, some seven seconds, and nine tenths of the
start of one of Ray's actors.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

SOCKET = "SOJOURN_TEST_FORKS"  # the variable that names it
EXECUTABLE = "SOJOURN_TEST_PYTHON"  # names what forked programs start as `sys.executable`, where it is set
CONTEXT = "--serialized-runtime-env-context="
LIBRARIES = (
    "torch", "torch.distributed.tensor", "torch.distributed.fsdp", "transformers.modeling_utils",
    "transformers.models.llama.modeling_llama", "tokenizers", "peft",
    "requests", "jsonschema", "psutil", "yaml", "google.protobuf.json_format", "google.protobuf.timestamp_pb2",  # Ray's
    "typer", "rich.console", "pydantic", "scipy.stats", "matplotlib.pyplot", "httpx", "starlette.applications",
)  # fmt: skip
HANDED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def ask(words: Sequence[str]) -> int:
    """Has a process forked that runs a program, in place of this one, and returns how it ended."""
    signal.pthread_sigmask(signal.SIG_BLOCK, HANDED_ON)
    asked = {"words": words, "folder": os.getcwd(), "environment": dict(os.environ)}
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(os.environ[SOCKET])
        socket.send_fds(connection, [json.dumps(asked).encode() + b"\n"], [0, 1, 2])
        answers = connection.makefile()
        process = int(answers.readline())
        for number in HANDED_ON:
            signal.signal(number, lambda number, _: _signal(process, number))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDED_ON)
        told = answers.readline()
    return int(told or 1)


def _signal(process: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, number)


def end(code: int) -> NoReturn:
    """Ends this process by an exit code, or the signal of a negative one."""
    if code < 0:
        with contextlib.suppress(OSError):  # SIGKILL has no handler
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code % 256)


def serve(path: str) -> tuple[Any, Sequence[int]] | None:
    """Forks a process for each connection to a path, until the input ends. Returns, in each of them, what it was asked
    for, and its input and outputs."""
    running = dict[int, tuple[int, socket.socket]]()  # by the file number of a process: its own, and who asked
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(1000)
    print(flush=True)
    while True:
        asking = {connection.fileno(): end for end, (_, connection) in running.items()}
        ready, _, _ = select.select([0, listener.fileno(), *running, *asking], [], [])
        if 0 in ready:
            return None
        for number in ready:
            if number == listener.fileno():
                connection, _ = listener.accept()
                if not (received := _received(connection)):
                    connection.close()
                    continue
                _, files = received
                if not (process := os.fork()):
                    for one in (listener, connection, *(other for _, other in running.values())):
                        one.close()
                    return received
                _tell(connection, process)
                for file in files:
                    os.close(file)
                running[os.pidfd_open(process)] = process, connection
            elif number in running:
                process, connection = running.pop(number)
                with connection:
                    _tell(connection, os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]))
                os.close(number)
            elif asking[number] in running:
                signal.pidfd_send_signal(asking[number], signal.SIGKILL)


def _received(connection: socket.socket) -> tuple[Any, list[int]] | None:
    """Returns what was asked for, and the files that came with it; None where who asked has ended meanwhile."""
    text, files, _, _ = socket.recv_fds(connection, 2**20, 3)
    more = text
    while more and not text.endswith(b"\n"):
        more = connection.recv(2**20)
        text += more
    if more:
        return json.loads(text), files
    for file in files:
        os.close(file)
    return None


def _tell(connection: socket.socket, number: int) -> None:
    with contextlib.suppress(OSError):
        connection.sendall(f"{number}\n".encode())


def _prepared() -> list[str]:
    """Imports the libraries and our modules, and returns where they are found.

    Garbage is not looked for among what they made: each process would do so when it ends, for over a second.
    """
    import gc
    import pkgutil

    del sys.path[0]  # the folder of the tests
    gc.disable()
    import sojourn

    ours = [name for _, name, _ in pkgutil.walk_packages(sojourn.__path__, "sojourn.", onerror=str)]
    ours = [name for name in ours if not name.endswith((".inside", ".__main__"))]  # which run
    ours = [name for name in ours if not name.startswith("sojourn.backends.ray")]  # Ray reads variables when imported
    for name in (*LIBRARIES, *ours):
        with contextlib.suppress(ImportError):
            __import__(name)
    gc.freeze()
    gc.enable()
    return [path for path in sys.path if path not in os.environ.get("PYTHONPATH", "").split(os.pathsep)]


def _run(asked: Any, files: Sequence[int], paths: Sequence[str]) -> None:
    """Becomes a program, as `python` would, by a module, a text, or a file."""
    import runpy

    os.setsid()
    os.chdir(asked["folder"])
    os.environ.clear()
    os.environ.update(asked["environment"])
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    own = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:] = [asked["folder"], *filter(None, own), *paths]
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False)  # noqa: SIM115
    sys.executable = os.environ.get(EXECUTABLE, sys.executable)
    first, *sys.argv = asked["words"]
    if first == "-m":
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    elif first == "-c":
        code, sys.argv[0] = sys.argv[0], first
        exec(compile(code, "<code>", "exec", dont_inherit=True), {"__name__": "__main__"})
    else:
        sys.argv.insert(0, first)
        sys.path[0] = os.path.dirname(first)
        runpy.run_path(first, run_name="__main__")


def _end_at_once(work: Callable[[], None]) -> NoReturn:
    """Does some work, and ends the process as Python does, but for taking down the modules, which takes most of a
    second where torch is among them."""
    import atexit
    import threading

    code: Any = 0
    try:
        work()
    except SystemExit as error:
        code = error.code
    except Exception as error:
        sys.excepthook(type(error), error, error.__traceback__)
        code = 1
    if code is not None and not isinstance(code, int):
        print(code, file=sys.stderr)
        code = 1
    threading._shutdown()  # pyright: ignore[reportAttributeAccessIssue]  # waits for the other threads
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit((code or 0) % 256)


def fork_workers() -> None:
    """Has the workers of each Ray that this process starts forked, where the environment names a server."""
    from ray._private.parameter import RayParams

    made = RayParams.__init__

    def init(self: RayParams, *args: Any, **keys: Any) -> None:
        made(self, *args, **keys)
        if SOCKET in os.environ:
            self.setup_worker_path = __file__

    RayParams.__init__ = init


def words_of_worker(words: Sequence[str]) -> list[str]:
    """Returns those of the words of Ray's `setup_worker.py` that are the worker's, after it set the environment that
    the others tell of."""
    told = [word for word in words if word.startswith((CONTEXT, "--language="))]
    for word in told:
        if word.startswith(CONTEXT):
            os.environ.update(json.loads(word.removeprefix(CONTEXT)).get("env_vars", {}))
    return [word for word in words if word not in told]


if __name__ == "__main__":
    if sys.argv[1] == "--serve":
        paths = _prepared()
        if received := serve(sys.argv[2]):
            asked, files = received
            _end_at_once(lambda: _run(asked, files, paths))
    else:
        end(ask(words_of_worker(sys.argv[1:])))
