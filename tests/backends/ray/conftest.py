"""One Ray on this machine for all tests of a worker."""

import os
from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="session", autouse=True)
def cluster() -> Iterator[Any]:
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled", "RAY_memory_monitor_refresh_ms": "0"}
    ray = pytest.importorskip("ray")
    ray.init(num_cpus=32, include_dashboard=False, log_to_driver=False)
    yield ray
    ray.shutdown()
