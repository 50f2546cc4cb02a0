"""What is told of a reply's tokens: their bytes, which may be parts of a character, and how many are of its thought."""

from __future__ import annotations

import json

import httpx
import numpy as np
import pytest

from sojourn.gateway.parts import parts_of
from sojourn.gateway.responses import LOGPROBS
from sojourn.gateway.server import Gateway
from sojourn.gateway.sessions import Sessions
from sojourn.render import pieces
from sojourn.types import ToolCall
from tests.gateway_sessions import renderer, said, session
from tests.gateway_streams import events

HELLO = [{"role": "user", "content": "Hi"}]


async def answers(reply, *requests, thinking=False):
    one, sampler = session(lambda prompt: reply, thinking=thinking)
    gateway = Gateway(Sessions())
    gateway.sessions.open(one)
    transport = httpx.ASGITransport(gateway.app())
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1/s/s/v1") as http:
        found = [await http.post(path, json=body) for path, body in requests]
    return [_read(one.text) for one in found], sampler


def _read(text):
    """Returns an answer, or the choices of one that is a stream."""
    return json.loads(text) if text.startswith("{") else [one for event in events(text) for one in event["choices"]]


async def test_the_logprobs_are_those_of_the_tokens_of_the_text():
    """Letters that a mark of the format has, too, are no text there; what ends the reply, and calls, are none."""
    tools = [{"type": "function", "function": {"name": "look"}}]
    stream = {"messages": HELLO, "tools": tools, "logprobs": True, "stream": True}
    chat = ("/chat/completions", {**stream, "stream": False})
    responses = ("/responses", {"input": "Hi", "tools": [{"type": "function", "name": "look"}], "include": [LOGPROBS]})
    for text in ("é漢🙂 and plain", "n", "think", "hi", ">", ""):
        for thought in (None, "", "so", "n", "a löng thought, think"):
            for calls in ((), (ToolCall("look", {"at": "n think >"}),)):
                (first, second, third), sampler = await answers(
                    said(text, thought or "", *calls), chat, responses, ("/chat/completions", stream),
                    thinking=thought is not None,
                )  # fmt: skip
                listed = first["choices"][0]["logprobs"]["content"]
                assert bytes(byte for token in listed for byte in token["bytes"]).decode() == text
                written = pieces.bytes_of(sampler.format.codec, sampler.samples[0].tokens)
                mark = b"".join(written).find(b"</think>")
                begin = b"".join(written).index(text.encode(), mark + len(b"</think>") if mark >= 0 else 0)
                first_at = next(n for n in range(len(written)) if len(b"".join(written[:n])) == begin)
                expected = sampler.samples[0].logprobs[first_at : first_at + len(listed)].tolist()
                assert [token["logprob"] for token in listed] == pytest.approx(expected)
                parts = [part for item in second["output"] if item["type"] == "message" for part in item["content"]]
                assert [one for part in parts for one in part["logprobs"]] == listed
                assert [one for choice in third for one in (choice.get("logprobs") or {}).get("content", [])] == listed


async def test_a_stop_string_and_bytes_that_are_no_character_are_told_apart_from_the_text():
    chat = ("/chat/completions", {"messages": HELLO, "logprobs": True, "stop": ["END"]})
    (answer,), _ = await answers(said("a door END", "so, end"), chat, thinking=True)
    listed = answer["choices"][0]["logprobs"]["content"]
    assert "".join(token["token"] for token in listed) == answer["choices"][0]["message"]["content"] == "a door "
    codec = renderer().codec
    broken = [*codec.plain("a é"), *codec.plain("漢")[:1]]
    parts = parts_of(renderer(), np.array([*broken, renderer().stops[0]]), "", codec.decode(broken))
    assert parts.text == range(len(broken))


async def test_the_tokens_of_a_thought_are_counted():
    chat, responses = ("/chat/completions", {"messages": HELLO}), ("/responses", {"input": "Hi"})
    for thought in ("", "so", "a löng thought"):
        (first, second), sampler = await answers(said("hi", thought), chat, responses, thinking=True)
        counted = first["usage"]["completion_tokens_details"]["reasoning_tokens"]
        assert counted == second["usage"]["output_tokens_details"]["reasoning_tokens"]
        codec = sampler.format.codec
        written = pieces.bytes_of(codec, sampler.samples[0].tokens)
        assert b"".join(written[:counted]).decode() == thought, "each character is a token, or several"


def test_the_bytes_of_some_tokens_are_those_of_the_vocabulary():
    codec = renderer().codec
    known = pieces.vocabulary(codec)
    numbers = [0, 5, *codec.controls.values(), len(known.pieces) - 1]
    assert list(pieces.bytes_of(codec, numbers)) == [known.pieces[number] or b"" for number in numbers]
    assert pieces.bytes_of(codec, []) == ()
