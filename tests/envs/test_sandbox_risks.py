"""Which limits of a sandbox this machine is said not to enforce."""

from os import environ

import psutil
import pytest

from sojourn.envs import chromium
from sojourn.envs.python import Python
from sojourn.envs.repo import Repo
from sojourn.envs.sandbox import risks as module
from sojourn.envs.sandbox.risks import risks
from sojourn.envs.terminal import Terminal
from sojourn.errors import ConfigError
from tests.integrity.ordinary import USERS, run_as


@pytest.mark.parametrize(
    ("processor", "limit", "own", "count"),
    [("x86_64", None, None, 1), ("riscv64", None, None, 2), ("aarch64", 5, None, 0), ("x86_64", None, "/group", 0)],
)
def test_what_does_not_hold_is_said_in_sentences(monkeypatch, processor, limit, own, count):
    monkeypatch.setattr("platform.machine", lambda: processor)
    monkeypatch.setattr(module, "memory_limit", lambda: limit)
    monkeypatch.setattr(module, "place", lambda: own)
    risks.cache_clear()
    found = Terminal().risks()
    assert found == Python().risks() == Repo().risks()
    assert len(found) == count
    assert all(sentence[0].isupper() and " sandbox" in sentence for sentence in found)
    risks.cache_clear()


@pytest.mark.parametrize("user", USERS)
def test_chromium_is_in_its_own_sandbox_unless_that_is_said(user):
    playwright = pytest.importorskip("playwright.async_api")
    try:
        program = chromium.executable(environ.get("SOJOURN_CHROMIUM"))
    except ConfigError as missing:
        pytest.skip(str(missing))

    async def look():
        chromium.risks.cache_clear()
        async with playwright.async_playwright() as driver:
            browser = await chromium.launch(driver, program)
            (node,) = psutil.Process().children()
            commands = [process.cmdline() for process in node.children()]
            await browser.close()
        assert any("--disable-gpu" in command for command in commands)
        assert any("--no-sandbox" in command for command in commands) is bool(chromium.risks())

    run_as(user, look)


def test_a_user_who_may_not_create_namespaces_is_told_so():
    async def look():
        chromium.HELPERS, chromium.UNSHARE = (), "raise SystemExit(1)"
        chromium.risks.cache_clear()
        assert chromium.risks() == (chromium.WITHOUT,)

    run_as("ordinary", look)
