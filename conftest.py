"""What the tests of Sojourn and of its worlds share.

Torch runs on one thread: all tests share the cores. Properties are tried without a limit of time. Nothing waits for the
disk, as no test cuts the power. What is printed has neither the colours nor the width that the environment asks for.
Garbage is not looked for while libraries and tests are imported, nor ever again among what they made.
"""

import gc
import os
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
for name in ("FORCE_COLOR", "CLICOLOR_FORCE", "PY_COLORS", "GITHUB_ACTIONS", "TTY_COMPATIBLE", "NO_COLOR", "COLUMNS",
             "LINES", "TERMINAL_WIDTH"):  # fmt: skip
    os.environ.pop(name, None)
ROOT = Path(__file__).parent
sys.path[:0] = [str(folder) for folder in (ROOT, ROOT / "worlds", ROOT / "tests")]  # what both trees of tests share
settings.register_profile("shared", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shared")
os.fsync = lambda fd: None
gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session")
def trained(tmp_path_factory) -> Path:
    """A run with checkpoints of a tiny model, which nobody may change."""
    import trained_run

    return trained_run.train(tmp_path_factory.mktemp("trained") / "run")
