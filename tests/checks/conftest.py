import pytest

from sojourn.checks.env import resources


@pytest.fixture(autouse=True)
def in_haste(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left behind in these tests stays: nothing is gained by waiting for it to go."""
    monkeypatch.setattr(resources, "LAST_WAIT_S", 0.1)
