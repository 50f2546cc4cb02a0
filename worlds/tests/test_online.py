"""Online learning: its streams of losses, its regret, and what it promises."""

from __future__ import annotations

import random

import pytest

from sojourn.checks.env import check_env
from sojourn.errors import ActionError, ConfigError
from sojourn.types import Message, Role
from sojourn_worlds.online import STREAMS, Online, Stream


def say(text: str) -> Message:
    return Message(Role.ASSISTANT, text)


def game_of(index: int = 0, **fields) -> Stream:
    family = Online(**fields)
    return family.make(family.tasks("train")[index]).game


def played(game: Stream, policy) -> float:
    while game.current_seat:
        paid = game.act(policy(game))
    return paid["agent"]


def leader(game: Stream) -> str:
    """Whoever has lost least so far."""
    totals = [sum(losses[expert] for losses in game.losses_so_far) for expert in range(len(game.names))]
    return game.names[totals.index(min(totals))]


def last_winner(game: Stream) -> str:
    return (
        game.names[game.losses_so_far[-1].index(min(game.losses_so_far[-1]))] if game.losses_so_far else game.names[0]
    )


@pytest.mark.parametrize("fields", [{"choices": True}, {}, {"feedback": "bandit", "mixed": True}])
async def test_it_keeps_its_promises(fields) -> None:
    report = await check_env(Online(**fields))
    assert report.passed, report.failed


@pytest.mark.parametrize("losses", STREAMS)
async def test_the_expert_has_no_regret_and_chance_has(losses) -> None:
    family, rng, chance = Online(losses=losses), random.Random(0), []
    for split in ("train", "test"):
        for task in family.tasks(split)[:40]:
            assert played(family.make(task).game, lambda game: game.expert()) == 1.0
            game = family.make(task).game
            chance.append(played(game, lambda game: rng.choice(game.names)))
            assert game.success() == (chance[-1] >= 0.85)
    assert sum(chance) / len(chance) < (0.92 if losses == "adaptive" else 0.8)


@pytest.mark.parametrize("losses", STREAMS)
def test_following_the_worst_earns_nothing(losses) -> None:
    def worst(game: Stream) -> str:
        if losses == "adaptive":
            return game.names[0]
        return game.names[game.table[len(game.weights)].index(max(game.table[len(game.weights)]))]

    assert played(game_of(losses=losses), worst) == pytest.approx(0)


def test_the_leader_serves_where_losses_are_steady_and_fails_where_they_adapt() -> None:
    assert min(played(game_of(index, losses="steady"), leader) for index in range(40)) > 0.85
    for index in range(40):
        assert played(game_of(index, losses="alternating"), last_winner) < 0.3
    adaptive = [played(game_of(index, losses="adaptive", experts=2), leader) for index in range(3)]
    assert max(adaptive) < 0.85


def test_regret_is_reckoned_against_the_best_single_expert() -> None:
    game = game_of(losses="steady", experts=2, rounds=4)
    own, columns = 0.0, [0.0, 0.0]
    for number, name in enumerate(("ann", "bob", "bob", "ann")):
        losses = game.table[number]
        own += losses[game.names.index(name)]
        columns = [total + loss for total, loss in zip(columns, losses, strict=True)]
        paid = game.act(name)
        assert game.info() == pytest.approx({"regret": own - min(columns), "loss": own})
    most = sum(max(losses) for losses in game.table) - min(columns)
    assert paid["agent"] == pytest.approx(min(1.0, max(0.0, 1 - (own - min(columns)) / most)))


def test_states_are_told_apart_by_all_weights_in_a_few_letters() -> None:
    """However many rounds were played."""
    keys = set()
    for last in ("ann", "bob"):
        game = game_of(losses="steady", experts=2, rounds=300)
        for name in ["bob"] * 100 + [last] + ["ann"] * 100:
            game.act(name)
            keys.add(game.state_key())
    assert len(keys) == 100 + 2 * 101
    assert max(map(len, keys)) < 50


def test_what_adapts_punishes_the_last_choice_alone() -> None:
    game = game_of(losses="adaptive")
    for name in ("ann", "ann", "bob", "cid"):
        game.act(name)
    assert game.losses_so_far == [(0, 0, 0), (1, 0, 0), (1, 0, 0), (0, 1, 0)]
    assert game.loss == 1.0


def test_the_expert_makes_up_for_a_bad_start() -> None:
    """It follows the best expert of every round, where the best single one no longer suffices."""
    better = 0
    for index in range(30):
        game = game_of(index, losses="alternating", rounds=30)
        for _ in range(6):
            game.act(game.names[game.table[len(game.weights)].index(max(game.table[len(game.weights)]))])
        assert game.regret > 1.5
        better += played(game, lambda game: game.expert()) == 1.0
    assert better == 30


def test_trust_can_be_split() -> None:
    game = game_of(losses="steady", mixed=True)
    game.act("Ann 0.5, cid: .5")
    assert game.weights == [(0.5, 0.0, 0.5)]
    assert game.loss == pytest.approx((game.table[0][0] + game.table[0][2]) / 2)
    game.act("bob")
    assert game.weights[1] == (0.0, 1.0, 0.0)
    for wrong in (
        "ann 0.5",
        "ann 0.5, ann 0.5, bob 0.5",
        "ann 2, bob -1",
        "ann 0.5, eve 0.5",
        "ann nan",
        "ann 0.9e1",
        "",
    ):
        with pytest.raises(ActionError):
            game.act(wrong)
    assert len(game.weights) == 2
    with pytest.raises(ActionError):
        game_of(losses="steady").act("ann 0.5, bob 0.5")


def test_feedback_tells_all_losses_or_ones_own() -> None:
    full, own = game_of(losses="steady"), game_of(losses="steady", feedback="bandit")
    for game in (full, own):
        game.act("bob")
    assert full.observe("agent").count(" 0.") == 3
    assert own.observe("agent") == f"You lost {own.table[0][1]:.2f}. Round 2 of 20."


def test_every_kind_of_stream_comes_up() -> None:
    assert {game_of(index).kind for index in range(60)} == set(STREAMS)


@pytest.mark.parametrize("wrong", [{"experts": 1}, {"rounds": 3}, {"experts": 9}, {"threshold": -1}])
def test_impossible_fields_are_refused(wrong) -> None:
    with pytest.raises(ConfigError, match=f"online: {next(iter(wrong))} = .* must be from"):
        Online(**wrong)


async def test_hostile_words_change_nothing() -> None:
    env = Online(mixed=True).make(Online(mixed=True).tasks("train")[0])
    await env.start()
    for said in ("ann " * 100, "ann 1.0," * 20, "\u0661", "ann \u0661"):
        before = env.state_key()
        with pytest.raises(ActionError):
            await env.step("agent", say(said))
        assert env.state_key() == before
