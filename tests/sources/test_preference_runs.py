"""Preferences learnt from recorded runs and from files of preferences, as runs of a tiny model: from the source of the
groups to the losses that the run reports."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from math import log
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from trained_run import train

from sojourn.record import metrics
from sojourn.record.episodes.store import EpisodeStore
from sojourn.types import Group, Score

LIVE = "stages.rl.groups={name='slots', width=4, size=4}"
WORLD = (
    "env={name='made_world:Odd'}",  # the plays of odd tasks are paid 1, 0, 1, 0
    "agent={name='plain'}",
    "stages.0.groups.success_only=false",
)
PREFER = "stages.rl.estimator={name='constant'}"
ALIKE = "stages.rl.aggregate={by='sequence'}"  # so that a metric is the mean over trajectories
DPO = (PREFER, "stages.rl.losses=[{name='dpo'}]", "stages.rl.streams=[{name='pairs'}, {name='ref_logprobs'}]")
KTO = (
    PREFER,
    "stages.rl.losses=[{name='kto'}]",
    "stages.rl.streams=[{name='desirable'}, {name='ref_logprobs'}, {name='reference_kl'}]",
)
ORPO = (PREFER, "stages.rl.losses=[{name='orpo'}]", "stages.rl.streams=[{name='pairs'}]")
NCA = (PREFER, "stages.rl.losses=[{name='nca'}]", "stages.rl.streams=[{name='group_softmax'}, {name='ref_logprobs'}]")


def lines(run: Path) -> list[dict[str, float]]:
    return [dict(line.values) for line in metrics.read(run / "metrics.jsonl") if line.stage == "rl"]


def written(path: Path, records: Sequence[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("recorded") / "run", *WORLD, LIVE, "stages.rl.steps=1")


@pytest.fixture(scope="module")
def preferences(tmp_path_factory: pytest.TempPathFactory) -> Path:
    asked = [f"What is {number}?" for number in range(8)]
    return written(
        tmp_path_factory.mktemp("files") / "preferences.jsonl",
        [{"prompt": prompt, "chosen": "a number", "rejected": "I do not know"} for prompt in asked],
    )


def imported(path: Path) -> str:
    return f"stages.rl.groups={{name='imported', files=['{path}'], width=4}}"


def test_a_recorded_run_is_preferred(recorded: Path, tmp_path: Path):
    """Half of its groups, those of odd tasks, have two pairs each; the others teach nothing."""
    folder = f"stages.rl.groups={{name='folder', path='{recorded}', stage='rl', width=4}}"
    run = train(tmp_path / "run", *WORLD, folder, *DPO, "stages.rl.optim={lr=1e-3}", "stages.rl.steps=8")
    with EpisodeStore(recorded) as store:
        groups = list(store.groups("rl"))
    tokens = [[sum(len(u.sample.tokens) for u in t.turns) for t in g.trajectories] for g in groups]
    paired = sum(sum(some) for some, g in zip(tokens, groups, strict=True) if g.task.seed % 2)
    found = lines(run)
    assert 0 < paired < sum(map(sum, tokens))
    assert found[0]["dpo_loss"] == pytest.approx(log(2) * paired / sum(map(sum, tokens)), rel=1e-4)
    assert found[-1]["dpo_loss"] < found[0]["dpo_loss"]


@pytest.mark.parametrize(
    ("method", "name", "first"),
    [(DPO, "dpo", log(2)), (ORPO, "orpo", None), (NCA, "nca", 2 * log(2))],
)
def test_a_file_of_preferences_is_learnt(preferences: Path, tmp_path: Path, method: Any, name: str, first: Any):
    run = train(
        tmp_path / "run",
        *WORLD,
        imported(preferences),
        ALIKE,
        *method,
        "stages.rl.optim={lr=1e-3}",
        "stages.rl.steps=8",
    )
    found = lines(run)
    if first is not None:  # the policy is the reference model, and every token is in a pair
        assert found[0][f"{name}_loss"] == pytest.approx(first, rel=1e-4)
    assert found[-1][f"{name}_loss"] < found[0][f"{name}_loss"] - 0.01
    if name != "nca":
        assert found[-1][f"{name}_accuracy"] == 1
    with EpisodeStore(run) as store:
        assert sorted(t.reward for g in store.groups("rl") for t in g.trajectories) == [0.0] * 8 + [1.0] * 8


def test_a_file_of_thumbs_is_learnt(tmp_path: Path):
    told = [
        {"prompt": f"What is {number}?", "completion": "a number" if up else "I do not know", "label": up}
        for number, up in enumerate([True, False, True, True] * 2)
    ]
    thumbs = written(tmp_path / "thumbs.jsonl", told)
    run = train(tmp_path / "run", *WORLD, imported(thumbs), *KTO, "stages.rl.optim={lr=1e-3}", "stages.rl.steps=8")
    found = lines(run)
    assert found[0]["kto_loss"] == pytest.approx(0.5, rel=1e-4)  # 1 - sigmoid(0) of each
    assert found[-1]["kto_loss"] < 0.49


@dataclass(frozen=True, kw_only=True)
class Judge:
    """Says which plays of a group are better, by their number in it: the last is the best. The reward is 0 for all."""

    async def __call__(self, group: Group) -> list[Score]:
        zeros = [np.zeros(len(t.turns), dtype=np.float32) for t in group.trajectories]
        return [Score(turns, {"judge": float(number)}) for number, turns in enumerate(zeros)]


def test_live_groups_are_preferred_by_what_a_judge_says(tmp_path: Path):
    judged = (*WORLD, LIVE, PREFER, "stages.rl.losses=[{name='dpo'}]", f"reward={{name='{__name__}:Judge'}}")
    run = train(tmp_path / "run", *judged, "stages.rl.streams=[{name='pairs'}, {name='ref_logprobs'}]")
    assert lines(run)[0]["dpo_loss"] == 0  # the rewards are equal
    run = train(tmp_path / "judged", *judged, "stages.rl.streams=[{name='pairs', part='judge'}, {name='ref_logprobs'}]")
    assert lines(run)[0]["dpo_loss"] == pytest.approx(log(2), rel=1e-4)
