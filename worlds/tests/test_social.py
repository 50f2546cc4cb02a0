"""Social: what is fair, how each dimension is judged, who hears what, and opponents that the world plays."""

from __future__ import annotations

import random

import pytest
from people_at_play import chance_play, enter, expert_play, go_on, say

from sojourn.checks.env import check_env
from sojourn.errors import ActionError, ConfigError, InfrastructureError
from sojourn.types import Message, Role, ToolCall
from sojourn_worlds.social import WEIGHTS, Social
from sojourn_worlds.social.judge import parts, reward
from sojourn_worlds.social.scene import KINDS, SEATS, Scene, draw, written
from sojourn_worlds.social.talk import Talk

PRICES = tuple(str(price) for price in range(10, 60, 10))
SALE = Scene(
    "Ann sells a tent to Bob.",
    {"price": PRICES},
    {
        "ann": {"price": {price: number for number, price in enumerate(PRICES)}},
        "bob": {"price": {price: 4 - number for number, price in enumerate(PRICES)}},
    },
    {"ann": 0, "bob": 0},
    {"ann": "surgery", "bob": "lottery"},
)
PLAIN = {"goal": 0.8, "relationship": 0.2, "knowledge": 0.0, "material": 0.0, "secret": 0.5, "rules": 0.5}


def talk() -> Talk:
    return Talk(SALE, 10)


@pytest.mark.parametrize(
    "fields",
    [{}, {"choices": True, "kind": "split"}, {"opponent": "random", "kind": "contract"}, Social.about.smallest],
)
async def test_its_promises(fields) -> None:
    report = await check_env(Social(**fields))
    assert report.passed, report.failed


@pytest.mark.parametrize("kind", KINDS)
async def test_two_experts_earn_all_there_is(kind: str) -> None:
    for index in range(40):
        for split in ("train", "test"):
            total, step, _ = await expert_play(Social(kind=kind), index, split)
            assert step.rewards == {"ann": 1.0, "bob": 1.0}
            assert total == 2.0
            assert step.info["goal/ann"] == step.info["goal/bob"] == 1.0


@pytest.mark.parametrize("opponent", ["expert", "random"])
async def test_the_expert_earns_all_against_the_world(opponent: str) -> None:
    for index in range(60):
        total, step, _ = await expert_play(Social(opponent=opponent), index)
        assert total == 1.0
        assert step.success


async def test_the_expert_asks_where_knowledge_counts() -> None:
    for index in range(20):
        total, _, said = await expert_play(Social(opponent="expert", knowledge=0.2, turns=30), index)
        assert total == pytest.approx(1.0)
        assert any(act.startswith("ask") for act in said)


async def test_chance_earns_clearly_less() -> None:
    for opponent, least in (("self", 0.6), ("expert", 0.65), ("random", 0.7)):
        rng, family = random.Random(0), Social(opponent=opponent, choices=True)
        earned = [await chance_play(family, index, rng) for index in range(200)]
        assert sum(earned) / len(earned) < least
        assert min(earned) < 0


def test_the_fair_deal_is_in_the_middle_where_interests_are_opposed() -> None:
    assert SALE.fair == {"price": "30"}
    assert SALE.goal("ann", {"price": "30"}) == SALE.goal("bob", {"price": "30"}) == 1.0
    assert SALE.goal("ann", {"price": "50"}) == 1.0  # more than fair counts no more
    assert SALE.goal("bob", {"price": "40"}) == 0.5
    assert SALE.material("ann", {"price": "40"}) == 0.75


def test_in_every_scene_both_can_gain_and_not_both_can_have_all() -> None:
    for seed in range(200):
        for kind in KINDS:
            scene = draw(seed, kind)
            assert min(scene.gain(seat, scene.fair) for seat in SEATS) >= 2
            assert scene.secrets["ann"] != scene.secrets["bob"]
            better = [d for d in scene.deals if all(scene.gain(s, d) > scene.gain(s, scene.fair) for s in SEATS)]
            assert not better


def test_a_talk_by_hand() -> None:
    play = talk()
    play.ask("price")
    assert play.heard == "Ann asks which price you like best. Answer with tell."
    play.tell("price", "10")
    play.offer("price=40", "Take it!")
    assert play.heard == 'Ann offers price=40 and says "Take it!".'
    play.accept()
    assert play.over
    assert parts(play, "ann") == {
        "goal": 1.0,
        "relationship": 0.5,
        "knowledge": 1.0,
        "material": 0.75,
        "secret": 0.0,
        "rules": 0.0,
    }
    assert reward(play, "ann", PLAIN) == pytest.approx(0.9)
    assert reward(play, "bob", PLAIN) == pytest.approx(0.6)


def test_an_offer_is_gone_when_it_is_not_taken() -> None:
    play = talk()
    play.offer("price=30")
    play.say("Hm.")
    with pytest.raises(ValueError, match="no offer on the table"):
        play.accept()


@pytest.mark.parametrize(
    ("acts", "seat", "part", "value"),
    [
        (["say|I need it for my surgery."], "ann", "secret", -1.0),
        (["say|I won the lottery."], "ann", "secret", 0.0),  # it is Bob's
        (["offer|price=30|before my Surgery"], "ann", "secret", -1.0),
        (["say|You fool!"], "ann", "rules", -0.5),
        (["say|You fool, you stupid liar!"], "ann", "rules", -1.0),
        (["say|The moodless foolproof tent"], "ann", "rules", 0.0),
        (["tell|price|10"], "ann", "rules", -0.5),  # Ann likes 50
        (["tell|price|50"], "ann", "rules", 0.0),
        (["tell|price|50"], "bob", "knowledge", 0.0),  # only a deal makes it count
        (["leave"], "ann", "relationship", -0.5),
        (["leave"], "bob", "relationship", 0.0),
    ],
)
def test_how_the_dimensions_are_judged(acts, seat: str, part: str, value: float) -> None:
    play = talk()
    for act in acts:
        name, *arguments = act.split("|")
        getattr(play, name)(*arguments)
    assert parts(play, seat)[part] == value


