"""Predictions from the records of real runs: what is the same is predicted to be the same, and what cannot be is
refused."""

import re
import shutil
import tomllib
from dataclasses import replace

import numpy as np
import pytest
import tomli_w
from made import group, score, trajectory
from trained_run import train
from typer.testing import CliRunner

from sojourn.backends.torch.models import loading
from sojourn.backends.torch.trainer.model_passes import ModelPasses
from sojourn.backends.torch.trainer.trainer import TorchTrainer
from sojourn.cli import app
from sojourn.errors import ConfigError
from sojourn.ope import predict
from sojourn.ope.logged import logged
from sojourn.ope.of_run import recorded_groups
from sojourn.ope.predict import METHODS
from sojourn.record import checkpoint
from sojourn.record.episodes.group import GroupRecord
from sojourn.record.run_weights import find_weights
from sojourn.types import Branch, Versions

EASY = ("env.side_rooms=0", "env.doors=0", "env.decoys=0", "env.objects=0")  # won by chance, now and then
LEARNS = ("evaluation.tasks=4", "stages.rl.steps=2", "stages.rl.groups.width=8", "stages.rl.optim.lr=0.01")
OVERRIDES = (*EASY, *LEARNS, "record.keep_best=false")  # so that none is the best before predictions say so


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return train(tmp_path_factory.mktemp("ope") / "run", *OVERRIDES)


def ope(*words: str):
    return CliRunner().invoke(app, ["ope", *map(str, words)], env={"COLUMNS": "120"})


def test_the_weights_that_played_are_predicted_to_do_what_they_did(run):
    """The first step of `rl` was played by the weights that the warm-up ended with."""
    done = ope(f"{run}@warmup", "--stage", "rl", "--steps", "0:1")
    assert done.exit_code == 0, done
    found = re.findall(r"^(.*?) +(\d+%) \[", done.output, re.MULTILINE)
    assert [name for name, _ in found] == list(METHODS.values())
    means = {mean for name, mean in found if name != METHODS["fitted"]}
    assert len(means) == 1
    assert means != {"0%"}
    assert "16 recorded episodes; their importance weights are worth 16, and have the mean 1.00" in done.output
    assert "note: fewer than 30 recorded episodes show little of what any weights would do: record" in done.output
    assert "differ so much" not in done.output  # as these weights are those that played


def test_other_weights_are_predicted_otherwise(run):
    done = ope(f"{run}@rl", "--stage", "rl", "--steps", "0:1", "--outcome", "reward")
    assert done.exit_code == 0
    worth = float(done.output.split("are worth ")[1].split(",")[0])
    assert worth < 15.5


def test_of_all_weights_the_last_that_passes_the_gate_is_kept(run, monkeypatch):
    """The recorded episodes of both steps won 59%, those of the second, by the last weights, all. With the first step
    alone, the records show next to nothing of the last weights."""
    done = ope(run, "--all", "--stage", "rl", "--steps", "0:1")
    assert done.exit_code == 0, done
    assert "none of these weights is predicted to do better than what was recorded" in done.output
    assert done.output.count("the records show too little") == 3
    monkeypatch.setattr(predict, "FEW", 5)
    done = ope(run, "--all", "--stage", "rl")
    verdicts = re.findall(r"^(before|warmup|rl) .* (passes|the records show too little) *$", done.output, re.MULTILINE)
    assert verdicts == [(name, "the records show too little") for name in ("before", "warmup")] + [("rl", "passes")]
    assert not any(one.best for one in checkpoint.checkpoints(run / "checkpoints"))
    done = ope(run, "--all", "--stage", "rl", "--keep")
    assert f"the best by prediction: {run}@rl" in done.output.replace("\n", "")
    assert find_weights(run, "best").name == "rl"


def test_without_a_name_it_is_the_stage_that_a_policy_played(run, tmp_path):
    assert {record.stage for record in recorded_groups(run)} == {"rl"}
    twice = train(tmp_path / "run", *OVERRIDES, "stages.warmup.groups={name='slots', width=1, size=2}")
    with pytest.raises(ConfigError, match=r"2 stages whose episodes a policy sampled \(rl, warmup\): name one"):
        recorded_groups(twice)


