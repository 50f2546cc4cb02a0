"""Earlier versions of the policy in seats: which one a play meets, what it samples, and that kills change nothing."""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trained_run
from trained_run import final_weights, killed_and_resumed
from typer.testing import CliRunner

import sojourn
from sojourn.abilities import PartLoad
from sojourn.backends.torch.backend import Torch
from sojourn.backends.torch.models import export
from sojourn.backends.torch.sampler.engine import Engine
from sojourn.cli import app
from sojourn.config import toml
from sojourn.errors import ConfigError, RecordError
from sojourn.models.spec import Model, Snapshots
from sojourn.record import metrics
from sojourn.record.episodes.store import EpisodeStore
from sojourn.train.resolve import resolve
from sojourn.train.routed_sampler import RoutedSampler
from sojourn.train.seating import Clock, Seating, Seats
from sojourn.train.snapshots import Results, SnapshotPool
from sojourn.types import Episode, Group, Prompt, Task, Trajectory

MODEL = Model(name="tiny:layers=1,hidden=64", dtype="fp32")
RECIPE = f"""
name = "past"
model = {{ name = "{MODEL.name}", dtype = "fp32" }}
backend = {{ name = "torch", threads = 1 }}
env = {{ name = "matrix", opponent = "self", rounds = 3, choices = true }}
agent = {{ name = "plain", choices = true }}
evaluation = {{ tasks = 4 }}
sampling = {{ max_tokens = 8 }}
rollout = {{ limits = {{ turns = 12 }} }}
models = {{ past = {{ snapshots = {{ every = 1, keep = 2 }} }} }}
seats = {{ opponents = ["past"] }}
record = {{ checkpoint_every = 1 }}
[[stages]]
name = "rl"
steps = 4
groups = {{ name = "slots", width = 8, size = 2 }}
losses = [{{ name = "ppo" }}]
optim = {{ lr = 3e-4 }}
"""


def groups_of(path: Path, stage: str = "rl") -> list[Group]:
    with EpisodeStore(path) as store:
        return sorted(store.groups(stage), key=lambda group: group.slot)


def met(group: Group) -> int:
    """Returns the step of the snapshot that a group's plays met."""
    models = {one.model for episode in group.episodes for one in episode.trajectories}
    [snapshot] = models - {"policy"}
    assert snapshot.startswith("past@")
    return int(snapshot.removeprefix("past@"))


def met_by_step(path: Path, width: int = 8) -> list[set[int]]:
    groups = groups_of(path)
    return [{met(group) for group in groups[at : at + width]} for at in range(0, len(groups), width)]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return trained_run.train(tmp_path_factory.mktemp("past") / "run", recipe=RECIPE)


def test_plays_meet_the_newest_snapshots_that_are_kept(run):
    assert met_by_step(run) == [{0}, {0, 1}, {1, 2}, {2, 3}]
    assert {met(group) for group in groups_of(run, "evaluation-before")} == {0}
    assert {met(group) for group in groups_of(run, "evaluation-rl")} == {3, 4}
    kept = sorted(path.name for path in (run / "snapshots" / "past").iterdir())
    assert kept == ["step-000003", "step-000004"]
    for line in metrics.read(run / "metrics.jsonl"):
        assert 0 <= line.values["past_won"] <= 1


def test_only_the_policys_trajectories_are_trained(run):
    for group in groups_of(run):
        assert len(group.trajectories) == 2
        assert {one.model for one in group.trajectories} == {"policy"}


def test_the_policy_may_be_among_its_opponents(tmp_path):
    """In a group of its own, in which both seats are trained, and as many as that may be divided."""
    words = ["seats.opponents=['past','policy']", "stages.0.steps=1", "stages.0.minibatches=32"]
    path = trained_run.train(tmp_path / "run", *words, recipe=RECIPE)
    counts = {len(group.trajectories) for group in groups_of(path)}
    assert counts == {2, 4}


def test_the_newest_may_be_met_alone(tmp_path):
    path = trained_run.train(tmp_path / "run", "models.past.snapshots.choose=latest", "stages.0.steps=3", recipe=RECIPE)
    assert met_by_step(path) == [{0}, {1}, {2}]


