"""The gateway's server: what clients get over HTTP, streamed or whole, and what is refused."""

import asyncio
import json
import socket
import threading
import time
from contextlib import contextmanager

import httpx
import pytest
import uvicorn

from sojourn.gateway.bodies import Limits
from sojourn.gateway.packets import Packets
from sojourn.gateway.server import Gateway
from sojourn.gateway.sessions import Sessions
from sojourn.types import Ending, ToolCall
from tests.gateway_sessions import exact, said, session, user

CALL = ToolCall("look", {"at": "the door"})
PATH = "/s/key/v1/chat/completions"
HELLO = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}


def gateway(script=lambda prompt: said(" Hello, you. "), key="key", **more):
    limits, wait = more.pop("limits", Limits()), more.pop("wait", None)
    one, sampler = session(script, key, wait=wait, **more)
    found = Gateway(Sessions(), limits=limits)
    found.sessions.open(one)
    return found, one, sampler


def client(found, **more):
    transport = httpx.ASGITransport(found.app(), **more)
    return httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1")


def assembled(text):
    """Returns the thought, the text and the calls that a stream of chat completions tells, and why it ended."""
    frames = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    assert frames.pop() == "[DONE]"
    choices = [json.loads(frame)["choices"][0] for frame in frames]
    deltas = [choice["delta"] for choice in choices]
    text = "".join(delta.get("content") or "" for delta in deltas)
    thought = "".join(delta.get("reasoning_content", "") for delta in deltas)
    calls = [call["function"] for delta in deltas for call in delta.get("tool_calls", [])]
    return thought, text, calls, [choice["finish_reason"] for choice in choices if choice["finish_reason"]]


@pytest.mark.parametrize(
    "reply", [said(" Hello, you. ", "I think."), said("See: ", "", CALL), said("", "x", CALL, CALL)]
)
async def test_a_stream_tells_what_a_whole_reply_tells(reply):
    found, one, sampler = gateway(lambda prompt: reply, thinking=True)
    async with client(found) as http:
        whole = (await http.post(PATH, json=HELLO)).json()["choices"][0]
        streamed = await http.post(PATH, json={**HELLO, "stream": True})
    assert streamed.headers["content-type"].startswith("text/event-stream")
    message = whole["message"]
    calls = [call["function"] for call in message.get("tool_calls", [])]
    told = (message.get("reasoning_content", ""), message["content"] or "", calls, [whole["finish_reason"]])
    assert assembled(streamed.text) == told
    exact(one, sampler)
    assert one.delivered == {0, 1}


@pytest.mark.parametrize(
    ("path", "body", "headers", "status", "words"),
    [
        ("/s/other/v1/chat/completions", HELLO, {}, 404, "no session of this key"),
        ("/v1/chat/completions", HELLO, {"Authorization": "Bearer other"}, 404, "no session of this key"),
        (PATH, HELLO, {"Origin": "https://example.org"}, 403, "may not use this server"),
        (PATH, HELLO, {"Host": "example.org"}, 403, "does not answer to that name"),
        (PATH, b"{", {}, 400, "no JSON"),
        (PATH, b"\xff\xfe", {}, 400, "no JSON"),
        (PATH, b"[" * 100_000, {}, 400, "no JSON"),
        (PATH, b"[]", {}, 400, "no JSON object"),
        (PATH, b" " * 2000, {}, 413, "more than 1000 bytes"),
        (PATH, {"messages": [{"role": "robot", "content": "x"}]}, {}, 400, "messages[0].role"),
        (PATH, {"messages": []}, {}, 400, "has no messages"),
        (PATH, {"messages": [], "stream": True}, {}, 400, "has no messages"),
        (PATH, {**HELLO, "n": 0}, {}, 400, "n is 0"),
    ],
)
async def test_what_is_refused_is_said_in_one_sentence(path, body, headers, status, words):
    found, one, _ = gateway(limits=Limits(body_bytes=1000) if body == b" " * 2000 else Limits())
    async with client(found) as http:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        answer = await http.post(path, content=content, headers=headers)
    assert (answer.status_code, words in answer.text) == (status, True), answer.text
    assert one.turns == []


async def test_a_key_in_the_header_finds_its_session():
    found, one, _ = gateway()
    async with client(found) as http:
        for headers in ({"Authorization": "Bearer key"}, {"x-api-key": "key"}):
            assert (await http.post("/v1/chat/completions", json=HELLO, headers=headers)).status_code == 200
        assert (await http.get("/s/key/v1/models")).json()["data"][0]["id"] == "policy"
        assert (await http.head("/s/key")).status_code == 200
    assert len(one.turns) == 2


