"""Games of OpenSpiel: who moves and sees what, the opponents and the expert, and what the world promises."""

from __future__ import annotations

import inspect
import random

import pytest

pytest.importorskip("pyspiel")

from sojourn.checks.env import check_env
from sojourn.errors import ActionError, ConfigError
from sojourn.types import Message, Role
from sojourn_worlds.openspiel import GAMES_WITH_RULES, OpenSpiel
from sojourn_worlds.openspiel.position import load, symbols
from sojourn_worlds.openspiel.solver import game_value, optimal

CHANCE = random.Random(0)


def say(text: str) -> Message:
    return Message(Role.ASSISTANT, text)


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
        {},
        {"opponent": "expert"},
        {"opponent": "self", "choices": True},
        {"game": "kuhn_poker", "choices": True},
        {"game": "goofspiel(num_cards=4)", "opponent": "self", "choices": True},
        {"game": "hex(board_size=4)", "choices": True, "told": False},
        {"game": "pig", "choices": True, "turns": 40},
        {"choices": True, "told": False, "tensor": True},
        {"choices": True, "opening": 3},
    ],
)
async def test_it_keeps_its_promises(fields) -> None:
    report = await check_env(OpenSpiel(**fields))
    assert report.passed, report.failed


@pytest.mark.parametrize("game", ["tic_tac_toe", "nim"])
async def test_the_expert_wins_and_chance_does_not(game) -> None:
    family, rng, chance = OpenSpiel(game=game, choices=True), random.Random(0), []
    for split in ("train", "test"):
        for task in family.tasks(split)[:30]:
            assert await play(family.make(task), lambda env, seen: env.expert()) == {"agent": 1.0, "success": True}
            chance.append(await play(family.make(task), lambda env, seen: rng.choice(seen.choices)))
    assert sum(found["agent"] for found in chance) / 60 < 0.4


async def test_nobody_beats_the_minimax_opponent_and_the_expert_does_not_lose() -> None:
    family, rng = OpenSpiel(opponent="expert", choices=True), random.Random(0)
    for task in family.tasks("train")[:25]:
        assert (await play(family.make(task), lambda env, seen: rng.choice(seen.choices)))["agent"] <= 0
        assert await play(family.make(task), lambda env, seen: env.expert()) == {"agent": 0.0, "success": True}


async def test_in_a_game_that_one_player_can_win_the_agent_is_that_one() -> None:
    family = OpenSpiel(game="nim", opponent="expert")
    assert game_value("nim") == -1  # the second player wins
    for task in family.tasks("test")[:10]:
        env = family.make(task)
        assert await play(env, lambda env, seen: env.expert()) == {"agent": 1.0, "success": True}
        assert env.game.policy_seat == "player1"


async def test_what_is_searched_for_is_searched_for_beside_the_event_loop() -> None:
    for fields, there in [({"opponent": "expert"}, True), ({}, False)]:
        env = OpenSpiel(**fields).make(OpenSpiel(**fields).tasks("train")[0])
        await env.start()
        assert (env.thread is not None) == there
        await env.expert()
        assert env.thread is not None
        await env.close()
        assert env.thread is None


def test_minimax_knows_tic_tac_toe() -> None:
    assert game_value("tic_tac_toe") == 0
    state = load("tic_tac_toe").game.new_initial_state()
    for action in (0, 4, 1):  # x threatens the upper row
        state.apply_action(action)
    assert optimal("tic_tac_toe", state) == [2]
    state.apply_action(8)  # a mistake: now x wins
    assert 2 in optimal("tic_tac_toe", state)
    assert 5 not in optimal("tic_tac_toe", state)
    assert game_value("connect_four") is None  # too large
    assert game_value("kuhn_poker") is None


