"""No address, whatever it holds, is more than a page that is not there: never a failure of the server."""

from __future__ import annotations

import pytest
from starlette.testclient import TestClient

from sojourn.errors import ConfigError
from sojourn.view.reruns import Reruns
from sojourn.view.server import _bind, application

ODD = (
    "9223372036854775807", "9223372036854775808", "-9223372036854775809", "9" * 5000, "-1", "0", "1e400", "nan", "inf",
    "", "%00", "%ED%A0%80", "%FF", "%E2%80%AE", "..%2F..%2Fetc", "%F0%9D%9F%98", "a" * 5000, "rl", "%0A", "[", "%25",
)  # fmt: skip
PATHS = (
    "/{0}", "/runs/{0}", "/runs/seed0/steps/rl/{0}", "/runs/seed0/steps/{0}/1", "/runs/seed0/groups/rl/{0}/0",
    "/runs/seed0/groups/rl/1/{0}", "/runs/seed0/episodes/{0}", "/runs/seed0/episodes/rl/{0}/0/0",
    "/runs/seed0/episodes/rl/0/0/{0}", "/runs/seed0/json/{0}", "/runs/seed0/export/{0}/x",
    "/runs/seed0/export/chat/{0}", "/runs/seed0/text/{0}/0/0/x", "/runs/seed0/text/0/{0}/{0}/x",
    "/runs/seed0/blobs/{0}", "/rerun/{0}/seed0/x", "/rerun/1/{0}/x", "/rerun/1/seed0/{0}", "/play/{0}",
    "/play/{0}/blobs/x", "/play/x/text/{0}/{0}", "/static/{0}",
)  # fmt: skip
QUERIES = (
    "/?q={0}&state={0}", "/diff?run={0}", "/diff?run=seed0&run=seed1&metric={0}&smooth={0}",
    "/diff?run=seed0&seeds={0}", "/runs/seed0?smooth={0}&all=1&skip={0}", "/runs/seed0?all={0}&skip={0}",
    "/runs/seed0/find?q={0}",
    "/runs/seed0/find?q=step:{0}", "/runs/seed0/find?q=reward:>{0}", "/runs/seed0/find?q=tokens:{0}..{0}",
    "/runs/seed0/find?q=version:{0}", "/runs/seed0/find?q=x&after={0}", "/runs/seed0/find?q=sort:-reward&after={0}:{0}",
    "/runs/seed0/changes?a={0}&b={0}", "/runs/seed0/changes?other={0}", "/?token={0}",
)  # fmt: skip


@pytest.mark.parametrize("path", [*PATHS, *QUERIES])
def test_missing_addresses_give_a_page_with_the_reason(runs, path: str) -> None:
    for reruns in (None, Reruns(None)):
        app = application([runs], reruns=reruns)
        client = TestClient(app, base_url="http://127.0.0.1", raise_server_exceptions=False)
        for odd in ODD:
            answer = client.get(path.format(odd), follow_redirects=False)
            assert answer.status_code < 500, (path.format(odd)[:200], answer.text[:300])


def test_an_episode_page_accepts_odd_query_parameters(client, runs) -> None:
    listed = client.get("/runs/seed0/find?q=").text
    episode = listed.partition("/runs/seed0/episodes/")[2].partition('"')[0]
    for odd in ODD:
        for address in (f"/runs/seed0/episodes/{episode}?tokens={odd}&prompt={odd}", f"/rerun/{odd}/seed0/{episode}"):
            assert client.get(address).status_code < 500, address[:200]


def test_a_step_beyond_the_index_is_not_found(client) -> None:
    for number in (10**18 - 1, 2**63, 10**19):
        assert client.get(f"/runs/seed0/steps/rl/{number}").status_code == 404


def test_after_the_last_port_there_is_none(monkeypatch):
    asked = []

    def taken(address, **_):
        asked.append(address[1])
        raise OSError("it is taken")

    monkeypatch.setattr("socket.create_server", taken)
    with pytest.raises(ConfigError, match=r"cannot listen on --host 127\.0\.0\.1 --port 65533 .*: choose another port"):
        _bind("127.0.0.1", 65533)
    assert asked == [65533, 65534, 65535]
