"""Clarify: what has to be asked, what questions and guesses cost, and that the expert's play earns exactly 1."""

from __future__ import annotations

import random

import pytest
from people_at_play import chance_play, enter, expert_play, go_on, say, shown

from sojourn.checks.env import check_env
from sojourn.errors import ActionError, ConfigError, InfrastructureError
from sojourn_worlds.clarify import THINGS, Clarify, Order, Wish, _attributes, draw

COFFEE = Wish(
    "coffee",
    tuple(a for a in _attributes(THINGS["coffee"]) if a.name in ("size", "milk", "serving", "ice")),
    {"size": "large", "milk": "oat", "serving": "iced", "ice": "cubed"},
    frozenset({"size"}),
    frozenset({"milk"}),
)
DATA = {"cost": 0.05, "wrong": 1.0, "turns": 6, "choices": False}


@pytest.mark.parametrize("fields", [{}, {"choices": True, "turns": 8}, Clarify.about.smallest])
async def test_its_promises(fields) -> None:
    report = await check_env(Clarify(**fields))
    assert report.passed, report.failed


@pytest.mark.parametrize("split", ["train", "test"])
async def test_the_expert_earns_exactly_one(split: str) -> None:
    questions = []
    for index in range(150):
        total, step, said = await expert_play(Clarify(), index, split)
        assert total == 1.0
        assert step.success
        questions.append(len(said) - 1)
    assert min(questions) == 0
    assert max(questions) >= 4


async def test_chance_earns_far_less() -> None:
    family, rng = Clarify(choices=True), random.Random(0)
    earned = [await chance_play(family, index, rng) for index in range(300)]
    assert sum(earned) / len(earned) < 0.2
    assert -1 <= min(earned) <= max(earned) <= 1


async def test_guessing_is_worse_than_asking() -> None:
    """Who orders at once, whatever is open, earns less on average than who asks."""
    rng, earned = random.Random(1), []
    for index in range(300):
        env = enter(Clarify(choices=True), index)
        observation = await env.start()
        orders = [choice for choice in observation.choices if choice.startswith("order")]
        earned.append((await env.step("agent", say(rng.choice(orders)))).rewards["agent"])
    assert sum(earned) / len(earned) < 0.2


def test_what_has_to_be_asked() -> None:
    assert COFFEE.hidden == ["serving", "ice"]
    assert COFFEE.order() == "large, oat, iced, cubed"
    hot = Wish(**{**vars(COFFEE), "values": {**COFFEE.values, "serving": "hot"}})
    assert hot.hidden == ["serving"]
    assert hot.order() == "large, oat, hot"


@pytest.mark.parametrize(
    ("asked", "order", "reward", "right"),
    [
        (["serving", "ice"], "large, oat, iced, cubed", 1.0, True),
        (["serving", "ice"], "large, soy, iced, cubed", 1.0, True),  # any milk will do
        ([], "cubed, iced, oat, large", 1.0, True),  # a lucky guess earns no more than the best play
        (["serving", "ice", "size"], "large, oat, iced, cubed", 0.85 / 0.9, True),
        (["serving", "serving", "ice"], "large, oat, iced, cubed", 0.85 / 0.9, True),
        (["serving"], "large, oat, iced, crushed", -0.05 / 0.9, False),
        ([], "small, oat, iced, crushed", -1.0, False),
        ([], "small, oat, hot", -1.0, False),  # size, serving and the ice that it should have had
    ],
)
def test_what_a_play_is_worth(asked, order, reward, right) -> None:
    game = Order(COFFEE, DATA)
    for name in asked:
        game.ask(name)
    game.order(order)
    assert game.reward() == pytest.approx(reward)
    assert game.success() is right


