"""What is told of a reply's tokens: their bytes, which may be parts of a character, and how many are of its thought."""

from __future__ import annotations

import httpx

from sojourn.gateway.server import Gateway
from sojourn.gateway.sessions import Sessions
from sojourn.render import pieces
from tests.gateway_sessions import renderer, said, session

HELLO = [{"role": "user", "content": "Hi"}]


async def answers(reply, *requests, thinking=False):
    one, sampler = session(lambda prompt: reply, thinking=thinking)
    gateway = Gateway(Sessions())
    gateway.sessions.open(one)
    transport = httpx.ASGITransport(gateway.app())
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1/s/s/v1") as http:
        found = [await http.post(path, json=body) for path, body in requests]
    return [one.json() for one in found], sampler


async def test_the_bytes_of_tokens_are_together_those_of_the_reply():
    text = "é漢🙂 and plain"
    chat = ("/chat/completions", {"messages": HELLO, "logprobs": True})
    responses = ("/responses", {"input": "Hi", "include": ["message.output_text.logprobs"]})
    (first, second), sampler = await answers(said(text), chat, responses)
    listed = first["choices"][0]["logprobs"]["content"]
    assert len(listed) == len(sampler.samples[0].tokens)
    assert bytes(byte for token in listed for byte in token["bytes"]).decode() == f"{text}<|im_end|>"
    assert [one["bytes"] for one in second["output"][0]["content"][0]["logprobs"]] == [one["bytes"] for one in listed]


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
