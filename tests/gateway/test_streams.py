"""Streams: replies are written while they are sampled, and what is written is the whole reply, byte for byte."""

import asyncio
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sojourn.abilities import TellsTokens
from sojourn.backends.torch.models import tiny
from sojourn.backends.torch.sampler.engine import Engine
from sojourn.gateway import server
from sojourn.gateway.bodies import Limits
from sojourn.gateway.exchange import Exchange
from sojourn.gateway.requests import Delta, RequestError, Told
from sojourn.gateway.server import Gateway
from sojourn.gateway.session import Session
from sojourn.gateway.sessions import Sessions
from sojourn.protocols import AgentContext
from sojourn.types import SamplingParams, ToolCall
from tests.gateway_sessions import asked, exact, renderer, replies, said, session, user
from tests.gateway_streams import APIS, CHAT, Client, choice_told, events, telling

CALL = ToolCall("look", {"at": "the dör", "n": [1, None]})
STOPS = {"chat": "stop", "messages": "stop_sequences"}
BOTH = pytest.mark.parametrize("name", APIS)


async def both(api, script, *, thinking, size=1, **more):
    """Returns what the stream and the whole answer to the same request tell."""
    results = []
    for stream in (True, False):
        found, one, sampler = telling(script, thinking=thinking, size=size)
        client = Client(found.app(), api.path, {**api.asked("Hi"), "stream": stream, **more})
        await client.task
        assert client.status == 200, client.text
        results.append(api.told(list(events(client.text))) if stream else api.whole(json.loads(client.text)))
        exact(one, sampler)
        assert one.delivered == {0}
    return results


@BOTH
@pytest.mark.parametrize("thinking", [False, True])
@pytest.mark.parametrize("size", [1, 3, 1000])
async def test_a_stream_tells_the_whole_reply(name, thinking, size):
    thought = "Hm, ünd 日本 😀\nso." if thinking else ""
    for reply in (said("I see a dör. 😀", thought), said("I look. ", thought, CALL, CALL), said(" \n", thought),
                  said("", thought, CALL), said(" Blanks ", thought), said("a < b <|", thought)):  # fmt: skip
        stream, whole = await both(APIS[name], lambda prompt, reply=reply: reply, thinking=thinking, size=size)
        assert stream == whole
        assert (stream[0], len(stream[2])) == (thought.strip(), len(reply.calls))


PARTS = ["</think>", "<tool_call>", "</tool_call>", '{"name": "look", "arguments": {"at": "é"}}', "\n", " ", "a", "日",
         "😀", "<", "<tool", "STOP", "ST", "O"]  # fmt: skip


@BOTH
@pytest.mark.parametrize("thinking", [False, True])
@settings(deadline=None, max_examples=40)
@given(st.lists(st.sampled_from(PARTS), min_size=1, max_size=8).map("".join), st.integers(1, 9), st.booleans())
def test_any_reply_is_streamed_as_it_is_told_whole(name, thinking, text, size, stops):
    """Replies that cannot be read and those that a stop string ends included."""
    more = {STOPS[name]: ["STOP", "\n"]} if stops and name in STOPS else {}
    stream, whole = asyncio.run(both(APIS[name], lambda prompt: text, thinking=thinking, size=size, **more))
    assert stream == whole


@BOTH
async def test_the_first_words_come_before_the_reply_is_sampled(name):
    gate = asyncio.Event()

    async def pause(told):
        if told == 20:  # of more than 30
            await gate.wait()

    api = APIS[name]
    found, one, _ = telling(lambda prompt: said("I see the door, then a window."), pause=pause)
    client = Client(found.app(), api.path, {**api.asked("Hi"), "stream": True})
    await client.until("door")
    assert not client.task.done()
    assert one.turns == [], "the sample has not ended"
    assert found.running == 1
    gate.set()
    await client.task
    assert api.told(list(events(client.text)))[1] == "I see the door, then a window."
    assert (len(one.turns), one.delivered, found.running) == (1, {0}, 0)


@BOTH
async def test_calls_and_stop_strings_are_never_written_as_text(name):
    api = APIS[name]
    more = {STOPS[name]: ["Observation:"]} if name in STOPS else {}
    for reply in (said("I look.", "", CALL), said("I look. Observation: a door")):
        found, _, _ = telling(lambda prompt, reply=reply: reply)
        client = Client(found.app(), api.path, {**api.asked("Hi"), "stream": True, **more})
        await client.task
        text = api.told(list(events(client.text)))[1]
        stopped = name in STOPS or reply.calls
        assert text.rstrip() == "I look." if stopped else text == reply.text


