"""The server of a model, in this process: sampling settings, figures, memory, tokens, readiness."""

import asyncio
import json
from dataclasses import replace

import httpx
import pytest

from sojourn.backends.torch.sampler.engine import Engine
from sojourn.serving import exposition
from sojourn.serving.bounded_sessions import BoundedSessions
from sojourn.serving.exposition import Histogram, Metric
from sojourn.serving.opening import Served, find, open_model
from sojourn.serving.server import Address, Server, Service, usage
from sojourn.types import SamplingParams
from tests.gateway_sessions import OddSampler, asked, renderer, said, session, user
from tests.gateway_streams import TellingSampler

CHAT = "/v1/chat/completions"
HELLO = {"model": "m", "messages": [{"role": "user", "content": "Hello"}]}
TINY = "tiny:layers=1,hidden=64"


def scripted(script=lambda prompt: said("Yes."), *, params=SamplingParams(99), address=Address(), **more):  # noqa: B008
    sampler = OddSampler(renderer(), script)
    served = Served(engine=sampler, renderer=sampler.format, max_context=4096)
    return Server(served, Service(names=("one", "two"), params=params, **more), address), sampler


def client(server, **more):
    return httpx.AsyncClient(transport=httpx.ASGITransport(server.app), base_url="http://127.0.0.1", **more)


@pytest.fixture(scope="module")
def tiny():
    """An engine of a tiny model, used by one test at a time."""
    return open_model(find(TINY, ["backend.threads=1"]))


def figures(text):
    """Returns the figures of a page of Prometheus' format, by name and labels as they are written."""
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


async def test_a_request_without_settings_has_the_servers_and_else_its_own():
    server, sampler = scripted(params=SamplingParams(20, temperature=0.7, top_p=0.9, top_k=5))
    async with client(server) as http:
        for more in ({}, {"temperature": 0, "top_p": 0.5, "max_tokens": 7}, {"max_tokens": 1000}):
            assert (await http.post(CHAT, json={**HELLO, **more})).status_code == 200
    found = [(p.max_tokens, p.temperature, p.top_p, p.top_k) for p in sampler.params]
    assert found == [(20, 0.7, 0.9, 5), (7, 0, 0.5, 5), (20, 0.7, 0.9, 5)]


async def test_a_clients_seed_decides_its_reply_and_the_servers_all_others(tiny: Served):
    async def replies(server, *requests):
        async with client(server) as http:
            answers = [await http.post(path, json={**HELLO, "max_tokens": 12, **more}) for path, more in requests]
        return [[one["message"]["content"] for one in answer.json()["choices"]] for answer in answers]

    def server(seed):
        return Server(tiny, Service(names=("m",), params=SamplingParams(99), seed=seed), Address())

    own, same = {"seed": 5}, server(1)
    first, second, other, elsewhere = await replies(
        same, (CHAT, own), (CHAT, own), (CHAT, {"seed": 6}), ("/s/me" + CHAT, own)
    )
    assert first == second == elsewhere != other
    (several,) = await replies(same, (CHAT, {**own, "n": 3}))
    assert len(set(several)) == 3
    assert several[0] == first[0]
    plain = [(CHAT, {}), (CHAT, {}), ("/s/me" + CHAT, {})]
    found = await replies(server(1), *plain)
    assert len({text for (text,) in found}) == 3
    assert await replies(server(1), *plain) == found
    assert await replies(server(2), *plain) != found


