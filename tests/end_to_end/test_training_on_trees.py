"""Whole runs whose plays fork."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import spawned
import trained_run

import sojourn
from sojourn.errors import ConfigError
from sojourn.record import metrics
from sojourn.record.episodes.store import EpisodeStore

FORKS = "stages.rl.groups.branching={name='uniform', every=1, width=2, depth=2, leaves=3}"


def run(path: Path, *overrides: str) -> Path:
    easy = ("env.side_rooms=0", "env.doors=0", "env.decoys=0", "rollout.limits.turns=5")  # won at times by chance
    trained_run.train(path, "stages.rl.steps=2", "stages.rl.groups.width=4", *easy, *overrides)
    return path


def steps(path: Path):
    return [line.values for line in metrics.read(path / "metrics.jsonl") if line.stage == "rl"]


@pytest.mark.parametrize("estimator", ["constant", "grpo", "tree_values", "tree_grpo", "gigpo"])
def test_a_run_trains_on_trees(tmp_path, estimator):
    made = run(tmp_path / "run", FORKS, f"stages.rl.estimator={{name='{estimator}'}}")
    with EpisodeStore(made) as store:
        played = list(store.records("rl"))
        evaluated = [row for row in store.query() if row.stage != "rl"]
    assert evaluated
    for line, step in zip(steps(made), (0, 1), strict=True):
        groups = [record.group for record in played if record.step == step]
        episodes = [episode for group in groups for episode in group.episodes]
        assert line["episodes"] == len(episodes)
        assert line["branches"] == sum(e.branch is not None for e in episodes) > 0
        samples = {id(turn.sample): len(turn.sample.tokens) for g in groups for t in g.trajectories for turn in t.turns}
        assert line["sampled_tokens"] == sum(samples.values())
        assert 0 < line["trained_tokens"] <= line["sampled_tokens"]
        assert estimator != "constant" or line["trained_tokens"] == line["sampled_tokens"]
        assert sum(len(t.turns) for g in groups for t in g.trajectories) > len(samples)


SEARCHED = (
    "stages.rl.groups.name=searched",
    "stages.rl.groups.agent={name='mcts', width=3, simulations=6, enough=9}",
    "stages.rl.groups.size=2",
)


@pytest.mark.parametrize(
    "overrides",
    [
        ("stages.rl.estimator={name='grpo'}",),
        ("stages.rl.estimator={name='tree_values', against='group'}",),
        (  # Agent Q
            "stages.rl.estimator={name='constant'}",
            "stages.rl.streams=[{name='turn_pairs'}, {name='ref_logprobs'}]",
            "stages.rl.losses=[{name='dpo'}]",
        ),
        (
            "stages.rl.estimator={name='constant', threshold=0.5}",
            "stages.rl.losses=[{name='nll'}]",
            "stages.rl.groups.zero_signal=drop",
        ),
    ],
    ids=["grpo", "tree", "agent q", "expert iteration"],
)
def test_a_run_trains_on_what_its_searches_tried(tmp_path, overrides):
    made = run(tmp_path / "run", *SEARCHED, *overrides)
    lines = steps(made)
    assert all(line["branches"] > 0 and math.isfinite(line["loss"]) for line in lines)
    assert any(line["trained_tokens"] > 0 for line in lines)
    with EpisodeStore(made) as store:
        evaluated = [row for row in store.query() if row.stage != "rl"]
        played = [episode for record in store.records("rl") for episode in record.group.episodes]
    assert evaluated
    assert any(turn.considered for episode in played for turn in episode.trajectories[0].turns)
    ids = {episode.id for episode in played}
    assert all(episode.branch.of in ids for episode in played if episode.branch is not None)


UNCERTAIN = "stages.rl.groups.branching={name='uncertain_turns', count=2, leaves=3}"


@pytest.mark.parametrize(
    "overrides",
    [
        (  # AT2PO
            "stages.rl.estimator={name='tree_values', value='entropy', against='group', scale_by_std=true}",
            "stages.rl.losses=[{name='gspo', level='turn', token_form=true, clip_low=3e-3, clip_high=4e-3}]",
            "stages.rl.aggregate.by=sequence",
        ),
        (
            "stages.rl.streams=[{name='turn_success', change=true}]",
            "stages.rl.estimator={name='process', stream='turn_success', outcome_coef=0}",
        ),
    ],
    ids=["at2po", "process rewards"],
)
def test_a_run_trains_on_trees_of_uncertain_turns(tmp_path, overrides):
    for line in steps(run(tmp_path / "run", UNCERTAIN, *overrides)):
        assert line["branches"] > 0
        assert line["trained_tokens"] > 0


@pytest.mark.parametrize(
    ("rule", "reason"),
    [
        ("{name='revisited_states', leaves=4}", "in one state"),
        ("{name='shared_states', count=2, leaves=4}", "plays were here"),
        ("{name='uncertain_states', width=3, leaves=8, measure='error'}", "error 0."),
        ("{name='expert_decisions', leaves=4}", "not as the expert"),
        ("{name='uniform', every=1, leaves=64, tree_turns=12}", "every 1 turns"),
        ("{name='balanced_entropy', probability=1, leaves=6}", " nats"),
    ],
)
def test_a_run_trains_on_trees_of_each_rule(tmp_path, rule, reason):
    made = run(tmp_path / "run", f"stages.rl.groups.branching={rule}", "stages.rl.estimator={name='tree_values'}")
    with EpisodeStore(made) as store:
        played = list(store.records("rl"))
    for line, step in zip(steps(made), (0, 1), strict=True):
        groups = [record.group for record in played if record.step == step]
        branches = [e for group in groups for e in group.episodes if e.branch is not None]
        assert line["branches"] == len(branches)
        assert all(e.branch.reason.startswith(reason) or reason in e.branch.reason for e in branches)
        samples = {id(turn.sample): len(turn.sample.tokens) for g in groups for t in g.trajectories for turn in t.turns}
        roots = sum(len(group.episodes) for group in groups) - len(branches)
        assert line["tree_tokens"] == pytest.approx(sum(samples.values()) / roots)
        assert line["tree_turns"] == pytest.approx(len(samples) / roots)
    assert any(line["branches"] > 0 for line in steps(made))


def test_the_same_seed_plays_the_same_trees(tmp_path):
    one, other = (run(tmp_path / name, FORKS) for name in ("one", "other"))
    assert [s["loss"] for s in steps(one)] == [s["loss"] for s in steps(other)]
    assert _branches(one) == _branches(other)


def _branches(path: Path) -> list[str]:
    with EpisodeStore(path) as store:
        episodes = [e for record in store.records("rl") for e in record.group.episodes]
    return [json.dumps((e.id, e.branch and (e.branch.of, e.branch.turns))) for e in episodes]


def test_a_rule_that_does_not_go_with_the_source_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="branching with semi_online"):
        run(tmp_path / "run", "stages.rl.groups.name=semi_online", FORKS)
    with pytest.raises(ConfigError, match="leaves"):
        run(tmp_path / "other", "stages.rl.groups.branching={name='uniform', leaves=1}")


ASKED = (
    "critic={}",
    "stages.rl.streams=[{name='values'}, {name='next_values'}]",
    "stages.rl.estimator={name='gae'}",
    "stages.rl.losses=[{name='ppo'}, {name='value'}]",
)
BY_CRITIC = "stages.rl.groups.branching={name='uncertain_values', count=2, leaves=3, measure='surprise'}"
SEARCH_BY_CRITIC = (
    "stages.rl.groups.name=searched",
    "stages.rl.groups.agent={name='mcts', width=3, simulations=6, enough=9, rollouts=1, critic=0.5}",
)


@pytest.mark.parametrize("asking", [(BY_CRITIC,), SEARCH_BY_CRITIC], ids=["branching", "search"])
def test_a_run_whose_plays_ask_the_critic_is_the_same_after_a_kill(tmp_path, asking):
    """Each question is a pass of its own, so that its answer is the same whatever else is asked."""
    whole = run(tmp_path / "whole", *ASKED, *asking)
    assert all(line["branches"] > 0 for line in steps(whole))
    killed = tmp_path / "killed"
    easy = ("env.side_rooms=0", "env.doors=0", "env.decoys=0", "rollout.limits.turns=5", "record.checkpoint_every=1")
    file = tmp_path / "killed.toml"
    file.write_text(trained_run.RECIPE)
    overrides = ["stages.rl.steps=2", "stages.rl.groups.width=4", *easy, *ASKED, *asking]
    spawned.killed(trained_run.KILLED, tmp_path, "train", str(file), "--out", str(killed), *overrides)
    sojourn.train(killed, resume=True, progress=False)
    assert trained_run.weight_bytes(killed) == trained_run.weight_bytes(whole)


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        ((BY_CRITIC,), "Slots needs a critic: add a table"),
        ((*SEARCH_BY_CRITIC,), "Searched needs a critic: add a table"),
        (("agent={name='mcts', rollouts=0, critic=1}",), "MCTS needs a critic: add a table"),
        ((*ASKED, BY_CRITIC, "stages.rl.groups.max_lag=1"), "max_lag = 1 with plays that ask the critic"),
        (("critic={}", BY_CRITIC), "reads a critic that nothing trains"),
    ],
)
def test_plays_that_cannot_ask_the_critic_are_refused(tmp_path, overrides, sentence):
    with pytest.raises(ConfigError, match=sentence):
        run(tmp_path / "run", *overrides)


def test_a_search_by_a_critic_in_a_world_of_several_seats_is_refused(tmp_path):
    game = ("env={name='matrix', opponent='self', choices=true}", "agent={name='mcts', rollouts=0, critic=1}")
    with pytest.raises(ConfigError, match=r"stage 'rl': MCTS asks the critic in a world of several seats"):
        trained_run.train(tmp_path / "run", *ASKED, *game)
