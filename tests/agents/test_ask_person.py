"""An agent that may ask a person: what is asked, told, paid, trained, refused and kept."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from made import chatml
from test_return_conditioned import Notes, shown

from sojourn.agents.ask_person import AskPerson, AskPersonSeat
from sojourn.agents.plain import Plain, PlainSeat
from sojourn.config.registry import build
from sojourn.errors import ActionError, ConfigError, NoActionError, RecordError, RenderError
from sojourn.models.answers import AnswerStore
from sojourn.models.asked_person import PERSON, AskedPerson, Patience
from sojourn.models.asking import Answer, AskedModel, AskedModels
from sojourn.models.questions import MOST_CHARACTERS, Questions
from sojourn.protocols import AgentContext
from sojourn.types import Ending, Message, Role, SamplingParams, Stop
from tests.asking_base import answering

EPISODE = "rl/0/0/0-x"
ASKED = [Message(Role.USER, "A door."), Message(Role.ASSISTANT, "ask: Which way?")]


@dataclass
class Oracle:
    """Answers questions, and notes them."""

    asked: list[list[tuple[str, str]]] = field(default_factory=list)
    seeds: list[int] = field(default_factory=list)
    unanswered: bool = False

    async def ask(self, messages, *, max_tokens, temperature, seed, asker=""):
        self.asked.append([(message.role.value, message.text) for message in messages])
        self.seeds.append(seed)
        return Answer("<think>Hm.</think> North.", 30, 2, unanswered=self.unanswered)


def sit(who: AskedModel | None = None, **config: Any) -> tuple[AskPersonSeat, Notes, Any, AskedModels]:
    sampler, oracle = Notes(), who or Oracle()
    models = AskedModels({config.get("person") or PERSON: oracle})
    context = AgentContext(
        name="agent", renderer=chatml(), sampler=sampler, params=SamplingParams(64, seed=3), max_context=9999,
        models=models.of_episode(EPISODE),
    )  # fmt: skip
    config = {"unanswered": "Nobody is there."} | config
    return AskPerson(**config).seat(context), sampler, oracle, models


async def ask(seat: AskPersonSeat, sampler: Notes, text: str, question: str) -> None:
    sampler.text = question
    with pytest.raises(NoActionError):
        await seat.act(shown(text, "Play."))


async def test_a_question_is_no_action_and_its_answer_is_shown_next():
    seat, sampler, oracle, models = sit(cost=0.25)
    await ask(seat, sampler, "A door.", "Ask: Which way?")
    sampler.text = "go north"
    assert (await seat.act(shown("A door.", "Play."))).text == "go north"
    seat.add_reward(1.0, {})
    first, second = seat.finish(Ending.DONE).turns
    assert first.message is not None
    assert (first.message.text, first.reward, first.info) == ("Ask: Which way?", -0.25, {"questions": 1.0})
    assert [message.text for message in second.observed] == ["North."]
    assert (second.reward, second.parent) == (1.0, 0)
    told = 'Play. To ask a person, reply with "ask: " and your question, and nothing else. You may ask up to 3'
    assert f"{told} questions. Each costs 0.25." in sampler.prompts[0]
    assert sampler.prompts[1].count("A door.") == 1
    assert oracle.asked == [[("system", "Play."), ("user", "A door."), ("assistant", "Ask: Which way?")]]
    [[recorded]] = models.take([EPISODE]).values()
    assert (recorded.model, recorded.purpose, recorded.answer) == (
        "person", "agent, question 1", "<think>Hm.</think> North."
    )  # fmt: skip


async def test_an_answer_is_shown_as_it_is_where_the_question_was_cut_off():
    seat, sampler, _, _ = sit()
    whole = sampler.sample

    async def cut(prompt, params):
        return replace(await whole(prompt, params), stop=Stop.LENGTH)

    sampler.sample = cut
    await ask(seat, sampler, "A door.", "ask: Which way")
    sampler.sample, sampler.text = whole, "go north"
    await seat.act(shown("A door."))
    assert [message.text for message in seat.finish(Ending.DONE).turns[1].observed] == ["North."]


async def test_a_later_question_shows_all_and_records_what_is_new():
    seat, sampler, oracle, models = sit()
    await ask(seat, sampler, "A door.", "ask: Which way?")
    sampler.text = "go north"
    await seat.act(shown("A door."))
    sampler.text = "ask: And now?"
    refused = seat.refuse(ActionError("there is a wall"), shown("A door."))
    with pytest.raises(NoActionError):
        await seat.act(refused)
    assert [text for _, text in oracle.asked[1]] == [
        "Play.", "A door.", "ask: Which way?", "North.", "go north", "there is a wall", "ask: And now?"
    ]  # fmt: skip
    [recorded] = models.take([EPISODE]).values()
    assert [message.text for message in recorded[1].question] == [
        "North.", "go north", "there is a wall", "ask: And now?"
    ]  # fmt: skip
    assert len(set(oracle.seeds)) == 2


async def test_a_person_sees_a_system_message_once_however_often_the_agent_is_shown_it():
    seat, sampler, oracle, _ = sit()
    sampler.text = "go north"
    await seat.act(shown("A door.", "Play."))
    await ask(seat, sampler, "A hall.", "ask: And now?")
    assert [text for _, text in oracle.asked[0]] == ["Play.", "A door.", "go north", "A hall.", "ask: And now?"]


async def test_questions_are_limited_and_not_empty():
    seat, sampler, oracle, _ = sit(questions=1, word="call home")
    sampler.text = "call home:  "
    with pytest.raises(ActionError, match='You ask nothing: write your question after "call home:"'):
        await seat.act(shown("A door.", "Play."))
    assert "You may ask one question." in sampler.prompts[0]
    await ask(seat, sampler, "A door.", "call home: Which way?")
    sampler.text = "call home: Sure?"
    with pytest.raises(ActionError, match="You have asked 1 times, which is the most"):
        await seat.act(shown("A door."))
    assert len(oracle.asked) == 1
    assert "questions" not in seat.finish(Ending.DONE).turns[2].info


async def test_a_page_shows_the_world_again_beside_the_answer():
    seat, sampler, *_ = sit(base=Plain(history="page"))
    await ask(seat, sampler, "A door.", "ask: Which way?")
    sampler.text = "go north"
    await seat.act(shown("A door."))
    assert "North." in sampler.prompts[1]
    assert "A door." in sampler.prompts[1]


async def test_where_nobody_answered_the_turn_says_so():
    seat, sampler, *_ = sit(Oracle(unanswered=True))
    await ask(seat, sampler, "A door.", "ask: Which way?")
    [turn] = seat.finish(Ending.DONE).turns
    assert turn.info == {"questions": 1.0, "unanswered": 1.0}


async def test_a_model_answers_in_the_persons_place():
    seat, sampler, oracle, _ = sit(person="anna", unanswered="")
    await ask(seat, sampler, "A door.", "ask: Which way?")
    [(system, told), (user, text)] = oracle.asked[0]
    assert (system, user) == ("system", "user")
    assert "may ask you questions" in told
    assert text == "Its task: Play.\n\nIt was shown: A door.\n\nIt said: ask: Which way?"


async def test_a_fork_goes_on_by_itself():
    seat, sampler, oracle, models = sit()
    await ask(seat, sampler, "A door.", "ask: Which way?")
    assert isinstance(seat.base, PlainSeat)
    fork = seat.fork(replace(seat.base.context, models=models.of_episode("other"), params=SamplingParams(64, seed=9)))
    sampler.text = "ask: Sure?"
    for one in (seat, fork):
        with pytest.raises(NoActionError):
            await one.act(shown("A door."))
    assert oracle.asked[1] == oracle.asked[2]
    assert oracle.seeds[1] != oracle.seeds[2]
    assert [len(of) for of in models.take([EPISODE, "other"]).values()] == [2, 1]


async def test_images_are_named_and_an_action_of_the_world_is_no_word():
    seat, sampler, *_ = sit()
    picture = replace(shown("A door."), messages=(Message(Role.USER, "A door.", images=("d1",)),))
    sampler.text = "ask: What is it?"
    with pytest.raises(ConfigError, match="'ask: the guard' is an action of the world"):
        await seat.act(replace(picture, choices=("go", "ask: the guard")))
    seat._require_free_word(replace(picture, choices=("asking", "ask")))
    with pytest.raises(RenderError):  # the format of the tiny model is of text alone
        await seat.act(picture)
    assert seat.conversation[0].text == "A door.\n(an image, which is not shown here)"


@pytest.mark.parametrize(("config", "words"), [
    ({}, "unanswered is missing"),
    ({"unanswered": "-", "base": {"name": "plain", "choices": True}}, "base with choices"),
    ({"unanswered": "-", "base": {"name": "ask_person", "unanswered": "-"}}, "base is ask_person, too"),
    ({"unanswered": "-", "base": {"name": "mcts"}}, "searches"),
    ({"unanswered": "-", "temperature": 1.0}, "without a model that answers"),
    ({"unanswered": "-", "person": "anna"}, "a model always answers"),
    ({"wait_s": 3.0, "person": "anna"}, "a model always answers"),
    ({"person": "person"}, "expected another name"),
    ({"unanswered": "-", "word": "ask:"}, "a word, or a few, without a colon"),
    ({"unanswered": "-", "wait_s": float("inf")}, "wait_s"),
])  # fmt: skip
def test_a_config_that_cannot_be_used_is_refused(config, words):
    with pytest.raises(ConfigError, match=words):
        build("agent", {"name": "ask_person", **config})


async def test_outside_of_a_run_nobody_can_be_asked():
    seat, sampler, *_ = sit()
    sampler.text = "ask: Which way?"
    with pytest.raises(ConfigError, match="who can be asked in a run alone"):
        await replace(seat, models=None).act(shown("A door."))


# ---- the person behind the run folder


def person(folder: Path | None, wait_s: float = 600.0) -> AskedPerson:
    return AskedPerson(Patience(wait_s, "Nobody is there."), AnswerStore(folder))


async def reply(asked: AskedPerson, seed: int = 1, asker: str = EPISODE) -> Answer:
    return await asked.ask(ASKED, max_tokens=0, temperature=0.0, seed=seed, asker=asker)


async def test_an_answer_is_awaited_and_kept_for_the_same_question_of_the_same_episode(tmp_path, monkeypatch):
    monkeypatch.setattr("sojourn.models.asked_person.POLL_S", 0.01)
    with answering(tmp_path, lambda one: f"North, {one.text[5:]}") as answered:
        assert (await reply(person(tmp_path))).text == "North, Which way?"
    assert [one.conversation for one in answered] == [tuple(ASKED)]
    again = await reply(person(tmp_path))
    assert (again.text, again.cached, again.unanswered) == ("North, Which way?", True, False)
    assert (await reply(person(tmp_path, 0.0))).text == "North, Which way?"
    for other in (reply(person(tmp_path, 0.0), seed=2), reply(person(tmp_path, 0.0), asker="other")):
        assert (await other).unanswered
    assert (Questions(tmp_path).path.stat().st_mode & 0o777) == 0o600


async def test_when_the_time_is_over_the_question_is_closed_for_good(tmp_path):
    told = await reply(person(tmp_path, 0.01))
    assert (told.text, told.unanswered) == ("Nobody is there.", True)
    again = await reply(person(tmp_path))
    assert (again.text, again.unanswered, again.cached) == ("Nobody is there.", True, True)
    assert Questions(tmp_path).open() == []
    assert Questions(tmp_path).counts() == (0, 1)


async def test_without_time_to_wait_nothing_is_written(tmp_path):
    assert (await reply(person(tmp_path, 0.0))).text == "Nobody is there."
    assert (await reply(person(None, 0.0))).unanswered
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ConfigError, match="there is none here"):
        await reply(person(None))


async def test_a_run_that_is_stopped_hides_its_question_until_it_is_asked_again(tmp_path, monkeypatch):
    monkeypatch.setattr("sojourn.models.asked_person.POLL_S", 0.01)
    questions = Questions(tmp_path)

    async def stopped() -> str:
        task = asyncio.create_task(reply(person(tmp_path)))
        while not (found := questions.open()):  # noqa: ASYNC110 - another process would look as well
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return found[0].key

    key = await stopped()
    assert questions.open() == []
    with pytest.raises(RecordError, match="not open any more"):
        questions.answer(key, "North.")
    with answering(tmp_path, lambda one: "North."):
        assert (await reply(person(tmp_path))).text == "North."


@pytest.mark.parametrize("text", ["", " \r\n ", "x" * (MOST_CHARACTERS + 1)])
def test_texts_that_are_no_answer_are_refused(tmp_path, text):
    questions = Questions(tmp_path)
    questions.put("k", EPISODE, ASKED, 600.0)
    with pytest.raises(RecordError, match="expected at least one and at most"):
        questions.answer("k", text)
    questions.answer("k", "a\r\nb \ud800")
    assert questions.reply("k") == ("a\nb ?", True)
    with pytest.raises(RecordError, match="not open any more"):
        questions.answer("k", "again")


def test_what_cannot_be_read_or_written_is_one_sentence(tmp_path):
    with pytest.raises(RecordError, match="has no questions"):
        Questions(tmp_path).answer("k", "North.")
    (tmp_path / "questions.sqlite").write_bytes(b"no database, but long enough to look at" * 10)
    with pytest.raises(RecordError, match="cannot be read"):
        Questions(tmp_path).open()
    with pytest.raises(RecordError, match="cannot be written"):
        Questions(tmp_path).put("k", EPISODE, ASKED, 1.0)


def test_what_was_asked_in_an_episode_is_removed_with_it(tmp_path):
    questions = Questions(tmp_path)
    questions.blank([EPISODE])
    for key, episode in (("a", EPISODE), ("b", "other")):
        questions.put(key, episode, ASKED, 600.0)
        questions.answer(key, f"secret {key}")
    questions.blank([EPISODE])
    assert (questions.reply("a"), questions.reply("b")) == (None, ("secret b", True))
    assert not any(b"secret a" in path.read_bytes() for path in tmp_path.iterdir())