async def test_two_seats_are_briefed_move_in_turn_and_are_paid_against_each_other() -> None:
    family = OpenSpiel(opponent="self")
    assert family.seats == ("player0", "player1")
    env = family.make(family.tasks("train")[0])
    assert not hasattr(env, "expert")
    seen = await env.start()
    assert seen.agent == "player0"
    assert "You are the first of 2 players" in seen.system[0].text
    for number, said in enumerate(("x(1,1)", "o(0,0)", "X(0,2)", " o(2,0) ")):
        step = await env.step(seen.agent, say(said))
        seen = step.observation
        assert seen.agent == f"player{(number + 1) % 2}"
        assert bool(seen.system) == (number == 0)
    with pytest.raises(ActionError, match="is not possible here, say one of"):
        await env.step("player0", say("x(1,1)"))
    step = await env.step("player0", say("x(1,0)"))
    step = await env.step("player1", say("o(2,2)"))
    step = await env.step("player0", say("x(1,2)"))
    assert step.done
    assert step.rewards == {"player0": 1.0, "player1": -1.0}
    assert step.success is None


async def test_a_player_does_not_see_what_is_hidden() -> None:
    """Two deals that differ in the other's card alone look alike to the first player of Kuhn poker."""
    family, seen = OpenSpiel(game="kuhn_poker", opponent="self"), {}
    for task in family.tasks("train")[:40]:
        env = family.make(task)
        cards = str(env.game.state).split()
        text = (await env.start()).messages[0].text
        seen.setdefault(cards[0], set()).add((text, cards[1]))
    assert set(seen) == {"0", "1", "2"}
    for card, found in seen.items():
        assert {text for text, _ in found} == {f"{card}\nYou can say: Pass, Bet"}
        assert len(found) == 2


async def test_bids_that_are_made_at_once_are_not_seen() -> None:
    family = OpenSpiel(game="goofspiel(num_cards=4,imp_info=True)", opponent="self")
    texts = []
    for bid in (1, 4):
        env = family.make(family.tasks("train")[0])
        await env.start()
        step = await env.step("player0", say(f"[P0]Bid: {bid}"))
        assert step.observation.agent == "player1"
        texts.append(step.observation.messages[0].text)
    assert texts[0] == texts[1]


async def test_chance_follows_from_the_seed_whatever_is_played_beside_it() -> None:
    family = OpenSpiel(game="pig", opponent="self")
    rolled = []
    for seed in (0, 0, 1):
        random.seed(seed)
        env = family.make(family.tasks("train")[seed])
        seen, texts = await env.start(), []
        for _ in range(12):
            step = await env.step(seen.agent, say("roll"))
            seen = step.observation
            texts.append(seen.messages[0].text)
        rolled.append(texts)
    assert rolled[0] == rolled[1] != rolled[2]


@pytest.mark.parametrize("game", GAMES_WITH_RULES)
async def test_every_game_that_was_tried_can_be_played(game) -> None:
    """By one against the world, and by all against each other, with rewards between -1 and 1."""
    for opponent in ("random", "self"):
        family = OpenSpiel(game=game, opponent=opponent, choices=True, turns=60)
        seats = set(family.seats)
        for split in ("train", "test"):
            env = family.make(family.tasks(split)[0])
            total = await play(env, lambda env, seen: CHANCE.choice(seen.choices))
            assert seats >= set(total) - {"success"}
            assert all(-1 <= total.get(seat, 0) <= 1 for seat in seats)


async def test_case_matters_only_where_it_must() -> None:
    """A pawn of the b-file in chess and a bishop are told apart by their capitals."""
    family = OpenSpiel(game="chess", opponent="self")
    env = family.make(family.tasks("train")[0])
    seen = await env.start()
    assert "You are the first of 2 players." in seen.system[0].text  # white, which is player 1 there
    step = await env.step(seen.agent, say("NF3"))
    assert "You are the second of 2 players." in step.observation.system[0].text
    current_seat = seen.agent
    for said, board in (("bxc6", "7k/8/2P5/3B4"), ("Bxc6", "7k/8/2B5/1P6")):
        env = family.make(family.tasks("train")[0])
        await env.start()
        env.game.state = load("chess").game.new_initial_state("7k/8/2p5/1P1B4/8/8/8/4K3 w - - 0 1")
        with pytest.raises(ActionError, match="not possible here"):
            await env.step(current_seat, say("BXC6"))
        step = await env.step(current_seat, say(said))
        assert step.observation.messages[0].text.startswith(board)


