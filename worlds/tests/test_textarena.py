"""Games of TextArena: their luck kept apart, refusals that cost nothing, the experts, and what the world promises."""

from __future__ import annotations

import copy
import inspect
import random
import threading

import pytest

pytest.importorskip("textarena")

from sojourn.checks.env import check_env
from sojourn.errors import ActionError, ConfigError
from sojourn.types import Message, Role
from sojourn_worlds.textarena import TextArena
from sojourn_worlds.textarena.games import GAMES

CHANCE = random.Random(0)


def say(text: str) -> Message:
    return Message(Role.ASSISTANT, text)


def opened(**fields):
    family = TextArena(**fields)
    return family.make(family.tasks("train")[0])


async def play(env, policy) -> dict:
    observation, total = await env.start(), {}
    while observation is not None:
        action = policy(env, observation)
        step = await env.step(observation.agent, say(await action if inspect.isawaitable(action) else action))
        for seat, reward in step.rewards.items():
            total[seat] = total.get(seat, 0.0) + reward
        observation = step.observation
    return total | {"success": step.success}


@pytest.mark.parametrize(
    "fields",
    [
        {"choices": True},
        {"game": "GuessTheNumber-v0"},
        {"game": "FrozenLake-v0", "choices": True},
        {"game": "KuhnPoker-v0", "opponent": "self", "choices": True},
        {"game": "PigDice-v0", "choices": True, "turns": 60},
    ],
)
async def test_it_keeps_its_promises(fields) -> None:
    report = await check_env(TextArena(**fields), episodes=2)
    assert report.passed, report.failed


@pytest.mark.parametrize("game", ["GuessTheNumber-v0", "TowerOfHanoi-v0", "FrozenLake-v0", "Mastermind-v0"])
async def test_the_expert_solves_every_puzzle_and_chance_few(game) -> None:
    family, chance = TextArena(game=game), []
    for split in ("train", "test"):
        for task in family.tasks(split)[:12]:
            assert await play(family.make(task), lambda env, seen: env.expert()) == {"agent": 1.0, "success": True}
            env = family.make(task)
            actions = [action for action in GAMES[game].actions if game != "TowerOfHanoi-v0" or action[1] != action[3]]
            chance.append((await play(env, lambda env, seen, actions=actions: blind(env, actions)))["agent"])
    assert sum(chance) / 24 < 0.75


def blind(env, actions) -> str:
    return next(action for action in CHANCE.sample(actions, len(actions)) if env.game.accepts(action))


async def test_no_frozen_lake_is_in_both_splits() -> None:
    family, found = TextArena(game="FrozenLake-v0"), {}
    for split, count in (("train", 400), ("test", 60)):
        plays = [family.make(task) for task in family.tasks(split)[:count]]
        found[split] = {(await play.start()).messages[0].text for play in plays}
        for play in plays:
            await play.close()
    assert len(found["test"]) > 25
    assert not found["train"] & found["test"]


async def test_the_expert_finds_a_line_that_wins_against_the_known_opponent() -> None:
    family = TextArena()
    for task in family.tasks("train")[:3]:
        assert await play(family.make(task), lambda env, seen: env.expert()) == {"agent": 1.0, "success": True}


async def test_plays_beside_each_other_and_the_module_s_own_rng_do_not_touch() -> None:
    """Pig, whose dice come from the one generator of `random`: alone, or with another play and other draws between."""

    async def rolls(other, noise: int) -> list[str]:
        env = opened(game="PigDice-v0", opponent="self")
        seen, texts = await env.start(), []
        aside = await other.start() if other else None
        for _ in range(12):
            random.seed(noise)
            before = random.getstate()
            seen = (await env.step(seen.agent, say("[roll]"))).observation
            assert random.getstate() == before
            texts.append(seen.messages[0].text)
            if other:
                aside = (await other.step(aside.agent, say("[roll]"))).observation
        return texts

    policy_seat = await rolls(None, 1)
    family = TextArena(game="PigDice-v0", opponent="self")
    assert policy_seat == await rolls(family.make(family.tasks("train")[5]), 2)
    assert len(set(policy_seat)) > 3


async def test_what_others_draw_while_a_match_is_played_is_not_its_luck() -> None:
    """A match is played in a thread of its own, beside whoever else draws from the module `random`."""
    env = opened(game="PigDice-v0", opponent="self")
    await env.start()
    match, twin = env.game, copy.deepcopy(env.game)
    random.seed(3)
    drawn = [random.random() for _ in range(4)]
    random.seed(3)
    rolled = threading.Event()
    with match._own_rng():  # as in the midst of a step, while another thread draws
        thread = threading.Thread(target=lambda: (drawn.extend(random.random() for _ in range(2)), rolled.set()))
        thread.start()
        assert rolled.wait(20.0)
        thread.join()
    assert drawn[4:] == drawn[:2]
    assert [random.random() for _ in range(2)] == drawn[2:4]
    for _ in range(6):
        match.act("[roll]")
        twin.act("[roll]")
        assert match.env.state.game_state == twin.env.state.game_state
    await env.close()