async def test_a_failure_of_the_engine_is_a_status_and_stays_known():
    def broken(prompt):
        raise RuntimeError("the world is flat")

    found, one, _ = gateway(broken)
    async with client(found) as http:
        answer = await http.post(PATH, json=HELLO)
        streamed = await http.post(PATH, json={**HELLO, "stream": True})
    assert [answer.status_code, streamed.status_code] == [500, 500]
    assert "the world is flat" in answer.json()["error"]["message"]
    assert one.turns == []


@contextmanager
def serving(found):
    """Serves a gateway on a free port, in a thread."""
    bound = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(
        uvicorn.Config(found.app(), http=Packets, log_level="error", ws="none", timeout_graceful_shutdown=1)
    )
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


@pytest.mark.parametrize("stream", [False, True])
def test_what_a_client_that_left_has_asked_is_sampled_once(stream):
    """The client closes its connection while its reply is sampled, and asks again."""
    begun, gate = threading.Event(), threading.Event()

    async def wait():
        begun.set()
        await asyncio.to_thread(gate.wait)

    found, one, sampler = gateway(wait=wait)
    content = json.dumps({**HELLO, "stream": stream}).encode()
    with serving(found) as base:
        leaving = socket.create_connection(("127.0.0.1", int(base.rpartition(":")[2])))
        head = f"POST {PATH} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(content)}\r\n\r\n"
        leaving.sendall(head.encode() + content)
        assert begun.wait(30)
        leaving.close()
        ((_, exchange),) = one.exchanges._latest
        while stream and not exchange.gone:  # which a stream notices at once
            time.sleep(0.005)
        gate.set()
        while not exchange.gone:
            time.sleep(0.005)
        assert one.delivered == set()
        with httpx.Client(base_url=base) as http:
            assert http.post(PATH, content=content).status_code == 200
            assert (len(one.turns), one.delivered) == (1, {0}), "asked again, not sampled again"
            assert http.post(PATH, content=content).status_code == 200
            assert len(one.turns) == 2, "it had its reply, so that this is another question"
            http.post(PATH, content=content, headers={"x-stainless-retry-count": "1"})
            assert len(one.turns) == 2, "the client says that it repeats"
    exact(one, sampler)


def test_sixty_four_sessions_at_once_never_mix():
    """Each over a real server, half of them streamed; each client says a word of its own, which comes back."""
    found = Gateway(Sessions())
    made = [session(lambda prompt: said(prompt.split("word ")[1][:6]), f"key{n}") for n in range(64)]
    for one, _ in made:
        found.sessions.open(one)

    async def use(base, number):
        async with httpx.AsyncClient(base_url=base, timeout=60) as http:
            messages = [{"role": "user", "content": f"word {number:06d}"}]
            for _ in range(3):
                body = {"messages": messages, "stream": number % 2 == 0}
                answer = await http.post(f"/s/key{number}/v1/chat/completions", json=body)
                text = (
                    assembled(answer.text)[1] if body["stream"] else answer.json()["choices"][0]["message"]["content"]
                )
                assert text == f"{number:06d}"
                messages += [{"role": "assistant", "content": text}, {"role": "user", "content": "again"}]

    async def all_at_once(base):
        await asyncio.gather(*(use(base, number) for number in range(64)))

    with serving(found) as base:
        asyncio.run(all_at_once(base))
    for one, sampler in made:
        assert [turn.parent for turn in one.turns] == [-1, 0, 1]
        exact(one, sampler)
        assert all("undelivered" not in turn.info for turn in one.trajectory(Ending.DONE).turns)


async def test_the_model_is_told_that_a_call_failed_and_the_conversation_goes_on_in_its_context():
    script = iter([said("I look.", "", CALL), said("Again.", "", CALL), said("A door.")])
    found, one, sampler = gateway(lambda prompt: next(script))
    body = {"model": "m", "max_tokens": 99, "tools": [{"name": "look", "input_schema": {"type": "object"}}]}
    messages = [{"role": "user", "content": "Look."}]
    async with client(found) as http:
        for failed in (True, False, None):
            answer = (await http.post("/s/key/v1/messages", json={**body, "messages": messages})).json()
            called = [block["id"] for block in answer["content"] if block["type"] == "tool_use"]
            results = [{"type": "tool_result", "tool_use_id": name, "content": "seen", "is_error": failed}
                       for name in called]  # fmt: skip
            messages += [{"role": "assistant", "content": answer["content"]}, {"role": "user", "content": results}]
    assert [turn.parent for turn in one.turns] == [-1, 0, 1]
    told = sampler.format.decode(sampler.prompts[-1])
    assert told.count("error: seen") == 1
    assert told.count("seen") == 2
    exact(one, sampler)


