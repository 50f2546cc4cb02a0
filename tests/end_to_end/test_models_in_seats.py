"""Models that take seats beside the policy: who sits where, what is trained, and what is refused."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import trained_run
from trained_run import final_weights, killed_and_resumed
from typer.testing import CliRunner

from sojourn.backends.torch.backend import Torch
from sojourn.cli import app
from sojourn.config import toml
from sojourn.errors import ConfigError, ModelError
from sojourn.models.spec import Model
from sojourn.record.episodes.store import EpisodeStore
from sojourn.record.export.exact import Groups, episode_json
from sojourn.train.resolve import resolve
from sojourn.train.seating import Seating, Seats
from sojourn.types import Group, Prompt
from sojourn.view.server import application

RECIPE = """
name = "seats"
model = { name = "tiny:layers=1,hidden=64", dtype = "fp32" }
backend = { name = "torch", threads = 1 }
env = { name = "matrix", opponent = "self", rounds = 3, choices = true }
agent = { name = "plain", choices = true }
evaluation = { tasks = 4 }
sampling = { max_tokens = 8 }
rollout = { limits = { turns = 12 } }
models = { rival = { name = "tiny:layers=2,hidden=64", dtype = "fp32" } }
seats = { opponents = ["rival"] }
record = { checkpoint_every = 1 }
[[stages]]
name = "rl"
steps = 3
groups = { name = "slots", width = 2, size = 3 }
losses = [{ name = "ppo" }]
optim = { lr = 1e-3 }
"""
SEATS = ("row", "column")


def groups_of(path: Path, stage: str = "rl") -> list[Group]:
    with EpisodeStore(path) as store:
        return list(store.groups(stage))


def sitting(group: Group) -> set[tuple[str, ...]]:
    """Returns which models sit in the seats, in the order of these, in each of a group's plays."""
    return {tuple(one.model for one in episode.trajectories) for episode in group.episodes}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return trained_run.train(tmp_path_factory.mktemp("seats") / "run", recipe=RECIPE)


def test_the_policy_takes_each_seat_in_turn_and_alone_is_trained(run):
    groups = {group.slot: group for group in groups_of(run)}
    for slot, group in groups.items():
        assert sitting(group) == {("policy", "rival") if slot % 2 == 0 else ("rival", "policy")}
        for episode in group.episodes:
            assert [one.trainable for one in episode.trajectories] == [
                one.model == "policy" for one in episode.trajectories
            ]
            assert [len(one.turns) for one in episode.trajectories] == [3, 3]
        assert len(group.trajectories) == 3
    assert sorted(groups) == [*range(6)]
    before, after = (groups_of(run, name) for name in ("evaluation-before", "evaluation-rl"))
    assert [sitting(group) for group in before] == [sitting(group) for group in after]
    assert Counter(one for group in after for one in sitting(group)) == {("policy", "rival"): 2, ("rival", "policy"): 2}


def test_each_seats_tokens_are_those_of_its_model(tmp_path):
    """The rival's stay those of its own weights, whatever the policy has learned."""
    path = trained_run.train(tmp_path / "run", "agent.choices=false", "stages.0.optim.lr=0.01", recipe=RECIPE)
    for model, exact in asyncio.run(likeness(path)):
        assert exact == (model == "rival")


async def likeness(path: Path) -> list[tuple[str, bool]]:
    """Returns who sampled each turn, and whether the rival's own weights give it the same log-probabilities."""
    torch, spec = Torch(threads=1), Model(name="tiny:layers=2,hidden=64", dtype="fp32")
    rival, found = torch.open_sampler(torch.load(spec, 0), spec, ()), []
    for group in groups_of(path):
        for one in group.episodes[0].trajectories:
            for number, turn in enumerate(one.turns):
                prompt = one.prompt(number)
                known = await rival.score(Prompt(np.concatenate([prompt, turn.sample.tokens])))
                gap = np.abs(known[len(prompt) - 1 :] - turn.sample.logprobs).max()
                found.append((one.model, bool(gap < 1e-4)))
    await rival.close()
    assert {model for model, _ in found} == {"policy", "rival"}
    return found


def test_what_was_played_by_whom_is_shown_and_exported_and_comes_back(run, tmp_path):
    exported = Groups()
    with EpisodeStore(run) as store:
        [first, *_] = store.groups("rl")
        entries = {row.id: row for row in store.query(stage="rl")}
        for episode in first.episodes:
            for seat, one in enumerate(episode.trajectories):
                exported.add(episode_json(entries[episode.id], episode, seat, range(len(one.turns))))
    [again] = exported
    assert sitting(again) == sitting(first)
    parquet = pytest.importorskip("pyarrow.parquet")
    words = ["export", str(run), "--where", "stage:rl", "--format", "parquet", "--out", str(tmp_path / "t")]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    told = parquet.read_table(tmp_path / "t").to_pylist()
    assert {(row["trainable"], row["model_name"]) for row in told} == {(True, "policy"), (False, "rival")}
    shown = CliRunner().invoke(app, ["show", str(run), "rl:0/0/0"]).output
    assert "played by the model rival, not trained on" in shown
    testclient = pytest.importorskip("starlette.testclient")
    with testclient.TestClient(application([run.parent]), base_url="http://127.0.0.1") as client:
        page = client.get(f"/runs/{run.name}/episodes/rl/0/0/0").text
    assert "played by the model rival, not trained on" in page


