"""The client of OpenAI-compatible servers, against a real server on loopback."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
import threading
from email.utils import formatdate

import pytest

from sojourn.errors import ConfigError, InfrastructureError
from sojourn.models import endpoint as module
from sojourn.models.endpoint import Endpoint
from sojourn.secrets import masked
from tests.envs.loopback import Raw, served

HI = [{"role": "user", "content": "hi"}]
SECRET = "correct-horse-7"


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Makes the client's waits instant, and lists them."""
    waits: list[float] = []
    sleep = asyncio.sleep

    async def instant(seconds: float) -> None:
        waits.append(seconds)
        await sleep(0)

    monkeypatch.setattr(module.asyncio, "sleep", instant)
    return waits


def in_turn(*replies):
    """A model that gives one reply after the other."""
    left = list(replies)
    return lambda messages: left.pop(0)


async def test_a_reply_comes_with_its_text_and_tokens() -> None:
    with served(lambda messages: " hello ") as (url, asked):
        message, tokens, prompt = await Endpoint(url, "tiny").complete(HI, max_tokens=3)
        assert await Endpoint(f"{url}/", "tiny").complete_text(HI) == "hello"
    assert (message["content"], tokens, prompt) == (" hello ", 7, 11)
    expected = {"model": "tiny", "messages": HI, "temperature": 0, "max_tokens": 3}
    assert {key: asked[0][key] for key in expected} == expected
    assert [request["path"] for request in asked] == ["/v1/chat/completions"] * 2
    assert asked[0]["authorization"] is None


async def test_the_key_is_sent_and_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_ENDPOINT", f"{SECRET}\n")
    endpoint = Endpoint("http://127.0.0.1:1/v1", "tiny", "SOME_ENDPOINT")
    assert SECRET not in masked(f"{endpoint} {SECRET}")
    with served(in_turn("hello", Raw(401, json.dumps({"error": {"message": f"bad key {SECRET}"}})))) as (url, asked):
        endpoint = Endpoint(url, "tiny", "SOME_ENDPOINT")
        assert await endpoint.complete_text(HI) == "hello"
        with pytest.raises(InfrastructureError, match=r"answered 401, 'bad key .*variable SOME_ENDPOINT") as raised:
            await endpoint.complete(HI)
    assert asked[0]["authorization"] == f"Bearer {SECRET}"
    assert SECRET not in str(raised.value)


@pytest.mark.parametrize("value", ["", "two words", "schlüssel"])
def test_a_key_that_no_header_can_carry_is_refused_unsaid(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("SOME_ENDPOINT", value)
    with pytest.raises(ConfigError, match='key = "SOME_ENDPOINT"') as raised:
        Endpoint("http://127.0.0.1:1/v1", "tiny", "SOME_ENDPOINT")
    assert not value or value not in str(raised.value)


@pytest.mark.parametrize("status", [408, 409, 429, 500, 503])
async def test_a_transient_failure_is_tried_again(status: int, pauses: list[float]) -> None:
    with served(in_turn(Raw(status), Raw(status), "hello")) as (url, asked):
        assert await Endpoint(url, "tiny").complete_text(HI) == "hello"
    assert len(asked) == 3
    assert 0.25 <= pauses[0] <= 0.5 <= pauses[1] <= 1.0


@pytest.mark.parametrize(("status", "remedy"), [(400, ""), (401, "key"), (404, "check the address and the model")])
async def test_a_lasting_failure_is_not(status: int, remedy: str, pauses: list[float]) -> None:
    with (
        served(lambda messages: Raw(status, "no\n such thing")) as (url, asked),
        pytest.raises(InfrastructureError, match=rf"answered {status}, 'no such thing'.*{remedy}"),
    ):
        await Endpoint(url, "tiny").complete(HI)
    assert (len(asked), pauses) == (1, [])


async def test_after_the_last_attempt_the_failure_is_told() -> None:
    with (
        served(lambda messages: None) as (url, asked),
        pytest.raises(InfrastructureError, match=r"user's model at .* \(attempt 3\) answered 500"),
    ):
        await Endpoint(url, "tiny").complete(HI)
    assert len(asked) == 3


async def test_a_failed_connection_is_tried_again(pauses: list[float]) -> None:
    with pytest.raises(InfrastructureError, match=r"\(attempt 3\) gave no answer"):
        await Endpoint("http://127.0.0.1:1/v1", "tiny").complete(HI)
    assert len(pauses) == 2


async def test_the_server_says_when_to_come_back(pauses: list[float]) -> None:
    date = formatdate(module.time.time() + 20, usegmt=True)
    replies = Raw(429, headers={"Retry-After": "7"}), Raw(503, headers={"Retry-After": date}), "hello"
    with served(in_turn(*replies)) as (url, _):
        assert await Endpoint(url, "tiny").complete_text(HI) == "hello"
    assert pauses[0] == 7.0
    assert 1 < pauses[1] <= 20


async def test_a_wait_beyond_the_time_limit_fails_at_once(pauses: list[float]) -> None:
    with (
        served(lambda messages: Raw(429, headers={"Retry-After": "3600"})) as (url, asked),
        pytest.raises(InfrastructureError, match=r"answered 429.* and asks to wait 3600 s"),
    ):
        await Endpoint(url, "tiny").complete(HI)
    assert (len(asked), pauses) == (1, [])


@pytest.mark.parametrize("headers", [{"Retry-After": "soon"}, {"Retry-After": "-5"}, {"Retry-After": "nan"}, {}])
async def test_a_time_that_cannot_be_read_is_left_out(headers: dict[str, str], pauses: list[float]) -> None:
    with served(in_turn(Raw(429, headers=headers), "hello")) as (url, _):
        assert await Endpoint(url, "tiny").complete_text(HI) == "hello"
    assert 0.25 <= pauses[0] <= 0.5


@pytest.mark.parametrize(
    "text", ["", "nothing", "[]", '{"choices": []}', '{"choices": [{"message": "hi"}]}', "[" * 100_000, '{"error": 3}']
)
async def test_a_reply_that_is_no_completion_is_an_infrastructure_failure(text: str) -> None:
    for status, expected in ((200, "gave no answer: its reply is no chat completion"), (400, "answered 400")):
        with served(lambda messages, s=status: Raw(s, text)) as (url, _):
            with pytest.raises(InfrastructureError, match=expected) as raised:
                await Endpoint(url, "tiny").complete(HI)
            assert len(str(raised.value)) < 500
            assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "url",
    [
        "ftp://host/v1",
        "http:///v1",
        "http://[::1/v1",
        "http://127.0.0.1:99999/v1",
        "http://host:port/v1",
        "http://host:0",
    ],
)
def test_an_address_at_which_no_server_can_be_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="but it must be the address of an OpenAI-compatible server"):
        Endpoint(url, "tiny")