async def test_several_replies_are_streamed_beside_each_other():
    numbers = iter(range(9))
    found, one, sampler = telling(lambda prompt: said(f"Reply {next(numbers)}, é.", "", CALL))
    options = {"n": 3, "stream": True, "logprobs": True, "stream_options": {"include_usage": True}}
    client = Client(found.app(), CHAT.path, {**CHAT.asked("Hi"), **options})
    await client.task
    assert [choice_told(client.text, n)[1] for n in range(3)] == [f"Reply {n}, é." for n in range(3)]
    called = [("look", json.dumps(CALL.arguments, ensure_ascii=False))]
    assert [choice_told(client.text, n)[2] for n in range(3)] == [called] * 3
    told = list(events(client.text))
    choices = [choice for event in told for choice in event["choices"]]
    ends = [(choice["index"], choice["finish_reason"]) for choice in choices if choice["finish_reason"]]
    assert ends == [(0, "tool_calls"), (1, "tool_calls"), (2, "tool_calls")]
    with_logprobs = [choice["logprobs"]["content"] for choice in choices if choice.get("logprobs")]
    for number, (tokens, sample) in enumerate(zip(with_logprobs, sampler.samples, strict=True)):
        assert bytes(byte for token in tokens for byte in token["bytes"]).decode() == f"Reply {number}, é."
        assert [token["logprob"] for token in tokens] == pytest.approx(sample.logprobs[: len(tokens)].tolist())
    assert told[-1]["usage"]["completion_tokens"] == sum(len(sample.tokens) for sample in sampler.samples)
    texts = [choice["index"] for choice in choices if choice["delta"].get("content")]
    assert texts != sorted(texts), "they are told in turns"
    exact(one, sampler)


async def test_signs_of_life_come_while_nothing_can_be_told(monkeypatch):
    monkeypatch.setattr(server, "KEEPALIVE_S", 0.0)
    gate = asyncio.Event()
    found, _, _ = telling(lambda prompt: said("", "", CALL), pause=lambda told: gate.wait())
    client = Client(found.app(), CHAT.path, {**CHAT.asked("Hi"), "stream": True})
    await client.until(server.KEEPALIVE * 3)
    gate.set()
    await client.task
    assert choice_told(client.text.replace(server.KEEPALIVE, ""), 0)[2][0][0] == "look"
    assert all("\n\n" not in part for part in client.parts if part.startswith(":"))


async def test_a_sampler_that_tells_nothing_is_streamed_at_its_end():
    one, sampler = session(replies(said("Hello.")), "key")
    assert not isinstance(sampler, TellsTokens)
    found = Gateway(Sessions())
    found.sessions.open(one)
    client = Client(found.app(), CHAT.path, {**CHAT.asked("Hi"), "stream": True})
    await client.task
    assert choice_told(client.text, 0) == ("", "Hello.", [])


async def test_who_leaves_in_the_middle_finds_the_sample_again():
    gate = asyncio.Event()

    async def pause(told):
        if told == 8:
            await gate.wait()

    found, one, sampler = telling(lambda prompt: said("I see the door."), pause=pause)
    body = {**CHAT.asked("Hi"), "stream": True}
    leaving = Client(found.app(), CHAT.path, body)
    await leaving.until("see")
    leaving.leave()
    await leaving.task
    ((_, exchange),) = one.exchanges._latest
    assert exchange.gone
    assert found.running == 1, "its sample goes on"
    again = Client(found.app(), CHAT.path, body)
    await again.until("see")
    assert one.turns == []
    gate.set()
    await again.task
    assert choice_told(again.text, 0)[1] == "I see the door."
    assert (len(sampler.samples), len(one.turns), one.delivered) == (1, 1, {0})
    assert one.counts["repeated_requests"] == 1
    exact(one, sampler)


async def test_who_leaves_before_the_first_event_finds_the_sample_again():
    found, one, sampler = telling(lambda prompt: said("I see the door."))
    body = {**CHAT.asked("Hi"), "stream": True}
    leaving = Client(found.app(), CHAT.path, body, slow=True)
    leaving.leave()
    await leaving.task
    assert leaving.parts == []
    ((_, exchange),) = one.exchanges._latest
    await exchange.replies()
    assert one.delivered == set()
    again = Client(found.app(), CHAT.path, body)
    await again.task
    assert choice_told(again.text, 0)[1] == "I see the door."
    assert (len(sampler.samples), one.delivered) == (1, {0})


