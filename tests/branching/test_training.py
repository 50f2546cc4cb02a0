"""What branched plays share is trained once, and otherwise as if each had been played by itself; records keep it so."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest
from forked import apart, trees
from hypothesis import given
from hypothesis import strategies as st
from made import group, trajectory

from sojourn.batch import Aggregate, to_batch
from sojourn.batch.flatten import flatten, gather, scatter
from sojourn.checks.synthetic import content
from sojourn.record.episodes.store import EpisodeStore
from sojourn.types import Branch, Credit, Group, Score

BY = ("token", "sequence", "turn", "constant", "seat")


def credits(of: Group) -> list[list[Credit]]:
    rng = np.random.default_rng(len(of.episodes))
    return [[Credit.per_turn(t, rng.normal(size=len(t.turns))) for t in of.trajectories]]


@given(tree=trees())
def test_every_sampled_token_is_trained_exactly_once(tree):
    batch, spans = flatten([tree])
    samples = {id(turn.sample): turn.sample for t in tree.trajectories for turn in t.turns}
    assert batch.weight.sum() == sum(len(sample.tokens) for sample in samples.values())
    assert len(spans) == sum(len(t.turns) for t in tree.trajectories)
    for span in spans:
        sample = tree.trajectories[span.trajectory].turns[span.turn].sample
        np.testing.assert_array_equal(batch.tokens[span.start : span.stop], sample.tokens)
        assert (batch.weight[span.start : span.stop] == 1).all()
        start = batch.offsets[batch.sequence[span.start]]
        np.testing.assert_array_equal(
            batch.tokens[start : span.start], tree.trajectories[span.trajectory].prompt(span.turn)
        )


@given(tree=trees(shared=0), by=st.sampled_from(BY))
def test_branches_that_share_nothing_are_separate_plays(tree, by):
    one, other = (to_batch([g], credits(tree), {}, aggregate=Aggregate(by=by)) for g in (tree, apart(tree)))
    assert content(one) == content(other)


@given(tree=trees(), by=st.sampled_from(BY))
def test_weights_sum_to_one(tree, by):
    batch = to_batch([tree], credits(tree), {}, aggregate=Aggregate(by=by, length=64))
    expected = np.mean([sum(len(turn.sample.tokens) for turn in t.turns) for t in tree.trajectories]) / 64
    assert batch.weight.sum() == pytest.approx(expected if by == "constant" else 1.0, abs=1e-5)


@given(tree=trees(), by=st.sampled_from(["sequence", "constant", "seat"]))
def test_where_every_play_counts_by_itself_a_shared_token_counts_for_all_that_share_it(tree, by):
    """For each sampled token, weight times advantage is what the plays have together when each is trained apart."""
    gained = []
    for one in (tree, apart(tree)):
        batch = to_batch([one], credits(tree), {}, aggregate=Aggregate(by=by))
        sums: dict[int, np.ndarray] = defaultdict(lambda: np.zeros(1))
        for span in {(s.start, s.stop): s for s in flatten([one])[1]}.values():
            sample = one.trajectories[span.trajectory].turns[span.turn].sample
            place = slice(span.start, span.stop)
            sums[id(sample)] = sums[id(sample)] + batch.weight[place] * batch.advantages[place]
        gained.append(sums)
    assert gained[0].keys() == gained[1].keys()
    for sample, sums in gained[0].items():
        np.testing.assert_allclose(sums, gained[1][sample], rtol=1e-4, atol=1e-7)


def test_a_shared_turn_by_hand():
    """Two plays of two turns and one of one turn share the first turn, whose advantages are 3, 0 and 6."""
    rng = np.random.default_rng(0)
    first, second = (trajectory(rng, turns=2) for _ in range(2))
    shared = first.turns[0]
    made = group([first, replace(second, turns=(shared, second.turns[1])), replace(second, turns=(shared,))])
    branched = [replace(e, branch=Branch(made.episodes[0].id, (1,))) for e in made.episodes[1:]]
    tree = replace(made, episodes=(made.episodes[0], *branched))
    credit = [
        [
            Credit.per_turn(t, [a] + [1.0] * (len(t.turns) - 1))
            for t, a in zip(tree.trajectories, (3, 0, 6), strict=True)
        ]
    ]
    sizes = [len(turn.sample.tokens) for turn in (shared, first.turns[1], second.turns[1])]
    by_token = to_batch([tree], credit, {}, aggregate=Aggregate(by="token"))
    place = next(span for span in flatten([tree])[1] if span.turn == 0)
    assert by_token.weight[place.start] == pytest.approx(1 / sum(sizes))
    assert by_token.advantages[place.start] == pytest.approx(3.0)
    by_play = to_batch([tree], credit, {}, aggregate=Aggregate(by="sequence"))
    parts = [1 / (3 * sum(sizes[:2])), 1 / (3 * (sizes[0] + sizes[2])), 1 / (3 * sizes[0])]
    assert by_play.weight[place.start] == pytest.approx(sum(parts))
    assert by_play.advantages[place.start] == pytest.approx((3 * parts[0] + 6 * parts[2]) / sum(parts))


@given(tree=trees())
def test_values_of_shared_turns_come_back_to_every_play(tree):
    batch, spans = flatten([tree])
    values = np.arange(len(batch), dtype=np.float32)
    by_turn = scatter([tree], values, spans)
    assert [len(turns) for turns in by_turn[0]] == [len(t.turns) for t in tree.trajectories]
    np.testing.assert_array_equal(gather(by_turn, spans, len(batch)), values * batch.weight)


def test_records_keep_what_is_shared(tmp_path):
    rng = np.random.default_rng(1)
    first, second = (trajectory(rng, turns=3) for _ in range(2))
    made = group([first, replace(second, turns=(*first.turns[:2], *second.turns))])
    branch = Branch(made.episodes[0].id, (2,), "a jump of entropy")
    tree = replace(made, episodes=(made.episodes[0], replace(made.episodes[1], branch=branch)))
    scores = [[Score(np.zeros(len(t.turns), dtype=np.float32)) for t in tree.trajectories]]
    with EpisodeStore(tmp_path, write=True) as store:
        store.append("rl", 0, [tree], scores, credits(tree))
        (read,) = store.records("rl")
    assert [e.branch for e in read.group.episodes] == [None, branch]
    assert read.group.holders == tree.holders == ((0, 0, 0), (0, 0, 1, 1, 1))
    assert content(flatten([read.group])[0]) == content(flatten([tree])[0])