async def test_it_ends_unpaid_when_its_turns_are_over() -> None:
    family = OpenSpiel(game="chess", turns=6, choices=True)
    assert await play(family.make(family.tasks("train")[0]), lambda env, seen: seen.choices[0]) == {
        "agent": 0.0,
        "success": False,
    }


async def test_a_fork_meets_the_same_opponent() -> None:
    family = OpenSpiel(game="connect_four", choices=True)
    env = family.make(family.tasks("train")[4])
    await env.start()
    twin = await env.fork()
    one, other = (
        await env.step("agent", say(env.game.choices()[3])),
        await twin.step("agent", say(twin.game.choices()[3])),
    )
    assert one == other
    assert env.state_key() == twin.state_key()
    await twin.step("agent", say(twin.game.choices()[0]))
    assert env.state_key() != twin.state_key()


@pytest.mark.parametrize("said", ["", "x(9,9)", "x(0,0) x(0,1)", "0", "x" * 150])
async def test_what_is_no_move_is_refused(said) -> None:
    env = OpenSpiel().make(OpenSpiel().tasks("train")[0])
    await env.start()
    before = env.state_key()
    with pytest.raises(ActionError, match="not possible here"):
        await env.step("agent", say(said))
    assert env.state_key() == before


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"game": "snap"}, "is not among the"),
        ({"game": "hex(size=3)"}, "cannot be loaded"),
        ({"game": "mfg_garnet"}, "name another|cannot be loaded"),
        ({"game": "kuhn_poker", "opponent": "expert"}, "needs a zero-sum game of two players who see everything"),
        ({"opponent": "me"}, "must be one of random, expert, self"),
        ({"turns": 0}, "turns = 0, but it must be from 1"),
        ({"opponent": "expert", "opening": 2}, "is played from the first move.*but opening is 2"),
        ({"game": "chess", "tensor": True}, "an observation tensor of at most 1024 entries, but chess has 1280"),
    ],
)
def test_impossible_fields_are_refused(wrong, told) -> None:
    with pytest.raises(ConfigError, match=told):
        OpenSpiel(**wrong)


async def test_games_begin_after_random_moves_of_the_task() -> None:
    """Each number of moves from 0 to 4 begins about a fifth of 200 tasks, and every first move is met."""
    family = OpenSpiel(opponent="self", choices=True, told=False, opening=4)
    begun, first_marks = [], set()
    for task in family.tasks("train")[:200]:
        boards = [(await family.make(task).start()) for _ in range(2)]
        assert boards[0] == boards[1]
        board = boards[0].messages[-1].text
        marks = board.count("x") + board.count("o")
        assert boards[0].agent == f"player{marks % 2}"
        begun.append(marks)
        if marks == 1:
            first_marks.add(board)
    assert all(20 <= begun.count(number) <= 60 for number in range(5))
    assert len(begun) == sum(map(begun.count, range(5)))
    assert len(first_marks) == 9


async def test_games_that_end_in_their_opening_begin_anew() -> None:
    family = OpenSpiel(opponent="self", choices=True, opening=9)
    for task in family.tasks("train")[:100]:
        assert await family.make(task).start() is not None


async def test_a_tensor_is_shown_as_a_symbol_for_each_entry() -> None:
    """Tic-tac-toe has nine entries for cells that are empty, nine for an o, and nine for an x."""
    family = OpenSpiel(opponent="self", choices=True, told=False, tensor=True)
    env = family.make(family.tasks("train")[0])
    first = await env.start()
    assert first.messages[-1].text == "!\"#$%&'()"
    second = (await env.step("player0", say("x(0,0)"))).observation
    assert second is not None
    assert second.messages[-1].text == "\"#$%&'()="


def test_symbols_tell_entries_apart() -> None:
    assert symbols([0, 1, 0, 2.5]) == '"$2.5'
    large = [symbols([float(at == number) for at in range(1024)]) for number in range(1024)]
    assert len(set(large)) == 1024
    assert {len(one) for one in large} == {2}
