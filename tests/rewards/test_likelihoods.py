"""A judge whose verdicts are read from the probabilities that its model gives to listed answers."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from cases import group, line, of_episodes

from sojourn.backends.torch.backend import Torch
from sojourn.checks.reward import check_reward
from sojourn.config.registry import build
from sojourn.errors import ConfigError, RewardError
from sojourn.models.asking import Answer, AskedModels, TooLongError, Weighed
from sojourn.models.spec import Model
from sojourn.render.auto import Auto
from sojourn.rewards.judge import Criterion, Judge
from sojourn.rewards.reward_cache import score_group
from sojourn.train.asked_models import LocalModel
from sojourn.types import Group, Message, Prompt, Role


@dataclass
class Weighing:
    """A model whose probabilities a function gives, from the text of the question; it reads at most `reads`
    characters."""

    says: Callable[[str], Sequence[float]]
    reads: int = 10**9
    asked: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)

    async def ask(self, messages, *, max_tokens, temperature, seed, asker="") -> Answer:
        raise AssertionError("nothing is to be written")

    async def weigh(self, messages: Sequence[Message], answers: Sequence[str], *, seed: int) -> Weighed:
        if sum(len(one.text) for one in messages) > self.reads:
            raise TooLongError("too long")
        self.asked.append((messages[-1].text, tuple(answers)))
        return Weighed(tuple(self.says(messages[-1].text)), 7)


def said(text: str) -> list[int]:
    """The numbers that the agents say last in each record."""
    parts = re.split(r"\] (?:first |second )?record begins", text)[1:]
    return [int(re.findall(r"agent:\n(\d+)", part)[-1]) for part in parts]


async def judged(model: Any, of: Group, **config: Any) -> list[tuple[float, Mapping[str, float]]]:
    reward = Judge(verdict="likelihood", **config).bind_models(AskedModels({"policy": model}))
    return [(score.total, score.parts) for score in await score_group(reward, of)]


GROUP = group(line("hm", "2"), line("7"), line("5"))


async def test_the_verdict_is_the_probability_of_yes():
    model = Weighing(lambda text: (1 - said(text)[0] / 10, said(text)[0] / 10))
    found = await judged(model, GROUP, coef=2.0)
    assert [total for total, _ in found] == pytest.approx([0.4, 1.4, 1.0])
    assert [parts["judge"] for _, parts in found] == pytest.approx([0.2, 0.7, 0.5])
    assert [answers for _, answers in model.asked] == [("No", "Yes")] * 3
    assert model.asked[0][0].endswith("Answer with one of these alone, the worst first: No, Yes.")
    assert "code" not in model.asked[0][0]


async def test_the_verdict_is_the_expectation_over_a_scale():
    """G-Eval, eq. 1: 0.1 of grade 1, 0.2 of 2, 0.3 of 3 and 0.4 of 4 are a grade of 3, two thirds of the way."""
    model = Weighing(lambda text: (0.1, 0.2, 0.3, 0.4))
    [(total, _)] = await judged(model, group(line("1")), answers=("1", "2", "3", "4"))
    assert total == pytest.approx(2 / 3)


async def test_each_criterion_is_asked_about_alone():
    model = Weighing(lambda text: (0.2, 0.8) if "goal. Was it reached?" in text else (0.5, 0.5))
    criteria = (
        Criterion(name="goal", text="Was it reached?", weight=3.0),
        Criterion(name="secret", low=-10.0, high=0.0),
    )
    [(total, parts)] = await judged(model, group(line("1")), criteria=criteria)
    assert total == pytest.approx((3 * 0.8 + 0.5) / 4)
    assert (parts["judge_goal"], parts["judge_secret"]) == pytest.approx((8, -5))
    assert len(model.asked) == 2


async def test_the_right_answer_is_shown():
    model = Weighing(lambda text: (0.0, 1.0) if "begins\nParis\n" in text else (1.0, 0.0))
    of = group(line("1"), data={"answer": "Paris"})
    assert (await judged(model, of, mode="reference", reference="answer"))[0][0] == 1.0


async def test_what_a_position_is_given_cancels_out_of_a_pair():
    """The model says "first" with 0.9 where the first is better, with 0.5 where it is not: the better one has 0.7."""
    model = Weighing(lambda text: (0.9, 0.1) if said(text)[0] > said(text)[1] else (0.5, 0.5))
    of = group(line("9"), line("1"))
    found = await judged(model, of, mode="pairwise")
    assert [total for total, _ in found] == pytest.approx([0.7, 0.3])
    assert [answers for _, answers in model.asked] == [("first", "second")] * 2


async def test_an_order_that_decides_is_told():
    always = Weighing(lambda text: (0.8, 0.2))
    found = await judged(always, GROUP, mode="pairwise")
    assert [total for total, _ in found] == pytest.approx([0.5] * 3)
    assert all(parts["judge_swapped"] == 1.0 for _, parts in found)
    fair = Weighing(lambda text: (0.8, 0.2) if said(text)[0] > said(text)[1] else (0.2, 0.8))
    assert all(parts["judge_swapped"] == 0.0 for _, parts in await judged(fair, GROUP, mode="pairwise"))


async def test_a_question_that_is_too_long_is_shortened():
    model = Weighing(lambda text: (0.0, 1.0), reads=3_000)
    assert (await judged(model, group(line("x" * 30_000, "1"))))[0][0] == 1.0
    with pytest.raises(RewardError, match="too long"):
        await judged(Weighing(lambda text: (0.0, 1.0), reads=10), group(line("1")))


async def test_what_was_asked_is_recorded_with_its_probabilities():
    asked = AskedModels({"policy": Weighing(lambda text: (0.25, 0.75))})
    await Judge(verdict="likelihood").bind_models(asked)(of_episodes([(line("1"),), (line("2"),)]))
    taken = asked.take(["0-0", "0-1"])
    assert [one.answer for one in taken["0-0"]] == ["P(No) = 0.25, P(Yes) = 0.75"]
    assert [one.question[-1].role for one in taken["0-1"]] == [Role.USER]
    assert asked.metrics() == {"asked": 2, "asked_tokens": 14, "asked_cost": 0}


async def test_a_model_that_only_writes_is_refused():
    class Writes:
        async def ask(self, messages, *, max_tokens, temperature, seed, asker="") -> Answer:
            return Answer("Yes", 1, 1)

    with pytest.raises(ConfigError, match="does not say how probable an answer is"):
        await judged(Writes(), group(line("1")))


async def test_the_suite_passes():
    report = await check_reward(Judge(verdict="likelihood", answers=("1", "2", "3")))
    assert report.passed, report
    report = await check_reward(Judge(verdict="likelihood", mode="pairwise"))
    assert report.passed, report


@pytest.mark.parametrize("answers", [("No", "Yes"), ("1", "10", "2"), ("bad", "barely good")])
async def test_a_model_that_is_here_weighs_answers_as_it_would_draw_them(answers: tuple[str, ...]):
    """Against the log-probabilities of the whole vocabulary: each token among those that go on to an answer."""
    opened = Torch(threads=1, max_context=512).open(Model(name="tiny:layers=1,hidden=64", dtype="fp32"), Auto(), 0)
    try:
        renderer, sampler = opened.renderer, opened.sampler
        question = (Message(Role.USER, "Well?"),)
        weighed = await LocalModel("policy", renderer, sampler).weigh(question, answers, seed=3)
        prompt = renderer.open(question).tokens
        choices = [tuple(renderer.encode_reply(Message(Role.ASSISTANT, text))) for text in answers]
        expected = [await product(sampler, prompt, choice, choices) for choice in choices]
    finally:
        await opened.sampler.close()
        opened.trainer.close()
    assert sum(weighed.probabilities) == pytest.approx(1, abs=1e-6)
    assert weighed.probabilities == pytest.approx(expected, abs=1e-5)
    assert weighed.prompt_tokens == len(prompt)


async def product(sampler: Any, prompt: Any, choice: tuple[int, ...], choices: Sequence[tuple[int, ...]]) -> float:
    found = 1.0
    for place in range(len(choice)):
        following = sorted({other[place] for other in choices if other[:place] == choice[:place]})
        context = np.concatenate([prompt, np.array(choice[:place], dtype=np.int64)])
        logprobs = [
            float((await sampler.score(Prompt(np.append(context, np.int64(token)))))[-1]) for token in following
        ]
        shares = np.exp(np.array(logprobs) - np.logaddexp.reduce(logprobs))
        found *= float(shares[following.index(choice[place])])
    return found


REFUSED = {
    "expected one of score, reference, pairwise": {"mode": "ranking"},
    "samples = 3": {"samples": 3, "temperature": 1.0},
    "temperature = 0.5 with verdict": {"temperature": 0.5},
    "retries = 0 with verdict": {"retries": 0},
    "max_tokens = 5 with verdict": {"max_tokens": 5},
    "high = 5.0 with verdict": {"high": 5.0},
    "which has answers of its own": {"mode": "pairwise", "answers": ["a", "b"]},
    "each another": {"answers": ["Yes", "Yes"]},
    "two or more": {"answers": ["Yes"]},
    "of which they are no part": {"verdict": "written", "answers": ["bad", "good"]},
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_makes_no_sense_is_refused(words: str):
    with pytest.raises(ConfigError, match=words):
        build("reward", {"name": "judge", "verdict": "likelihood", **REFUSED[words]})