def test_answers_and_what_the_questions_were_for() -> None:
    game = Order(COFFEE, DATA)
    told = {}
    for name in ("serving", "milk", "size", "ice", "ice"):
        told.setdefault(name, (game.ask(name), game.info["subgoal"], game.info["tool_score"]))
    assert told["serving"] == ("User: iced, please.", 1.0, 1.0)
    assert told["milk"] == ("User: I do not mind the milk.", 0.0, -1.0)
    assert told["size"] == ("User: large, please.", 0.0, -1.0)
    assert told["ice"][1] == 1.0
    assert game.info["verified"] == 0.0  # the second time
    hot = Order(Wish(**{**vars(COFFEE), "values": {**COFFEE.values, "serving": "hot"}}), DATA)
    assert hot.ask("ice") == "User: I need no ice."
    assert hot.info["verified"] == 0.0


@pytest.mark.parametrize(
    ("call", "told"),
    [
        ('ask("price")', "there is no attribute"),
        ('order("")', "a value is missing for"),
        ('order("huge")', "is no value of"),
        ("order(1)", "must be str"),
        ("buy()", "there is no tool"),
        ("large, please", "is no call"),
        ('order("' + "large," * 3000 + '")', "too many"),
        ('ask("\\u202e\\x00")', "there is no attribute"),
    ],
)
async def test_bad_actions_are_refused_with_a_reason(call: str, told: str) -> None:
    env = enter(Clarify())
    await env.start()
    before = env.state_key()
    with pytest.raises(ActionError, match=told):
        await env.step("agent", say(call))
    assert env.state_key() == before


@pytest.mark.parametrize(
    ("order", "told"),
    [
        ("large, small, oat, hot", "not both"),
        ("large, oat, hot, cubed", "does not apply"),
        ("large, oat, iced", "missing for ice"),
    ],
)
def test_orders_that_make_no_sense_are_refused(order: str, told: str) -> None:
    game = Order(COFFEE, DATA)
    with pytest.raises(ValueError, match=told):
        game.order(order)
    assert game.reward() is None


async def test_it_ends_unpaid_when_the_turns_are_used_up() -> None:
    env = enter(Clarify(turns=6))
    first = await env.start()
    name = first.messages[0].text.splitlines()[1].partition(":")[0]
    for _ in range(5):
        assert (await env.step("agent", say(f'ask("{name}")'))).rewards == {"agent": 0.0}
    end = await env.step("agent", say(f'ask("{name}")'))
    assert end.done
    assert end.success is False
    assert end.rewards["agent"] < 0
    with pytest.raises(InfrastructureError):
        await env.step("agent", say(f'ask("{name}")'))


async def test_the_expert_goes_on_from_anywhere() -> None:
    for index in range(40):
        env = enter(Clarify(), index)
        first = await env.start()
        for line in first.messages[0].text.splitlines()[1:-1][:2]:
            assert "User:" in shown(await env.step("agent", say(f'ask("{line.partition(":")[0]}")')))
        total, step, _ = await go_on(env)
        assert step.success
        assert 0.8 < total <= 1.0


def test_the_answer_is_the_right_order() -> None:
    family = Clarify()
    for index in range(100):
        task = family.tasks("test")[index]
        game = Order(draw(task.seed, task.data), task.data)
        game.order(task.data["answer"])
        assert game.reward() == 1.0


def test_no_value_belongs_to_two_attributes() -> None:
    for thing, text in THINGS.items():
        *free, depending = _attributes(text)
        values = [value for attribute in (*free, depending) for value in attribute.options]
        assert len(values) == len(set(values)), thing
        assert len(free) == 5
        assert not any(attribute.when for attribute in free)
        assert sum(depending.when in attribute.options for attribute in free) == 1


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"attributes": 6}, "attributes = 6"),
        ({"given": 0.8, "indifferent": 0.3}, "indifferent = 0.3"),
        ({"turns": 3}, "turns = 3"),
        ({"form": "spoken"}, 'form = "spoken"'),
        ({"cost": 0.5}, "cost = 0.5"),
    ],
)
def test_wrong_configs_are_refused(fields, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Clarify(**fields)


def test_an_unknown_split_is_refused() -> None:
    with pytest.raises(ConfigError, match='"dev"'):
        Clarify().tasks("dev")
