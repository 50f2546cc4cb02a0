"""Run folders to look at."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from spawned import PYTHON, variables_of
from starlette.testclient import TestClient

sys.path.insert(0, str(Path(__file__).parent.parent.parent / "benchmarks"))

import big_run

from sojourn.envs.chromium import find_chromium
from sojourn.errors import ConfigError
from sojourn.view.server import application


@pytest.fixture(scope="session")
def runs(tmp_path_factory) -> Path:
    """A folder with two small runs, which nobody may change."""
    folder = tmp_path_factory.mktemp("runs")
    for seed in (0, 1):
        big_run.make(folder / f"seed{seed}", big_run.Size(steps=6, groups=3, plays=4, panel=20, turns=4), seed)
    return folder


@pytest.fixture(scope="session")
def client(runs: Path) -> TestClient:
    return TestClient(application([runs]), base_url="http://127.0.0.1", raise_server_exceptions=False)


@contextmanager
def served(folder: Path, *options: str) -> Iterator[str]:
    """The address of `sojourn view FOLDER`, in a process of its own."""
    command = [*PYTHON, "-m", "sojourn", "view", str(folder), "--port", "0", *options]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=variables_of())
    assert server.stdout is not None
    try:
        yield server.stdout.readline().split()[2].rstrip("/")
    finally:
        server.terminate()
        server.wait()
        server.stdout.close()


@pytest.fixture(scope="module")
def chromium():
    """A real browser."""
    playwright = pytest.importorskip("playwright.sync_api")
    try:
        program = find_chromium()
    except ConfigError as missing:
        pytest.skip(str(missing))
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()


class Tab:
    """A page that notes what it asks for and what goes wrong in it."""

    def __init__(self, browser, address: str, **options) -> None:
        self.context = browser.new_context(**options)
        self.page = self.context.new_page()
        self.address = address
        self.page.set_default_timeout(100_000)
        self.asked: list[str] = []
        self.wrong: list[str] = []
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.on("console", lambda message: self.wrong.append(message.text) if message.type == "error" else None)
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("dialog", lambda dialog: self.wrong.append(dialog.message))

    def open(self, path: str):
        self.page.goto(self.address + path)
        return self.page

    def close(self) -> None:
        """Nothing may have gone wrong, and nothing may have been asked of another machine."""
        self.context.close()
        assert self.wrong == []
        assert [url for url in self.asked if not url.startswith((self.address, "data:", "about:"))] == []
