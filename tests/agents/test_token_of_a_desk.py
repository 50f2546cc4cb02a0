"""A desk finds its token wherever the gateway finds it."""

from __future__ import annotations

import httpx
import pytest

from sojourn.gateway.desk import Place, running_desk


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"authorization": "Bearer sesame"}, 204),
        ({"authorization": "bearer sesame"}, 204),
        ({"x-api-key": "sesame"}, 204),
        ({"x-api-key": "of another service", "authorization": "Bearer sesame"}, 204),
        ({"authorization": "Bearer other"}, 401),
        ({}, 401),
    ],
)
async def test_the_token_is_found_as_the_gateway_finds_it(headers, status):
    desk = await running_desk(Place("127.0.0.1", 0, "sesame", ""))
    async with httpx.AsyncClient(base_url=desk.url, trust_env=False) as http:
        assert (await http.post("/open", json={"wait_s": 0}, headers=headers)).status_code == status
