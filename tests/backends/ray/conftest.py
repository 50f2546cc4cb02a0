"""One Ray cluster of this machine for all tests of the folder."""

import os

import pytest


@pytest.fixture(scope="session", autouse=True)
def cluster():
    import ray

    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}
    ray.init(include_dashboard=False, log_to_driver=False, num_cpus=4)
    yield
    ray.shutdown()
