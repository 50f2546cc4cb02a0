"""Fields that decide a reply count where a model is served, or are refused; the rest are in the figures."""

from __future__ import annotations

import httpx
import pytest

from sojourn.serving.measures import MOST_NAMES
from sojourn.serving.opening import Served
from sojourn.serving.server import Address, Server, Service
from sojourn.types import SamplingParams
from tests.gateway_sessions import OddSampler, renderer, said

HELLO = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 9}


def served():
    sampler = OddSampler(renderer(), lambda prompt: said("Yes."))
    model = Served(engine=sampler, renderer=sampler.format, max_context=4096)
    server = Server(model, Service(names=("m",), params=SamplingParams(8, top_k=7)), Address())
    return server, sampler, httpx.AsyncClient(transport=httpx.ASGITransport(server.app), base_url="http://127.0.0.1/v1")


async def test_top_k_is_the_clients():
    _, sampler, http = served()
    async with http:
        for path in ("/chat/completions", "/messages"):
            for more in ({}, {"top_k": 1}, {"top_k": 0}):
                assert (await http.post(path, json={**HELLO, **more})).status_code == 200
        assert (await http.post("/chat/completions", json={**HELLO, "top_k": -1})).status_code == 200
        assert (await http.post("/chat/completions", json={**HELLO, "top_k": "all"})).status_code == 400
    assert [params.top_k for params in sampler.params] == [7, 1, 0, 7, 1, 0, 0]


OBJECT = {"type": "object", "properties": {"a": {"type": "string"}}}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/chat/completions", {**HELLO, "response_format": {"type": "json_object"}}),
        ("/chat/completions", {**HELLO, "response_format": {"type": "json_schema", "json_schema": {"schema": OBJECT}}}),
        ("/responses", {"input": "Hello", "text": {"format": {"type": "json_object"}}}),
        ("/messages", {**HELLO, "output_config": {"format": {"type": "json_schema", "schema": OBJECT}}}),
    ],
)
async def test_a_format_that_would_not_be_kept_is_refused(path, body):
    _, sampler, http = served()
    async with http:
        answer = await http.post(path, json=body)
    assert (answer.status_code, "cannot be listed" in answer.json()["error"]["message"]) == (400, True)
    assert sampler.samples == []


async def test_formats_that_can_be_kept_are():
    _, sampler, http = served()
    async with http:
        for form in ({"type": "text"}, {"type": "json_schema", "json_schema": {"schema": {"enum": ["a", "b"]}}}):
            assert (await http.post("/chat/completions", json={**HELLO, "response_format": form})).status_code == 200
    assert [len(params.choices) for params in sampler.params] == [0, 2]


async def test_fields_that_change_nothing_are_in_the_figures():
    server, _, http = served()
    async with http:
        await http.post("/chat/completions", json={**HELLO, "logit_bias": {"5": 9}, "presence_penalty": 2})
        await http.post("/chat/completions", json={**HELLO, "logit_bias": {"5": 9}, "temperature": 0})
        text = (await http.get("http://127.0.0.1/metrics")).text
        assert 'sojourn_unused_fields_total{api="chat/completions",field="logit_bias"} 2' in text
        assert 'field="presence_penalty"} 1' in text
        assert 'field="temperature"' not in text
        await http.post("/chat/completions", json={**HELLO, **{f"field {n}": 1 for n in range(2 * MOST_NAMES)}})
    assert len(server.measures.unused.values) == MOST_NAMES
