"""An annotator beside the play: what is labelled by which step, whatever its speed, and what its failures do."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import Literal, cast

import numpy as np
import pytest
from made import group, trajectory
from made import score as scored

from sojourn.checks import played
from sojourn.checks.stream import check_stream
from sojourn.errors import ConfigError, InfrastructureError
from sojourn.models.asking import Answer, AskedModels, Weighed
from sojourn.protocols import Trainer
from sojourn.streams.annotations import Annotations, Annotator, Ask, Labels
from sojourn.streams.feedback import Feedback
from sojourn.streams.trainer_passes import TrainerPasses
from sojourn.types import Message, Role

ONE, TWO, THREE = (Ask((text,), f"rl/0/{n}") for n, text in enumerate(("one", "two", "three")))


@dataclass
class Scripted:
    """Answers by `says` once `open` is set; every question is kept."""

    says: dict[str, list[str]]
    open: asyncio.Event = field(default_factory=asyncio.Event)
    asked: list[tuple[str, float, int]] = field(default_factory=list)

    def __post_init__(self):
        self.open.set()

    async def ask(self, messages, *, max_tokens, temperature, seed, asker=""):
        text = messages[-1].text.partition("\n")[0]
        self.asked.append((text, temperature, seed))
        await self.open.wait()
        answers = self.says[text]
        if answers[0] == "broken":
            raise InfrastructureError("the server is down")
        return Answer(answers.pop(0) if len(answers) > 1 else answers[0], 7, 3)

    async def weigh(self, messages, answers, *, seed):
        first = float(self.says[messages[-1].text][0])
        return Weighed((first, 1 - first), 7)


def beside(model, retries=2, verdict: Literal["written", "likelihood"] = "written", answers=("yes", "no")):
    def text(about):
        return " or ".join(about)

    annotator = Annotator("big", answers, text, verdict, max_tokens=9, retries=retries)
    return Annotations(annotator, AskedModels({"big": model}))


async def test_answers_count_when_they_are_due_not_when_they_come():
    model = Scripted({"one": ["It helps.\nYes."], "two": ["no"], "three": ["yes"]})
    asked = beside(model)
    asked.ask([ONE, TWO])
    await asyncio.sleep(0)
    assert await asked.due(1, "rl/0/0") == Labels({})  # they may be there, but are not due
    asked.ask([THREE])
    assert len(asked) == 3
    assert await asked.due(1, "rl/1/0") == Labels({("one",): 1.0, ("two",): 0.0})
    assert await asked.due(0, "rl/1/0") == Labels({("three",): 1.0})
    assert len(asked) == 0


async def test_a_slow_annotator_is_waited_for_and_asked_beside_what_goes_on():
    model = Scripted({"one": ["yes"], "two": ["no"]})
    model.open.clear()
    asked = beside(model)
    asked.ask([ONE, TWO])
    for _ in range(3):
        await asyncio.sleep(0)
    assert [text for text, *_ in model.asked] == ["one", "two"]  # both at once, and nobody waits for them yet
    waiting = asyncio.create_task(asked.due(0, "rl/1/0"))
    for _ in range(3):
        await asyncio.sleep(0)
    assert not waiting.done()
    model.open.set()
    assert (await waiting).of == {("one",): 1.0, ("two",): 0.0}


async def test_what_was_asked_is_recorded_with_the_step_that_uses_it():
    asked = beside(Scripted({"one": ["yes"]}))
    asked.ask([ONE])
    await asyncio.sleep(0.0)
    assert asked.models.take([ONE.episode]) == {}
    await asked.due(0, "rl/5/0")
    [exchange] = asked.models.take(["rl/5/0"])["rl/5/0"]
    assert (exchange.model, exchange.answer, exchange.purpose) == ("big", "yes", "feedback, question 1")
    assert exchange.about == ("rl/5/0", ONE.episode)
    assert asked.models.metrics() == {"asked": 1, "asked_tokens": 10, "asked_cost": 0}


async def test_an_unreadable_answer_is_asked_for_again_and_gives_no_label():
    model = Scripted({"one": ["maybe", "I cannot say no", "**Yes**"], "two": ["well"]})
    asked = beside(model)
    asked.ask([ONE, TWO])
    assert await asked.due(0, "rl/0/0") == Labels({("one",): 1.0}, unreadable=1)
    tried = [(temperature, seed) for text, temperature, seed in model.asked if text == "one"]
    assert [temperature for temperature, _ in tried] == [0.0, 0.7, 0.7]
    assert len({seed for _, seed in tried}) == 3


@pytest.mark.parametrize(("count", "stops"), [(3, False), (4, True)])
async def test_an_annotator_that_mostly_gives_no_answer_stops_the_run(count, stops):
    asks = [Ask((f"m{n}",), "rl/0/0") for n in range(count)]
    asked = beside(Scripted({f"m{n}": ["well"] for n in range(count)}), retries=0)
    asked.ask(asks)
    if not stops:
        assert await asked.due(0, "rl/0/0") == Labels({}, count)
        return
    with pytest.raises(InfrastructureError, match="no readable answer to 4 of 4 questions"):
        await asked.due(0, "rl/0/0")


async def test_a_failure_is_raised_when_the_answer_is_due_and_is_no_label():
    asked = beside(Scripted({"one": ["yes"], "two": ["broken"]}))
    asked.ask([ONE, TWO])
    asked.ask([])
    for _ in range(5):
        await asyncio.sleep(0)
    assert await asked.due(2, "rl/0/0") == Labels({})
    with pytest.raises(InfrastructureError, match="the server is down"):
        await asked.due(1, "rl/1/0")


async def test_likelihoods_decide_where_they_are_asked_for():
    model = Scripted({"one": ["0.6"], "two": ["0.4"]})
    asked = beside(model, verdict="likelihood")
    asked.ask([ONE, TWO])
    assert await asked.due(0, "rl/0/0") == Labels({("one",): 1.0, ("two",): 0.0})


async def test_a_restored_run_asks_again_what_was_not_due():
    first, second = Scripted({"one": ["yes"], "two": ["no"]}), Scripted({"one": ["yes"], "two": ["no"]})
    asked, again = beside(first), beside(second)
    asked.ask([ONE])
    asked.ask([TWO])
    again.restore(asked.state())
    asked.close()
    again.ask([])
    assert await again.due(2, "rl/2/0") == Labels({("one",): 1.0})
    assert await again.due(1, "rl/3/0") == Labels({("two",): 0.0})
    assert [text for text, *_ in second.asked] == ["one", "two"]


# -- the stream

NO_TRAINER = cast(Trainer, None)  # nothing of the policy is asked where another model labels


def step(*words, slot=0):
    """A step of one play that saw some messages after its first."""
    made = trajectory(np.random.default_rng(0), turns=len(words) + 1)
    shown = ("begin", *words)
    turns = [replace(t, observed=(Message(Role.USER, word),)) for t, word in zip(made.turns, shown, strict=True)]
    made = replace(made, turns=tuple(turns))
    return TrainerPasses([group([made], slot)], [[scored(made, 0.0)]], NO_TRAINER)


def rewards(values):
    [[turns]] = values
    return [float(turn.sum()) for turn in turns]


def feedback(says, **keys):
    keys = {"reward_model": "hash", "count_exponent": 0.0, "question": "{message}", **keys}
    model = Scripted(says)
    return Feedback(annotator="big", **keys).bind_models(AskedModels({"big": model})), model


@pytest.mark.parametrize("lag", [0, 1, 3])
async def test_rewards_follow_from_what_was_asked_exactly_so_many_steps_ago(lag):
    stream, _ = feedback({"gold": ["yes"], "mud": ["no"]}, lag=lag)
    found = []
    for slot in range(6):
        of = step("gold", "mud", slot=slot)
        found.append(rewards(await stream(of)))
        metrics = await stream.learn(of)
        assert metrics["asked"] == (2 if slot < lag else 0)
    nothing, labelled = [0.0, 0.0, 0.0], [1.0, 0.0, 0.0]
    assert found == [nothing] * (lag + 1) + [labelled] * (5 - lag)


async def test_only_new_messages_are_asked_about_the_newest_first():
    stream, model = feedback({word: ["yes"] for word in "abcd"}, messages_per_step=2, lag=0)
    of = step("a", "b", "a", "c")
    assert (await stream.learn(of))["waiting"] == 1
    assert [text for text, *_ in model.asked] == ["c", "b"]
    await stream.learn(step("d", "c"))
    assert [text for text, *_ in model.asked] == ["c", "b", "d", "a"]
    await stream.learn(of)
    assert len(model.asked) == 4


async def test_a_ranking_asks_which_of_two_helps_more():
    stream, _ = feedback(
        {"mud or gold": ["Gold is dear.\nB"]},
        reward_model="ranking",
        question="{first} or {second}",
        lag=0,
        updates=200,
    )
    await stream.learn(step("gold", "mud"))
    assert stream._labels == {("mud", "gold"): 0.0}
    gold, mud, _ = rewards(await stream(step("gold", "mud")))
    assert gold == pytest.approx(1.0)  # standardised over the two of the step
    assert mud == 0.0  # it is below min_score


async def test_what_is_under_way_is_saved():
    says = {"gold": ["yes"], "mud": ["no"]}
    stream, _ = feedback(says, reward_model="classification", updates=3)
    await stream.learn(step("gold", "mud"))
    saved = played.saved(stream.state())
    resumed, model = feedback(says, reward_model="classification", updates=3)
    resumed.restore(saved)
    stream.close()
    assert await resumed.learn(step("gold", slot=1)) == {
        "asked": 0, "unreadable": 0, "labels": 2, "waiting": 0, "helpful": 0.5, "error": pytest.approx(0.69, abs=0.1)
    }  # fmt: skip
    assert sorted(text for text, *_ in model.asked) == ["gold", "mud"]


async def test_the_promises_of_streams_hold_with_an_annotator():
    for verdict in ("written", "likelihood"):
        report = await check_stream(Feedback(annotator="big", verdict=verdict, messages_per_step=4, updates=2))
        assert report.passed, str(report)


async def test_outside_of_a_run_nobody_can_be_asked():
    stream = Feedback(annotator="big")
    with pytest.raises(ConfigError, match="which a run has open"):
        await stream.learn(step("gold"))


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"lag": 2}, "lag = 2 with annotator = 'policy'"),
        ({"verdict": "likelihood"}, "verdict = likelihood with annotator = 'policy'"),
        ({"annotator": "big", "verdict": "likelihood", "retries": 0}, "which writes nothing"),
    ],
)
def test_keys_without_an_effect_are_refused(keys, words):
    with pytest.raises(ValueError, match=words):
        Feedback(**keys)
