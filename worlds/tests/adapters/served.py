"""Real servers of other ecosystems for tests, on a free port of loopback."""

from __future__ import annotations

import functools
import http.server
import os
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


def interpreter(name: str) -> str:
    """The interpreter that an environment variable names; skips the module without it."""
    variable = f"SOJOURN_{name}_PYTHON"
    if not (path := os.environ.get(variable)):
        pytest.skip(f"set {variable} to an interpreter that has it (make adapters)", allow_module_level=True)
    assert Path(path).exists(), f"{variable} = {path} is not there"
    return path


@contextmanager
def serving(
    python: str, script: Path, *arguments: str, patience_s: float = 120.0
) -> Iterator[tuple[str, subprocess.Popen]]:
    """A script that serves on the port which it is given: its address, once it answers, and its process."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    server = subprocess.Popen([python, str(script), str(port), *arguments], env=environment)
    try:
        until = time.monotonic() + patience_s
        while time.monotonic() < until and server.poll() is None:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}", server
    finally:
        server.kill()
        server.wait()


class Silent(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *arguments):
        pass


@contextmanager
def pages() -> Iterator[str]:
    """The address of the pages of the package `miniwob`, on loopback."""
    from sojourn_worlds.miniwob.facts import html_folder

    handler = functools.partial(Silent, directory=str(html_folder()))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/miniwob/"
        finally:
            server.shutdown()
