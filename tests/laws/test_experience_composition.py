"""Every source with every loss, and with every curriculum: it trains, or is refused with its reason."""

from __future__ import annotations

import asyncio
import math
import tomllib
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import tomli_w
import trained_run
from typer.testing import CliRunner

from sojourn.backends.torch.backend import Torch
from sojourn.cli import app
from sojourn.config.components import COMPONENTS
from sojourn.config.registry import build
from sojourn.config.toml import Tables
from sojourn.errors import ConfigError
from sojourn.live.store import LiveStore
from sojourn.record import metrics
from sojourn.record.episodes.store import EpisodeStore
from sojourn.train.group_checks import check_groups
from sojourn.train.requirements import PASS_COLUMNS
from sojourn.train.resolve import resolve

OF_PASS = PASS_COLUMNS | Torch.pass_columns
SLOTS = {"name": "slots", "width": 2, "size": 2}
COLLECT = {"name": "collect", "steps": 1, "trains": False, "groups": SLOTS}
SOURCES: dict[str, dict[str, Any]] = {
    "slots": SLOTS,
    "adaptive_slots": {"name": "adaptive_slots", "width": 2, "size": 2},
    "proposals": {"name": "proposals", "prompts": 1, "proposals": 2, "solves": 2},
    "experts": {"name": "experts", "width": 2, "success_only": False},
    "dagger": {"name": "dagger", "width": 2},
    "searched": {"name": "searched", "width": 2, "size": 1, "agent": {"name": "mcts", "simulations": 3}, "tried": 4},
    "semi_online": {"name": "semi_online", "width": 2, "size": 2},
    "live": {"name": "live", "width": 2, "folder": "{live}"},
    "folder": {"name": "folder", "path": "{run}", "stage": "rl", "width": 2},
    "candidates": {"name": "candidates", "path": "{free}", "stage": "rl", "width": 2, "size": 2},
    "imported": {"name": "imported", "files": ["{file}"], "width": 2},
    "earlier": {"name": "earlier", "stage": "collect", "width": 2},
    "replay": {"name": "mixed", "parts": [SLOTS, {"name": "replay", "width": 2, "signal_only": False}]},
    "success_replay": {"name": "success_replay", "base": SLOTS},
    "guidance": {"name": "guidance", "base": SLOTS},
    "with_returns": {"name": "with_returns", "base": {"name": "earlier", "stage": "collect", "width": 2}},
    "with_balances": {"name": "with_balances", "base": {"name": "earlier", "stage": "collect", "width": 2}},
    "purified": {"name": "purified", "base": SLOTS},
    "reasoned": {"name": "reasoned", "base": {"name": "experts", "width": 2}},
    "spliced": {"name": "spliced", "base": SLOTS, "revisions": ["go back"]},
    "hindsight": {"name": "mixed", "parts": [SLOTS, {"name": "hindsight", "width": 2}]},
    "failure_restarts": {"name": "mixed", "parts": [SLOTS, {"name": "failure_restarts", "width": 1, "size": 2}]},
    "mixed": {"name": "mixed", "parts": [SLOTS, {"name": "experts", "width": 1, "success_only": False}]},
}
CRITIC = {"critic": {}}
ESTIMATORS: dict[str, dict[str, Any]] = {
    "grpo": {"estimator": {"name": "grpo"}},
    "constant": {"estimator": {"name": "constant"}},
    "gae": {"estimator": {"name": "gae"}},
}
BASES = {"importance": {"base": {"name": "nll"}}, "of_origin": {"origins": ["policy"], "base": {"name": "nll"}}}
STREAM_KEYS = {"teacher": {"model": "other"}}


BY_TAG = {"by": "tag", "base": {"name": "learnability"}}
CURRICULA: dict[str, dict[str, Any]] = {name: {} for name in COMPONENTS["curriculum"]} | {
    "balanced": BY_TAG,
    "bandit": BY_TAG,
    "exp3s": BY_TAG,
    "levels": BY_TAG,
    "deficits": BY_TAG,
}
LIVE = (
    "slots",
    "adaptive_slots",
    "proposals",
    "dagger",
    "searched",
    "semi_online",
    "replay",
    "success_replay",
    "guidance",
    "purified",
    "spliced",
    "failure_restarts",
    "hindsight",
    "mixed",
)


