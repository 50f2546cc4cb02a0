"""The client of log-probabilities of prompts, against a real server on loopback that computes a real model's."""

from __future__ import annotations

import asyncio
import json
import threading
import time

import numpy as np
import pytest
import torch
from vllm_server import VLLM, serving

from sojourn.errors import ConfigError, InfrastructureError
from sojourn.models import endpoint as module
from sojourn.models.prompt_scorer import PromptScorer
from sojourn.models.spec import ServedModel
from tests.envs.loopback import Raw, answered

NAME = "tiny:layers=1,hidden=64"
SECRET = "correct-horse-7"
PROMPT, WHERE = np.array([3, 1, 4, 1, 5, 9, 2]), np.array([2, 3, 6])


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the client's waits instant."""
    sleep = asyncio.sleep
    monkeypatch.setattr(module.asyncio, "sleep", lambda seconds: sleep(0))


def scorer(url: str, **options) -> PromptScorer:
    return PromptScorer.of("big", ServedModel(base_url=url, model="tiny", **options))


def places(*given) -> str:
    return json.dumps({"choices": [{"prompt_logprobs": given}]})


async def test_the_scores_are_those_of_the_model():
    server = VLLM.of(NAME)
    with serving(server) as (url, asked):
        [found, other] = await scorer(url, top_k=4).score([PROMPT, PROMPT[:3]], [WHERE, np.array([1])])
    with torch.no_grad():
        logprobs = server.model(torch.from_numpy(PROMPT)[None]).logits[0].log_softmax(-1)[WHERE - 1]
    np.testing.assert_allclose(found.logprobs, logprobs[np.arange(3), PROMPT[WHERE]], atol=1e-5)
    top = logprobs.topk(4)
    assert found.likeliest.tolist() == top.indices.tolist()
    np.testing.assert_allclose(found.likeliest_logprobs, top.values, atol=1e-5)
    assert other.likeliest.shape == (1, 4)
    assert {request["path"] for request in asked} == {"/v1/completions"}
    assert sorted(request["prompt"] for request in asked) == [PROMPT[:3].tolist(), PROMPT.tolist()]
    assert (asked[0]["prompt_logprobs"], asked[0]["max_tokens"], asked[0]["model"]) == (4, 1, "tiny")


async def test_a_token_that_is_not_among_the_likeliest_has_its_log_probability():
    place = {"7": {"logprob": -0.1}, "8": {"logprob": -2.5}, "2": {"logprob": -9.0, "rank": 77}}
    with answered(lambda path, body: Raw(200, places(None, place))) as (url, _):
        [found] = await scorer(url, top_k=2).score([np.array([1, 2])], [np.array([1])])
        [fewer] = await scorer(url, top_k=5).score([np.array([1, 2])], [np.array([1])])
    assert found.logprobs.tolist() == [-9.0]
    assert found.likeliest.tolist() == [[7, 8]]
    assert fewer.likeliest.tolist() == [[7, 8, 2, -1, -1]]
    with serving(VLLM.of(NAME)) as (url, _):
        [alone] = await scorer(url, top_k=0).score([PROMPT], [WHERE])
    assert (len(alone.logprobs), alone.likeliest.shape) == (3, (3, 0))


async def test_so_many_prompts_are_asked_about_at_once():
    both, lock, active, most = threading.Barrier(2, timeout=20), threading.Lock(), 0, 0

    def answer(path, body):
        nonlocal active, most
        with lock:
            active += 1
            most = max(most, active)
        both.wait()  # a second request is under way too
        time.sleep(0.05)  # a third would come meanwhile
        with lock:
            active -= 1
        return Raw(200, places(None, {"2": {"logprob": -1.0}}))

    with answered(answer) as (url, _):
        found = await scorer(url, concurrency=2).score([np.array([1, 2])] * 6, [np.array([1])] * 6)
    assert len(found) == 6
    assert most == 2


@pytest.mark.parametrize(
    ("reply", "sentence"),
    [
        (Raw(500, "{}"), r"models.big at http.* \(attempt 3\) answered 500"),
        (Raw(400, '{"error": {"message": "too many"}}'), "answered 400, 'too many'"),
        (Raw(200, places(None)), r"its reply is no scored prompt \(ValueError: it has 1 places for 2 tokens"),
        (Raw(200, places(None, {"3": {"logprob": -1.0}})), r"no scored prompt \(KeyError: 2\)"),
        (Raw(200, places(None, {"2": {"logprob": float("nan")}})), "a log-probability is not finite"),
        (Raw(200, places(None, None)), "no scored prompt"),
        (Raw(200, '{"choices": []}'), "no scored prompt"),
    ],
)
async def test_a_server_that_fails_is_told_in_a_sentence(reply, sentence):
    with (
        answered(lambda path, body: reply) as (url, _),
        pytest.raises(InfrastructureError, match=sentence) as raised,
    ):
        await scorer(url).score([np.array([1, 2])], [np.array([1])])
    assert "\n" not in str(raised.value)


async def test_after_a_failure_nothing_more_is_asked():
    with answered(lambda path, body: Raw(400)) as (url, asked):
        with pytest.raises(InfrastructureError, match="400"):
            await scorer(url, concurrency=1).score([np.array([1, 2])] * 50, [np.array([1])] * 50)
        if left := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(left)
    assert len(asked) < 50


async def test_a_failure_that_passes_is_survived():
    left = [Raw(503), Raw(200, places(None, {"2": {"logprob": -1.0}}))]
    with answered(lambda path, body: left.pop(0)) as (url, _):
        [found] = await scorer(url).score([np.array([1, 2])], [np.array([1])])
    assert found.logprobs.tolist() == [-1.0]


async def test_the_tokenizer_of_the_server_is_asked_beside_its_openai_routes():
    server = VLLM.of(NAME, max_model_len=100)
    with serving(server) as (url, asked):
        assert await scorer(f"{url}/").detokenize([5, 6, 7]) == server.tokenizer.decode([5, 6, 7])
        assert await scorer(url).max_prompt() == 99
    assert [request["path"] for request in asked] == ["/detokenize", "/tokenize"]


async def test_the_key_comes_from_the_environment(monkeypatch):
    monkeypatch.setenv("SOME_ENDPOINT", SECRET)
    with serving(VLLM.of(NAME)) as (url, asked):
        await scorer(url, key="SOME_ENDPOINT").score([PROMPT], [WHERE])
    assert asked[0]["authorization"] == f"Bearer {SECRET}"
    monkeypatch.delenv("SOME_ENDPOINT")
    with pytest.raises(ConfigError, match='key = "SOME_ENDPOINT" is no environment variable that is set'):
        scorer("http://127.0.0.1:1/v1", key="SOME_ENDPOINT")