async def test_figures_are_those_of_what_was_asked(tiny: Served):
    engine = tiny.engine
    assert isinstance(engine, Engine)
    before, server = engine.stats(), Server(tiny, Service(names=("m",), params=SamplingParams(6)), Address())
    async with client(server) as http:
        chat = (await http.post(CHAT, json=HELLO)).json()
        more = [*HELLO["messages"], chat["choices"][0]["message"], {"role": "user", "content": "More"}]
        on = (await http.post(CHAT, json={"model": "m", "messages": more})).json()
        streamed = await http.post(CHAT, json={**HELLO, "stream": True, "stream_options": {"include_usage": True}})
        several = (await http.post("/s/a" + CHAT, json={**HELLO, "n": 2})).json()
        responses = (await http.post("/v1/responses", json={"model": "m", "input": "Hello"})).json()
        messages = (await http.post("/v1/messages", json={**HELLO, "max_tokens": 9})).json()
        counted = await http.post("/v1/messages/count_tokens", json=HELLO)
        wrong = await http.post(CHAT, json={"messages": []})
        absent = await http.get(CHAT)
        page = await http.get("/metrics")
    assert [one.status_code for one in (streamed, counted, wrong, absent)] == [200, 200, 400, 405]
    assert page.headers["content-type"] == exposition.CONTENT_TYPE
    found = figures(page.text)
    api = 'sojourn_requests_total{{api="{}",status="{}"}}'.format
    requests = {name: value for name, value in found.items() if name.startswith("sojourn_requests_total")}
    assert requests == {
        api("chat/completions", 200): 4, api("chat/completions", 400): 1, api("chat/completions", 405): 1,
        api("responses", 200): 1, api("messages", 200): 1, api("messages/count_tokens", 200): 1,
    }  # fmt: skip
    usage = [chat["usage"], on["usage"], several["usage"], _usage(streamed.text)]
    other = [responses["usage"], messages["usage"]]
    prompted = sum(one["prompt_tokens"] for one in usage) + several["usage"]["prompt_tokens"]  # once for each reply
    assert found["sojourn_prompt_tokens_total"] == prompted + sum(one["input_tokens"] for one in other)
    sampled = sum(one["completion_tokens"] for one in usage) + sum(one["output_tokens"] for one in other)
    assert found["sojourn_sampled_tokens_total"] == sampled == engine.stats().sampled_tokens - before.sampled_tokens
    assert found["sojourn_cached_prompt_tokens_total"] == engine.stats().reused_tokens > before.reused_tokens
    assert found["sojourn_engine_requests_total"] == engine.stats().requests == before.requests + 7
    contexts = {name: value for name, value in found.items() if name.startswith("sojourn_contexts_total")}
    assert contexts == {'sojourn_contexts_total{cause="first"}': 3, 'sojourn_contexts_total{cause="repeated"}': 3}
    assert (found["sojourn_requests_running"], found["sojourn_sessions_open"]) == (0, 2)
    _latencies(found)


def _usage(stream):
    (frame,) = (frame for frame in stream.split("\n\n") if '"usage": {' in frame)
    return json.loads(frame.removeprefix("data: "))["usage"]


def _latencies(found):
    count, first = 'sojourn_request_seconds_count{{api="{}"}}'.format, 'sojourn_first_token_seconds_{}{{api="{}"}}'
    assert found[count("chat/completions")] == 6
    assert found[first.format("count", "chat/completions")] == 1
    assert first.format("count", "messages") not in found
    total = found['sojourn_request_seconds_sum{api="chat/completions"}']
    assert 0 < found[first.format("sum", "chat/completions")] < total


async def test_a_stream_that_breaks_is_counted_by_its_failure():
    async def breaks(told):
        await asyncio.sleep(0.05)  # by then the first token was told
        raise RuntimeError("the world is flat")

    server, sampler = scripted()
    server.served = replace(server.served, engine=TellingSampler(sampler.format, sampler.script, pause=breaks))
    async with client(server) as http:
        answer = await http.post(CHAT, json={**HELLO, "stream": True})
    assert (answer.status_code, "the world is flat" in answer.text) == (200, True)
    assert server.measures.requests.values == {("chat/completions", "500"): 1}


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": "bearer a token"},
        {"x-api-key": "a token"},
        {"x-api-key": "one of another service", "Authorization": "Bearer a token"},
        {"x-api-key": "a token", "Authorization": "Bearer one of another service"},
    ],
)
async def test_the_token_is_found_wherever_a_client_sends_it(headers):
    """A client whose environment has keys of two kinds sends both."""
    server, _ = scripted(address=Address(host="0.0.0.0", token="a token"))
    async with client(server) as http:
        answer = await http.post("/v1/messages", json={**HELLO, "max_tokens": 9}, headers=headers)
        assert answer.status_code == 200


