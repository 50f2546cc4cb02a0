"""Runs in which one model, or two, propose tasks and solve them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import trained_run
from proposing import ONE, TWO
from safetensors.numpy import load_file
from trained_run import killed_and_resumed, untimed

from sojourn.errors import ConfigError
from sojourn.record import checkpoint, metrics
from sojourn.record.episodes.store import EpisodeStore
from sojourn.types import Group

RECIPES = {"one": ONE, "two": TWO}


@pytest.fixture(scope="module", params=RECIPES)
def run(request, tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("proposals") / request.param
    return trained_run.train(place, recipe=RECIPES[request.param])


def groups_of(run: Path) -> list[Group]:
    with EpisodeStore(run) as store:
        return sorted(store.groups("rl"), key=lambda group: group.slot)


def weights_of(run: Path, model: str) -> dict[str, bytes]:
    found = checkpoint.latest(run / "checkpoints")
    assert found is not None
    folder = found.weights / "models" / model if model != "policy" else found.weights
    return {name: value.tobytes() for name, value in load_file(folder / "weights.safetensors").items()}


def values_of(run: Path) -> list[dict[str, float]]:
    return [untimed(line.values) for line in metrics.read(run / "metrics.jsonl")]


def test_proposals_and_plays_of_them_are_recorded_and_trained(run):
    groups = groups_of(run)
    origins = Counter(group.origin for group in groups)
    assert origins["proposals"] == 6
    assert origins["policy"] >= 6
    assert {group.task.env for group in groups if group.origin == "policy"} == {"toy"}
    trained = ("policy", "maker") if run.name == "two" else ("policy",)
    for group in groups:
        who = "maker" if run.name == "two" and group.origin == "proposals" else "policy"
        assert {trajectory.model for trajectory in group.trajectories} == {who}
    for values in values_of(run):
        prefixes = ["" if model == "policy" else f"{model}_" for model in trained]
        assert sum(values[f"{prefix}trained_tokens"] for prefix in prefixes) > 0


def test_every_sampled_token_is_trained_exactly_once(run, tmp_path):
    """With an estimator that leaves nothing out, each model is trained on the tokens that it sampled, and no others."""
    changes = ["stages.0.estimator={name='constant'}", "stages.0.losses=[{name='nll'}]", "stages.0.steps=1"]
    if run.name == "two":
        changes.append("stages.0.learners.maker={}")
    one = trained_run.train(tmp_path / "run", *changes, recipe=RECIPES[run.name])
    [values] = values_of(one)
    for model in ("policy", "maker") if run.name == "two" else ("policy",):
        tokens = sum(
            len(turn.sample.tokens)
            for group in groups_of(one)
            for trajectory in group.trajectories
            if trajectory.model == model
            for turn in trajectory.turns
        )
        assert tokens > 0
        assert values["trained_tokens" if model == "policy" else f"{model}_trained_tokens"] == tokens


def test_a_run_that_is_killed_and_resumed_is_the_same(run, tmp_path):
    again = killed_and_resumed(tmp_path / "again", recipe=RECIPES[run.name])
    for model in ("policy", "maker") if run.name == "two" else ("policy",):
        assert weights_of(again, model) == weights_of(run, model)
    assert [one.task.id for one in groups_of(again)] == [one.task.id for one in groups_of(run)]
    assert values_of(again) == values_of(run)


def test_the_proposer_alone_may_learn(tmp_path):
    """A frozen solver tells what its proposals are worth."""
    changes = [
        "seats={models={agent=['maker']}}",
        "evaluation.seats={models={}}",
        "stages.0.learners={}",
        "stages.0.steps=1",
    ]
    one = trained_run.train(tmp_path / "run", *changes, recipe=TWO)
    [values] = values_of(one)
    assert values["grad_norm"] > 0
    assert values["success"] == values["proposals_used"], "the policy's success is that of what it played"
    assert {t.model for group in groups_of(one) for t in group.trajectories} == {"policy"}


def test_a_proposer_comes_to_propose_what_is_solved_sometimes(tmp_path):
    """The solver stays a model that moves at random: it comes through few rooms, and never through many."""
    changes = [
        "seats={models={agent=['maker']}}",
        "evaluation.seats={models={}}",
        "env.limits={rooms=[2, 7], side_rooms=[0, 1]}",
        "env.world.turns=0",
        "rollout.limits.turns=8",
        "stages.0.learners={}",
        "stages.0.steps=10",
        "stages.0.groups={name='proposals', prompts=4, proposals=8, solves=4, reward='middle'}",
        "record.checkpoint_every=0",
    ]
    steps = values_of(trained_run.train(tmp_path / "run", *changes, recipe=TWO))
    assert np.mean([values["proposals_reward"] for values in steps[4:]]) > steps[0]["proposals_reward"] + 0.2
    assert steps[-1]["proposed_rooms"] < steps[0]["proposed_rooms"] - 1


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("env={name='toy', choices=true}", "needs a world in which tasks are proposed"),
        ("env={name='proposing', world={name='tools'}}", "world"),
        ("env.limits={turns=[1, 2]}", "limits name 'turns'"),
        ("rollout.limits.turns=2", "a task of 'toy' is proposed in 5 turns"),
        ("stages.0.groups.proposals=1", "learns nothing from groups of 1"),
        ("seats={models={proposer=['nobody']}}", "nobody"),
        ("seats={models={agent=['policy'], nobody=['policy']}}", "seats agent, proposer"),
        ("stages.0.groups={name='guidance', base={name='proposals'}}", "base is mixed"),
        ("curriculum={name='shuffle', split='test'}", r"curriculum\.split is 'test'"),
        ("env.warmup=true", "warmup has tasks of proposing among them"),
    ],
)
def test_what_cannot_work_is_refused_before_the_run(tmp_path, change, reason):
    with pytest.raises(ConfigError, match=reason):
        trained_run.train(tmp_path / "run", change, recipe=ONE)


def test_an_evaluation_without_the_policy_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="the policy has none of the seats agent"):
        trained_run.train(tmp_path / "run", "seats={models={agent=['maker']}}", "stages.0.learners={}", recipe=TWO)


def test_demonstrations_warm_a_proposer_up(tmp_path):
    changes = [
        "env.warmup=true",
        "stages.0={name='rl', steps=2, groups={name='experts', width=8}, estimator={name='constant'}, "
        "losses=[{name='nll'}]}",
    ]
    one = trained_run.train(tmp_path / "run", *changes, recipe=ONE)
    assert {group.task.env for group in groups_of(one)} == {"proposing", "toy"}
    assert values_of(one)[0]["trained_tokens"] > 0
    assert np.isfinite(values_of(one)[1]["loss"])
