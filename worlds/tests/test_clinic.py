"""The clinic: cases that can be told apart, patients that err as they were told to, and a doctor who always knows."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from people_at_play import chance_play, enter, expert_play, go_on, say, shown

from sojourn.checks.env import check_env
from sojourn.errors import ActionError, ConfigError
from sojourn_worlds.clinic import DIFFICULTY, Clinic, Visit
from sojourn_worlds.clinic.case import Case, draw
from sojourn_worlds.clinic.table import NORMAL, diseases

ANSWERS = {"cough": True, "fever": False, "wheezing": True, "joint pain": None}
CASE = Case(("asthma", "gout", "pneumonia"), "asthma", "none", "breathlessness", "gout", ANSWERS)
DATA = {"bias": "none", "noise": 0.0, "test_turns": 2, "turns": 8, "book": True, "choices": False}


def case_of(family: Clinic, index: int) -> Case:
    task = family.tasks("train")[index]
    return draw(task.seed, tuple((name, task.data[name]) for name in DIFFICULTY))


@pytest.mark.parametrize("fields", [{}, {"bias": "mixed", "noise": 0.2, "choices": True}, Clinic.about.smallest])
async def test_its_promises(fields) -> None:
    report = await check_env(Clinic(**fields))
    assert report.passed, report.failed


@pytest.mark.parametrize("bias", ["none", "withholding", "self_diagnosis", "recency", "mixed"])
@pytest.mark.parametrize("noise", [0.0, 0.3])
async def test_the_expert_always_finds_the_disease(bias: str, noise: float) -> None:
    family, longest = Clinic(bias=bias, noise=noise), 0
    for index in range(40):
        for split in ("train", "test"):
            total, step, said = await expert_play(family, index, split)
            assert total == 1.0
            assert step.info["verified"] == 1.0
            longest = max(longest, len(said))
    assert longest > 3


async def test_chance_rarely_finds_it() -> None:
    family, rng = Clinic(choices=True), random.Random(0)
    assert sum([await chance_play(family, index, rng) for index in range(300)]) / 300 < 0.35


def test_every_two_diseases_but_those_without_findings_differ_in_a_test() -> None:
    known = list(diseases().values())
    silent = {d.name for d in known if dict(d.results) == NORMAL}
    assert silent == {"cold", "stomach flu", "migraine"}
    results = Counter(tuple(d.results.values()) for d in known if d.name not in silent)
    assert max(results.values()) == 1
    assert all(d.always and not d.always & d.some for d in known)


def test_a_visit_by_hand() -> None:
    visit = Visit(CASE, DATA)
    assert visit.goal().endswith("Patient: My complaint: breathlessness.")
    assert visit.ask("Wheezing") == "Patient: Yes. 7 turns left."  # pneumonia and gout never have it
    assert visit.info == {"subgoal": 1.0, "tool_score": 1.0, "possible": 1.0}
    assert visit.ask("joint pain") == "Patient: I would rather not say. 6 turns left."
    assert visit.info["tool_score"] == -1.0
    assert visit.test("breathing test") == "Breathing test: blocked. 4 turns left."
    assert visit.info["subgoal"] == 0.0
    assert visit.expert() == 'diagnose("asthma")'
    visit.diagnose("asthma")
    assert visit.reward() == 1.0
    assert visit.info == {"verified": 1.0, "questions": 2.0, "tests": 1.0}


def test_a_lucky_guess_is_not_paid() -> None:
    visit = Visit(CASE, DATA)
    visit.diagnose("asthma")
    assert (visit.reward(), visit.success(), visit.info["verified"]) == (0.0, False, 0.0)
    wrong = Visit(CASE, DATA)
    wrong.diagnose("gout")
    assert (wrong.reward(), wrong.success()) == (0.0, False)


def test_turns_run_out() -> None:
    visit = Visit(CASE, {**DATA, "turns": 5})
    visit.test("blood count")
    visit.test("blood count")
    with pytest.raises(ValueError, match="only 1 are left"):
        visit.test("chest x-ray")
    assert visit.reward() is None
    visit.ask("cough")
    assert visit.reward() == 0.0
    assert visit.success() is False


def test_biases_do_what_they_say() -> None:
    for index in range(40):
        case = case_of(Clinic(bias="self_diagnosis"), index)
        assert f"I am sure that it is {case.belief}" in case.opening
        assert all(case.answers[s] for s in diseases()[case.belief].always)
        plain = case_of(Clinic(), index)
        assert all(plain.answers[s] for s in plain.illness.always)
        assert all(a is False for s, a in plain.answers.items() if plain.illness.has(s) == 0)
        shy = case_of(Clinic(bias="withholding"), index)
        assert all(a is None or a is False for s, a in shy.answers.items() if shy.illness.has(s) == 0)
        recent = case_of(Clinic(bias="recency"), index)
        assert recent.opening.endswith(f"A neighbour had {recent.belief} last week.")
        false = {s for s, answer in recent.answers.items() if answer and recent.illness.has(s) == 0}
        assert false <= diseases()[recent.belief].always | diseases()[recent.belief].some
    withheld = [a for i in range(40) for a in case_of(Clinic(bias="withholding"), i).answers.values()]
    assert 0.2 < withheld.count(None) / len(withheld) < 0.5
    assert {case_of(Clinic(bias="mixed"), i).bias for i in range(60)} == {
        "none",
        "withholding",
        "self_diagnosis",
        "recency",
    }


def test_noise_makes_answers_wrong_but_never_the_complaint() -> None:
    wrong = total = 0
    for index in range(60):
        case = case_of(Clinic(noise=0.3), index)
        assert case.answers[case.complaint] is True
        sure = {s: a for s, a in case.answers.items() if case.illness.has(s) != 0.5 and s != case.complaint}
        wrong += sum(a != (case.illness.has(s) == 1) for s, a in sure.items())
        total += len(sure)
    assert 0.2 < wrong / total < 0.4


async def test_the_expert_goes_on_after_useless_questions() -> None:
    for index in range(30):
        env = enter(Clinic(bias="mixed", noise=0.2), index)
        text = shown_first(await env.start())
        name = text.partition("Symptoms to ask about: ")[2].partition(",")[0]
        await env.step("agent", say(f'ask("{name}")'))
        await env.step("agent", say(f'ask("{name}")'))
        total, _, _ = await go_on(env)
        assert total == 1.0


def shown_first(observation) -> str:
    return observation.messages[0].text


@pytest.mark.parametrize(
    ("call", "told"),
    [
        ('ask("happiness")', "knows nothing of"),
        ('test("tarot")', "there is no test"),
        ('diagnose("boredom")', "is not possible here"),
        ("ask()", "symptom is missing"),
        ("I think it is flu", "is no call"),
        ('diagnose("' + "x" * 20_000 + '")', "too many"),
    ],
)
async def test_bad_actions_are_refused_with_a_reason(call: str, told: str) -> None:
    env = enter(Clinic())
    await env.start()
    before = env.state_key()
    with pytest.raises(ActionError, match=told):
        await env.step("agent", say(call))
    assert env.state_key() == before


async def test_choices_name_what_is_not_yet_known() -> None:
    env = enter(Clinic(choices=True))
    first = await env.start()
    step = await env.step("agent", say(first.choices[0]))
    assert first.choices[0] not in step.observation.choices
    assert "turns left" in shown(step)


def test_the_answer_is_the_disease_and_the_book_can_be_closed() -> None:
    family = Clinic(book=False)
    task = family.tasks("test")[3]
    visit = family.make(task).game
    assert task.data["answer"] == visit.case.disease
    assert "throat swab flu virus" not in visit.goal()
    assert visit.case.disease in visit.goal()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"diseases": 13}, "diseases = 13"),
        ({"noise": 0.6}, "noise = 0.6"),
        ({"turns": 10}, "turns = 10"),
        ({"bias": "rude"}, 'bias = "rude"'),
        ({"form": "spoken"}, "form"),
    ],
)
def test_wrong_configs_are_refused(fields, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Clinic(**fields)