@pytest.mark.parametrize("count", [-1, 0, 10**30, 1.5, "7", None])
async def test_a_count_of_tokens_that_is_none_is_no_count(count: object) -> None:
    answer = {"choices": [{"message": {"content": "hi"}}], "usage": {"completion_tokens": count, "prompt_tokens": 3}}
    with served(lambda messages: Raw(200, json.dumps(answer))) as (url, _):
        assert (await Endpoint(url, "tiny").complete(HI))[1:] == (0, 3)


async def test_a_reply_without_text_is_an_infrastructure_failure() -> None:
    with (
        served(lambda messages: {"role": "assistant", "content": None}) as (url, _),
        pytest.raises(InfrastructureError, match="replied without text: None"),
    ):
        await Endpoint(url, "tiny").complete_text(HI)


async def test_a_server_that_hangs_can_be_left() -> None:
    arrived, release = threading.Event(), threading.Event()

    def hang(messages: list) -> str:
        arrived.set()
        release.wait(20)
        return "late"

    with served(hang) as (url, _):
        try:
            call = asyncio.ensure_future(Endpoint(url, "tiny").complete(HI))
            await asyncio.to_thread(arrived.wait, 20)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            with pytest.raises(InfrastructureError, match=r"gave no answer within 0\.05 s"):
                await Endpoint(url, "tiny", timeout_s=0.05).complete(HI)
            assert not release.is_set()
        finally:
            release.set()


async def test_proxies_are_for_other_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    with served(lambda messages: Raw(400, "the proxy")) as (proxy, _), served(lambda messages: "hello") as (url, _):
        monkeypatch.setenv("http_proxy", proxy.removesuffix("/v1"))
        assert await Endpoint(url, "tiny").complete_text(HI) == "hello"
        with pytest.raises(InfrastructureError, match="the proxy"):
            await Endpoint("http://some.invalid/v1", "tiny").complete(HI)


async def test_the_random_numbers_of_a_run_stay_as_they_are() -> None:
    random.seed(0)
    before = random.getstate()
    with served(in_turn(None, "hello")) as (url, _):
        await Endpoint(url, "tiny").complete(HI)
    assert random.getstate() == before


def test_an_endpoint_that_nobody_asks_loads_no_http_client() -> None:
    code = "import sys; from sojourn.models.endpoint import Endpoint; Endpoint('http://a/v1', 'm'); "
    loaded = subprocess.run(
        [sys.executable, "-c", f"{code} print('httpx' in sys.modules)"], capture_output=True, text=True, check=True
    )
    assert loaded.stdout.strip() == "False"