@pytest.mark.parametrize(
    ("setting", "words"), [("temperature=0", "evaluation.temperature = 0"), ("top_p=0.9", "evaluation.top_p = 0.9")]
)
def test_evaluations_that_were_not_drawn_from_the_whole_distribution_are_refused(run, setting, words, tmp_path):
    assert len(recorded_groups(run, "evaluation-rl")) == 4
    shutil.copytree(run, tmp_path / "run")
    config = tomllib.loads((tmp_path / "run" / "config.toml").read_text())
    key, _, value = setting.partition("=")
    config["evaluation"][key] = float(value)
    (tmp_path / "run" / "config.toml").write_text(tomli_w.dumps(config))
    with pytest.raises(ConfigError, match=rf"'evaluation-rl' was decoded with {words}"):
        recorded_groups(tmp_path / "run", "evaluation-rl")
    assert recorded_groups(tmp_path / "run", "rl")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--stage", "rll"], "has no episodes of the stage 'rll': it holds"),
        (["--stage", "rl", "--steps", "7:9"], "has no episodes of the stage 'rl' in its steps 7 to 8"),
        (["--stage", "rl", "--steps", "9:7"], "--steps 9:7: expected two numbers, such as 0:10"),
        (["--stage", "rl", "--outcome", "joy"], "--outcome joy: expected success or reward"),
        (["--stage", "warmup"], "turns that no model sampled"),
        (["--keep"], "--keep chooses among several weights: add --all"),
        (["--data", "nowhere"], "'nowhere' has no recorded episodes"),
    ],
)
def test_what_cannot_be_predicted_is_refused(run, words, sentence):
    done = ope(str(run), *words)
    assert done.exit_code != 0
    assert sentence in str(done.exception)


def test_all_weights_are_those_of_a_folder(run):
    assert "name the folder alone" in str(ope(f"{run}@rl", "--all").exception)


def recorded(*trajectories) -> GroupRecord:
    """The second has succeeded."""
    won = [
        replace(one, turns=(*one.turns[:-1], replace(one.turns[-1], info={"success": float(number == 1)})))
        for number, one in enumerate(trajectories)
    ]
    scores, trajectories = [score(one, 0.0) for one in won], won
    return GroupRecord("rl", 0, group(list(trajectories)), tuple(scores), ())


def trainer() -> TorchTrainer:
    async def nowhere(weights, version):
        """Takes published weights and forgets them."""

    return TorchTrainer(
        ModelPasses(loading.load("tiny:layers=1,hidden=64", "fp32", 0).model, bf16=False, token_budget=10_000), nowhere
    )


async def test_ratios_are_of_whole_turns():
    """Each is the probability of the turn by the weights, over that with which it was sampled."""
    rng = np.random.default_rng(0)
    one, two = trajectory(rng, turns=2), trajectory(rng, turns=3)
    known, made = await logged([recorded(one, two)], trainer()), trainer()
    shifted = tuple(
        replace(turn, sample=replace(turn.sample, logprobs=turn.sample.logprobs - np.float32(0.25)))
        for turn in two.turns
    )
    [_, less] = await logged([recorded(one, replace(two, turns=shifted))], made)
    assert [len(e.log_ratios) for e in known] == [2, 3]
    lengths = [len(turn.sample.tokens) for turn in two.turns]
    assert less.log_ratios - known[1].log_ratios == pytest.approx(0.25 * np.array(lengths), abs=1e-4)
    assert [e.rewards.tolist() for e in known] == [[0, 0], [0, 0, 1]]
    assert known[0].states.shape == (2, 64)


async def test_rewards_of_turns_without_tokens_go_to_the_turn_before():
    rng = np.random.default_rng(0)
    one = trajectory(rng, turns=3)
    silent = replace(one.turns[1], sample=replace(one.turns[1].sample, tokens=np.zeros(0, int), logprobs=np.zeros(0)))
    one = replace(one, turns=(one.turns[0], silent, one.turns[2]))
    record = recorded(one)
    record = replace(record, scores=(replace(record.scores[0], turns=np.array([1.0, 2.0, 4.0], dtype=np.float32)),))
    [known] = await logged([record], trainer(), "reward")
    assert known.rewards.tolist() == [3, 4]


async def test_episodes_of_several_seats_and_of_no_model_are_refused():
    rng = np.random.default_rng(0)
    one, two = trajectory(rng), replace(trajectory(rng), agent="other")
    both = recorded(one)
    [episode] = both.group.episodes
    seats = replace(both, group=replace(both.group, episodes=(replace(episode, trajectories=(one, two)),)))
    with pytest.raises(ConfigError, match="in which several seats were trained"):
        await logged([seats], trainer())
    turn = replace(one.turns[0], sample=replace(one.turns[0].sample, versions=Versions(-1, -1)))
    with pytest.raises(ConfigError, match="turns that no model sampled"):
        await logged([recorded(replace(one, turns=(turn, *one.turns[1:])))], trainer())


async def test_branches_and_turns_that_a_search_found_are_refused():
    """They are there because of what came of others: branches of plays that failed, say, fail more often."""
    rng = np.random.default_rng(0)
    one, two = trajectory(rng), trajectory(rng)
    both = recorded(one, two)
    first, second = both.group.episodes
    branch = replace(second, branch=Branch(first.id, (1,), "failed"))
    branched = replace(both, group=replace(both.group, episodes=(first, branch)))
    with pytest.raises(ConfigError, match="stage 'rl', step 0 has branches of plays"):
        await logged([branched], trainer())
    found = replace(one, turns=(replace(one.turns[0], info={"planned": 1.0}), *one.turns[1:]))
    with pytest.raises(ConfigError, match="has turns that a search found"):
        await logged([recorded(found)], trainer())
    assert len(await logged([both], trainer())) == 2
