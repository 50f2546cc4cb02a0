import pytest

pytest.importorskip("pettingzoo")
pytest.importorskip("pygame")

from playing import chance_play, expert_play, failed, say

from sojourn.checks.env import check_env
from sojourn.checks.report import Outcome
from sojourn.errors import ActionError, ConfigError, InfrastructureError
from sojourn_worlds.adapters.pettingzoo import PettingZoo

TICTACTOE = {"id": "pettingzoo.classic.tictactoe_v3", "describe": "pettingzoo_hooks:board", "choices": True}
SEARCH = {"expert": "pettingzoo_hooks:search", "opponent": "random", "seat": "player_1"}
BIDS = {"id": "pettingzoo_hooks:Bids"}


GAMES = 10
ONE = TICTACTOE | SEARCH


@pytest.mark.parametrize("fields", [TICTACTOE, ONE, BIDS | {"choices": True}], ids=["self", "one", "bids"])
async def test_games_keep_the_promises_of_a_world(fields):
    report = await check_env(PettingZoo(**fields), episodes=3)
    assert report.passed, failed(report)
    assert report["forks are equal and independent"].outcome is Outcome.PASSED


async def test_a_game_of_rock_paper_scissors_has_turns_for_both():
    names = ("rock", "paper", "scissors")
    family = PettingZoo(id="pettingzoo.classic.rps_v2", arguments={"max_cycles": 3}, actions=names, choices=True)
    report = await check_env(family, episodes=2)
    assert report.passed, failed(report)
    env = family.make(family.tasks("train")[0])
    observation = await env.start()
    moves, rewards = iter(["rock", "paper"] * 3), []
    while observation:
        step = await env.step(observation.agent, say(next(moves)))
        rewards.append(step.rewards)
        observation = step.observation
    assert sum(r.get("player_0", 0) for r in rewards) == -3
    assert sum(r.get("player_1", 0) for r in rewards) == 3


async def test_both_seats_move_in_turn_see_their_own_side_and_are_paid_apart():
    family = PettingZoo(**TICTACTOE)
    assert family.seats == ("player_1", "player_2")
    env = family.make(family.tasks("train")[0])
    first = await env.start()
    assert (first.agent, first.messages[0].text) == ("player_1", "0 1 2 3 4 5 6 7 8")
    assert first.system[0].text == "You play tictactoe_v3. You are player_1. Say one action: 0, 1, 2, 3, 4, 5, 6, 7, 8."
    second = (await env.step("player_1", say("4"))).observation
    assert (second.agent, second.messages[0].text) == ("player_2", "0 1 2 3 you 5 6 7 8")
    assert "You are player_2." in second.system[0].text
    assert second.choices == tuple("01235678")
    for text in ("4", "9", "", "left"):
        with pytest.raises(ActionError):
            await env.step("player_2", say(text))
    third = (await env.step("player_2", say("0"))).observation
    assert (third.agent, third.messages[0].text, third.system) == ("player_1", "you 1 2 3 me 5 6 7 8", ())
    for seat, text in [("player_1", "3"), ("player_2", "1")]:
        step = await env.step(seat, say(text))
        assert not any(step.rewards.values())
    last = await env.step("player_1", say("5"))
    assert (last.done, last.rewards, last.success) == (True, {"player_1": 1.0, "player_2": -1.0}, None)


async def test_planes_are_one_table():
    family = PettingZoo(id="pettingzoo.classic.connect_four_v3")
    env = family.make(family.tasks("train")[0])
    assert (await env.start()).messages[0].text == "\n".join(["0 0 0 0 0 0 0"] * 6)
    await env.step("player_0", say("3"))
    seen = await env.step("player_1", say("0"))
    assert seen.observation.messages[0].text.splitlines()[-1] == "2 0 0 1 0 0 0"