def test_plays_that_began_early_meet_no_snapshot_that_might_not_have_been_there(tmp_path):
    path = trained_run.train(tmp_path / "run", "stages.0.groups.max_lag=2", "rollout.concurrency=2", recipe=RECIPE)
    assert met_by_step(path) == [{0}, {0}, {0}, {0, 1}]
    kept = sorted(int(place.name[-6:]) for place in (path / "snapshots" / "past").iterdir())
    assert kept == [1, 2, 3, 4], "a run that is resumed after the last step still plays from what step 2 knew"


def test_each_snapshot_samples_by_its_own_weights(tmp_path):
    path = trained_run.train(
        tmp_path / "run", "agent.choices=false", "models.past.snapshots.keep=9", "stages.0.groups.width=4",
        "stages.0.optim.lr=0.01", "stages.0.estimator={name='constant'}", "stages.0.losses=[{name='nll'}]",
        recipe=RECIPE,
    )  # fmt: skip
    fits = asyncio.run(likeness(path))
    assert {made for made, _ in fits} > {0, 1}
    for (made, by), exact in fits.items():
        assert exact == (made == by), f"what snapshot {made} sampled, by the weights of {by}"


async def likeness(path: Path) -> dict[tuple[int, int], bool]:
    """Returns, for what each snapshot sampled and each snapshot's weights, whether these give the log-probabilities
    that were recorded."""
    torch, found = Torch(threads=1), dict[tuple[int, int], bool]()
    for by in range(4):
        loaded = torch.load(MODEL, 0)
        folder = path / "snapshots" / "past" / f"step-{by:06d}"
        model = export.with_weights(loaded.model, None, folder)
        sampler = torch.open_sampler(replace(loaded, model=model), MODEL, ())
        for group in groups_of(path):
            played = [one for episode in group.episodes for one in episode.trajectories if one.model != "policy"]
            one = next((one for one in played if one.turns), None)
            if one is None:  # the policy broke the rules before it could act
                continue
            prompt, turn = one.prompt(0), one.turns[0]
            known = await sampler.score(Prompt(np.concatenate([prompt, turn.sample.tokens])))
            gap = np.abs(known[len(prompt) - 1 :] - turn.sample.logprobs).max()
            pair = (met(group), by)
            found[pair] = found.get(pair, True) and bool(gap < 1e-4)
        await sampler.close()
    return found


@pytest.mark.parametrize("choose", ["uniform", "pfsp_hard"])
def test_a_killed_run_goes_on_to_the_same_weights_and_meets_the_same(run, choose, tmp_path):
    chosen = (f"models.past.snapshots.choose={choose}", "stages.0.steps=3")
    whole = trained_run.train(tmp_path / "whole", *chosen, recipe=RECIPE)
    path = killed_and_resumed(tmp_path / "killed", *chosen, recipe=RECIPE)
    assert [met(group) for group in groups_of(path)] == [met(group) for group in groups_of(whole)]
    found = final_weights(path)
    for name, values in final_weights(whole).items():
        np.testing.assert_array_equal(values, found[name])


def test_a_run_without_its_snapshots_does_not_go_on(run, tmp_path):
    path = tmp_path / "run"
    shutil.copytree(run, path)
    shutil.rmtree(path / "snapshots")
    done = CliRunner().invoke(app, ["train", "--resume", str(path), "stages.0.steps=6"])
    assert done.exit_code != 0
    assert isinstance(done.exception, RecordError)
    assert "has no snapshot of the first 4 steps" in str(done.exception)


def test_an_evaluation_meets_the_snapshots_of_its_run_and_changes_nothing(run, tmp_path):
    before = sorted(path.name for path in (run / "snapshots" / "past").iterdir())
    for named, known in ((f"{run}@last", {3, 4}), (f"{run}@before", {0})):
        with sojourn.load(named) as loaded:
            models = {one.model for task in range(8) for one in loaded.play(task).trajectories}
        assert models == {"policy"} | {f"past@{step}" for step in known}
    assert sorted(path.name for path in (run / "snapshots" / "past").iterdir()) == before
    (tmp_path / "recipe.toml").write_text(RECIPE)
    done = CliRunner().invoke(app, ["eval", str(tmp_path / "recipe.toml")])
    assert done.exit_code == 0, done.output


