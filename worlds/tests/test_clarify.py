"""Clarify: what has to be asked, what questions and guesses cost, and that the expert's play earns exactly 1."""

from __future__ import annotations

import random

import pytest
from people_at_play import answered, chance_play, enter, expert_play, go_on, say, shown

from sojourn.checks.env import check_env
from sojourn.errors import ActionError, ConfigError, InfrastructureError
from sojourn_worlds.clarify import Clarify
from sojourn_worlds.clarify.order import Order
from sojourn_worlds.clarify.wish import THINGS, Wish, attributes_of, draw

COFFEE = Wish(
    "coffee",
    tuple(a for a in attributes_of(THINGS["coffee"]) if a.name in ("size", "milk", "serving", "ice")),
    {"size": "large", "milk": "oat", "serving": "iced", "ice": "cubed"},
    frozenset({"size"}),
    frozenset({"milk"}),
)
DATA = {"cost": 0.05, "wrong": 1.0, "turns": 6, "choices": False}


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"choices": True, "turns": 8},
        Clarify.about.smallest,
        {"indirect": 0.6, "choices": True, "turns": 12},
        {"user": "seat"},
        {"user": "seat", "indirect": 1.0, "turns": 12, "form": "native"},
    ],
)
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
    """An agent that orders at once, whatever is open, earns less on average than one that asks."""
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


SHY = Wish(**{**vars(COFFEE), "indifferent": frozenset(), "indirect": frozenset({"milk", "ice"})})


def test_a_user_who_says_what_it_does_not_want() -> None:
    game = Order(SHY, {**DATA, "choices": True})
    assert SHY.needed == 1 + 2 + 1  # three sorts of milk, two of ice
    asked = [(game.ask("milk"), game.info["subgoal"]) for _ in range(3)]
    assert asked == [("User: Not soy.", 1.0), ("User: Not dairy.", 1.0), ("User: oat, please.", 0.0)]
    assert not any(choice.startswith('ask("milk') for choice in game.choices())
    once = Order(SHY, {**DATA, "choices": True})
    once.ask("milk")
    orders = [choice for choice in once.choices() if choice.startswith("order")]
    assert {name for name in ("oat", "soy", "dairy") if any(name in order for order in orders)} == {"oat", "dairy"}
    assert once.expert() == 'ask("milk")'


async def test_the_expert_earns_exactly_one_from_such_users() -> None:
    family, questions = Clarify(indirect=0.7, turns=12), []
    for index in range(150):
        total, step, said = await expert_play(family, index)
        assert (total, step.success) == (1.0, True)
        questions.append(len(said) - 1)
    assert max(questions) >= 7


def test_tasks_without_such_users_are_what_they_were() -> None:
    [task, same] = [Clarify(**fields).tasks("train")[7] for fields in ({}, {"user": "seat"})]
    assert "indirect" not in task.data
    assert task.id == same.id
    wish, shy = (draw(7, {**task.data, **more}) for more in ({}, {"indirect": 1.0}))
    assert (wish.values, wish.hidden) == (shy.values, shy.hidden)
    assert shy.indirect == frozenset(wish.hidden)


async def test_the_user_may_sit_in_a_seat() -> None:
    family = Clarify(user="seat", given=0.0, indifferent=0.0)
    env, told = enter(family), []
    first = await env.start()
    wish = draw(family.tasks("train")[0].seed, family.tasks("train")[0].data)
    hidden = [wish.values[name] for name in wish.hidden]
    assert first.agent == "agent"
    assert first.messages[0].text.endswith(f"User: A {wish.thing}, please.")

    def user(system: str, question: str) -> str:
        told.append((system, question))
        return ", ".join(hidden)

    seen = await answered(env, await env.step("agent", say('ask("What do you want?")')), user)
    [(system, question)] = told
    assert question == "What do you want?"
    assert all(value in system for value in hidden)
    assert f"You have just said: A {wish.thing}, please." in system
    assert shown(seen) == f"User: {', '.join(hidden)}"
    end = await env.step("agent", say(f'order("{wish.order()}")'))
    assert end.rewards == {"agent": 1.0, "user": 1.0}  # one question for all is no better than the best play
    assert end.success


async def test_the_truth_of_the_order_counts_whatever_the_user_said() -> None:
    env = enter(Clarify(user="seat", given=0.0, indifferent=0.0, dependent=False, attributes=1))
    first = await env.start()
    name, _, options = first.messages[0].text.splitlines()[1].partition(": ")
    assert env.expert() == f'ask("{name}")'
    asked = await env.step("agent", say(env.expert()))
    truth = env.expert()  # of the user now
    lie = next(option for option in options.split(", ") if option not in truth)
    await answered(env, asked, lambda system, question: f"{lie}, please.")
    end = await env.step("agent", say(f'order("{lie}")'))
    assert end.success is False
    assert end.rewards["agent"] < 0


@pytest.mark.parametrize(("call", "told"), [('ask("")', "from 1 to 2000"), ('hear("oat")', "there is no tool")])
async def test_in_a_seat_bad_questions_are_refused_too(call: str, told: str) -> None:
    env = enter(Clarify(user="seat"))
    await env.start()
    with pytest.raises(ActionError, match=told):
        await env.step("agent", say(call))


def test_no_value_belongs_to_two_attributes() -> None:
    for thing, text in THINGS.items():
        *free, depending = attributes_of(text)
        values = [value for attribute in (*free, depending) for value in attribute.options]
        assert len(values) == len(set(values)), thing
        assert len(free) == 5
        assert not any(attribute.when for attribute in free)
        assert sum(depending.when in attribute.options for attribute in free) == 1


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"indirect": 0.1}, "turns = 10"),
        ({"indirect": 0.1, "turns": 12, "cost": 0.06}, "cost = 0.06"),
        ({"user": "llm"}, 'user = "llm"'),
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