async def test_one_seat_against_chance_and_against_an_expert():
    family = PettingZoo(**ONE)
    assert family.seats == ("agent",)
    expert = [sum(s.rewards["agent"] for s in (await expert_play(family, i, "test"))[0]) for i in range(GAMES)]
    chance = [sum(s.rewards["agent"] for s in await chance_play(family, i, i)) for i in range(GAMES)]
    assert min(expert) >= 0
    assert sum(expert) / GAMES > 0.85
    assert sum(chance) / GAMES < 0.6
    lost = PettingZoo(**(ONE | {"opponent": "expert", "seat": ""}))
    against = [sum(s.rewards["agent"] for s in await chance_play(lost, i, i)) for i in range(GAMES)]
    assert sum(against) / GAMES < -0.6
    inline = PettingZoo(**(ONE | {"seat": "", "threads": 0}))
    assert {env.policy_player for env in map(inline.make, inline.tasks("train")[:4])} == {"player_1", "player_2"}


async def test_those_who_move_at_once_see_the_same_and_are_paid_when_all_have_moved():
    env = PettingZoo(**BIDS).make(PettingZoo(**BIDS).tasks("train")[0])
    first = await env.start()
    second = await env.step("left", say("2"))
    assert second.observation.messages[0].text == first.messages[0].text
    assert not any(second.rewards.values())
    third = await env.step("right", say("1"))
    assert third.rewards == {"left": 1.0, "right": 0.0}
    twin = await env.fork()
    for play in (env, twin):
        await play.step("left", say("0"))
        last = await play.step("right", say("1"))
        assert (last.done, last.rewards) == (True, {"left": 0.0, "right": 1.0})


async def test_what_falls_before_ones_first_move_is_paid_with_it():
    for seat, rewards in [("right", [2.0, 0.0]), ("left", [0.0, 0.0])]:
        family = PettingZoo(id="pettingzoo_hooks:gifts", opponent="random", seat=seat)
        env = family.make(family.tasks("train")[0])
        await env.start()
        twin = await env.fork()
        for play in (env, twin):
            steps = [await play.step("agent", say("1")) for _ in range(2)]
            assert [step.rewards["agent"] for step in steps] == rewards
            assert steps[-1].done


async def test_a_fork_that_is_no_copy_of_the_play_is_a_failure_of_the_game():
    family = PettingZoo(id="pettingzoo_hooks:Drifting", threads=0)
    env = family.make(family.tasks("train")[0])
    await env.start()
    with pytest.raises(InfrastructureError, match="Drifting is not deterministic: replayed for a fork"):
        await env.fork()
    await env.close()


async def test_a_limit_of_turns_ends_the_game_without_reward():
    family = PettingZoo(**TICTACTOE, turns=2)
    env = family.make(family.tasks("train")[0])
    await env.start()
    await env.step("player_1", say("0"))
    last = await env.step("player_2", say("1"))
    assert (last.done, last.info["truncated"], set(last.rewards.values())) == (True, 1.0, {0.0})


def test_what_does_not_fit_is_refused_in_one_sentence():
    for fields, message in [
        ({"id": ""}, "id is empty"),
        (TICTACTOE | {"opponent": "nobody"}, 'opponent = "nobody"'),
        (TICTACTOE | {"opponent": "expert"}, "needs an `expert`"),
        (TICTACTOE | {"seat": "player_1"}, "leave one out"),
        (TICTACTOE | {"scale": 0.0}, r"scale = 0\.0"),
        (TICTACTOE | {"expert": "pettingzoo_hooks:none"}, "cannot be imported"),
    ]:
        with pytest.raises(ConfigError, match=message):
            PettingZoo(**fields)
    with pytest.raises(ConfigError, match="the game has player_1, player_2"):
        _ = PettingZoo(**(ONE | {"seat": "black"})).players
    with pytest.raises(ConfigError, match="cannot be imported"):
        _ = PettingZoo(id="pettingzoo.classic.no_such_game_v0").seats