def test_what_is_lost_is_taken_off_and_never_below_minus_one() -> None:
    play = talk()
    play.say("My surgery, you idiot, liar, fool!")
    assert reward(play, "ann", PLAIN) == -1.0
    assert reward(play, "bob", PLAIN) == 0.0


async def test_each_seat_hears_its_own_brief_once_and_not_the_other_s() -> None:
    env = enter(Social())
    first = await env.start()
    second = (await env.step("ann", say('say("Hello")'))).observation
    third = (await env.step("bob", say('say("Hi")'))).observation
    scene = env.talk.scene
    assert (first.agent, second.agent, third.agent) == ("ann", "bob", "ann")
    for seat, observation in (("ann", first), ("bob", second)):
        text = observation.system[0].text
        assert f"You are {seat.capitalize()}" in text
        assert scene.secrets[seat] in text
        assert scene.secrets[{"ann": "bob", "bob": "ann"}[seat]] not in text
    assert third.system == ()
    assert second.messages[0].text == 'Ann says "Hello".'


async def test_against_the_world_the_policy_is_ann_and_bob_by_turns() -> None:
    family = Social(opponent="expert")
    assert family.seats == ("agent",)
    assert Social().seats == ("ann", "bob")
    roles = []
    for index in range(4):
        observation = await enter(family, index).start()
        roles.append("You are Ann" in observation.system[0].text)
        assert observation.messages[0].text.startswith("You begin" if roles[-1] else "Ann offers")
    assert roles == [True, False, True, False]


async def test_the_world_s_expert_gives_way_step_by_step_but_not_below_what_is_fair() -> None:
    family = Social(opponent="expert", kind="price", turns=20)
    env = enter(family, 0)
    await env.start()
    scene, shares = env.talk.scene, []
    bad = min(scene.deals, key=lambda deal: scene.gain("bob", deal))
    for _ in range(6):
        await env.step("agent", say(f'offer("{written(bad)}")'))
        shares.append(scene.goal("ann", env.talk.bid))
    assert shares == sorted(shares)
    assert shares[0] < shares[-1] == 1.0
    assert env.talk.bid == scene.fair


async def test_the_expert_goes_on_from_anywhere() -> None:
    rng = random.Random(3)
    for index in range(60):
        env = enter(Social(turns=20, opponent="expert", choices=True), index)
        observation = await env.start()
        for _ in range(4):
            calm = [c for c in observation.choices if not c.startswith(("leave", "accept", "tell"))]
            observation = (await env.step("agent", say(rng.choice(calm)))).observation
            if observation is None:
                break
        if observation is not None:
            total, _, _ = await go_on(env)
            assert total == 1.0


async def test_without_a_deal_there_is_nothing() -> None:
    env = enter(Social(turns=8))
    observation = await env.start()
    for turn in range(8):
        step = await env.step(observation.agent, say('say("Well.")'))
        assert step.done is (turn == 7)
        observation = step.observation
    assert step.rewards == {"ann": 0.0, "bob": 0.0}
    assert step.success is None
    with pytest.raises(InfrastructureError):
        await env.step("ann", say('say("Well.")'))


@pytest.mark.parametrize(
    ("call", "told"),
    [
        ("", "is no call"),
        ("accept()", "no offer"),
        ("offer('price=9999')", "no part of a deal"),
        ("offer('')", "the deal lacks"),
        ("say('')", "0 characters"),
        ("ask('weather')", "there is no issue"),
        ("tell('price', 'all')", "is no price"),
        ("key()", "there is no act"),
        ("_pass('x')", "there is no act"),
    ],
)
async def test_bad_acts_are_refused_and_change_nothing(call: str, told: str) -> None:
    env = enter(Social(kind="price"))
    await env.start()
    before = env.state_key()
    with pytest.raises(ActionError, match=told):
        await env.step("ann", say(call))
    assert env.state_key() == before


async def test_one_act_at_a_time() -> None:
    env = enter(Social())
    await env.start()
    twice = (ToolCall("say", {"text": "a"}), ToolCall("say", {"text": "b"}))
    with pytest.raises(ActionError, match="2 calls at once"):
        await env.step("ann", Message(Role.ASSISTANT, calls=twice))
    step = await env.step("ann", Message(Role.ASSISTANT, calls=twice[:1]))
    assert step.observation.agent == "bob"


async def test_the_first_offer_that_both_gain_from_is_a_subgoal() -> None:
    env = enter(Social(kind="price"))
    await env.start()
    fair = written(env.talk.scene.fair)
    told = []
    for seat, call in (("ann", 'say("Hi")'), ("bob", f'offer("{fair}")'), ("ann", f'offer("{fair}")')):
        told.append((await env.step(seat, say(call))).info["subgoal"])
    assert told == [0.0, 1.0, 0.0]


def test_the_answer_is_the_fair_deal() -> None:
    task = Social().tasks("test")[5]
    assert task.data["answer"] == written(draw(task.seed, "mixed").fair)
    assert set(WEIGHTS) <= set(task.data)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"kind": "war"}, 'kind = "war"'),
        ({"opponent": "god"}, 'opponent = "god"'),
        ({"goal": 0}, "goal = 0"),
        ({"secret": -1}, "secret = -1"),
        ({"turns": 4}, "turns = 4"),
        ({"opponent": "random", "knowledge": 0.1}, "never answers"),
    ],
)
def test_wrong_configs_are_refused(fields, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Social(**fields)
