"""Engine tokens are trained tokens, each exactly once, forks and new windows included; weights sum to one."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made import group, score, trajectory

from sojourn.batch import Aggregate, to_batch
from sojourn.batch.flatten import flatten, gather, paths, scatter
from sojourn.credit.rloo import RLOO
from sojourn.types import Branch, Credit, Episode, Trajectory


@st.composite
def forests(draw):
    """Any forest of up to 7 turns: lines, forks, several windows."""
    count = draw(st.integers(1, 7))
    parents = [draw(st.integers(-1, n - 1)) for n in range(count)]
    return trajectory(np.random.default_rng(draw(st.integers(0, 99))), parents=parents)


@given(made=st.lists(forests(), min_size=1, max_size=4))
def test_every_sampled_token_is_trained_exactly_once(made: list[Trajectory]):
    batch, places = flatten([group(made)])
    trained = sorted((p.trajectory, p.turn) for p in places)
    assert trained == [(t, n) for t, one in enumerate(made) for n in range(len(one.turns))]
    assert batch.weight.sum() == sum(len(turn.sample.tokens) for one in made for turn in one.turns)
    for place in places:
        turn = made[place.trajectory].turns[place.turn]
        span = slice(place.start, place.stop)
        np.testing.assert_array_equal(batch.tokens[span], turn.sample.tokens)
        np.testing.assert_array_equal(batch.logprobs[span], turn.sample.logprobs)
        assert (batch.weight[span] == 1).all()


@given(made=st.lists(forests(), min_size=1, max_size=4))
def test_what_precedes_a_trained_token_is_the_prompt_that_the_engine_saw(made: list[Trajectory]):
    batch, places = flatten([group(made)])
    for place in places:
        start = batch.offsets[batch.sequence[place.start]]
        np.testing.assert_array_equal(batch.tokens[start : place.start], made[place.trajectory].prompt(place.turn))


@given(made=st.lists(forests(), min_size=1, max_size=4), by=st.sampled_from(["token", "sequence", "turn", "seat"]))
def test_weights_sum_to_one(made, by):
    credit = [[Credit.uniform(t, 1.0) for t in made]]
    batch = to_batch([group(made)], credit, {}, aggregate=Aggregate(by=by))
    assert batch.weight.sum() == pytest.approx(1.0, abs=1e-5)


def test_weights_by_hand():
    rng = np.random.default_rng(0)
    made = [trajectory(rng, turns=1), trajectory(rng, turns=3)]
    tokens = [[len(turn.sample.tokens) for turn in t.turns] for t in made]
    whole, second = sum(map(sum, tokens)), sum(tokens[1])
    turn = tokens[1][1]
    expected = {"token": 1 / whole, "sequence": 1 / (2 * second), "turn": 1 / (4 * turn), "constant": 1 / (2 * 64)}
    for by, weight in expected.items():
        batch = to_batch(
            [group(made)], [[Credit.uniform(t, 1.0) for t in made]], {}, aggregate=Aggregate(by=by, length=64)
        )
        _, places = flatten([group(made)])
        place = next(p for p in places if (p.trajectory, p.turn) == (1, 1))
        assert batch.weight[place.start] == pytest.approx(weight)


@given(made=st.lists(forests(), min_size=2, max_size=5), count=st.integers(2, 3))
def test_minibatches_hold_every_token_once_at_the_same_total_weight(made, count):
    credit = [[Credit.uniform(t, 1.0) for t in made]]
    batch = to_batch([group(made)], credit, {}, aggregate=Aggregate())
    parts = list(batch.minibatches(count))
    assert sorted(np.concatenate([p.tokens[p.weight > 0] for p in parts])) == sorted(batch.tokens[batch.weight > 0])
    for part in parts:
        assert not len(part) or part.weight.sum() == pytest.approx(batch.weight.sum(), rel=1e-4)


@given(made=st.lists(forests(), min_size=2, max_size=5), count=st.integers(2, 7))
def test_a_constant_weighs_the_tokens_of_a_minibatch_by_no_sampled_length(made, count):
    """The weight of a token is 1 / `length` of a trajectory of its minibatch, as in Dr. GRPO."""
    credit = [[Credit.uniform(t, 1.0) for t in made]]
    batch = to_batch([group(made)], credit, {}, aggregate=Aggregate(by="constant", length=64))
    parts = list(batch.minibatches(count, constant=True))
    for part in parts:
        trajectories = len(np.unique(part.trajectory))
        np.testing.assert_allclose(part.weight[part.weight > 0], 1 / (64 * max(trajectories, 1)), rtol=1e-5)
    assert sum((part.weight > 0).sum() for part in parts) == (batch.weight > 0).sum()


@pytest.mark.parametrize("count", [1, 3])
def test_there_are_as_many_minibatches_as_are_asked_for(count):
    """So that a step makes as many updates, and the learning rate's schedule goes on alike, with little or nothing."""
    one = trajectory(np.random.default_rng(0))
    for made in ([], [group([one])]):
        batch = to_batch(
            made, [[Credit.uniform(t, 1.0) for t in g.trajectories] for g in made], {}, aggregate=Aggregate()
        )
        for constant in (False, True):
            assert sum(len(part) for part in batch.minibatches(count, constant=constant)) == len(batch)
            assert len(list(batch.minibatches(count, constant=constant))) == count


