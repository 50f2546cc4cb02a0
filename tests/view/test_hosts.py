"""Under which names a viewer answers, and how a browser keeps the tokens of several."""

from __future__ import annotations

import urllib.request
from pathlib import Path

from starlette.testclient import TestClient

from sojourn.view.server import application
from tests.view.conftest import served


def test_a_viewer_answers_at_the_address_that_it_prints(runs: Path) -> None:
    with served(runs, "--host", "127.0.0.2") as address, urllib.request.urlopen(address, timeout=60) as answer:
        assert address.startswith("http://127.0.0.2:")
        assert answer.status == 200


def test_viewers_at_other_ports_of_a_host_keep_their_own_tokens(runs: Path) -> None:
    """A browser has one store of cookies for all ports of a host."""
    one, other = (
        TestClient(application([runs], ["*"], token), base_url="http://127.0.0.1") for token in ("first", "second")
    )
    for client, token in ((one, "first"), (other, "second")):
        assert client.get("/", params={"token": token}, follow_redirects=False).status_code == 303
    one.cookies.update(other.cookies)
    assert one.get("/").status_code == 200
    one.cookies.clear()
    assert one.get("/").status_code == 403