async def test_a_refused_action_costs_nothing_however_often() -> None:
    """TextArena itself ends the game at the second invalid move."""
    env = opened(opponent="self")
    await env.start()
    await env.step("player0", say("[4]"))
    before = env.state_key()
    for said, told in (
        ("[4]", "already occupied"),
        ("[9]", "Must be between 0 and 8"),
        ("hello", "correct format"),
    ) * 2:
        with pytest.raises(ActionError, match=told):
            await env.step("player1", say(said))
        assert env.state_key() == before
    step = await env.step("player1", say("0"))  # brackets are added where there are none
    assert step.observation.agent == "player0"
    assert "placed their symbol" in step.observation.messages[0].text
    assert "invalid" not in step.observation.messages[0].text


async def test_each_seat_is_briefed_sees_the_last_board_and_is_paid() -> None:
    family = TextArena(opponent="self")
    assert family.seats == ("player0", "player1")
    env = family.make(family.tasks("train")[0])
    seen = await env.start()
    assert "You are Player 0 in Tic Tac Toe" in seen.system[0].text
    for number, said in enumerate(("[0]", "[4]", "[1]", "[5]")):
        seen = (await env.step(seen.agent, say(said))).observation
        assert bool(seen.system) == (number == 0)
        assert seen.messages[0].text.count("Current Board") == 1
    step = await env.step("player0", say("[2]"))
    assert step.done
    assert step.rewards == {"player0": 1.0, "player1": -1.0}
    assert step.success is None


async def test_hidden_cards_stay_hidden() -> None:
    env = opened(game="KuhnPoker-v0", opponent="self")
    seen = await env.start()
    cards = env.game.env.state.game_state["player_cards"]
    names = {0: "J", 1: "Q", 2: "K"}
    text = seen.system[0].text + seen.messages[0].text
    own = int(seen.agent.removeprefix("player"))
    assert f"Your card is: '{names[cards[own]]}'" in text
    assert f"Your card is: '{names[cards[1 - own]]}'" not in text


@pytest.mark.parametrize("game", [game for game in GAMES if game not in ("Mastermind-v0", "PegJump-v0")])
async def test_every_game_can_be_played(game) -> None:
    family = TextArena(game=game, opponent="self", turns=12)
    total = await play(family.make(family.tasks("test")[0]), lambda env, seen: blind(env, GAMES[game].actions))
    assert all(-1 <= total.get(seat, 0) <= 1 for seat in family.seats)


async def test_a_puzzle_pays_when_it_is_solved_or_its_part() -> None:
    paid = []
    for partial in (False, True):
        env = opened(game="TowerOfHanoi-v0", partial=partial, turns=100)
        await env.start()
        for said in ("[A C]", "[A B]", "[C B]", "[A C]"):  # the largest disk is in its place
            step = await env.step("agent", say(said))
        while not step.done:
            step = await env.step("agent", say("[B A]" if env.game.turns_taken % 2 == 0 else "[A B]"))
        paid.append((step.rewards["agent"], step.success))
    assert paid == [(0.0, False), (pytest.approx(1 / 3), False)]


async def test_a_fork_goes_on_alike_and_apart() -> None:
    env = opened(game="PigDice-v0", opponent="self")
    await env.start()
    await env.step("player0", say("[roll]"))
    twin = await env.fork()
    current_seat = env.game.current_seat
    for _ in range(4):
        one, other = await env.step(current_seat, say("[roll]")), await twin.step(current_seat, say("[roll]"))
        assert one == other
        current_seat = env.game.current_seat
    await env.step(current_seat, say("[hold]"))
    assert env.state_key() != twin.state_key()


async def test_it_ends_unpaid_when_its_turns_are_over() -> None:
    env = opened(game="FifteenPuzzle-v0", turns=3)
    assert await play(env, lambda env, seen: blind(env, GAMES["FifteenPuzzle-v0"].actions)) == {
        "agent": 0.0,
        "success": False,
    }


@pytest.mark.parametrize("said", ["", "  ", "[", "[99999999999999999999]", "[4] " * 60, "[\u0664x]", "[[4"])
async def test_hostile_words_are_refused(said) -> None:
    env = opened()
    await env.start()
    before = env.state_key()
    with pytest.raises(ActionError):
        await env.step("agent", say(said))
    assert env.state_key() == before


@pytest.mark.parametrize("wrong", [{"game": "Chess-v0"}, {"opponent": "me"}, {"turns": 0}])
def test_impossible_fields_are_refused(wrong) -> None:
    with pytest.raises(ConfigError, match=f"textarena: {next(iter(wrong))} = "):
        TextArena(**wrong)