def test_every_source_is_here() -> None:
    assert set(SOURCES) == set(COMPONENTS["groups"])


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A recorded run, its episodes as a file and as sessions of a service, and a run whose actions were not chosen from
    a list."""
    folder = tmp_path_factory.mktemp("data")
    free = trained_run.train(folder / "free", "agent.choices=false")
    run = trained_run.train(folder / "run", "stages.rl.groups.width=3")
    file = folder / "episodes.jsonl"
    done = CliRunner().invoke(app, ["export", str(run), "--where", "stage:rl", "--tokens", "--out", str(file)])
    assert done.exit_code == 0, done.output
    with EpisodeStore(run) as episodes, closing(LiveStore(folder / "live")) as live:
        played = [one for group in episodes.groups("rl") for one in group.trajectories]
        for number in range(400):  # more than all stages take
            trajectory = played[number % len(played)]
            live.open(f"s{number}", f"p{number}", 0, consent=True)
            for at, turn in enumerate(trajectory.turns):
                live.add_turn(f"s{number}", at, turn)
            live.end(f"s{number}")
    return {"{run}": str(run), "{file}": str(file), "{free}": str(free), "{live}": str(folder / "live")}


def filled(value: Any, data: dict[str, str]) -> Any:
    if isinstance(value, dict):
        return {key: filled(item, data) for key, item in value.items()}
    if isinstance(value, list):
        return [filled(item, data) for item in value]
    return data.get(value, value) if isinstance(value, str) else value


def stage_of(name: str, groups: dict[str, Any], loss: str, estimator: str, steps: int = 2) -> dict[str, Any]:
    losses = [{"name": loss, **BASES.get(loss, {})}]
    losses += [{"name": "value"}] if estimator == "gae" and loss != "value" else []
    stage = {"name": name, "steps": steps, "groups": groups, "losses": losses, **ESTIMATORS[estimator]}
    parts = [build("estimator", stage["estimator"]).value, *(build("loss", table).value for table in losses)]
    needs = parts[0].needs.union(*(part.needs - OF_PASS for part in parts[1:])) - {"targets"}
    return stage | {"streams": [{"name": need, **STREAM_KEYS.get(need, {})} for need in sorted(needs)]}


def recipe_of(*stages: dict[str, Any], critic: bool, **keys: Any) -> dict[str, Any]:
    head = tomllib.loads(trained_run.RECIPE.partition("[[stages]]")[0])
    taught = any(stream["name"] == "teacher" for stage in stages for stream in stage.get("streams", ()))
    for source, agent in (("with_returns", "return_conditioned"), ("with_balances", "balance_conditioned")):
        if any(stage["groups"]["name"] == source for stage in stages):
            head["agent"] = {"name": agent, "base": head["agent"]}
    if any(stage["groups"]["name"] == "proposals" for stage in stages):
        limits = {"rooms": [2, 3], "objects": [0, 1]}
        head["env"] = {"name": "proposing", "choices": True, "limits": limits, "world": head["env"]}
    if any(stage["groups"]["name"] == "reasoned" for stage in stages):
        head |= {"agent": {"name": "plain"}, "renderer": {"name": "chatml", "thinking": True}}
        head |= {"sampling": {"max_tokens": 100}, "rollout": {"limits": {"turns": 12}}}
    head |= {"stages": [COLLECT, *stages], "evaluation": {"tasks": 1}, **(CRITIC if critic else {}), **keys}
    return head | ({"models": {"other": {"name": "tiny:layers=1,hidden=64"}}} if taught else {})


def refusal(table: dict[str, Any]) -> str:
    """Returns why a recipe is refused before anything runs; empty where it is not."""
    try:
        asyncio.run(check_groups(resolve(Tables(table)).recipe))
    except ConfigError as error:
        return str(error)
    return ""


def train_all(path: Path, table: dict[str, Any]) -> dict[str, list[metrics.Line]]:
    trained_run.train(path, recipe=tomli_w.dumps(table))
    lines: dict[str, list[metrics.Line]] = {}
    for line in metrics.read(path / "metrics.jsonl"):
        lines.setdefault(line.stage, []).append(line)
    return lines


@pytest.mark.parametrize("source", SOURCES)
def test_every_source_with_every_loss_trains_or_is_refused(source: str, data: dict[str, str], tmp_path: Path) -> None:
    groups = filled(SOURCES[source], data)
    trained: set[str] = set()
    for critic in (False, True):
        stages, refused = [], {}
        for loss in COMPONENTS["loss"]:
            for estimator in ("gae",) if critic else ("grpo", "constant"):
                steps = 1 if stages else 2  # the second step of a source is the same for all losses
                stage = stage_of(f"{loss}.{estimator}", groups, loss, estimator, steps)
                why = refusal(recipe_of(stage, critic=critic))
                if why:
                    refused[loss, estimator] = why
                elif loss not in trained:
                    trained.add(loss)  # once: estimators with losses are a law of their own
                    stages.append(stage)
        assert stages or critic
        assert all(f"stage '{loss}.{e}'" in why or "critic" in why for (loss, e), why in refused.items())
        if stages:
            lines = train_all(tmp_path / f"run-{critic}", recipe_of(*stages, critic=critic))
            assert set(lines) == {"collect", *(stage["name"] for stage in stages)}
            for stage in stages:
                assert [line.step for line in lines[stage["name"]]] == list(range(stage["steps"]))
                assert all(math.isfinite(line.values["loss"]) for line in lines[stage["name"]])


@pytest.mark.parametrize("name", CURRICULA)
def test_every_curriculum_draws_for_every_source_that_plays(name: str, data: dict[str, str], tmp_path: Path) -> None:
    redrawn = {**SLOTS, "zero_signal": "redraw", "exhausted": "keep"}
    stages = [stage_of(source, filled(SOURCES[source], data), "nll", "constant") for source in LIVE]
    stages.append(stage_of("redrawn", redrawn, "ppo", "grpo"))
    table = recipe_of(*stages, critic=False, curriculum={"name": name, **CURRICULA[name]})
    world = table["env"].get("world", table["env"])
    world |= {"levels": 3, "rooms": 4}
    lines = train_all(tmp_path / "run", table)
    assert set(lines) == {"collect", "redrawn", *LIVE}
    assert all(math.isfinite(line.values["loss"]) for stage in lines if stage != "collect" for line in lines[stage])
    with EpisodeStore(tmp_path / "run") as store:
        drawn = {row.task for source in LIVE for row in store.query(stage=source)}
    assert len(drawn) > 8
