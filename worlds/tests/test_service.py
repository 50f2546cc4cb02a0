"""Service: what a customer says, what the rules allow, and what a play is worth."""

from __future__ import annotations

import asyncio
import copy
import random
import re

import pytest
from people_at_play import enter, expert_play, go_on, say

from sojourn.checks.env import check_env
from sojourn.errors import ActionError, ConfigError
from sojourn.types import Message, Role, ToolCall
from sojourn_worlds.service import Service, draw
from sojourn_worlds.service.customer import Customer
from sojourn_worlds.service.desk import Desk
from sojourn_worlds.service.shop import Case, Wish, digest

DATABASE = {
    "users": {
        "ada_hill_10": {
            "name": "Ada Hill",
            "email": "ada@mail.test",
            "zip": "12345",
            "address": "1 Oak Street",
            "orders": ["W1000", "W2000", "W3000"],
        },
        "ben_ito_20": {
            "name": "Ben Ito",
            "email": "ben@mail.test",
            "zip": "54321",
            "address": "2 Elm Street",
            "orders": ["W4000"],
        },
    },
    "items": {
        "mug-blue": {"price": 10, "in_stock": True},
        "mug-red": {"price": 11, "in_stock": True},
        "mug-green": {"price": 12, "in_stock": False},
        "lamp-red": {"price": 40, "in_stock": True},
    },
    "orders": {
        "W1000": {"user": "ada_hill_10", "items": ["mug-blue"], "total": 10, "status": "pending"},
        "W2000": {"user": "ada_hill_10", "items": ["mug-blue", "lamp-red"], "total": 50, "status": "delivered"},
        "W3000": {"user": "ada_hill_10", "items": ["lamp-red"], "total": 40, "status": "delivered"},
        "W4000": {"user": "ben_ito_20", "items": ["lamp-red"], "total": 40, "status": "pending"},
    },
    "transferred": [],
}
for order, days in {"W1000": None, "W2000": 30, "W3000": 31, "W4000": None}.items():
    DATABASE["orders"][order] |= {"days_since_delivery": days, "address": "1 Oak Street"}

CANCEL = Wish("cancel", "W1000", "mug-blue", "no longer needed")
RETURN = Wish("return", "W2000", "mug-blue")


def desk(*wishes: Wish, knows_email: bool = True) -> Desk:
    case = Case(copy.deepcopy(DATABASE), "ada_hill_10", wishes, knows_email, knows_order=False)
    return Desk(case, Customer(case), 30, copy.deepcopy(DATABASE))


async def told(play: Desk, *calls: str) -> list[str]:
    """The answers to calls, refusals included."""
    answers = []
    for call in calls:
        name, _, rest = call.partition("(")
        try:
            answer = getattr(play, name)(*eval(f"[{rest[:-1]}]"))
            answers.append(str(await answer if asyncio.iscoroutine(answer) else answer))
        except ValueError as error:
            answers.append(f"refused: {error}")
    return answers


@pytest.mark.parametrize("fields", [{}, {"requests": 3, "turns": 40}, Service.about.smallest])
async def test_its_promises(fields) -> None:
    report = await check_env(Service(**fields))
    assert report.passed, report.failed


@pytest.mark.parametrize("requests", [1, 2, 3])
@pytest.mark.parametrize("denied", [0.0, 0.3, 1.0])
async def test_the_expert_serves_every_customer(requests: int, denied: float) -> None:
    family = Service(requests=requests, denied=denied, turns=40)
    for index in range(15):
        for split in ("train", "test"):
            total, step, said = await expert_play(family, index, split)
            assert total == 1.0
            assert step.info["rules_broken"] == 0
            assert len(said) <= 4 + 7 * requests


def test_all_kinds_of_wishes_come_up_allowed_and_denied() -> None:
    family, seen = Service(denied=0.5), set()
    for index in range(300):
        case = enter(family, index).game.case
        wish = case.wishes[0]
        seen.add((wish.kind, wish.denial(case.database)))
    assert {reason for _, reason in seen} == {
        "",
        "not pending",
        "not delivered",
        "too late",
        "out of stock",
        "not theirs",
    }
    assert {kind for kind, reason in seen if not reason} == {
        "cancel",
        "return",
        "exchange",
        "address",
        "total",
        "status",
        "repair",
    }