async def test_a_public_address_asks_for_its_token_on_every_path_but_health():
    server, _ = scripted(address=Address(host="0.0.0.0", token="a token"))
    allowed = {"Authorization": "Bearer a token"}
    async with client(server) as http:
        for path in (CHAT, "/s/any" + CHAT, "/s/any/v1/messages"):
            assert (await http.post(path, json={**HELLO, "max_tokens": 9})).status_code == 401
            answer = await http.post(path, json={**HELLO, "max_tokens": 9}, headers=allowed)
            assert answer.status_code == 200
        assert (await http.get("/metrics")).status_code == 401
        assert (await http.get("/metrics", headers=allowed)).status_code == 200
        assert (await http.get("/health")).status_code == 200
    assert server.sessions.count == 2


async def test_a_server_that_ends_refuses_in_the_words_of_each_api():
    server, sampler = scripted()
    async with client(server) as http:
        assert (await http.get("/health")).json() == {"status": "ok"}
        assert [one["id"] for one in (await http.get("/v1/models")).json()["data"]] == ["one", "two"]
        server.app.ending = True
        chat, messages = [await http.post(path, json=HELLO) for path in (CHAT, "/v1/messages")]
        health = await http.get("/health")
    assert [one.status_code for one in (chat, messages, health)] == [503, 503, 503]
    assert int(chat.headers["Retry-After"]) > 0
    assert chat.json()["error"]["code"] == "ending"
    assert messages.json()["type"] == "error"
    assert sampler.samples == []
    assert server.measures.requests.values == {("chat/completions", "503"): 1, ("messages", "503"): 1}


async def test_what_is_remembered_is_bounded():
    made = []

    def new(key):
        made.append(key)
        return session(lambda prompt: said("a"), key)[0]

    async def use(key, times):
        for _ in range(times):
            await sessions.get(key).reply(asked(user("Hi")))

    sessions = BoundedSessions(new, most=3, turns=10, session_turns=4)
    await use("a", 5)
    assert made == ["a"]
    await use("a", 1)
    assert made == ["a", "a"], "it had more than four turns"
    for key in ("b", "c", "d"):
        await use(key, 1)
    assert (list(sessions._open), sessions.count) == (["b", "c", "d"], 3)
    await use("c", 4)
    await use("d", 4)
    await use("b", 2)
    assert list(sessions._open) == ["c", "d", "b"]
    sessions.get("b")
    assert list(sessions._open) == ["d", "b"], "all together had more than ten"
    assert (sessions._total, set(sessions._held)) == (7, {"b", "d"})


def test_figures_are_written_as_prometheus_reads_them():
    metric = Metric("m", "A text.", ("name",))
    metric.add('a "b"\\\n', by=2)
    metric.add("c", by=0.5)
    histogram = Histogram("h", "Times.", (0.1, 1), ("api",))
    for value in (0.1, 0.5, 2):
        histogram.observe(value, "x")
    assert exposition.text([metric, Metric("n", "None yet."), histogram]).splitlines() == [
        "# HELP m A text.", "# TYPE m counter", r'm{name="a \"b\"\\\n"} 2', 'm{name="c"} 0.5',
        "# HELP n None yet.", "# TYPE n counter", "n 0",
        "# HELP h Times.", "# TYPE h histogram", 'h_bucket{api="x",le="0.1"} 1', 'h_bucket{api="x",le="1"} 2',
        'h_bucket{api="x",le="+Inf"} 3', 'h_sum{api="x"} 2.6', 'h_count{api="x"} 3',
    ]  # fmt: skip


def test_an_address_has_a_token_where_others_reach_it(monkeypatch):
    assert Address.of("127.0.0.1", 1, "").token == Address.of("localhost", 1, "").token == ""
    made = [Address.of("0.0.0.0", 1, "").token for _ in range(2)]
    assert len(set(made)) == 2
    assert min(map(len, made)) >= 32
    monkeypatch.setenv("OWN", "a token")
    address = Address.of("0.0.0.0", 1, "OWN")
    assert address.token == "a token"
    assert not any("a token" in line for line in usage(address, 1, "m"))
    assert any(made[0] in line for line in usage(Address(host="0.0.0.0", token=made[0]), 1, "m"))