def test_the_openai_client_calls_tools():
    openai = pytest.importorskip("openai", reason="the client")
    script = iter([said("I look.", "", CALL), said("A door.")])
    found, one, sampler = gateway(lambda prompt: next(script))
    with serving(found) as base:
        client = openai.OpenAI(base_url=f"{base}/s/key/v1", api_key="none")
        tools = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
        messages = [{"role": "user", "content": "Look."}]
        first = client.chat.completions.create(model="m", messages=messages, tools=tools, logprobs=True).choices[0]
        assert first.finish_reason == "tool_calls"
        assert json.loads(first.message.tool_calls[0].function.arguments) == {"at": "the door"}
        listed = first.logprobs.content
        assert "".join(one.token for one in listed) == first.message.content == "I look."
        assert [one.logprob for one in listed] == pytest.approx(sampler.samples[0].logprobs[: len(listed)].tolist())
        answer = {"role": "tool", "tool_call_id": first.message.tool_calls[0].id, "content": "a door"}
        messages += [first.message.model_dump(exclude_none=True), answer]
        with client.chat.completions.create(model="m", messages=messages, tools=tools, stream=True) as stream:
            text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    assert text == "A door."
    assert [turn.parent for turn in one.turns] == [-1, 0]
    exact(one, sampler)


async def test_three_apis_lead_to_one_forest():
    """The same conversation through each API, in one session: each request extends what the others said."""
    script = iter([said("One."), said("Two."), said("Three.")])
    found, one, sampler = gateway(lambda prompt: next(script))
    history = [{"role": "user", "content": "Count."}]
    async with client(found) as http:
        for path, key in (("chat/completions", "messages"), ("responses", "input"), ("messages", "messages")):
            answer = (await http.post(f"/s/key/v1/{path}", json={"model": "m", "max_tokens": 99, key: history})).json()
            text = {
                "chat/completions": lambda told: told["choices"][0]["message"]["content"],
                "responses": lambda told: told["output"][0]["content"][0]["text"],
                "messages": lambda told: told["content"][0]["text"],
            }[path](answer)
            history += [{"role": "assistant", "content": text}, {"role": "user", "content": "On."}]
        counted = await http.post("/s/key/v1/messages/count_tokens", json={"model": "m", "messages": history})
    assert [turn.parent for turn in one.turns] == [-1, 0, 1]
    last = one.trajectory(Ending.DONE)
    more = one.context.renderer.extend(one.turns[2].sample, [user("On.")])
    whole = len(last.prompt(2)) + len(one.turns[2].sample.tokens) + len(more.tokens)
    assert counted.json() == {"input_tokens": whole}
    exact(one, sampler)


async def test_a_server_of_people_opens_a_session_for_each_name_and_asks_for_its_token():
    made = []

    def new(key):
        made.append(key)
        return session(lambda prompt: said("a"), key)[0]

    found = Gateway(Sessions(new, most=2), token="a token")
    allowed = {"Authorization": "Bearer a token"}
    async with client(found) as http:
        for headers in ({}, {"x-api-key": "other"}):
            answer = await http.post("/v1/chat/completions", json=HELLO, headers=headers)
            assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")
        for name in ("a", "b", "a", "c", "a", "b"):  # with c there are three, and b was used least recently
            named = {**allowed, "x-session-id": name}
            assert (await http.post("/v1/chat/completions", json=HELLO, headers=named)).status_code == 200
    assert made == ["a", "b", "c", "b"]


async def test_more_requests_than_allowed_at_once_are_told_to_come_again():
    gate = asyncio.Event()
    found, one, _ = gateway(limits=Limits(at_once=2), wait=gate.wait)
    async with client(found) as http:
        waiting = [asyncio.create_task(http.post(PATH, json=HELLO)) for _ in range(2)]
        while found.running < 2:  # noqa: ASYNC110
            await asyncio.sleep(0)
        busy = await http.post(PATH, json=HELLO)
        assert (busy.status_code, busy.headers["Retry-After"]) == (503, "1")
        gate.set()
        assert [(await task).status_code for task in waiting] == [200, 200]
        assert (await http.post(PATH, json=HELLO)).status_code == 200
    assert found.running == 0
    assert len(one.turns) == 3


def test_a_body_that_does_not_come_is_not_waited_for():
    found, one, _ = gateway(limits=Limits(body_seconds=0.05))
    with serving(found) as base:
        slow = socket.create_connection(("127.0.0.1", int(base.rpartition(":")[2])))
        slow.sendall(f"POST {PATH} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9\r\n\r\n{{".encode())
        answer = slow.makefile("rb").read(4096)
        slow.close()
    assert answer.startswith(b"HTTP/1.1 408")
    assert one.turns == []