def test_a_trajectory_without_targets_leaves_those_of_the_others_where_they_are():
    rng = np.random.default_rng(0)
    made = [trajectory(rng), trajectory(rng)]
    targets = tuple(np.full(len(turn.sample.tokens), 2.0, dtype=np.float32) for turn in made[1].turns)
    credit = [[Credit.uniform(made[0], 1.0), Credit(Credit.uniform(made[1], 1.0).tokens, targets)]]
    batch = to_batch([group(made)], credit, {}, aggregate=Aggregate())
    trained, first = batch.weight > 0, batch.trajectory == 0
    assert np.isnan(batch.streams["targets"][trained & first]).all()
    assert (batch.streams["targets"][trained & ~first] == 2).all()


def test_a_turn_that_plays_share_has_the_targets_of_those_that_have_one():
    rng = np.random.default_rng(0)
    whole = trajectory(rng)
    other = replace(whole, turns=(whole.turns[0], *trajectory(rng).turns[1:]))
    made = group([whole, other])
    branched = Episode("b", made.task, (other,), branch=Branch("a", (1,)))
    made = replace(made, episodes=(Episode("a", made.task, (whole,)), branched))
    sizes = [[len(turn.sample.tokens) for turn in t.turns] for t in (whole, other)]
    targets = [tuple(np.full(n, v, dtype=np.float32) for n in ns) for ns, v in zip(sizes, (1.0, np.nan), strict=True)]
    credit = [Credit(Credit.uniform(t, 1.0).tokens, of) for t, of in zip((whole, other), targets, strict=True)]
    batch = to_batch([made], [credit], {}, aggregate=Aggregate())
    trained = batch.weight > 0
    assert int((batch.streams["targets"][trained] == 1).sum()) == sum(sizes[0])  # with the shared turn
    assert int(np.isnan(batch.streams["targets"][trained]).sum()) == sum(sizes[1][1:])


def test_gather_and_scatter_are_inverse():
    rng = np.random.default_rng(0)
    made = [group([trajectory(rng, parents=[-1, 0, 0, -1, 3]), trajectory(rng)], slot) for slot in range(2)]
    batch, places = flatten(made)
    values = rng.normal(size=len(batch)).astype(np.float32)
    given_back = gather(scatter(made, values, places), places, len(batch))
    np.testing.assert_array_equal(given_back, np.where(batch.weight > 0, values, 0))


def test_paths_of_a_forest():
    rng = np.random.default_rng(0)
    assert paths(trajectory(rng, parents=[-1, 0, 0, -1, 3])) == [[0, 1], [0, 2], [3, 4]]


def test_an_episode_with_an_error_is_not_trained_on():
    rng = np.random.default_rng(0)
    from dataclasses import replace

    made = group([trajectory(rng), trajectory(rng)])
    broken = replace(made, episodes=(made.episodes[0], replace(made.episodes[1], error="the browser died")))
    assert len(broken.trajectories) == 1
    credit = RLOO()([broken], [[score(broken.trajectories[0], 1.0)]], {})
    batch = to_batch([broken], credit, {}, aggregate=Aggregate())
    assert batch.weight.sum() == pytest.approx(1.0)
    assert len(batch.offsets) == 2
