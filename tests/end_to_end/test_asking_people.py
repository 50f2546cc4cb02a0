"""Runs whose agents ask people: answered, unanswered, answered by a model, killed while they wait, and resumed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import trained_run
from asking_base import QUESTION, RECIPE, answering
from spawned import PYTHON, variables_of
from typer.testing import CliRunner

from sojourn.cli import app
from sojourn.config import toml
from sojourn.errors import ConfigError
from sojourn.models.questions import Questions
from sojourn.record import metrics
from sojourn.record.episodes.step_file import Record
from sojourn.record.episodes.store import EpisodeStore
from sojourn.train.resolve import resolve
from sojourn.view.resume_seat import ResumePoint

HERE = '[models.anna]\nname = "tiny:layers=2,hidden=64"\ndtype = "fp32"'
BY_MODEL = RECIPE.replace('wait_s = 600.0\nunanswered = "Nobody is there."', 'person = "anna"\nmax_tokens = 5')


PLAYS = 2 + 8 + 2  # of the evaluation before, the two steps, and the evaluation after


@pytest.fixture(autouse=True)
def often(monkeypatch) -> None:
    monkeypatch.setattr("sojourn.models.asked_person.POLL_S", 0.01)


@pytest.fixture(scope="module")
def answered(tmp_path_factory) -> Path:
    """A run whose questions somebody answered."""
    path = tmp_path_factory.mktemp("answered") / "run"
    with answering(path) as asked:
        trained_run.train(path, recipe=RECIPE)
    assert len(asked) == PLAYS
    return path


def episodes(path: Path) -> list[Record]:
    with EpisodeStore(path) as store:
        return [store.read(row) for row in store.query(stage="rl")]


def values(path: Path, name: str) -> float:
    return sum(line.values.get(name, 0.0) for line in metrics.read(path / "metrics.jsonl"))


def test_an_answer_is_observed_paid_for_and_replayed(answered):
    told = set[str]()
    for one in episodes(answered):
        first, second, *_ = one.episode.trajectories[0].turns
        assert (first.info["questions"], first.reward) == (1.0, pytest.approx(-0.1))
        assert len(first.sample.tokens)
        assert "unanswered" not in first.info
        told.add(second.observed[0].text)
        [asked] = one.asked
        assert (asked.model, asked.answer, asked.question[-1].text) == ("person", second.observed[0].text, QUESTION)
    assert len(told) > 1
    assert told <= {"Go north.", "Go south.", "Go east."}
    assert (values(answered, "asked"), values(answered, "unanswered")) == (8.0, 0.0)
    done = CliRunner().invoke(app, ["replay", str(answered), "--all"])
    assert done.exit_code == 0, done.output
    assert "gave the same observations and rewards" in done.output


def test_a_rerun_begins_before_what_was_asked(answered):
    episode = episodes(answered)[0].episode
    assert len(ResumePoint.of(episode, 0).after) == len(episode.trajectories[0].turns)
    with pytest.raises(ConfigError, match="turn 1 asked a person"):
        ResumePoint.of(episode, 1)


@pytest.mark.parametrize("wait_s", [0.0, 0.01])
def test_a_run_that_nobody_watches_goes_on_and_counts_it(tmp_path, wait_s):
    path = trained_run.train(tmp_path / "run", f"agent.wait_s={wait_s}", recipe=RECIPE)
    assert (values(path, "asked"), values(path, "unanswered")) == (8.0, 8.0)
    for one in episodes(path):
        first, second, *_ = one.episode.trajectories[0].turns
        assert (first.info["unanswered"], second.observed[0].text) == (1.0, "Nobody is there.")
    assert Questions(path).counts() == ((0, 0) if wait_s == 0 else (0, PLAYS))


def test_a_model_answers_in_a_persons_place(tmp_path):
    path = trained_run.train(tmp_path / "run", recipe=f"{BY_MODEL}\n{HERE}")
    assert {asked.model for one in episodes(path) for asked in one.asked} == {"anna"}
    assert not Questions(path).path.exists()


def test_a_run_that_is_killed_while_it_waits_goes_on_to_the_same_weights(tmp_path, answered):
    """The evaluation before it is answered, and one question of the first step; then the run is killed."""
    recipe, path = tmp_path / "recipe.toml", tmp_path / "run"
    recipe.write_text(RECIPE)
    command = [*PYTHON, "-m", "sojourn", "train"]
    environment = variables_of({"PYTHONPATH": os.pathsep.join(sys.path)})
    process = subprocess.Popen([*command, str(recipe), "--out", str(path)], env=environment, stdout=subprocess.PIPE)
    assert process.stdout is not None
    with EpisodeStore(answered) as store:
        known = {row.id: store.read(row).asked[0].answer for row in store.query()}
    for count, first in ((2, 2), (4, 1)):
        while len(found := Questions(path).open()) < count:
            assert process.poll() is None
            time.sleep(0.05)
        for one in found[:first]:
            Questions(path).answer(one.key, known[one.episode])
    process.send_signal(signal.SIGKILL)
    said = process.stdout.read().decode()
    process.stdout.close()
    process.wait()
    assert f"answer by `sojourn answer {path}`" in " ".join(said.split())
    with answering(path) as asked:
        subprocess.run([*command, "--resume", str(path)], env=environment, stdout=subprocess.DEVNULL, check=True)
    assert found[0].key not in [one.key for one in asked]
    assert len(asked) == PLAYS - 3
    assert trained_run.weight_bytes(path) == trained_run.weight_bytes(answered)
    assert [one.episode.id for one in episodes(path)] == [one.episode.id for one in episodes(answered)]


def test_answers_matter(tmp_path, answered):
    """So that equal weights above say something."""
    path = tmp_path / "run"
    with answering(path, lambda one: "I do not know."):
        trained_run.train(path, recipe=RECIPE)
    other, own = trained_run.final_weights(path), trained_run.final_weights(answered)
    assert any(not np.array_equal(other[name], own[name]) for name in own)


REFUSED = {
    "models.person: 'person' is whom the agent asks": (
        HERE.replace("anna", "person"), ["reward={name='judge', model='person'}"]
    ),
    "would end plays while a person thinks": ("", ["rollout.limits.seconds=60"]),
    "agent: it asks the model 'anna', but there are policy": (
        "", ["agent.person=anna", "agent.wait_s=300", "agent.unanswered="]
    ),
    "agent: AskPerson asks a model in the course of a play, but Searched tries actions": (
        "", ["stages.0.groups={name='searched', agent={name='mcts'}, width=2, size=2}"]
    ),
    "ask_person asks other models, which the main agent alone can": (
        "", ["agent={name='delegating', sub_agents={a={instruction='x', base={name='ask_person', unanswered='-'}}}}"]
    ),
}  # fmt: skip


@pytest.mark.parametrize("words", REFUSED)
def test_what_does_not_combine_is_refused_at_the_start(tmp_path, words):
    models, overrides = REFUSED[words]
    (tmp_path / "recipe.toml").write_text(f"{RECIPE}\n{models}")
    with pytest.raises(ConfigError) as caught:
        resolve(toml.read(tmp_path / "recipe.toml", overrides))
    assert words.replace("ask_person", "AskPerson") in str(caught.value)


def test_an_evaluation_alone_has_no_folder_to_ask_in(answered):
    done = CliRunner().invoke(app, ["eval", str(answered)])
    assert isinstance(done.exception, ConfigError)
    assert "an evaluation alone has none" in str(done.exception)
    done = CliRunner().invoke(app, ["eval", str(answered), "agent.wait_s=0"])
    assert done.exit_code == 0, done.output
