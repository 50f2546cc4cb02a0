"""Which limits of a sandbox this machine is said not to enforce."""

import pytest

from sojourn.envs.sandbox import risks as module
from sojourn.envs.sandbox.risks import risks
from sojourn_worlds.python import Python
from sojourn_worlds.repo import Repo
from sojourn_worlds.terminal import Terminal


@pytest.mark.parametrize(
    ("processor", "limit", "own", "count"),
    [("x86_64", None, None, 1), ("riscv64", None, None, 2), ("aarch64", 5, None, 0), ("x86_64", None, "/group", 0)],
)
def test_what_does_not_hold_is_said_in_sentences(monkeypatch, processor, limit, own, count):
    monkeypatch.setattr("platform.machine", lambda: processor)
    monkeypatch.setattr(module, "memory_limit", lambda: limit)
    monkeypatch.setattr(module, "sandbox_parent", lambda: own)
    risks.cache_clear()
    found = Terminal().risks()
    assert found == Python().risks() == Repo().risks()
    assert len(found) == count
    assert all(sentence[0].isupper() and " sandbox" in sentence for sentence in found)
    risks.cache_clear()
