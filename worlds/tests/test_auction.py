"""Auctions: who wins and pays what, truth that nothing beats, and what the world promises."""

from __future__ import annotations

import random

import pytest

from sojourn.checks.env import check_env
from sojourn.errors import ActionError, ConfigError
from sojourn.types import Message, Role
from sojourn_worlds.auction import Auction
from sojourn_worlds.auction.house import House, Lots, names, scripted
from sojourn_worlds.turn_based import TurnBasedEnv


def say(text: str) -> Message:
    return Message(Role.ASSISTANT, text)


def house(kind: str, worth, limits=None, policy_seat: str = "", rise: int = 1) -> House:
    rows = tuple(tuple(row) for row in worth)
    return House(Lots(kind, 20, rise, rows, tuple(limits or rows), policy_seat), 0)


async def play(env, policy) -> dict[str, float]:
    observation, total = await env.start(), {}
    while observation is not None:
        step = await env.step(observation.agent, say(policy(env, observation)))
        for seat, reward in step.rewards.items():
            total[seat] = total.get(seat, 0.0) + reward
        observation = step.observation
    return total | {"success": step.success}


async def surplus(lots: Lots, own) -> int:
    """What the lonely seat has in the end when it says what `own` does with the house."""
    env = TurnBasedEnv(
        House(lots, 0),
        {name: scripted for name in lots.bidders if name != lots.policy_seat},
        policy_seat=lots.policy_seat,
    )
    await play(env, lambda env, _: own(env.game))
    return env.game.surplus(lots.policy_seat)


@pytest.mark.parametrize(
    "fields",
    [
        {"choices": True},
        {},
        {"kind": "english", "choices": True},
        {"kind": "any", "opponent": "self", "choices": True, "items": 2},
    ],
)
async def test_it_keeps_its_promises(fields) -> None:
    report = await check_env(Auction(**fields))
    assert report.passed, report.failed


@pytest.mark.parametrize("kind", ["first_price", "second_price", "english"])
async def test_the_expert_earns_everything_and_chance_little(kind) -> None:
    family, rng, chance = Auction(kind=kind, choices=True), random.Random(0), []
    for split in ("train", "test"):
        for task in family.tasks(split)[:50]:
            earned = await play(family.make(task), lambda env, seen: env.expert())
            assert earned == {"agent": pytest.approx(1), "success": True}
            chance.append(await play(family.make(task), lambda env, seen: rng.choice(seen.choices)))
    assert all(-1 - 1e-9 <= found["agent"] <= 1 + 1e-9 for found in chance)
    assert sum(found["agent"] for found in chance) / 100 < 0.6


@pytest.mark.parametrize(("kind", "price"), [("first_price", 9), ("second_price", 7)])
def test_the_highest_sealed_bid_wins_and_pays_the_price_of_its_kind(kind, price) -> None:
    game = house(kind, [(12, 8, 10), (5, 5, 5)])
    assert [game.current_seat, game.act("7")] == ["bidder1", {}]
    assert [game.current_seat, game.act("bid 3")] == ["bidder2", {}]
    assert game.act("9")["bidder3"] == pytest.approx((10 - price) / 15)
    assert game.sales == [(2, price)]
    assert game.observe("bidder3").startswith(f"You won item 1 for {price}. Item 2 of 2 is worth 5 to you.")
    assert game.observe("bidder1").startswith(f"bidder3 won item 1 for {price}.")
    for bid in ("4", "4", "1"):
        game.act(bid)
    assert game.sales[1] == (0, 4)  # among equals the first
    assert game.current_seat is None


def test_bids_of_nothing_win_nothing() -> None:
    game = house("first_price", [(3, 3)])
    game.act("0")
    assert game.act("0") == {"bidder1": 0.0, "bidder2": 0.0}
    assert game.sales == [(-1, 0)]


def test_the_last_to_stay_pays_the_price_at_which_the_others_left() -> None:
    game = house("english", [(12, 8, 10)], rise=4)
    for said in ("stay", "stay", "stay"):
        assert game.act(said) == {}
    assert game.observe("bidder1") == "Item 1 of 1 is worth 12 to you. The price is 8, 2 others are in."
    for said in ("stay", "out", "stay"):
        game.act(said)
    assert game.observe("bidder3") == "Item 1 of 1 is worth 10 to you. The price is 12, 1 other is in."
    game.act("stay")
    assert game.current_seat == "bidder3"  # who left is not asked again
    assert game.act("out")["bidder1"] == pytest.approx(0)
    assert game.sales == [(0, 12)]


