"""A run whose checkpoints play in the arena."""

from __future__ import annotations

from pathlib import Path

import pytest
import trained_run


@pytest.fixture(scope="session")
def trained(tmp_path_factory) -> Path:
    return trained_run.train(tmp_path_factory.mktemp("trained") / "run")
