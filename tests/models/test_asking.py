"""Asking a model behind an endpoint: never twice for the same, within a budget, and with a record of it."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from judge_server import reply

from sojourn.errors import ConfigError, InfrastructureError, RecordError
from sojourn.models.answers import FILE, AnswerStore, KnownAnswer, earlier_answers, has_answers
from sojourn.models.asked_endpoint import EndpointModel
from sojourn.models.asking import Answer, AskedModels, TooLongError
from sojourn.models.questions import Questions
from sojourn.models.spec import ServedModel
from sojourn.types import Message, Role
from tests.envs.loopback import Raw, answered

QUESTION = (Message(Role.SYSTEM, "Be brief."), Message(Role.USER, "Why?"))
ASK = {"max_tokens": 5, "temperature": 0.5, "seed": 3}
SECRET = "correct-horse-7"


def model(url: str, store: AnswerStore | None = None, **more) -> EndpointModel:
    served = ServedModel(base_url=url, model="big", **more)
    return EndpointModel("referee", served, store or AnswerStore())


async def test_an_answer_has_its_text_tokens_and_cost():
    with answered(lambda path, body: reply("Because.", 1000, 30)) as (url, asked):
        answer = await model(url, prompt_price=2.0, sampled_price=10.0).ask(QUESTION, **ASK)
    assert answer == Answer("Because.", 1000, 30, answer.seconds, False, pytest.approx(0.0023))
    expected = {"model": "big", "max_tokens": 5, "temperature": 0.5, "seed": 3}
    assert {key: asked[0][key] for key in expected} == expected
    assert asked[0]["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Why?"},
    ]


@pytest.mark.parametrize("content", [None, ""])
async def test_a_reply_without_text_is_an_empty_answer(content):
    with answered(lambda path, body: reply(content)) as (url, _):
        assert (await model(url).ask(QUESTION, **ASK)).text == ""


@pytest.mark.parametrize("content", [None, "", " \n"])
async def test_a_reply_without_text_is_paid_for_and_asked_for_again_and_an_answer_is_kept(tmp_path: Path, content):
    """Also after a restart, and where a run of before kept a reply without text as an answer."""
    said = [content, content, "Because.", "Never asked for."]
    with answered(lambda path, body: reply(said[len(asked) - 1], 100, 10)) as (url, asked):
        answers = []
        for _ in range(4):
            store = AnswerStore()
            store.keep_in(tmp_path)
            answers.append(await model(url, store, sampled_price=1e5).ask(QUESTION, **ASK, asker="a"))
            spent = store.spent("referee")
            store.close()
        earlier = await model(url, answers=str(tmp_path)).ask(QUESTION, **ASK)
    assert [(one.text.strip(), one.cached, one.cost) for one in answers] == [
        ("", False, 1.0), ("", False, 1.0), ("Because.", False, 1.0), ("Because.", True, 1.0),
    ]  # fmt: skip
    assert (earlier.text, earlier.cached) == ("Because.", True)
    assert spent == (330, 3.0)
    assert len(asked) == 3


async def test_a_reply_without_text_is_recorded_beside_the_answer():
    texts = iter(["", "Because.", "Because."])

    class Silent(Parrot):
        async def ask(self, messages, **options):
            return (await super().ask(messages, **options))._replace(text=next(texts))

    asked = AskedModels({"parrot": Silent()})
    for _ in range(3):
        await asked.ask("parrot", QUESTION, **ASK, about=("a",), purpose="to see")
    assert [one.answer for one in asked.take(["a"])["a"]] == ["", "Because."]


async def test_tokens_that_a_server_does_not_count_are_estimated():
    said = Raw(200, json.dumps({"choices": [{"message": {"role": "assistant", "content": "Because."}}]}))
    with answered(lambda path, body: said) as (url, _):
        answer = await model(url).ask(QUESTION, **ASK)
    assert (answer.prompt_tokens, answer.sampled_tokens) == (5, 3)


async def test_the_same_is_asked_once_also_after_a_restart(tmp_path: Path):
    with answered(lambda path, body: reply(f"answer {len(asked)}")) as (url, asked):
        store = AnswerStore()
        store.keep_in(tmp_path)
        first = model(url, store)
        given = [await first.ask(QUESTION, **ASK) for _ in range(2)]
        store.close()
        again = AnswerStore()
        again.keep_in(tmp_path)
        given.append(await model(url, again).ask(QUESTION, **ASK))
        assert [(one.text, one.cached) for one in given] == [
            ("answer 1", False),
            ("answer 1", True),
            ("answer 1", True),
        ]
        others = [
            ((*QUESTION, Message(Role.USER, "Well?")), ASK),
            *((QUESTION, ASK | change) for change in ({"seed": 4}, {"temperature": 1.0}, {"max_tokens": 6})),
        ]
        for question, params in others:
            assert not (await model(url, again).ask(question, **params)).cached
        bigger = EndpointModel("referee", ServedModel(base_url=url, model="bigger"), again)
        assert not (await bigger.ask(QUESTION, **ASK)).cached
        assert len(asked) == 6
    assert stat.S_IMODE((tmp_path / FILE).stat().st_mode) == 0o600


async def test_two_who_ask_the_same_at_once_share_an_answer_that_the_first_pays():
    with answered(lambda path, body: reply("yes", 10, 10)) as (url, asked):
        made = model(url, prompt_price=1e6)
        both = await asyncio.gather(*(made.ask(QUESTION, **ASK, asker=name) for name in ("a", "b")))
        again = await made.ask(QUESTION, **ASK, asker="a")
    assert len(asked) == 1
    assert [(one.cached, one.cost) for one in (*both, again)] == [(False, 10.0), (True, 0.0), (True, 10.0)]


async def test_one_that_fails_leaves_the_next_to_ask_for_itself():
    replies = [Raw(400, "{}"), reply("yes")]
    with answered(lambda path, body: replies.pop(0)) as (url, _):
        made = model(url)
        found = await asyncio.gather(*(made.ask(QUESTION, **ASK) for _ in range(2)), return_exceptions=True)
    assert isinstance(found[0], InfrastructureError)
    assert isinstance(found[1], Answer)


@pytest.mark.parametrize(
    ("budget", "words"),
    [
        ({"token_budget": 200}, r"models\.referee\.endpoint\.token_budget = 200 is spent: its answers took 220"),
        (
            {"cost_budget": 0.2, "prompt_price": 1e3},
            r"cost_budget = 0.2 is spent: its answers took 0.2.*cost_budget=0.4",
        ),
    ],
)
async def test_a_spent_budget_stops_and_loses_no_answer(tmp_path: Path, budget, words):
    with answered(lambda path, body: reply("yes", 100, 10)) as (url, asked):
        for seeds in ([0, 1], []):  # in a second process nothing is free either
            store = AnswerStore()
            store.keep_in(tmp_path)
            made = model(url, store, **budget)
            for seed in seeds:
                await made.ask(QUESTION, **{**ASK, "seed": seed})
            with pytest.raises(ConfigError, match=words):
                await made.ask(QUESTION, **{**ASK, "seed": 2})
            assert (await made.ask(QUESTION, **{**ASK, "seed": 0})).cached
            store.close()
        larger = {key: value * (3 if "budget" in key else 1) for key, value in budget.items()}
        store = AnswerStore()
        store.keep_in(tmp_path)
        await model(url, store, **larger).ask(QUESTION, **{**ASK, "seed": 2})
    assert len(asked) == 3


def test_a_budget_in_money_needs_prices():
    with pytest.raises(ValueError, match="cost_budget = 1 without prices"):
        ServedModel(base_url="http://127.0.0.1:1/v1", model="big", cost_budget=1.0)


async def test_the_key_is_in_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SOME_ENDPOINT", SECRET)
    store = AnswerStore()
    store.keep_in(tmp_path)
    with answered(lambda path, body: reply(f"your key is {SECRET}")) as (url, asked):
        answer = await model(url, store, key="SOME_ENDPOINT").ask(QUESTION, **ASK)
    assert asked[0]["authorization"] == f"Bearer {SECRET}"
    assert answer.text == "your key is <masked>"
    store.close()
    assert SECRET.encode() not in (tmp_path / FILE).read_bytes()


async def test_the_answers_of_an_earlier_run_are_free(tmp_path: Path):
    with answered(lambda path, body: reply("yes")) as (url, asked):
        store = AnswerStore()
        store.keep_in(tmp_path)
        await model(url, store, prompt_price=1e6).ask(QUESTION, **ASK)
    replay = model(url, prompt_price=1e6, answers=str(tmp_path))  # the server is gone
    answer = await replay.ask(QUESTION, **ASK)
    assert (answer.text, answer.cached, answer.cost) == ("yes", True, 0.0)
    assert len(asked) == 1
    with pytest.raises(RecordError, match=r"there is no answers\.sqlite"):
        model(url, answers=str(tmp_path / "none"))


def test_a_file_of_answers_that_is_damaged_is_named(tmp_path: Path):
    (tmp_path / FILE).write_bytes(b"no database" * 100)
    store = AnswerStore()
    store.keep_in(tmp_path)
    for use in (lambda: store.find("a"), lambda: model("http://127.0.0.1:9/v1", answers=str(tmp_path))):
        with pytest.raises(RecordError, match=r"answers\.sqlite cannot be used"):
            use()
    (tmp_path / FILE).write_bytes(b"")
    assert not has_answers(tmp_path)
    with pytest.raises(RecordError, match=r"answers\.sqlite cannot be used \(no such table"):
        model("http://127.0.0.1:9/v1", answers=str(tmp_path))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_what_was_answered_and_asked_is_read_where_nothing_can_be_written(tmp_path: Path):
    store = AnswerStore(tmp_path)
    store.add("a", KnownAnswer("big", "x", "yes", 1, 1, 0.0, 0.0))
    store.close()
    Questions(tmp_path).put("k", "x", QUESTION, 60.0)
    tmp_path.chmod(0o555)
    try:
        assert earlier_answers(str(tmp_path)).find("a")
        assert has_answers(tmp_path)
        assert [one.key for one in Questions(tmp_path).open()] == ["k"]
    finally:
        tmp_path.chmod(0o755)


class Parrot:
    """Answers with the question, for one and a half."""

    async def ask(self, messages, *, max_tokens, temperature, seed, asker=""):
        return Answer(messages[-1].text, 3, 2, 0.25, False, 1.5)


async def test_what_was_asked_is_kept_until_its_episodes_are_recorded():
    asked = AskedModels({"parrot": Parrot()})
    for seed, about in enumerate([("a",), ("a", "b"), ("a", "b"), ("c",)]):
        await asked.ask("parrot", QUESTION, **{**ASK, "seed": seed}, about=about, purpose=f"to see {seed}")
    await asked.ask("parrot", QUESTION, **{**ASK, "seed": 3}, about=("c",), purpose="to see 3")  # the same again
    taken = asked.take(["b", "a", "none"])
    assert {name: [one.purpose for one in found] for name, found in taken.items()} == {
        "a": ["to see 0", "to see 1", "to see 2"],
        "b": ["to see 1", "to see 2"],
    }
    assert taken["b"][0] == replace(taken["a"][1], question=())  # recorded once
    assert taken["a"][0].question == QUESTION
    assert (taken["a"][0].answer, taken["a"][0].cost, taken["a"][0].seed) == ("Why?", 1.5, 0)
    assert asked.metrics() == {"asked": 3, "asked_tokens": 15, "asked_cost": 4.5}
    assert (asked.metrics(), asked.take(["a", "b"])) == ({}, {})
    assert [len(found) for found in asked.take(["c"]).values()] == [1]
    await asked.ask("parrot", QUESTION, **ASK, about=("d",), purpose="to see")
    asked.forget()
    assert asked.take(["d"]) == {}


async def test_what_a_conversation_asks_is_recorded_in_order_with_what_is_new():
    asked = AskedModels({"parrot": Parrot()})
    of_episode = asked.of_episode("a")
    for turn in (10, 2, 1):
        options = {**ASK, "seed": turn}
        await of_episode.ask(
            "parrot", [*QUESTION, Message(Role.USER, "And?")], **options, purpose=f"turn {turn}", new=1
        )
    [taken] = asked.take(["a"]).values()
    assert [one.purpose for one in taken] == ["turn 1", "turn 2", "turn 10"]
    assert [[message.text for message in one.question] for one in taken] == [["And?"]] * 3


async def test_an_answer_that_nobody_waits_for_any_more_is_kept():
    """As when a run stops: it is paid for, and not asked for again, also while it is under way."""
    asked_for, go_on = threading.Event(), threading.Event()

    def slowly(path, body):
        asked_for.set()
        go_on.wait()
        return reply("Because.")

    store = AnswerStore()
    with answered(slowly) as (url, requests):
        made = model(url, store)
        asking = asyncio.create_task(made.ask(QUESTION, **ASK))
        await asyncio.to_thread(asked_for.wait)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        again = asyncio.create_task(made.ask(QUESTION, **ASK))
        await asyncio.sleep(0.1)
        go_on.set()
        await store.finish()
        for answer in (await again, await model(url, store).ask(QUESTION, **ASK)):
            assert (answer.text, answer.cached) == ("Because.", True)
    assert len(requests) == 1


async def test_models_of_the_same_name_at_two_servers_answer_for_themselves():
    """Many servers call whatever they serve "default"."""
    store = AnswerStore()
    with (
        answered(lambda path, body: reply("I am A.")) as (a, _),
        answered(lambda path, body: reply("I am B.")) as (b, _),
    ):
        made = [
            EndpointModel(name, ServedModel(base_url=url, model="default"), store) for name, url in (("a", a), ("b", b))
        ]
        assert [(await one.ask(QUESTION, **ASK)).text for one in made] == ["I am A.", "I am B."]


async def test_half_a_character_in_an_answer_is_none():
    """A server that cuts an emoji at `max_tokens` may send a lone surrogate, which no file can hold."""
    body = json.dumps({"choices": [{"message": {"role": "assistant", "content": "Good \ud83d"}}]})
    with answered(lambda path, asked: Raw(200, body)) as (url, _):
        made = model(url)
        assert [(await made.ask(QUESTION, **ASK)).text for _ in range(2)] == ["Good ?"] * 2


@pytest.mark.parametrize(
    "error",
    [
        {"message": "Too many tokens.", "code": "context_length_exceeded"},
        {"message": "This model's maximum context length is 2048 tokens.", "type": "BadRequestError"},
        {"message": "the request exceeds the available context size", "type": "exceed_context_size_error"},
    ],
)
async def test_a_server_that_cannot_read_so_much_is_told_from_one_that_fails(error):
    said = Raw(400, json.dumps({"error": error}))
    with answered(lambda path, body: said) as (url, _), pytest.raises(TooLongError, match=r"referee.*answered 400"):
        await model(url).ask(QUESTION, **ASK)
