"""One Ray on this machine for all tests of a worker."""

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="session", autouse=True)
def cluster() -> Iterator[Any]:
    pytest.importorskip("ray")
    from ray_actors import started

    with started(32) as ray:
        yield ray
