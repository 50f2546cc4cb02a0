"""Stages that are repeated: each round collects with the present weights, trains on it, and may be the last."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import numpy as np
import pytest
import trained_run
from safetensors.numpy import load_file

from sojourn import sweep
from sojourn.config import toml
from sojourn.display import Display
from sojourn.errors import ConfigError
from sojourn.optim import Optim
from sojourn.record import metrics
from sojourn.record.checkpoint import checkpoints
from sojourn.record.episodes.store import EpisodeStore
from sojourn.record.run import RunFolder
from sojourn.record.run_status import State, read_status
from sojourn.record.stage_rounds import rounds_of
from sojourn.train.early_stop import EarlyStop, Spent, spent
from sojourn.train.repeats import Repeat, Unrolled, unroll
from sojourn.train.resolve import load, resolve
from sojourn.train.run import run_recipe

HEAD = trained_run.RECIPE.partition("[[stages]]")[0]
RECIPE = f"""{HEAD}
[[stages]]
name = "collect"
steps = 2
trains = false
groups = {{ name = "slots", width = 3, size = 2 }}
[[stages]]
name = "improve"
steps = 3
groups = {{ name = "earlier", stage = "collect", width = 2 }}
estimator = {{ name = "constant" }}
losses = [{{ name = "nll" }}]
optim = {{ lr = 1e-2 }}
[[repeats]]
stages = ["collect", "improve"]
rounds = 3
"""
NAMES = ["collect", "improve", "collect_2", "improve_2", "collect_3", "improve_3"]


@pytest.fixture(scope="module")
def repeated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained_run.train(tmp_path_factory.mktemp("repeats") / "run", recipe=RECIPE)


def weights(run: Path) -> list[dict[str, bytes]]:
    """Returns the weights at the end of each stage."""
    found = [load_file(c.weights / "weights.safetensors") for c in checkpoints(run / "checkpoints")]
    return [{name: value.tobytes() for name, value in arrays.items()} for arrays in found]


def played(run: Path, stage: str) -> list[str]:
    with EpisodeStore(run) as store:
        return sorted(row.id for row in store.query(stage=stage))


def trained_groups(run: Path, stage: str) -> list[tuple[int, ...]]:
    """Returns the tokens of the first sample of each group that a stage trained, in order of recording."""
    with EpisodeStore(run) as store:
        return [tuple(group.trajectories[0].turns[0].sample.tokens.tolist()) for group in store.groups(stage)]


def test_each_round_collects_and_then_trains_on_what_it_collected(repeated: Path) -> None:
    before, *_ = ends = weights(repeated)
    assert len(ends) == 6
    assert ends[2] == ends[1] != before  # a stage that collects leaves the weights as they are
    assert ends[4] == ends[3] != ends[1]
    for round in ("", "_2", "_3"):
        collected = {id.rpartition("/")[2] for id in played(repeated, f"collect{round}")}
        assert len(collected) == 12
        assert {id.rpartition("/")[2] for id in played(repeated, f"improve{round}")} <= collected
        assert set(trained_groups(repeated, f"improve{round}")) <= set(trained_groups(repeated, f"collect{round}"))
    tasks = [{id.rpartition("-")[2] for id in played(repeated, f"collect{round}")} for round in ("", "_2", "_3")]
    assert not tasks[0] & tasks[1]
    assert not tasks[1] & tasks[2]


def test_all_groups_are_trained_before_any_is_trained_again(repeated: Path) -> None:
    assert len(set(played(repeated, "improve"))) == 12  # 3 steps of 2 of the 6 groups, each of two episodes


def test_a_stage_that_collects_has_the_numbers_of_the_evaluation_before(repeated: Path) -> None:
    evaluations = RunFolder.read(repeated).evaluations()
    assert [e["name"] for e in evaluations] == ["before", *NAMES]
    assert [e.get("same_as") for e in evaluations] == [None, "before", None, "improve", None, "improve_2", None]
    assert evaluations[1]["summary"] == evaluations[0]["summary"]
    with EpisodeStore(repeated) as store:
        stages = {count.stage for count in store.steps()}
    assert "evaluation-improve" in stages
    assert "evaluation-collect" not in stages
    assert read_status(repeated).state is State.FINISHED
    assert sweep.finished(repeated)


def test_the_config_of_the_run_resolves_to_the_same_recipe(repeated: Path, tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text(RECIPE)
    written, recorded = load(tmp_path / "recipe.toml"), resolve(toml.read(repeated))
    assert [stage.name for stage in written.recipe.stages] == NAMES
    assert recorded.table == written.table


def test_an_override_of_a_stage_holds_in_all_rounds(tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text(RECIPE)
    resolved = load(tmp_path / "recipe.toml", ["stages.improve.optim.lr=3e-3"])
    assert [stage.optim.lr for stage in resolved.recipe.stages[1::2]] == [3e-3] * 3
    assert {resolved.origins[f"stages.{n}.optim.lr"] for n in (1, 3, 5)} == {resolved.origins["stages.1.optim.lr"]}


def resume(run: Path) -> None:
    resolved = resolve(toml.read(run))
    with RunFolder.open(run) as folder, Display(live=False) as display:
        asyncio.run(run_recipe(resolved.recipe, folder, display, resume=True))


@pytest.mark.parametrize("kept", [1, 2, 3, 4])
def test_a_run_that_was_killed_in_any_round_ends_with_the_same_weights(
    repeated: Path, tmp_path: Path, kept: int
) -> None:
    killed = tmp_path / "run"
    shutil.copytree(repeated, killed)
    for ended in checkpoints(killed / "checkpoints")[kept:]:
        shutil.rmtree(ended.path)
    with RunFolder.open(killed) as folder:
        folder.write_json("evaluations.json", folder.evaluations()[: kept + 1])
    resume(killed)
    assert weights(killed) == weights(repeated)
    assert RunFolder.read(killed).evaluations() == RunFolder.read(repeated).evaluations()
    assert all(trained_groups(killed, name) == trained_groups(repeated, name) for name in NAMES)


def test_no_further_round_begins_once_the_rule_holds(tmp_path: Path) -> None:
    rule = "rounds = 3\nearly_stop = { patience = 1 }"
    run = trained_run.train(
        tmp_path / "run", "stages.improve.optim.lr=0.0", recipe=RECIPE.replace("rounds = 3", rule)
    )  # nothing is learned, so the second round is no better than the first
    evaluations = RunFolder.read(run).evaluations()
    assert [e["name"] for e in evaluations] == ["before", *NAMES]
    assert [e.get("same_as") for e in evaluations[-2:]] == ["improve_2", "improve_2"]
    lines = {line.stage for line in metrics.read(run / "metrics.jsonl")}
    assert lines == set(NAMES[:4])
    status = read_status(run)
    assert status.state is State.FINISHED
    assert sweep.finished(run)
    assert [s.partition(":")[0] for s in status.stopped] == [
        "stage 'collect_3' ended after step 0", "stage 'improve_3' ended after step 0",
    ]  # fmt: skip
    resume(run)
    assert {line.stage for line in metrics.read(run / "metrics.jsonl")} == lines


def test_a_stage_that_restarts_begins_with_the_weights_of_the_run(repeated: Path, tmp_path: Path) -> None:
    restarting = RECIPE.replace('name = "improve"\n', 'name = "improve"\nrestart = true\n')
    still = trained_run.train(tmp_path / "still", "stages.improve.optim.lr=0.0", recipe=restarting)
    run = trained_run.train(tmp_path / "run", recipe=restarting)
    assert weights(run)[1] == weights(repeated)[1]  # the first round begins with them anyway
    assert weights(run)[3] != weights(repeated)[3]
    assert weights(run)[2] == weights(run)[1]  # it collects with what the round before has trained
    initial = load_file(run / "initial" / "weights.safetensors")
    assert all(np.array_equal(initial[name], np.frombuffer(value, initial[name].dtype).reshape(initial[name].shape))
               for name, value in weights(still)[5].items())  # fmt: skip
    shutil.rmtree(checkpoints(run / "checkpoints")[-1].path)
    wanted = weights(run)
    resume(run)
    assert weights(run)[:-1] == wanted


def test_a_stage_ends_after_so_many_minutes(tmp_path: Path) -> None:
    run = trained_run.train(tmp_path / "run", "stages.warmup.steps=50", "stages.warmup.early_stop.minutes=1e-9")
    (sentence,) = read_status(run).stopped
    assert sentence.startswith("stage 'warmup' ended after step 1: its steps took 0.0 minutes (limit 1e-09)")
    assert [line.stage for line in metrics.read(run / "metrics.jsonl")] == ["warmup", "rl"]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('["collect", "improve"]', '["collect"]', ""),
        ('["collect", "improve"]', '["improve", "collect"]', "expected consecutive stages in their order"),
        ('["collect", "improve"]', '["colect"]', "there is no stage 'colect'"),
        ('["collect", "improve"]', "[]", "name the stages that are repeated"),
        ("rounds = 3", "rounds = 1", "rounds"),
        ("rounds = 3", "rounds = 3\nearly_stop = { patience = 3 }", "never ends 3 rounds"),
        ("trains = false", "trains = false\nlosses = [{ name = 'nll' }]", "losses has no effect with trains = false"),
        ("trains = false", "trains = false\nminibatches = 2", "minibatches has no effect with trains = false"),
        ("trains = false", "trains = false\noptim = { lr = 1e-3 }", "optim has no effect with trains = false"),
        ("trains = false", "", "no losses"),
        ('name = "improve"', 'name = "collect_2"', "as the second round is called, but not all of"),
        ('name = "improve"', 'name = "improve"\ntrains = false', "losses has no effect"),
    ],
)
def test_what_cannot_be_repeated_is_refused(tmp_path: Path, old: str, new: str, message: str) -> None:
    recipe = RECIPE.replace(old, new)
    recipe = recipe.replace('["collect", "improve"]', '["collect"]') if "collect_2" in new else recipe
    (tmp_path / "recipe.toml").write_text(recipe)
    if not message:
        stages = load(tmp_path / "recipe.toml").recipe.stages
        assert [stage.name for stage in stages] == ["collect", "collect_2", "collect_3", "improve"]
        return
    with pytest.raises(ConfigError, match=message):
        load(tmp_path / "recipe.toml")


def test_a_stage_that_collects_leaves_out_what_all_stages_share_for_training(tmp_path: Path) -> None:
    stages = '[[stages]]\nname = "collect"\ntrains = false\n[[stages]]\nname = "rl"\n'
    shared = (
        'groups = { name = "slots", width = 3 }\nlosses = [{ name = "nll" }]\nminibatches = 2\noptim = { lr = 3e-4 }\n'
    )
    (tmp_path / "recipe.toml").write_text(shared + HEAD + stages)
    for override in ((), ("optim.lr=2e-4",)):
        collect, train = load(tmp_path / "recipe.toml", override).recipe.stages
        assert (collect.losses, collect.minibatches, collect.optim) == ((), 1, Optim())
        assert (len(train.losses), train.minibatches, train.optim.lr) == (1, 2, 2e-4 if override else 3e-4)
    resolved = load(tmp_path / "recipe.toml")
    assert resolved.table["stages"][0]["groups"]["width"] == 3
    assert resolved.origins["stages.0.groups.width"] == resolved.origins["stages.1.groups.width"] != ""
    assert "stages.0.optim.lr" not in resolved.origins


def test_a_recipe_that_only_collects_is_refused(tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text(HEAD + "[[stages]]\ntrains = false\n")
    with pytest.raises(ConfigError, match="is the last one and does not train"):
        load(tmp_path / "recipe.toml")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('stage = "collect"', 'stage = "colect"', "expected a stage that comes before it, which are: collect"),
        (
            'groups = { name = "slots", width = 3, size = 2 }',
            'groups = { name = "experts", width = 3 }',
            "imitate them",
        ),
    ],
)
def test_what_an_earlier_stage_cannot_give_is_refused(tmp_path: Path, old: str, new: str, message: str) -> None:
    recipe = RECIPE.replace(old, new).replace('{ name = "nll" }', '{ name = "ppo" }')
    with pytest.raises(ConfigError, match=message):
        trained_run.train(tmp_path / "run", recipe=recipe)


def test_a_stage_that_collected_no_success_says_so(tmp_path: Path) -> None:
    recipe = RECIPE.replace('stage = "collect", ', 'stage = "collect", success_only = true, ')
    with pytest.raises(ConfigError, match="'collect' recorded no groups in which an episode succeeded"):
        trained_run.train(tmp_path / "run", "rollout.limits.turns=1", recipe=recipe)


def test_unrolling_twice_changes_nothing() -> None:
    repeats = [Repeat(stages=("a", "b"), rounds=2), Repeat(stages=("c",), rounds=3)]
    once = unroll(["z", "a", "b", "c"], repeats)
    assert once == [
        Unrolled(0, "z"), Unrolled(1, "a"), Unrolled(2, "b"), Unrolled(1, "a_2"), Unrolled(2, "b_2"),
        Unrolled(3, "c"), Unrolled(3, "c_2"), Unrolled(3, "c_3"),
    ]  # fmt: skip
    names = [stage.name for stage in once]
    assert [stage.name for stage in unroll(names, repeats)] == names


def test_the_rounds_of_a_stage_are_in_order() -> None:
    assert rounds_of("a", ["a_10", "a_2", "b", "a", "a_0", "a_x", "ba_2"]) == ["a", "a_2", "a_10"]


def test_time_ends_a_stage_before_evaluations_do() -> None:
    assert EarlyStop(minutes=2, tokens=100).reason([], Spent(119.0, 99)) == ""
    assert EarlyStop(minutes=2).reason([], Spent(120.0, 0)) == "its steps took 2.0 minutes (limit 2)"
    assert EarlyStop(tokens=1000).reason([], Spent(0.0, 1000)) == "its steps sampled 1,000 tokens (limit 1,000)"
    lines = [metrics.Line(0, "rl", {"seconds_step": 1.5, "sampled_tokens": 10.0}), metrics.Line(0, "sft", {}),
             metrics.Line(1, "rl", {"seconds_step": 2.0, "sampled_tokens": 7.0})]  # fmt: skip
    assert spent(lines, {"rl"}) == Spent(3.5, 17)
