"""A browser with many tabs of the viewer: it opens few connections to a server, so that hidden tabs keep none."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.view.conftest import Tab, served

TABS = 8  # more than the connections that a browser has for one server
HIDE = """(hidden) => {
    Object.defineProperty(document, "hidden", { configurable: true, get: () => hidden });
    document.dispatchEvent(new Event("visibilitychange"));
}"""  # a browser without windows shows all of its tabs


@pytest.fixture(scope="module")
def address(runs: Path):
    with served(runs) as address:
        yield address


def test_more_tabs_are_open_than_a_browser_has_connections(chromium, address: str) -> None:
    tab = Tab(chromium, address)
    tab.page.set_default_timeout(20_000)
    pages = [tab.page, *(tab.context.new_page() for _ in range(TABS - 1))]
    for page in pages:
        page.set_default_timeout(20_000)
        page.goto(f"{address}/runs/seed0")
        page.wait_for_selector(".pulse.on")
        with page.expect_event("requestfailed", lambda request: "/events?" in request.url):
            page.evaluate(HIDE, True)
    with pages[0].expect_request("**/events?*"):
        pages[0].evaluate(HIDE, False)
    tab.close()
