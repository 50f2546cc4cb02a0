"""Where the branching rules fork, by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from made import trajectory

from sojourn.branching.balanced_entropy import BalancedEntropy
from sojourn.branching.entropy import Entropy
from sojourn.branching.mistake import Mistake
from sojourn.branching.random_turns import RandomTurns
from sojourn.branching.rule import BranchPoint, Fork
from sojourn.branching.uncertain_turns import UncertainTurns
from sojourn.branching.uncertain_values import UncertainValues
from sojourn.branching.uniform import Uniform
from sojourn.types import Trajectory


def of(surprises: list[float]) -> Trajectory:
    """A trajectory whose turns have these negative log-probabilities at each token."""
    made = trajectory(np.random.default_rng(0), turns=len(surprises))
    turns = [
        replace(turn, sample=replace(turn.sample, logprobs=np.full(len(turn.sample.tokens), -s, np.float32)))
        for turn, s in zip(made.turns, surprises, strict=True)
    ]
    return replace(made, turns=tuple(turns))


def marked(states: str, **infos: list[int]) -> Trajectory:
    """A trajectory whose turns begin in these states; `infos` names the turns that have an info."""
    made = of([1.0] * len(states))
    turns = [
        replace(turn, state=state, info={name: 1.0 for name, numbers in infos.items() if number in numbers})
        for number, (turn, state) in enumerate(zip(made.turns, states, strict=True))
    ]
    return replace(made, turns=tuple(turns))


def point(one: Trajectory, *, over: bool = False, began: int = 0, forks: int = 0, seed: int = 0) -> BranchPoint:
    actors = ("agent",) * len(one.turns)
    return BranchPoint({"agent": one}, actors, over, began, forks, 7, np.random.default_rng(seed))


def test_uniform_forks_at_equal_distances_up_to_its_depth():
    rule = Uniform(every=2, width=3, depth=2)
    assert [len(rule(point(of([1.0] * n)))) for n in range(6)] == [0, 0, 1, 0, 1, 0]
    assert list(rule(point(of([1.0] * 4)))) == [Fork(4, 2, "every 2 turns")]
    assert rule(point(of([1.0] * 4), forks=2)) == ()
    assert rule(point(of([1.0] * 4), over=True)) == ()


def chance(rule: Entropy, surprises: list[float], **at: int) -> float:
    """How often, of 2,000 seeds, each of the branches begins before the last turn."""
    found = [fork for seed in range(2000) for fork in rule(point(of(surprises), seed=seed, **at))]
    assert {fork.turn for fork in found} <= {len(surprises) - 1}
    return sum(fork.count for fork in found) / 2000 / (rule.width - 1)


def test_entropy_forks_before_a_turn_that_begins_less_certain_than_the_first():
    rule = Entropy(width=3, probability=0.3, weight=0.2)
    assert chance(rule, [1.0, 9.0, 2.0]) == pytest.approx(0.3 + 0.2, abs=0.05)
    assert chance(rule, [2.0, 1.0]) == pytest.approx(0.3 - 0.2, abs=0.05)
    assert chance(rule, [4.0, 1.0]) == 0
    assert chance(rule, [0.0, 9.0]) == 1
    assert chance(rule, [9.0]) == 0
    assert chance(rule, [1.0, 9.0, 2.0], began=2) > 0
    assert chance(rule, [1.0, 9.0, 2.0], began=3) == 0


def test_entropy_with_a_penalty_spreads_its_forks():
    rule = Entropy(probability=0.5, weight=0.0, penalty=0.25)
    assert [chance(rule, [1.0, 1.0], forks=n) for n in (0, 1, 4)] == pytest.approx([0.5, 0.375, 0.0], abs=0.06)


def test_entropy_reads_the_first_tokens_of_a_turn():
    made = of([1.0, 1.0])
    last = made.turns[1].sample
    logprobs = np.array([-1.0] * 2 + [-50.0] * (len(last.tokens) - 2), np.float32)
    late = replace(made, turns=(made.turns[0], replace(made.turns[1], sample=replace(last, logprobs=logprobs))))
    assert len(logprobs) > 2
    assert not any(Entropy(probability=0.0, tokens=2)(point(late, seed=seed)) for seed in range(20))
    assert all(Entropy(probability=0.0, tokens=20)(point(late, seed=seed)) for seed in range(20))


@pytest.mark.parametrize(
    ("surprises", "starts"),
    [
        ([1.0, 2.0, 4.0], 3),  # 8 sigmoid(0.5 (1 - 3)) = 2.15
        ([2.0, 2.0, 2.0], 5),  # 8 sigmoid(0) = 4
        ([3.0, 1.0], 6),  # 8 sigmoid(1) = 5.85
        ([21.0, 1.0], 8),  # 8 sigmoid(10) = 7.9996
        ([1.0, 21.0], 2),  # 8 sigmoid(-10) = 0.0004, and one is the least beside the first
        ([1.0], 5),
    ],
)
def test_balanced_entropy_begins_more_plays_at_the_start_the_less_certain_that_was(surprises, starts):
    rule = BalancedEntropy(leaves=8)
    [fork] = rule.after_round(1, [point(of(surprises), over=True)])
    assert (fork.turn, fork.count, fork.play) == (0, starts - 1, 0)
    assert rule.after_round(2, [point(of(surprises), over=True)]) == ()


def test_balanced_entropy_forks_as_entropy_does_but_not_in_the_first_play():
    rule, same = BalancedEntropy(penalty=0.5, probability=0.8), Entropy(penalty=0.5, probability=0.8)
    for seed in range(20):
        assert rule(point(of([1.0, 1.5]), seed=seed)) == ()
        for forks in (0, 1):
            one = rule(point(of([1.0, 1.5]), forks=forks + 1, seed=seed))
            assert one == same(point(of([1.0, 1.5]), forks=forks, seed=seed))


@pytest.mark.parametrize(
    ("play", "fork"),
    [
        (marked("abcd", malformed=[2], error=[3]), (2, "before malformed")),
        (marked("abcd", error=[0]), (0, "before error")),
        (marked("abca"), (2, "before a way back")),  # the third action led back to a
        (marked("aab", malformed=[2]), (0, "before a way back")),
        (marked("abcd"), None),
        (marked("abcd", malformed=[1], success=[3]), None),
    ],
)
def test_mistake_forks_before_what_went_wrong_first(play, fork):
    rule = Mistake(width=3)
    expected = [] if fork is None else [Fork(fork[0], 2, fork[1])]
    assert list(rule(point(play, over=True))) == expected
    assert rule(point(play)) == ()
    assert rule(point(play, over=True, forks=1)) == ()


def test_mistake_of_a_branch_is_among_its_own_turns():
    play = marked("abcd", malformed=[0, 2])
    assert list(Mistake(depth=2)(point(play, over=True, began=1, forks=1))) == [Fork(2, 1, "before malformed")]


def test_random_turns_are_a_plays_own_and_not_the_first():
    rule = RandomTurns(count=3, depth=2)
    drawn = [fork for seed in range(50) for fork in rule(point(of([1.0] * 4), over=True, seed=seed))]
    assert {fork.turn for fork in drawn} == {1, 2, 3}
    assert sum(fork.count for fork in drawn) == 150
    assert {fork.turn for fork in rule(point(of([1.0] * 4), over=True, began=3, forks=1))} == {3}
    assert rule(point(of([1.0]), over=True)) == rule(point(of([1.0] * 4))) == ()
    assert rule(point(of([1.0] * 4), over=True, forks=2)) == ()


def test_uncertain_turns_are_the_least_certain_of_a_plays_own():
    """Of turns with 3, 1, 2, 0.5 and 2 nats a token, the first is another root; among equals the earlier one counts."""
    play = of([3.0, 1.0, 2.0, 0.5, 2.0])
    assert list(UncertainTurns(count=1)(point(play, over=True))) == [Fork(2, 1, "entropy 2.00 nats")]
    assert [fork.turn for fork in UncertainTurns(count=3)(point(play, over=True))] == [1, 2, 4]
    assert [fork.turn for fork in UncertainTurns(count=9)(point(play, over=True))] == [1, 2, 3, 4]
    branch = point(play, over=True, began=3, forks=1)
    assert [fork.turn for fork in UncertainTurns(count=1, depth=2)(branch)] == [4]
    assert UncertainTurns()(branch) == UncertainTurns()(point(play)) == ()
    assert list(UncertainTurns()(point(of([1.0]), over=True))) == []


def valued(values: list[float], rewards: list[float] | None = None, **at: int) -> BranchPoint:
    """A finished play of one seat before whose turns the critic expected these values."""
    made = of([1.0] * len(values))
    turns = [replace(turn, reward=r) for turn, r in zip(made.turns, rewards or [0.0] * len(values), strict=True)]
    return replace(point(replace(made, turns=tuple(turns)), over=True, **at), values=tuple(values))


def test_uncertain_values_are_those_nearest_to_one_half():
    """V (1 - V) of 0.5, 0.1, 0.4, 1.3 and 0.7: the first turn is another root, and 1.3 counts as 1, so as certain."""
    play = valued([0.5, 0.1, 0.4, 1.3, 0.7])
    assert list(UncertainValues(count=1)(play)) == [Fork(2, 1, "variance 0.24 of the value")]
    assert [fork.turn for fork in UncertainValues(count=9)(play)] == [1, 2, 4]
    assert UncertainValues()(valued([0.5, 0.5], forks=1)) == UncertainValues()(point(of([1.0, 1.0]))) == ()
    assert [fork.turn for fork in UncertainValues(depth=2)(valued([0.5] * 4, forks=1, began=3))] == [3]


def test_surprising_values_are_those_that_the_next_ones_contradict():
    """The temporal differences are 0.3, -0.4, 0.25 + 0.5 - 0.5 and 1 - 0.5."""
    play = valued([0.6, 0.9, 0.5, 0.5], [0.0, 0.0, 0.25, 1.0])
    assert list(UncertainValues(count=1, measure="surprise")(play)) == [Fork(3, 1, "surprise 0.5 of the value")]
    assert [fork.turn for fork in UncertainValues(count=2, measure="surprise")(play)] == [1, 3]


def test_surprising_values_are_those_of_one_seat():
    """A takes turns 0 and 2, B turns 1 and 3; each seat's value is followed by its own next one."""
    first, second = (replace(of([1.0, 1.0]), agent=name) for name in "AB")
    play = BranchPoint(
        {"A": first, "B": second}, tuple("ABAB"), True, 0, 0, 7, np.random.default_rng(0), values=(0.5, 0.2, 0.5, 0.9)
    )
    found = UncertainValues(count=9, measure="surprise")(play)
    assert {fork.turn: fork.reason.split()[1] for fork in found} == {1: "0.7", 2: "0.5", 3: "0.9"}
