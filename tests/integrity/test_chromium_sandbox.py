"""Chromium's own sandbox: is it there, as root and as an ordinary user, or is it said that it is not?"""

import psutil
import pytest
from ordinary import USERS, run_as

pytest.importorskip("playwright", reason="Chromium is driven by playwright")

from playwright.async_api import async_playwright

from sojourn.envs import chromium
from sojourn.errors import ConfigError

try:
    PROGRAM = chromium.find_chromium()
except ConfigError as missing:
    pytest.skip(str(missing), allow_module_level=True)


@pytest.mark.parametrize("user", USERS)
def test_chromium_is_in_its_own_sandbox_unless_that_is_said(user):
    async def look():
        chromium.risks.cache_clear()
        async with async_playwright() as driver:
            browser = await chromium.launch(driver, PROGRAM)
            (node,) = psutil.Process().children()
            commands = [process.cmdline() for process in node.children()]
            await browser.close()
        assert any("--disable-gpu" in command for command in commands)
        assert any("--no-sandbox" in command for command in commands) is bool(chromium.risks())

    run_as(user, look)


def test_a_user_who_may_not_create_namespaces_is_told_so():
    async def look():
        chromium.HELPERS, chromium.TRY_UNSHARE = (), "raise SystemExit(1)"
        chromium.risks.cache_clear()
        assert chromium.risks() == (chromium.WITHOUT,)

    run_as("ordinary", look)