async def test_chance_serves_nobody() -> None:
    """Calls with arguments that appear in the talk so far."""
    rng, family, won = random.Random(0), Service(), 0.0
    for index in range(60):
        env = enter(family, index)
        observation = await env.start()
        heard = ["finish", "mug"]
        step = None
        while step is None or not step.done:
            tool = rng.choice(observation.tools)
            heard += re.findall(r"[\w@.-]+", observation.messages[0].text)
            schema = tool.parameters["properties"]
            values = {k: rng.choice(s.get("enum", heard)) for k, s in schema.items()}
            try:
                step = await env.step("agent", Message(Role.ASSISTANT, calls=(ToolCall(tool.name, values),)))
            except ActionError:
                continue
            observation = step.observation or observation
        won += step.rewards["agent"]
    assert won / 60 < 0.05


@pytest.mark.parametrize(
    ("wish", "denial"),
    [
        (CANCEL, ""),
        (Wish("cancel", "W2000", "mug-blue"), "not pending"),
        (Wish("cancel", "W4000", stranger=True), "not theirs"),
        (Wish("address", "W1000", "mug-blue", "9 Mill Street"), ""),
        (Wish("address", "W3000", "lamp-red", "9 Mill Street"), "not pending"),
        (RETURN, ""),  # on the thirtieth day
        (Wish("return", "W3000", "lamp-red"), "too late"),
        (Wish("return", "W1000", "mug-blue"), "not delivered"),
        (Wish("exchange", "W2000", "mug-blue", "mug-red"), ""),
        (Wish("exchange", "W2000", "mug-blue", "mug-green"), "out of stock"),
        (Wish("total", "W3000", "lamp-red"), ""),
    ],
)
def test_what_the_policy_allows(wish: Wish, denial: str) -> None:
    assert wish.denial(DATABASE) == denial
    case = Case(DATABASE, "ada_hill_10", (wish,), True, True)
    changes = wish.kind != "total" and not denial
    assert (digest(case.gold) != digest(DATABASE)) is changes
    assert case.denials == ({wish.order: denial} if denial else {})


async def test_a_talk_by_hand() -> None:
    play = desk(CANCEL)
    assert play.goal() == "Customer: I want to cancel my order with the blue mug."
    assert await told(
        play,
        "say('What is your e-mail?')",
        "find_user('ADA@mail.test')",
        "get_user('ada_hill_10')",
        "get_order('w1000')",
        "say('Which order number is it, and why?')",
        "say('Shall I cancel it?')",
        "say('Shall I cancel order W1000?')",
    ) == [
        "Customer: My email is ada@mail.test.",
        "ada_hill_10",
        str(DATABASE["users"]["ada_hill_10"]),
        str(DATABASE["orders"]["W1000"]),
        "Customer: I do not know the number of the order. The reason: no longer needed.",
        "Customer: Please tell me the number of the order first.",
        "Customer: Yes.",
    ]
    assert (await told(play, "cancel_order('W1000', 'no longer needed')"))[0].startswith("done, order W1000")
    assert play.info == {"subgoal": 1.0, "tool_score": 1.0, "verified": 1.0}
    assert await told(play, "say('Anything else?')", "finish()") == ["Customer: No, that is all.", "None"]
    assert play.reward() == 1.0


async def test_the_customer_gives_only_what_it_has() -> None:
    play = desk(CANCEL, RETURN, knows_email=False)
    assert await told(
        play,
        "say('Your email?')",
        "say('Name and zip code please')",
        "say('What colour is the sky?')",
        "say('Shall I cancel W4000?')",
        "say('Shall I return from W2000?')",
        "say('Do you need anything else?')",
        "say('Shall I return from W2000?')",
    ) == [
        "Customer: I do not remember my email.",
        "Customer: I am Ada Hill, zip code 12345.",
        "Customer: I do not understand. I want to cancel my order with the blue mug.",
        "Customer: No, not that order.",
        "Customer: No, not that order.",  # it has not yet said that it wants this
        "Customer: I want to return the blue mug.",
        "Customer: Yes.",
    ]


