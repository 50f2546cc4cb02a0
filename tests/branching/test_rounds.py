"""Rules that look at all plays of a group fork them in rounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from walks import Dice, ForgetfulWalk, Walk, Walks, play, played

from sojourn.branching.rule import BranchPoint, Fork
from sojourn.errors import ConfigError

STEPS = Dice(("left", "right"))  # every play has six turns


@dataclass(frozen=True)
class Rounds:
    """Forks as `after` says, and within plays as `during` says."""

    after: Callable[[int, Sequence[BranchPoint]], list[Fork]]
    leaves: int = 8
    during: Callable[[BranchPoint], list[Fork]] = lambda point: []
    tree_tokens: int = 0
    tree_turns: int = 0
    told: list[tuple[int, list[BranchPoint]]] = field(default_factory=list)

    def __call__(self, point: BranchPoint) -> list[Fork]:
        return self.during(point)

    def after_round(self, number: int, plays: Sequence[BranchPoint]) -> list[Fork]:
        self.told.append((number, list(plays)))
        return self.after(number, plays)


def names(group: Any) -> list[tuple[str, str | None, int]]:
    """The path of each play, that of the one which it left, and before which turn."""
    path = {e.id: e.id.split("/")[-1].split("-")[0] for e in group.episodes}
    return [
        (path[e.id], path[e.branch.of], e.branch.turns[0]) if e.branch else (path[e.id], None, 0)
        for e in group.episodes
    ]


def two_rounds(number: int, plays: Sequence[BranchPoint]) -> list[Fork]:
    if number == 1:
        return [Fork(4, 1, "late", play=1), Fork(2, 2, "early", play=0)]
    return [Fork(3, 1, "again", play=2)] if number == 2 else []


def test_plays_fork_in_rounds_before_any_of_their_turns():
    """Play 2 of the second round is the second branch of the first play, as plays come before their branches."""
    rule = Rounds(two_rounds)
    group = play(Walks(), rule, dice=STEPS)
    assert names(group) == [
        ("0", None, 0), ("0.0", "0", 2), ("0.1", "0", 2), ("0.1.0", "0.1", 3),
        ("1", None, 0), ("1.0", "1", 4),
    ]  # fmt: skip
    assert [e.branch.reason for e in group.episodes if e.branch] == ["early", "early", "again", "late"]
    by_path = {name: e.trajectories[0].turns for (name, *_), e in zip(names(group), group.episodes, strict=True)}
    for name, of, turn in names(group):
        shared = [a.sample is b.sample for a, b in zip(by_path[name], by_path[of or name], strict=True)]
        assert of is None or shared == [n < turn for n in range(6)]
    assert all(e.error is None for e in group.episodes)


def test_what_a_rule_is_told_after_a_round():
    rule = Rounds(two_rounds)
    group = play(Walks(), rule, dice=STEPS)
    assert [(number, len(plays)) for number, plays in rule.told] == [(1, 2), (2, 5), (3, 6)]
    assert [(p.began, p.forks, p.room) for p in rule.told[1][1]] == [
        (0, 0, 5),
        (2, 1, 5),
        (2, 1, 5),
        (0, 0, 6),
        (4, 1, 6),
    ]
    assert [(p.began, p.forks, p.room) for p in rule.told[2][1]][3] == (3, 2, 4)
    for point, episode in zip(rule.told[-1][1], group.episodes, strict=True):
        assert point.over
        assert [turn.message for turn in point.turns()] == [turn.message for turn in episode.trajectories[0].turns]
        assert point.success == episode.trajectories[0].success
    drawn = [p.rng.random() for _, plays in rule.told for p in plays]
    assert len(set(drawn)) == len(drawn)


def test_rounds_do_not_depend_on_which_play_is_faster():
    def by_chance(number: int, plays: Sequence[BranchPoint]) -> list[Fork]:
        return [Fork(int(p.rng.integers(p.began, 6)), 1, "", n) for n, p in enumerate(plays) if p.rng.random() < 0.5]

    fast, slow = (play(Walks(slow=s), Rounds(by_chance), size=3, dice=STEPS) for s in (0.0, 0.002))
    assert played(fast) == played(slow)
    assert len(fast.episodes) > 3


def test_what_has_no_room_does_not_begin():
    rule = Rounds(lambda number, plays: [Fork(3, 9, "", play=n) for n in range(len(plays))], leaves=4)
    group = play(Walks(), rule, dice=STEPS)
    assert [name for name, *_ in names(group)] == ["0", "0.0", "0.1", "0.2", "1", "1.0", "1.1", "1.2"]
    assert [number for number, _ in rule.told] == [1, 2]


def test_a_round_has_the_room_that_plays_did_not_use():
    """Of five further plays, the first fork takes one and leaves two to each side, of which the branch forks once more.
    So three are left for the round, whose branch has two of them to fork with."""

    def during(point: BranchPoint) -> list[Fork]:
        return [] if point.over or point.turn != point.began + 2 else [Fork(point.turn, 1, "in play")]

    rule = Rounds(lambda number, plays: [Fork(1, 1, "round")] if number == 1 else [], 6, during)
    group = play(Walks(), rule, size=1, dice=STEPS)
    assert names(group) == [
        ("0", None, 0), ("0.0", "0", 2), ("0.0.0", "0.0", 4),
        ("0.1", "0", 1), ("0.1.0", "0.1", 3),
    ]  # fmt: skip


def test_a_branch_of_a_round_that_fails_does_so_alone_and_is_not_shown():
    rule = Rounds(lambda number, plays: [Fork(2, 1, "")] if number < 3 else [])
    group = play(Walks(ForgetfulWalk), rule, size=2, dice=STEPS)
    assert [e.error is None for e in group.episodes] == [True, False, False, True]
    assert [len(plays) for _, plays in rule.told] == [2, 2, 2]
    assert [p.room for p in rule.told[-1][1]] == [5, 7]


def test_an_attempt_that_is_repeated_is_shown_once():
    class BreaksOnce(Walk):
        async def step(self, agent, action):
            if len(self.way) == 4 and not self.family.shown:
                self.family.shown += 1
                raise OSError("the server restarted")
            return await super().step(agent, action)

    def once(number: int, plays: Sequence[BranchPoint]) -> list[Fork]:
        return [Fork(5, 1, "")] if number == 1 else []

    broken, whole = (play(Walks(kind), Rounds(once), size=1, dice=STEPS, retries=1) for kind in (BreaksOnce, Walk))
    assert played(broken) == played(whole)


@pytest.mark.parametrize(
    ("fork", "words"),
    [(Fork(1, 1, "", play=2), "forks play 2 of those"), (Fork(6, 1, ""), "forks before turn 6 of a play")],
)
def test_a_fork_of_no_play_is_refused(fork, words):
    family = Walks()
    with pytest.raises((ConfigError, ExceptionGroup)) as caught:
        play(family, Rounds(lambda number, plays: [fork]), dice=STEPS)
    found = caught.value.exceptions if isinstance(caught.value, ExceptionGroup) else [caught.value]
    assert any(isinstance(error, ConfigError) and words in str(error) for error in found)
    assert family.open == 0


def forked(budget: dict[str, int], rule: Any, **options: Any) -> int:
    """How many branches there are."""
    return len(play(Walks(), replace(rule, **budget), size=1, dice=STEPS, **options).episodes) - 1


@pytest.mark.parametrize(("turns", "branches"), [(6, 0), (7, 1), (10, 1), (11, 2), (15, 3), (18, 3), (19, 4), (0, 7)])
def test_rounds_end_when_the_turns_of_a_tree_are_spent(turns, branches):
    """The root has six turns, each branch four more; of three that a round wants, those begin for which some is left
    if the ones before cost four."""
    rule = Rounds(lambda number, plays: [Fork(2, 3, "")])
    assert forked({"tree_turns": turns}, rule) == branches


def test_rounds_end_when_the_tokens_of_a_tree_are_spent():
    """The same with tokens: as many as the root and one branch have, and one more."""
    rule = Rounds(lambda number, plays: [Fork(2, 1, "")])
    root, branch = play(Walks(), replace(rule, leaves=2), size=1, dice=STEPS).episodes
    sizes = [[len(turn.sample.tokens) for turn in e.trajectories[0].turns] for e in (root, branch)]
    total = sum(sizes[0]) + sum(sizes[1][2:])
    assert [forked({"tree_tokens": total + more}, rule) for more in (0, 1)] == [1, 2]
    assert [forked({"tree_tokens": sum(sizes[0]) + more}, rule) for more in (0, 1)] == [0, 1]


@pytest.mark.parametrize(
    ("turns", "branches"), [(1, 0), (2, 1), (3, 1), (4, 3), (7, 3), (8, 7), (15, 7), (16, 15), (0, 15)]
)
def test_the_sides_of_a_fork_divide_what_turns_are_left(turns, branches):
    """Plays fork in two before turns 1, 2, 3 and 4. Of eight turns, seven are left at the first fork, three and a half
    for each side, which have two and a half left at the second; one and a quarter for each of four, which have a
    quarter left at the third; an eighth for each of eight, which have nothing left at the fourth."""

    def during(point: BranchPoint) -> list[Fork]:
        return [Fork(point.turn, 1, "")] if point.turn in (1, 2, 3, 4) and not point.over else []

    assert forked({"tree_turns": turns}, Rounds(lambda number, plays: [], 16, during)) == branches