@BOTH
async def test_a_slow_reader_keeps_nobody_waiting_and_nothing_is_kept_for_it_but_the_reply(name):
    api, text = APIS[name], "A long story. " * 150
    found, one, sampler = telling(lambda prompt: said(text), limits=Limits(at_once=1), room=5000)
    slow = Client(found.app(), api.path, {**api.asked("Hi"), "stream": True, "max_tokens": 5000}, slow=True)
    while not one.turns or found.running:  # noqa: ASYNC110
        await asyncio.sleep(0)
    ((_, exchange),) = one.exchanges._latest
    assert slow.parts == [], "it has not read anything yet"
    assert exchange._tokens == {}
    other = Client(found.app(), api.path, {**api.asked("Hi, you"), "stream": True, "max_tokens": 5000})
    await other.task
    assert other.status == 200
    slow.take(1000)
    await slow.task
    assert api.told(list(events(slow.text)))[:2] == ("", text)
    assert len(slow.parts) < 10 < len(other.parts), "it gets in one piece what has come meanwhile"
    exact(one, sampler)


async def test_a_reader_that_falls_behind_gets_larger_pieces():
    told, text = asyncio.Event(), "naïve 日本 words, " * 40

    async def pause(count):
        if count == 400:
            told.set()
            await asyncio.Event().wait()

    found, _, _ = telling(lambda prompt: said(text), pause=pause, room=5000)
    slow = Client(found.app(), CHAT.path, {**CHAT.asked("Hi"), "stream": True}, slow=True)
    await told.wait()
    slow.take(3)
    while len(slow.parts) < 2:  # noqa: ASYNC110
        await asyncio.sleep(0)
    assert len(choice_told(slow.text, 0)[1]) > 200
    slow.task.cancel()


async def test_a_failure_in_the_middle_is_the_last_event():
    gates = {name: asyncio.Event() for name in APIS}
    for name, api in APIS.items():

        async def pause(told, gate=gates[name]):
            if told == 8:
                await gate.wait()
                raise RuntimeError("the world is flat")

        found, one, _ = telling(lambda prompt: said("I see a door."), pause=pause)
        client = Client(found.app(), api.path, {**api.asked("Hi"), "stream": True})
        await client.until("see")
        gates[name].set()
        await client.task
        last = list(events(client.text))[-1]
        error = last["response"]["error"] if name == "responses" else last["error"]
        assert "the world is flat" in error["message"]
        assert client.text.count("the world is flat") == 1
        assert one.turns == []
        assert found.running == 0


def engine_gateway(seed, *, thinking=False):
    tokenizer = tiny.build_tokenizer()
    format = renderer(thinking=thinking)
    model = tiny.build_model(tiny.read_size("tiny:layers=1,hidden=64"), tokenizer, seed)
    engine = Engine(model, stops=format.stops, max_context=600, decode=format.decode, kernel=False)
    context = AgentContext(
        name="agent", renderer=format, sampler=engine, params=SamplingParams(80, seed=seed), max_context=600
    )
    found, one = Gateway(Sessions()), Session("key", context)
    found.sessions.open(one)
    return found, one, engine


@BOTH
@pytest.mark.parametrize("thinking", [False, True])
async def test_a_real_engine_is_streamed_as_it_is_told_whole(name, thinking):
    """A model that says random bytes and words."""
    api, parts = APIS[name], 0
    for seed in range(4):
        told = []
        for stream in (True, False):
            found, _, engine = engine_gateway(seed, thinking=thinking)
            client = Client(found.app(), api.path, {**api.asked("Hi"), "tools": [], "stream": stream})
            await client.task
            told.append(api.told(list(events(client.text))) if stream else api.whole(json.loads(client.text)))
            parts += len(client.parts) if stream else 0
            await engine.close()
        assert told[0] == told[1]
        assert told[0] != ("", "", [])
    assert parts > 100, "in many pieces"


async def test_a_real_engine_s_words_come_before_it_ends():
    found, one, engine = engine_gateway(0)
    client = Client(found.app(), CHAT.path, {**CHAT.asked("Hi"), "stream": True})
    while sum("content" in part for part in client.parts) < 4:  # noqa: ASYNC110
        await asyncio.sleep(0)
    before = len(one.turns)
    await client.task
    assert (before, len(one.turns)) == (0, 1)
    await engine.close()


async def test_a_stream_that_would_differ_from_the_reply_ends_with_an_error():
    told = Told()
    told.add(Delta("text", "One"))
    assert list(told.rest("", "One two")) == [Delta("text", " two")]
    with pytest.raises(RequestError, match="but the reply is 'Two'"):
        list(told.rest("", "Two"))


async def test_what_is_read_of_an_exchange_only_grows():
    _, one, _ = telling(lambda prompt: said("I see a door, and a window."))
    exchange = Exchange(one, asked(user("Hi"), stream=True))
    seen = [new async for new in exchange.deltas(60.0)]
    assert "I see a door, and a window.".startswith("".join(delta.text for new in seen for delta in new))
    assert len(seen) > 10
    assert all(new for new in seen)