FIND, CONFIRM, WHY = "find_user('ada@mail.test')", "say('Shall I do it with W1000?')", "say('Why?')"
DONE, SEE, SEE3 = "cancel_order('W1000', 'no longer needed')", "get_order('W1000')", "get_order('W3000')"
ELSE = "say('Anything else?')"


@pytest.mark.parametrize(
    ("calls", "worth"),
    [
        ([FIND, SEE, WHY, CONFIRM, DONE, ELSE], 1.0),
        ([CONFIRM, WHY, SEE, FIND, DONE, ELSE], 1.0),
        ([FIND, SEE, WHY, CONFIRM, DONE], 0.0),  # was not asked whether there is more
        ([FIND, WHY, CONFIRM, DONE, ELSE], 0.0),  # the order was not looked up
        ([FIND, SEE, CONFIRM, DONE, ELSE], 0.0),  # the reason was guessed
        ([FIND, SEE, WHY, DONE, ELSE], 0.0),  # not confirmed
        ([SEE, WHY, CONFIRM, DONE, ELSE], 0.0),  # nobody was looked up
        (["find_user('ben@mail.test')", SEE, WHY, CONFIRM, DONE, ELSE], 0.0),  # the wrong one was
        ([FIND, SEE, WHY, CONFIRM, "cancel_order('W1000', 'ordered by mistake')", ELSE], 0.0),
        ([FIND, SEE, WHY, CONFIRM, DONE, SEE3, "deny('W3000', 'too late')", ELSE], 0.0),
        ([FIND, SEE, WHY, CONFIRM, DONE, "transfer('W1000')", ELSE], 0.0),
        ([FIND], 0.0),
    ],
)
async def test_what_a_cancellation_is_worth(calls: list[str], worth: float) -> None:
    play = desk(CANCEL)
    await told(play, *calls, "finish()")
    assert play.reward() == worth


@pytest.mark.parametrize(
    ("calls", "worth"),
    [
        ([FIND, SEE3, "deny('W3000', 'too late')", ELSE], 1.0),
        ([FIND, SEE3, "deny('W3000', 'not delivered')", ELSE], 0.0),
        ([FIND, "get_order('W2000')", "deny('W2000', 'too late')", ELSE], 0.0),
        ([FIND, "deny('W3000', 'too late')", ELSE], 0.0),  # from chance: it was not looked up
        ([SEE3, "deny('W3000', 'too late')", ELSE], 0.0),
        ([FIND], 0.0),
    ],
)
async def test_what_a_denial_is_worth(calls: list[str], worth: float) -> None:
    play = desk(Wish("return", "W3000", "lamp-red"))
    await told(play, *calls, "finish()")
    assert play.reward() == worth


@pytest.mark.parametrize(
    ("calls", "worth"),
    [
        ([FIND, SEE3, "say('It is 40 dollars.')", ELSE], 1.0),
        ([FIND, SEE3, "say('It is $40, for W3000.')", ELSE], 1.0),
        ([FIND, SEE3, "say('It is 30.')", "say('Sorry, it is 40.00.')", ELSE], 1.0),  # what was told last counts
        ([FIND, SEE3, "say('It is 40.')", "say('Sorry, it is 30.')", ELSE], 0.0),
        ([FIND, "say('It is 40 dollars.')", ELSE], 0.0),  # from chance: it was not looked up
        ([SEE3, "say('It is 40 dollars.')", ELSE], 0.0),  # to whom?
        ([FIND, SEE3, "say('It is 400 dollars.')", ELSE], 0.0),
        ([FIND, SEE3, "say('It is 40 for W2000.')", ELSE], 0.0),
        ([FIND, SEE3, "say('10 20 30 40 50 60')", ELSE], 0.0),  # all that it might be is no answer
        ([FIND, SEE3, "say('39 or 40')", ELSE], 0.0),
        ([FIND], 0.0),
    ],
)
async def test_what_an_answer_is_worth(calls: list[str], worth: float) -> None:
    play = desk(Wish("total", "W3000", "lamp-red"))
    await told(play, *calls, "finish()")
    assert play.reward() == worth


