"""Every estimator on the odd things that happen: nothing said, one token, very long, alone, all alike, huge."""

import numpy as np
import pytest
from cases import group, paid, stream, trajectory

from sojourn.batch import Aggregate, to_batch
from sojourn.config.components import COMPONENTS
from sojourn.config.registry import build

ESTIMATORS = list(COMPONENTS["estimator"])
ADD = {
    "constant",
    "masked",
    "rae",
    "reinforce",
    "kl_reward",
    "empg",
    "gae",
    "turn_gae",
    "bilevel_gae",
    "vsc",
    "digirl",
    "awr",
    "positive",
    "normalised",
    "bcoder",
    "process",
    "archer",
    "oprl",
    "teacher_kl",
}  # something that is not beside others


def credit(name, groups, scores):
    estimator = build("estimator", {"name": name}).value
    rng = np.random.default_rng(0)
    values = [
        [[rng.uniform(-3, 0, len(turn.sample.tokens)) for turn in t.turns] for t in g.trajectories] for g in groups
    ]
    given = estimator(groups, scores, {need: stream(*values) for need in estimator.needs})
    for made, some in zip(groups, given, strict=True):
        for t, one in zip(made.trajectories, some, strict=True):
            assert [len(turn) for turn in one.tokens] == [len(turn.sample.tokens) for turn in t.turns]
            assert all(np.isfinite(turn).all() for turn in one.tokens)
    batch = to_batch(groups, given, {}, aggregate=Aggregate(by="turn"))
    assert np.isfinite(batch.weight).all()
    return given


@pytest.mark.parametrize("name", ESTIMATORS)
def test_nothing_said_and_a_single_token(name):
    made = group(trajectory([0, 1, 3]), trajectory([1]), trajectory([0]), trajectory([]))
    credit(name, [made, group(trajectory([0, 0]), slot=1)], [paid([0, 0, 1], [-1], [0.5], []), paid([0, 1])])


@pytest.mark.parametrize("name", ESTIMATORS)
def test_a_very_long_episode(name):
    long, short = trajectory([1] * 2000, states=[f"{n % 7}" for n in range(2000)]), trajectory([2], states=["0"])
    rewards = [0.0] * 1999 + [1.0]
    [[one, _]] = credit(name, [group(long, short)], [paid(rewards, [0])])
    assert max(abs(float(turn[0])) for turn in one.tokens) < 1e4


@pytest.mark.parametrize("name", ESTIMATORS)
@pytest.mark.parametrize("reward", [1e-12, 1.0, 1e6])
def test_rewards_of_any_size(name, reward):
    credit(name, [group(trajectory([2]), trajectory([1, 1]))], [paid([reward], [0, -reward])])


@pytest.mark.parametrize("name", [name for name in ESTIMATORS if name not in ADD])
def test_what_is_all_alike_or_alone_teaches_nothing_of_its_own(name):
    """Alike: one turn each, of one token, so that neither length nor place tell them apart."""
    alike = group(*(trajectory([1], states=["s"]) for _ in range(4)))
    for groups, scores in (([alike], [paid([0.7], [0.7], [0.7], [0.7])]), ([group(trajectory([1]))], [paid([0.7])])):
        for one in credit(name, groups, scores)[0]:
            assert abs(float(one.tokens[0][0])) < 1e-5
