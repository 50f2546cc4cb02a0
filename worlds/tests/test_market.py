"""Purchases for a user: shelves, what they are worth, plays, and what chance earns."""

from __future__ import annotations

import random
import re
from collections import Counter

import pytest

from sojourn.checks.env import check_env
from sojourn.errors import ActionError, ConfigError, InfrastructureError
from sojourn.types import Message, Role
from sojourn_worlds.market import Market, shelf_of
from sojourn_worlds.market.shelf import KINDS, MARGIN, Product, Shelf

EASY = dict(Market.about.smallest)
FORMS = [EASY, {}, {"profile": "asked"}, {"profile": "past", "aspects": 4}, {"aspects": 5, "products": 24}]


def say(text: str) -> Message:
    return Message(Role.ASSISTANT, text)


async def follow(play) -> tuple[list[str], float, bool]:
    """The expert's actions from here on, what they earned, and whether it bought the best."""
    actions, earned = [], 0.0
    while True:
        actions.append(play.expert())
        step = await play.step("agent", say(actions[-1]))
        earned += step.rewards["agent"]
        if step.done:
            return actions, earned, bool(step.success)


@pytest.mark.parametrize("fields", [EASY, {}, {"profile": "asked", "choices": True}, {"profile": "past"}], ids=str)
async def test_it_keeps_the_promises_of_a_world(fields) -> None:
    report = await check_env(Market(**fields))
    assert report.passed, report.failed


@pytest.mark.parametrize("fields", FORMS, ids=str)
async def test_the_expert_buys_the_best_and_pays_for_what_it_learns(fields) -> None:
    family, lengths = Market(turns=40, **fields), Counter()
    for split, count in (("train", 80), ("test", 30)):
        for number in range(count):
            play = family.make(family.tasks(split)[number])
            await play.start()
            actions, earned, success = await follow(play)
            assert success
            assert earned == pytest.approx(1.0 - family.cost * (len(actions) - 1))
            lengths[len(actions)] += 1
    if fields in (EASY,):
        assert set(lengths) == {1}
    else:
        assert len(lengths) > 1
        assert max(lengths) <= 1 + family.products + 5


async def test_the_expert_inspects_only_what_could_still_be_best() -> None:
    """Whatever it left uninspected could not have more points, even with the best of features."""
    family = Market(aspects=3)
    for number in range(60):
        play = family.make(family.tasks("train")[number])
        await play.start()
        actions, _, _ = await follow(play)
        shelf, seen = play.shelf, {int(re.findall(r"\d+", action)[0]) - 1 for action in actions}
        for place in set(range(len(shelf.products))) - seen:
            product = shelf.products[place]
            hoped = dict.fromkeys(product.features, 5)
            assert shelf.points(Product("x", product.price, product.rating, 1, hoped)) <= shelf.points(
                shelf.products[shelf.best]
            )


async def wander(play, rng: random.Random, turns: int = 10**6, buy: bool = True):
    """A random policy among the choices; what it earned, and whether it bought the best."""
    observation, earned, success = await play.start(), 0.0, False
    for _ in range(turns):
        choices = [choice for choice in observation.choices if buy or not choice.startswith("buy")]
        step = await play.step("agent", say(rng.choice(choices)))
        earned += step.rewards["agent"]
        if step.observation is None:
            return earned, bool(step.success)
        observation = step.observation
    return earned, success


async def test_chance_earns_nothing() -> None:
    rng = random.Random(0)
    for fields in (EASY, {"choices": True}):
        family = Market(**fields)
        plays = [await wander(family.make(family.tasks("train")[number]), rng) for number in range(300)]
        assert abs(sum(earned for earned, _ in plays) / len(plays)) < 0.15
        assert sum(success for _, success in plays) / len(plays) < 1.4 / family.products


async def test_the_expert_goes_on_from_wherever_chance_stopped() -> None:
    rng = random.Random(1)
    for profile in ("told", "asked", "past"):
        family = Market(profile=profile, choices=True, turns=8)
        for number in range(30):
            play = family.make(family.tasks("train")[number])
            await wander(play, rng, rng.randrange(8), buy=False)
            assert (await follow(play))[2]


def product(price: int, comfort: int, **fields) -> Product:
    return Product("Brand", price, 3.0, 10, {"comfort": comfort, "strength": 1, "space": 1}, **fields)


def test_what_products_are_worth() -> None:
    backpack = KINDS[0]
    assert backpack.prices == (20, 90)
    products = (product(20, 1), product(90, 5), product(55, 3))
    shelf = Shelf(backpack, products, 2, {"price": 3, "comfort": 1}, ())
    assert [shelf.points(one) for one in products] == [3.0, 1.0, 2.0]
    assert shelf.worth == (1.0, -1.0, 0.0)
    assert shelf.best == 0
    assert shelf.told("price") == "price: a lot (3 points at $20, 0 at $90)"
    assert shelf.told("comfort") == "comfort: a little (1 point at 5, 0 at 1)"
    assert shelf.told("stars") == "stars: not at all"
    skewed = Shelf(backpack, (*products[:1] * 3, product(90, 1), product(20, 2)), 2, {"price": 1, "comfort": 1}, ())
    assert skewed.worth[3] == -1.0
    assert skewed.worth[4] == 1.0