@pytest.mark.parametrize(
    ("said", "worth"),
    [
        ("Your order is pending.", 1.0),
        ("The status of order W1000 is: Pending", 1.0),
        ("I cannot speed it up. It is pending.", 1.0),
        ("It is pending, shipped or delivered.", 0.0),
        ("It hasn't been shipped yet, it is pending.", 0.0),  # names two: it has to be said again
        ("It is not pending.", 0.0),
        ("Order W2000 is pending.", 0.0),
    ],
)
async def test_what_a_status_is_worth(said: str, worth: float) -> None:
    play = desk(Wish("status", "W1000", "mug-blue"))
    answers = await told(play, FIND, SEE, f"say({said!r})", ELSE, "finish()")
    assert play.reward() == worth
    assert answers[2].startswith("Customer: Thank you." if worth else "Customer: I do not understand.")


async def test_a_customer_who_does_not_know_thanks_for_any_answer() -> None:
    """Or guessing until it does would find the right one."""
    play = desk(Wish("status", "W1000", "mug-blue"))
    assert await told(play, FIND, SEE, "say('It is shipped.')") == [
        "ada_hill_10",
        str(DATABASE["orders"]["W1000"]),
        "Customer: Thank you.",
    ]


async def test_the_desk_refuses_what_cannot_be_done() -> None:
    play = desk(RETURN)
    before = play.state_key()
    refusals = await told(
        play,
        "find_user('nobody@mail.test')",
        "get_order('W9999')",
        "get_product('car')",
        "cancel_order('W2000', 'no longer needed')",
        "return_item('W2000', 'mug-red')",
        "exchange_item('W2000', 'mug-blue', 'lamp-red')",
        "exchange_item('W2000', 'mug-blue', 'mug-green')",
        "say('')",
        f"say('{'long ' * 200}')",
    )
    assert all(answer.startswith("refused:") for answer in refusals), refusals
    assert "order W2000 is delivered, but this needs one that is pending" in refusals[3]
    assert play.state_key() == before


async def test_the_expert_goes_on_after_useless_calls() -> None:
    for index in range(30):
        env = enter(Service(requests=2, turns=40), index)
        await env.start()
        await env.step("agent", say('get_product("mug")'))
        await env.step("agent", say('say("Hello! Anything else?")'))
        await env.step("agent", say('say("What are your name and zip code, and which order number is it?")'))
        total, _, _ = await go_on(env)
        assert total == 1.0


async def test_it_ends_unpaid_when_the_turns_are_used_up() -> None:
    env = enter(Service(turns=11))
    await env.start()
    for turn in range(11):
        step = await env.step("agent", say('say("Good day")'))
        assert step.done is (turn == 10)
    assert step.rewards == {"agent": 0.0}


@pytest.mark.parametrize(
    ("call", "told"),
    [
        ("I will help you.", "is no call"),
        ("say()", "text is missing"),
        ('cancel_order("W1000", "because")', "must be Literal"),
        ('deny("W0000", "too late")', "there is no order"),
        ("success()", "there is no tool"),
        ('user("x")', "there is no tool"),
    ],
)
async def test_bad_actions_are_refused_and_change_nothing(call: str, told: str) -> None:
    env = enter(Service())
    await env.start()
    before = env.state_key()
    with pytest.raises(ActionError, match=told):
        await env.step("agent", say(call))
    assert env.state_key() == before


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"requests": 4}, "requests = 4"),
        ({"users": 1}, "users = 1"),
        ({"turns": 10}, "turns = 10"),
        ({"user": "person"}, 'user = "person"'),
    ],
)
def test_wrong_configs_are_refused(fields, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Service(**fields)


def test_a_new_address_is_another_one():
    """Else the task would be done by doing nothing."""
    for seed in (3215, 12180):  # in these the first draw is the address that the order has
        case = draw(seed, 2, 1, 0.0)
        [wish] = case.wishes
        assert wish.kind == "address"
        assert wish.detail != case.database["orders"][wish.order]["address"]
        assert case.gold != case.database