def test_nobody_wins_where_all_leave_at_once_or_nobody_ever_does() -> None:
    game = house("english", [(3, 3), (3, 3)], rise=4)
    game.act("out")
    game.act("out")
    assert game.sales == [(-1, 0)]
    asked = 0
    while game.current_seat:
        game.act("stay")
        asked += 1
    assert game.sales[1] == (-1, 0)
    assert asked <= 2 * 7


@pytest.mark.parametrize("kind", ["second_price", "english"])
async def test_nothing_beats_truth(kind) -> None:
    """Whatever the others do: every bid (or price to leave at) for every worth, against limits drawn at random."""
    rng = random.Random(0)
    for _ in range(25):
        limits = ((0, *(rng.randint(0, 12) for _ in range(2))),)
        seat = rng.randrange(3)
        limits = (tuple(limits[0][(bidder - seat) % 3] for bidder in range(3)),)
        for worth in (1, 5, 9, 12):
            lots = Lots(kind, 20, 2, ((worth,) * 3,), limits, names(3)[seat])
            had = []
            for bid in range(16):
                had.append(
                    await surplus(
                        lots,
                        lambda game, bid=bid: (
                            str(bid) if kind == "second_price" else ("out", "stay")[game.price <= bid]
                        ),
                    )
                )
            assert had[worth] == max(had) == lots.best_surplus(0)
            assert await surplus(lots, lambda game: game.expert()) == max(had)


async def test_at_the_first_price_the_expert_finds_the_lowest_bid_that_wins() -> None:
    rng, shaded = random.Random(1), 0
    for _ in range(60):
        worth, limits = rng.randint(1, 20), tuple(rng.randint(0, 15) for _ in range(3))
        lots = Lots("first_price", 20, 1, ((worth,) * 3,), (limits,), rng.choice(names(3)))
        had = [await surplus(lots, lambda game, bid=bid: str(bid)) for bid in range(21)]
        assert await surplus(lots, lambda game: game.expert()) == max(had) == lots.best_surplus(0)
        assert had[worth] <= 0  # truth earns nothing here
        shaded += max(had) > 0
    assert shaded > 10


async def test_paying_too_much_is_punished_down_to_minus_one() -> None:
    family = Auction(kind="first_price", items=4)
    for task in family.tasks("train")[:10]:
        env = family.make(task)
        earned = await play(env, lambda env, _: "20")
        assert earned["success"] is False
        assert -1 <= earned["agent"] < 0


def test_limits_are_what_their_names_say() -> None:
    drawn = {}
    for name in ("truthful", "shade", "random"):
        family = Auction(opponent=name, bidders=4)
        games = [family.make(task).game.lots for task in family.tasks("train")[:40]]
        drawn[name] = [
            (limit, worth) for lots in games for pair in zip(lots.limits, lots.worth, strict=True)
            for limit, worth in zip(*pair, strict=True)
        ]  # fmt: skip
    assert all(limit == worth for limit, worth in drawn["truthful"])
    assert all(limit == worth * 3 // 4 for limit, worth in drawn["shade"])
    assert all(0 <= limit <= worth for limit, worth in drawn["random"])
    assert len({worth - limit for limit, worth in drawn["random"]}) > 10


def test_there_is_always_something_to_be_had() -> None:
    family = Auction(items=1, bidders=8, kind="any")
    for split in ("train", "test"):
        for task in family.tasks(split)[:100]:
            assert family.make(task).game.lots.best_surplus(0) > 0


def test_where_nothing_can_be_had_that_is_said() -> None:
    family = Auction(kind="english", items=1, highest=4, rise=4)  # the first price is all that an item can be worth
    with pytest.raises(ConfigError, match="raise `highest`, or lower `rise`"):
        family.make(family.tasks("train")[0])


@pytest.mark.parametrize("said", ["", "-1", "21", "3.5", "all", "1e1", "\u0663", "9" * 60, "0x5"])
async def test_what_is_no_bid_is_refused(said) -> None:
    env = Auction().make(Auction().tasks("train")[0])
    await env.start()
    before = env.state_key()
    with pytest.raises(ActionError, match="is no bid: say a whole number from 0 to 20"):
        await env.step("agent", say(said))
    assert env.state_key() == before


@pytest.mark.parametrize(
    "wrong", [{"bidders": 1}, {"items": 0}, {"rise": 99}, {"highest": 2}, {"kind": "dutch"}, {"opponent": "me"}]
)
def test_impossible_fields_are_refused(wrong) -> None:
    with pytest.raises(ConfigError, match=f"auction: {next(iter(wrong))} = "):
        Auction(**wrong)
