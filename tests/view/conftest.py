"""Run folders to look at."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from starlette.testclient import TestClient

sys.path.insert(0, str(Path(__file__).parent.parent.parent / "benchmarks"))

import big_run

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