def test_shelves_are_randomised_independently_of_worth() -> None:
    family, best, badges, count = Market(), Counter(), Counter(), 1500
    for number in range(count):
        shelf = shelf_of(family.tasks("train")[number])
        assert sorted(shelf.worth)[-2] <= 1 - MARGIN
        assert sum(one.pick for one in shelf.products) == 1
        best[shelf.best] += 1
        top = shelf.products[shelf.best]
        badges.update(name for name, given in (("s", top.sponsored), ("p", top.pick), ("l", top.left > 0)) if given)
    assert all(abs(best[place] / count - 1 / 8) < 0.04 for place in range(8))
    assert abs(badges["s"] / count - 0.25) < 0.05
    assert abs(badges["l"] / count - 0.25) < 0.05
    assert abs(badges["p"] / count - 1 / 8) < 0.04
    plain = shelf_of(Market(badges=False).tasks("train")[0])
    assert not any(one.badges for one in plain.products)


def test_one_product_is_clearly_the_best() -> None:
    """Also where all of the few products were alike in the one thing that matters."""
    family = Market(**EASY | {"products": 2})
    for number in range(300):
        second, first = sorted(shelf_of(family.tasks("train")[number]).worth)[-2:]
        assert first == 1.0
        assert second <= 1 - MARGIN


def test_past_choices_are_the_users_own() -> None:
    for number in range(50):
        shelf = shelf_of(Market(profile="past").tasks("train")[number])
        for taken, *others in shelf.past:
            assert all(shelf.points(taken) >= shelf.points(other) for other in others)


async def test_a_purchase_by_hand() -> None:
    family = Market(products=3, columns=2, profile="asked", cost=0.1)
    play = family.make(family.tasks("train")[0])
    first = await play.start()
    lines = first.messages[0].text.splitlines()
    assert [line.split()[0] for line in lines] == ["Shelf", "Row", "1", "2", "Row", "3"]
    assert "Each but buy costs 0.1." in first.system[0].text
    feature = play.shelf.kind.features[0]
    assert f"{feature} " not in first.messages[0].text
    told = await play.step("agent", say(f" ASK[{feature}] "))
    assert told.rewards == {"agent": -0.1}
    assert play.shelf.told(feature) in told.observation.messages[0].text
    seen = await play.step("agent", say("inspect[2]"))
    assert f"{feature} {play.shelf.products[1].features[feature]}" in seen.observation.messages[0].text
    key = play.state_key()
    for wrong in ("buy[4]", "buy[0]", "buy[x]", "inspect[9]", "ask[luck]", "history", "buy", "", "buy[" + "1" * 2000):
        with pytest.raises(ActionError):
            await play.step("agent", say(wrong))
    assert play.state_key() == key
    twin = await play.fork()
    await twin.step("agent", say("inspect[1]"))
    assert play.state_key() == key != twin.state_key()
    end = await play.step("agent", say("buy[3]"))
    assert end.rewards == {"agent": play.shelf.worth[2]}
    assert end.success is (play.shelf.best == 2)
    assert end.info["market/first_row"] == 0.0
    assert end.info["market/first_column"] == 1.0
    with pytest.raises(InfrastructureError):
        await play.step("agent", say("buy[1]"))


async def test_the_past_is_told_and_nothing_else_can_be_asked() -> None:
    family = Market(profile="past", hidden=False)
    play = family.make(family.tasks("train")[0])
    first = await play.start()
    assert play.shelf.kind.features[2] in first.messages[0].text
    told = await play.step("agent", say("history"))
    assert told.observation.messages[0].text.count("Took $") == 6
    for wrong in ("inspect[1]", "ask[price]"):
        with pytest.raises(ActionError):
            await play.step("agent", say(wrong))


async def test_a_play_without_purchase_ends_and_has_cost() -> None:
    family = Market(turns=3, choices=True, cost=0.05)
    play = family.make(family.tasks("train")[0])
    earned, success = await wander(play, random.Random(0), buy=False)
    assert earned == pytest.approx(-0.15)
    assert not success
    assert play.done


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"products": 1}, "products = 1"),
        ({"products": 99}, "products = 99"),
        ({"aspects": 6}, "aspects = 6"),
        ({"cost": 0.5}, "cost = 0.5"),
        ({"profile": "guessed"}, "profile"),
    ],
)
def test_wrong_configs_are_refused(fields, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Market(**fields)


def test_tasks_carry_their_shape_and_splits_their_seeds() -> None:
    family = Market(products=5)
    task = family.tasks("train")[3]
    assert Market().make(task).shelf == family.make(task).shelf
    assert len(shelf_of(task).products) == 5
    assert not {family.tasks("train")[n].seed for n in range(99)} & {family.tasks("test")[n].seed for n in range(99)}
    with pytest.raises(ConfigError, match="unknown split"):
        family.tasks("dev")
