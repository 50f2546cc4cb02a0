"""Every test runs torch on one thread: the tests of a machine share its cores."""

import os
import sys
from pathlib import Path

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent))


@pytest.fixture(scope="session")
def trained(tmp_path_factory) -> Path:
    """A run with checkpoints of a tiny model, which nobody may change."""
    import trained_run

    return trained_run.train(tmp_path_factory.mktemp("trained") / "run")