def test_evaluations_may_have_other_seats(tmp_path):
    path = trained_run.train(tmp_path / "run", "evaluation.seats={}", "stages.0.steps=1", recipe=RECIPE)
    for group in groups_of(path, "evaluation-rl"):
        assert {one.model for episode in group.episodes for one in episode.trajectories} == {"policy"}
    assert met_by_step(path) == [{0}]
    seating = Seating(Seats(opponents=("rival",)), 0, Seats())
    taken = [{seating(f"{label}/0/0", seat, ("row", "column")) for seat in ("row", "column")} for label in LABELS]
    assert taken == [{"policy"}, {"policy"}, {"policy", "rival"}, {"policy", "rival"}]


LABELS = ("evaluation-rl", "evaluation-python-test", "rl", "python")  # two of evaluations, two of stages
REFUSED = {
    "snapshots are of the policy's model": ["models.past.name=tiny"],
    "models.past: nothing asks this model": ["seats={}"],
    "a pool of snapshots: these take seats alone": [
        "stages.0.streams=[{name='teacher', model='past'}]",
        "stages.0.estimator={name='teacher_kl'}",
    ],
    "snapshots.every": ["models.past.snapshots.every=0"],
    "evaluation.seats.models.nobody: the world has the seats": ["evaluation.seats={models={nobody=['past']}}"],
    "the model 'stranger' is to take a seat": ["evaluation.seats={opponents=['stranger']}"],
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_cannot_be_is_refused(words, tmp_path):
    (tmp_path / "recipe.toml").write_text(RECIPE)
    with pytest.raises(ConfigError) as caught:
        resolve(toml.read(tmp_path / "recipe.toml", REFUSED[words]))
    assert words in str(caught.value)


def pool(**config: object) -> SnapshotPool:
    """Returns a pool of which the snapshots 0, 10 and 20 are there."""

    async def never(name: str, weights: Path) -> Engine:
        raise AssertionError("nothing is opened here")

    made = SnapshotPool("past", Snapshots(**config), never, {})  # type: ignore[arg-type]
    made._open.update((0, 10, 20))
    return made


def played(mine: float, *theirs: float, step: int, model: str = "past", error: str | None = None) -> Group:
    task = Task("toy", {}, 0, "train")
    seats = [("policy", mine), *((f"{model}@{step}", reward) for reward in theirs)]
    trajectories = tuple(
        Trajectory(str(n), (), "done", unacted_reward=reward, model=name)  # type: ignore[arg-type]
        for n, (name, reward) in enumerate(seats)
    )
    return Group(0, task, (Episode("e", task, trajectories, error=error),))


def shares(made: SnapshotPool, known: int) -> dict[str, float]:
    """Returns how often each is chosen."""
    drawn = [made.choose(known, (n + 0.5) / 1000) for n in range(1000)]
    return {name: drawn.count(name) / 1000 for name in dict.fromkeys(drawn)}


def test_snapshots_are_chosen_by_what_was_known():
    assert shares(pool(), 20) == pytest.approx({"past@0": 1 / 3, "past@10": 1 / 3, "past@20": 1 / 3}, abs=2e-3)
    assert shares(pool(), 19) == {"past@0": 0.5, "past@10": 0.5}
    assert shares(pool(keep=1), 19) == {"past@10": 1.0}
    assert shares(pool(choose="latest"), 20) == {"past@20": 1.0}
    for choose in ("pfsp_hard", "pfsp_variance"):
        made = pool(choose=choose)
        made.observe(
            12, [*[played(1, -1, step=0)] * 7, *[played(0, 0, step=10)] * 2, played(1, 0, step=10, error="down")]
        )
        made.observe(15, [played(-1, 1, step=10), played(1, 0, step=10, model="rival")])
        assert Results(7, 7.0).win_rate == 8 / 9
        early = {"past@0": 0.5, "past@10": 0.5}
        assert shares(made, 11) == early
        w = np.array([8 / 9, 2 / 4]), np.array([8 / 9, 2 / 5])  # after 12 and 15 steps; draws count half
        for known, rates in zip((14, 15), w, strict=True):
            weights = (1 - rates) ** 2 if choose == "pfsp_hard" else rates * (1 - rates)
            expected = dict(zip(early, weights / weights.sum(), strict=True))
            assert shares(made, known) == pytest.approx(expected, abs=2e-3)
    assert made.points(12) == 8 / 9
    assert made.points(13) is None
    with pytest.raises(AssertionError, match="no snapshot of past was open by step -1"):
        made.choose(-1, 0.5)


def test_a_snapshot_in_several_seats_has_what_these_got_in_the_mean():
    made = pool()
    for step, theirs in enumerate([(0.1, 0.1, 0.1), (1, -1, 0.6), (0, 0, 0.2)]):
        made.observe(step, [played(0.1, *theirs, step=0)])
    assert [made.points(step) for step in range(3)] == [0.5, 0.0, 1.0]


async def test_results_against_snapshots_that_no_play_meets_any_more_are_forgotten():
    made = pool(keep=1)
    for step in range(30):
        made.observe(step, [played(1, 0, step=0)] if step < 25 else [])
    made.observe(30, [played(1, 0, step=0)])

    class Closed:
        async def close(self) -> None:
            pass

    made.players.update({made.model(step): Closed() for step in (0, 10, 20)})  # type: ignore[misc]
    await made.release(20)
    assert list(made.state()) == ["30"]
    assert made.points(30) is None


def test_what_a_group_knows_follows_from_its_slot():
    clock = Clock("rl", before=100, width=4, lag=2)
    assert [clock.known(slot) for slot in (0, 11, 12, 16)] == [100, 100, 101, 102]
    assert [clock.earliest(done) for done in (100, 102, 105)] == [100, 100, 103]


async def test_what_begins_now_may_be_sampled_by_older_weights_of_every_model():
    class Newer:
        def __init__(self, name: str) -> None:
            self.name = name

        def since_now(self) -> str:
            return f"{self.name} since now"

    others = {"rival": Newer("rival"), "plain": object()}
    begun = RoutedSampler(Newer("policy"), others).since_now()  # type: ignore[arg-type]
    assert begun.policy == "policy since now"
    assert begun.others == {"rival": "rival since now", "plain": others["plain"]}


@pytest.mark.parametrize(
    ("done", "known", "opened"),
    [(4, 4, [3, 4]), (4, 2, [1, 2, 3, 4]), (3, 3, [2, 3]), (0, -2, [0])],
    ids=["newest", "plays began early", "of an earlier step", "begun"],
)
async def test_no_more_snapshots_are_opened_again_than_plays_may_meet(done, known, opened, tmp_path):
    """Files of all steps are there, as where a run was killed before it removed those of no use."""
    found = list[Path]()

    async def note(name: str, weights: Path) -> Any:
        found.append(weights)

    made = SnapshotPool("past", Snapshots(every=1, keep=2), note, {})
    made.attach(tmp_path)
    for step in range(6):
        made._path(step).mkdir(parents=True)
    assert await made.open_kept(done, known)
    assert found == [made._path(step) for step in opened]


def test_all_players_tell_their_loads_and_are_closed_where_one_cannot_be_opened(tmp_path, monkeypatch):
    class Loaded:
        def __init__(self) -> None:
            self.closed = False

        async def part_loads(self) -> list[PartLoad]:
            return [PartLoad(name="sampler", kind="sampler")]

        async def close(self) -> None:
            self.closed = True

    async def loads() -> None:
        policy, rival = Loaded(), Loaded()
        router = RoutedSampler(policy, {"rival": rival})  # type: ignore[arg-type]
        assert [load.name for load in await router.part_loads()] == ["sampler", "sampler of rival"]
        await router.close()
        assert policy.closed
        assert rival.closed

    asyncio.run(loads())
    opened, closed = list[Engine](), list[Engine]()
    open_one, close_one = Torch.open_sampler, Engine.close

    def noted(*given, **named):
        opened.append(open_one(*given, **named))
        return opened[-1]

    monkeypatch.setattr(Torch, "open_sampler", noted)
    monkeypatch.setattr(Engine, "close", lambda self: closed.append(self) or close_one(self))
    models = "models={first={name='tiny:layers=1,hidden=64'}, second={name='/nowhere'}}"
    with pytest.raises(Exception, match="nowhere"):
        trained_run.train(tmp_path / "run", models, "seats.opponents=['first','second']", recipe=RECIPE)
    assert len(opened) == len(closed)
    assert set(opened) == set(closed)
