"""Whole runs that imitate splices of bad and good plays."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_replayed_groups import RUN, stopping_at
from trained_run import final_weights, train

import sojourn
from sojourn.errors import ConfigError
from sojourn.record.episodes.store import EpisodeStore

SLOTS = {"name": "slots", "width": 4, "size": 4}
SEARCHED = {"name": "searched", "width": 2, "size": 2, "tried": 8, "agent": {"name": "mcts", "simulations": 6}}
FORKED = {**SLOTS, "size": 2, "branching": {"name": "uniform", "every": 1, "width": 2, "depth": 2, "leaves": 4}}
NLL = [{"name": "nll"}]
SUCCEEDED = {"name": "constant", "threshold": 0.5}


def spliced(base: dict[str, Any], **keys: Any) -> dict[str, Any]:
    return {"name": "spliced", "revisions": ["go back", "no"], "base": base, **keys}


def run(path: Path, groups: dict[str, Any], *overrides: str, **stage: Any) -> Path:
    stage = {"estimator": SUCCEEDED, "losses": NLL, "steps": 3, **stage, "groups": groups}
    keys = [f"stages.rl.{name}={_toml(value)}" for name, value in stage.items()]
    return train(path, "env.rooms=2", "sampling.max_tokens=8", *keys, *overrides, recipe=RUN)


def _toml(value: Any) -> str:
    """A value as TOML writes it in one line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_toml(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value)


def lines(path: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(
    "groups",
    [
        spliced(SLOTS),
        spliced(FORKED, per_group=3),
        spliced(SEARCHED, first_wrong="end"),
        spliced({**SLOTS, "max_lag": 1}, keep=False),
        spliced(SLOTS, train_revision=False, first_wrong="mistake"),
    ],
    ids=["slots", "forks", "searched", "splices alone", "untrained revision"],
)
def test_a_run_trains_on_splices(tmp_path, groups):
    path = run(tmp_path / "run", groups)
    with EpisodeStore(path) as store:
        records = list(store.records("rl"))
    made = 0
    for line in lines(path):
        of_step = [record.group for record in records if record.step == line["step"]]
        played = [group for group in of_step if group.origin == "policy"]
        splices = [group for group in of_step if group.origin == "spliced"]
        assert line["episodes"] == sum(len(group.episodes) for group in played)
        assert line["groups_of_spliced"] == len(splices)
        assert line["groups_of_policy"] == (len(played) if groups.get("keep", True) else 0)
        assert line["spliced"] == sum(len(group.episodes) for group in splices)
        assert line["success"] == pytest.approx(np.mean([t.success for g in played for t in g.trajectories]))
        tokens = sum(len(turn.sample.tokens) for g in splices for t in g.trajectories for turn in t.turns)
        assert line["trained_tokens"] >= tokens if line["spliced"] else True
        assert all(trajectory.success for group in splices for trajectory in group.trajectories)
        made += len(splices)
    assert made > 0
    assert all(np.isfinite(value).all() for value in final_weights(path).values())


def test_the_policy_learns_by_a_gradient_and_splices_are_imitated(tmp_path):
    by = {"name": "by_origin", "of": {"spliced": {"name": "constant"}}, "base": {"name": "grpo"}}
    losses = [
        {"name": "of_origin", "origins": ["policy"], "base": {"name": "ppo"}},
        {"name": "of_origin", "origins": ["spliced"], "base": {"name": "nll"}},
    ]
    path = run(tmp_path / "run", spliced(SLOTS), estimator=by, losses=losses, streams=[{"name": "origins"}])
    assert sum(line["spliced"] for line in lines(path)) > 0


def test_where_nothing_is_spliced_it_is_its_base(tmp_path):
    """The law of sources that add groups: one that adds none is its base, bit for bit."""
    alone, wrapped = run(tmp_path / "alone", SLOTS), run(tmp_path / "wrapped", spliced(SLOTS, gap=9.0))
    one, other, changed = (final_weights(path) for path in (alone, wrapped, run(tmp_path / "changed", spliced(SLOTS))))
    assert all(np.array_equal(one[name], other[name]) for name in one)
    assert any(not np.array_equal(one[name], changed[name]) for name in one)


def test_a_stopped_run_goes_on_with_the_same_splices(tmp_path):
    sink = "record.sinks=[{name='test_replayed_groups:Stops'}]"
    whole = run(tmp_path / "whole", spliced(SLOTS), sink, steps=4)
    with pytest.raises(RuntimeError, match="stopped"), stopping_at(2):
        run(tmp_path / "stopped", spliced(SLOTS), sink, steps=4)
    sojourn.train(tmp_path / "stopped", resume=True, progress=False)
    one, other = final_weights(whole), final_weights(tmp_path / "stopped")
    assert all(np.array_equal(one[name], other[name]) for name in one)
    ids = []
    for path in (whole, tmp_path / "stopped"):
        with EpisodeStore(path) as store:
            ids.append([row.id for row in store.query(stage="rl", step=range(2, 4)) if "/spliced/" in row.id])
    assert ids[0] == ids[1] != []


def test_a_replayed_group_is_what_was_played_without_its_splices(tmp_path):
    parts = [spliced(SLOTS), {"name": "replay", "width": 2, "signal_only": False}]
    path = run(tmp_path / "run", {"name": "mixed", "parts": parts}, steps=5)
    made = lines(path)
    assert sum(line["replayed"] for line in made) > 0
    assert sum(line["spliced"] for line in made) > 0
    assert all(line["groups_of_replay"] + line["groups_of_policy"] + line["groups_of_spliced"] for line in made)
    with EpisodeStore(path) as store:
        for record in store.records("rl"):
            splices = ["/spliced/" in episode.id for episode in record.group.episodes]
            assert all(splices) if record.group.origin == "spliced" else not any(splices)


def test_an_origin_that_it_does_not_give_is_refused(tmp_path):
    losses = [*NLL, {"name": "of_origin", "origins": ["splice"], "base": {"name": "nll"}}]
    with pytest.raises(ConfigError, match="names the origin 'splice', of which the stage has no groups"):
        run(tmp_path / "run", spliced(SLOTS), losses=losses, streams=[{"name": "origins"}])
    with pytest.raises(ConfigError, match="PPO needs the sampler's log-probabilities, which a splice does not have"):
        run(tmp_path / "ppo", spliced(SLOTS), losses=[{"name": "ppo"}])