def test_a_killed_run_goes_on_to_the_same_weights(run, tmp_path):
    path = killed_and_resumed(tmp_path / "killed", recipe=RECIPE)
    found, expected = final_weights(path), final_weights(run)
    for name, values in expected.items():
        np.testing.assert_array_equal(values, found[name])


def test_the_weights_of_another_run_take_a_seat(run, tmp_path):
    """Adapters included: its samples differ from those of the model that it began with."""
    other = trained_run.train(tmp_path / "other", "model.lora={rank=2}", "stages.0.optim.lr=0.05", recipe=RECIPE)
    changed = [f"models.rival.weights='{other}'", "models.rival.name=''", "stages.0.steps=1", "stages.0.optim.lr=0.0"]
    began = [*changed[2:], "models.rival.name='tiny:layers=1,hidden=64'"]
    both = [
        groups_of(trained_run.train(tmp_path / name, *overrides, recipe=RECIPE))
        for name, overrides in (("a", changed), ("b", began))
    ]
    (ours, theirs), (ours_before, theirs_before) = (
        [[turn.sample.logprobs.tolist() for turn in one.turns] for one in groups[0].episodes[0].trajectories]
        for groups in both
    )
    assert ours[0] == ours_before[0]  # the policy's first action, of which nobody else knows yet
    assert theirs != theirs_before


def test_seats_may_be_named(tmp_path):
    named = "seats = { models = { column = ['rival', 'policy'] } }"
    recipe = RECIPE.replace('seats = { opponents = ["rival"] }', named)
    found = trained_run.train(tmp_path / "run", "stages.0.groups.width=8", "stages.0.steps=1", recipe=recipe)
    assert set().union(*map(sitting, groups_of(found))) == {("policy", "rival"), ("policy", "policy")}


def test_seats_are_drawn_alike_for_all_plays_of_a_group_and_differ_between_groups():
    seating = Seating(Seats(opponents=("a", "b", "c")), 3)
    drawn = [
        {tuple(seating(f"rl/{slot}/0/{n}", seat, SEATS) for seat in SEATS) for n in range(4)} for slot in range(64)
    ]
    assert all(len(one) == 1 for one in drawn)
    assert all(
        [name == "policy" for name in next(iter(one))] == [slot % 2 == 0, slot % 2 == 1]
        for slot, one in enumerate(drawn)
    )
    assert {name for one in drawn for name in next(iter(one))} == {"policy", "a", "b", "c"}
    assert [seating(f"before/{slot}/0", "row", SEATS) for slot in range(9)] == [
        seating(f"rl-3/{slot}/0", "row", SEATS) for slot in range(9)
    ]
    assert Seating(Seats(), 0)("rl/0/0/0", "agent", ("agent",)) == "policy"
    assert seating("alone", "row", SEATS) in {"policy", "a", "b", "c"}


REFUSED = {
    "seats.models.nobody: the world has the seats column, row": "seats = { models = { nobody = ['rival'] } }",
    "gives all of the seats row, column to other": "seats = { models = { row = ['rival'], column = ['rival'] } }",
    "the model 'stranger' is to take a seat": "seats = { opponents = ['rival', 'stranger'] }",
    "expected one of the two": "seats = { opponents = ['rival'], models = { row = ['rival'] } }",
    "expected the name of a model": "seats = { models = { row = [] } }",
    "models.rival: nothing asks this model": "seats = {}",
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_cannot_sit_is_refused(words, tmp_path):
    (tmp_path / "recipe.toml").write_text(RECIPE.replace('seats = { opponents = ["rival"] }', REFUSED[words]))
    with pytest.raises(ConfigError) as caught:
        resolve(toml.read(tmp_path / "recipe.toml"))
    assert words in str(caught.value)


CHANGED = {
    "OfSeat is for the seat 'nobody', but those who act are column, row": ["reward={name='of_seat', seat='nobody'}"],
    "but a play has the one seat 'agent'": ["env.opponent=tit_for_tat"],
    "minibatches = 7, but a step has 6 trajectories": ["stages.0.minibatches=7"],
}


@pytest.mark.parametrize("words", CHANGED)
def test_what_does_not_go_with_others_in_seats_is_refused(words, tmp_path):
    (tmp_path / "recipe.toml").write_text(RECIPE)
    with pytest.raises(ConfigError) as caught:
        resolve(toml.read(tmp_path / "recipe.toml", CHANGED[words]))
    assert words in str(caught.value)


def test_a_model_of_another_vocabulary_is_refused(tmp_path):
    from engine_models import build

    build("llama").save_pretrained(tmp_path / "other")
    with pytest.raises(ModelError, match=r"models\.rival = .* has not the policy's vocabulary"):
        trained_run.train(tmp_path / "run", f"models.rival.name={tmp_path / 'other'}", recipe=RECIPE)


def test_an_expert_takes_all_seats(tmp_path):
    """And what it does in the rival's is not imitated."""
    shown = "stages.0={name='shown', steps=1, groups={name='experts', width=2, success_only=false}, "
    shown += "estimator={name='constant'}, losses=[{name='nll'}]}"
    world = "env={name='colorgrid', opponent='self', choices=true, turns=24}"
    path = trained_run.train(tmp_path / "run", shown, world, recipe=RECIPE)
    for group in groups_of(path, "shown"):
        [one] = sitting(group)
        assert set(one) == {"policy", "rival"}
        for trajectory in group.episodes[0].trajectories:
            assert {turn.sample.versions.newest for turn in trajectory.turns} == {-1}
            assert trajectory.trainable == (trajectory.model == "policy")
