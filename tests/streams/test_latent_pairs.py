"""Latent strategies, regrets of a game that recorded plays show, and the pairs that are made of them."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import product
from typing import Any, cast

import numpy as np
import pytest
from cases import line, of_episodes, paid

from sojourn.errors import ConfigError
from sojourn.streams.abstract_game import MOST_CHOICES, AbstractGame, Choice, Place
from sojourn.streams.latent_pairs import LatentPairs, _choices, _said
from sojourn.streams.latent_strategies import strategies
from sojourn.streams.trainer_passes import TrainerPasses
from sojourn.types import Trajectory


def test_texts_with_the_same_words_have_the_same_strategy():
    texts = [
        "I am the seer.",
        "The seer, I am!",
        "Bob is a wolf",
        "bob is the wolf",
        "Let us wait.",
        "Let us all wait.",
    ]
    found = strategies(texts, 3)
    assert [found[text] for text in texts[::2]] == [found[text] for text in texts[1::2]]
    assert set(found.values()) == {0, 1, 2}
    random.Random(0).shuffle(texts)
    assert strategies(texts + texts, 3) == found
    assert strategies(["b", "a"], 2) == {"a": 0, "b": 1}
    assert set(strategies(["", "?!", "word"], 2).values()) == {0, 1}


def test_one_simultaneous_move_has_the_equilibrium_of_the_matrix():
    """Rock, paper and scissors in which the payoffs are biased: an equilibrium of 1/16, 10/16, 5/16 for both."""
    payoffs = np.array([[0, -25, 50], [25, 0, -5], [-50, 5, 0]])
    start = Place()
    for row, column in product(range(3), repeat=2):
        paid = float(payoffs[row, column])
        start.add([Choice("row", "", row), Choice("column", "", column)], {"row": paid, "column": -paid})
    game = AbstractGame([start])
    game.solve(4000)
    for seat in ("row", "column"):
        policy = game.average_policy(seat, "")
        assert [policy[n] for n in range(3)] == pytest.approx([1 / 16, 10 / 16, 5 / 16], abs=0.02)


def kuhn_poker() -> list[Place]:
    """All plays of all deals: 0 is to pass, 1 to bet; a player knows its card and what was done."""
    deals = []
    for first, second in ((a, b) for a, b in product(range(3), repeat=2) if a != b):
        deals.append(Place())
        for done in ([0, 0], [0, 1, 0], [0, 1, 1], [1, 0], [1, 1]):
            won = 1 if first > second else -1
            gain = {(0, 0): won, (0, 1, 0): -1, (1, 0): 1}.get(tuple(done), 2 * won)
            cards = (first, second)
            choices = [Choice("ab"[n % 2], (cards[n % 2], *done[:n]), one) for n, one in enumerate(done)]
            deals[-1].add(choices, {"a": float(gain), "b": -float(gain)})
    return deals


def test_hidden_cards_have_the_equilibrium_of_kuhn_poker():
    """The second player's is unique: the lowest card bluffs, and the middle one calls, a third of the time; the first
    never bets the middle card, and the highest three times as often as the lowest."""
    game = AbstractGame(kuhn_poker())
    game.solve(3000)
    second = {known: game.average_policy("b", known)[1] for known in product(range(3), range(2))}
    expected = {(0, 0): 1 / 3, (0, 1): 0, (1, 0): 0, (1, 1): 1 / 3, (2, 0): 1, (2, 1): 1}
    assert second == pytest.approx(expected, abs=0.03)
    bets = [game.average_policy("a", (card,))[1] for card in range(3)]
    assert bets[1] < 0.03
    assert bets[2] == pytest.approx(3 * bets[0], abs=0.06)
    calls = [game.average_policy("a", (card, 0, 1))[1] for card in range(3)]
    assert calls == pytest.approx([0, bets[0] + 1 / 3, 1], abs=0.03)
    assert game.advantage("b", (0, 1), 1) == pytest.approx(-1, abs=0.01)  # to call with the lowest card loses 2, not 1
    assert game.advantage("b", (0, 0), 1) == pytest.approx(0, abs=0.01)


def test_a_long_play_is_solved_or_refused():
    start = Place()
    start.add([Choice("ab"[n % 2], n, 0) for n in range(MOST_CHOICES)], {"a": 1.0})
    game = AbstractGame([start])
    game.solve(2)
    assert game.advantage("a", 0, 0) == 0.0
    with pytest.raises(ConfigError, match="a play of 251 turns, of all seats together, is too long"):
        start.add([Choice("a", n, 0) for n in range(MOST_CHOICES + 1)], {"a": 1.0})


def test_how_often_plays_went_somewhere_is_chance():
    """After strategy 0, two plays of three win; after 1 one of two: the mean of both is what a uniform policy gets."""
    start = Place()
    for strategy, gain in ((0, 1), (0, 1), (0, 0), (1, 1), (1, 0)):
        start.add([Choice("agent", "", strategy)], {"agent": float(gain)})
    game = AbstractGame([start])
    game.solve(1)
    assert game.advantage("agent", "", 0) == pytest.approx(2 / 3 - (2 / 3 + 1 / 2) / 2)


def told(first: str, second: str, gain: float):
    """One speaks, and the other answers what it heard; both are paid at the end."""
    speaker = line(first, observed=["You speak."], agent="speaker")
    hearer = line(second, observed=[f"It says: {first}"], agent="hearer")
    return [_moved(speaker, 0), _moved(hearer, 1)], [gain, -gain]


def _moved(trajectory: Trajectory, number: int) -> Trajectory:
    [turn] = trajectory.turns
    return replace(trajectory, turns=(replace(turn, info={"move": float(number)}),))


def played():
    """To be kind pays the speaker 1 if it is believed, and to be rude -1 whatever comes; the hearer loses as much."""
    plays = [
        told("You are kind and good.", "I believe you", 1.0),
        told("Good and kind you are!", "You lie", -0.5),
        told("Rude words, rude words.", "I believe you", -1.0),
        told("Words that are rude", "You lie", -1.0),
    ]
    return of_episodes([seats for seats, _ in plays]), paid(*([gain] for _, gains in plays for gain in gains))


def test_the_turn_of_the_better_strategy_is_preferred():
    group, scores = played()
    found = LatentPairs(strategies=2, margin=0.0).pairs([group], [scores])
    speakers = [(better.trajectory, worse.trajectory) for better, worse in found if better.trajectory % 2 == 0]
    hearers = [(better.trajectory, worse.trajectory) for better, worse in found if better.trajectory % 2 == 1]
    assert speakers == [(0, 6), (2, 4)]  # both kind ones, each with a rude one
    assert hearers == [(3, 1)]  # after kind words alone it matters what it says; they are one information set
    assert not LatentPairs(strategies=2, margin=9.0).pairs([group], [scores])
    limited = LatentPairs(strategies=2, margin=0.0, max_pairs=1).pairs([group], [scores])
    assert [better.trajectory for better, _ in limited if better.trajectory % 2 == 0] == [0]


def information(*turns: tuple[str, str, str]) -> list[tuple[Any, ...]]:
    """Returns what each of the turns of a play knew, which are a seat, what it was shown and what it said."""
    trajectories = [_moved(line(said, observed=[shown], agent=seat), n) for n, (seat, shown, said) in enumerate(turns)]
    [group] = [of_episodes([trajectories])]
    said = _said(group.episodes[0])
    return [one.known for one in _choices(said, {(one.seat, one.number): {one.text: 0} for one in said})]


def test_what_was_said_in_secret_is_not_found_in_rules_and_names():
    found = information(
        ("seer", "Whom do you look at?", "bob"),
        ("ann", "You are ann, among ann, bob and cid. To name bob, say bob.", "I am good"),
        ("cid", "ann: I am good\nWhom do you accuse, bob or ann?", "bob"),
        ("bob", "ann: I am good\ncid: bob", "No"),
    )
    assert [known[-1] for known in found] == [
        "Whom do you look at?",
        "You are ann, among ann, bob and cid. To name bob, say bob.",
        "ann: <ann 0: 0>\nWhom do you accuse, bob or ann?",
        "ann: <ann 0: 0>\ncid: <cid 0: 0>",
    ]


def test_what_two_say_is_told_by_the_strategies_of_each():
    """Also where both say the same, or one what is a part of the other's words."""
    for first, second in (("yes", "yes"), ("yes", "Well: yes"), ("1", "0")):
        shown = f"Round 1.\nPlayer A says: {first}\nPlayer B says: '{second}'"
        found = information(("A", "Speak.", first), ("B", "Speak.", second), ("C", shown, "no"))
        assert found[2][-1] == "Round 1.\nPlayer A says: <A 0: 0>\nPlayer B says: <B 0: 0>"


async def test_a_turn_has_the_number_of_its_pair():
    group, scores = played()
    [found] = await LatentPairs(strategies=2, margin=0.0)(TrainerPasses([group], [scores], cast(Any, None)))
    numbers = [int(turns[0][0]) for turns in found]
    assert sorted(numbers) == [-3, -2, -1, 0, 0, 1, 2, 3]
    assert numbers[0] == -numbers[6] > 0
    assert numbers[3] == -numbers[1] > 0


def test_a_policy_counts_in_the_mean_as_often_as_it_leads_there():
    """A player goes on with 1, or stops; then it chooses. In the first iteration it goes on half the time, and from the
    second on always, when it has found the better choice too: 1/2 by 1/2 and 1 by 1, over 3/2."""
    start = Place()
    for choices, gain in (([0], 0.0), ([1, 0], 1.0), ([1, 1], 2.0)):
        start.add([Choice("agent", n, one) for n, one in enumerate(choices)], {"agent": gain})
    game = AbstractGame([start])
    game.solve(2)
    assert game.average_policy("agent", 1)[1] == pytest.approx((1 / 2 * 1 / 2 + 1) / (3 / 2))
