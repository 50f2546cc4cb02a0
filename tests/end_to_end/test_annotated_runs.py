"""Runs whose intrinsic rewards another model's labels decide: asked beside the play, killed, resumed, and refused."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
import trained_run
from judge_server import judging, text
from trained_run import killed_and_resumed, untimed, weight_bytes

from sojourn.config import toml
from sojourn.errors import ConfigError, InfrastructureError
from sojourn.record import metrics
from sojourn.record.episodes.step_file import Record
from sojourn.record.episodes.store import EpisodeStore
from sojourn.train.resolve import resolve
from tests.envs.loopback import Raw

HEAD = """
name = "annotated"
model = { name = "tiny:layers=1,hidden=64", dtype = "fp32" }
backend = { name = "torch", threads = 1 }
env = { name = "toy", rooms = 3, choices = true, train = 1 }
agent = { name = "plain", choices = true }
evaluation = { tasks = 1 }
sampling = { max_tokens = 8 }
rollout = { limits = { turns = 4 } }
record = { checkpoint_every = 1 }
"""
STAGE = """
[[stages]]
name = "rl"
steps = 4
groups = { name = "slots", width = 1, size = 3 }
losses = [{ name = "ppo" }]
optim = { lr = 1e-3 }
"""
STREAM = """
estimator = { name = "whitened", base = { name = "process", stream = "feedback", base = { name = "grpo" } } }
streams = [{ name = "feedback", annotator = "oracle", messages_per_step = 4, reward_model = "FORM" KEYS }]
"""


def stream(keys: str = "", form: str = "hash") -> str:
    return STREAM.replace(" KEYS", keys).replace("FORM", form)


def served(url: str) -> str:
    endpoint = f'[models.oracle.endpoint]\nbase_url = "{url}"\nmodel = "big"\nprompt_price = 1.0\n'
    return HEAD + endpoint + STAGE + stream()


def says(body) -> str:
    """Labels by the message alone."""
    return f"Because.\n{'yes' if len(text(body)) % 2 else 'no'}"


def episodes(path: Path) -> list[Record]:
    with EpisodeStore(path) as store:
        return [store.read(row) for row in store.query(stage="rl")]


def recorded(path: Path) -> tuple[list[dict[str, float]], Sequence[Sequence[tuple[object, ...]]]]:
    values = [untimed(line.values) for line in metrics.read(path / "metrics.jsonl")]
    asked = [[(x.model, x.purpose, x.about, x.question, x.answer, x.cost) for x in one.asked] for one in episodes(path)]
    return values, asked


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> tuple[Path, list[dict[str, object]]]:
    """A run, and what its annotator was asked."""
    with judging(says) as (url, asked):
        path = trained_run.train(tmp_path_factory.mktemp("annotated") / "run", recipe=served(url))
    return path, asked


def test_messages_are_labelled_late_and_what_was_asked_is_recorded(run):
    path, asked = run
    values, exchanges = recorded(path)
    assert [line["feedback_labels"] for line in values] == sorted(line["feedback_labels"] for line in values)
    assert values[0]["feedback_labels"] == 0 < values[0]["feedback_asked"]  # they are asked for, and not due
    assert values[-1]["feedback_labels"] > 0
    assert any(line["trained_tokens"] > 0 for line in values)
    assert sum(line.get("asked", 0) for line in values) == sum(map(len, exchanges)) > 0
    assert 0 < sum(map(len, exchanges)) <= len(asked)  # the last are asked in vain
    assert {purpose for of in exchanges for _, purpose, *_ in of} <= {f"feedback, question {n}" for n in (1, 2, 3, 4)}
    assert values[1]["asked_cost"] > 0


def test_a_slow_annotator_changes_nothing(run, tmp_path):
    """Each answer is held back until the next question, or a while: the run is the same."""
    turn = threading.Semaphore(0)

    def late(body) -> str:
        turn.release()
        turn.acquire(timeout=0.2)
        turn.acquire(timeout=0.2)
        return says(body)

    with judging(late) as (url, _):
        path = trained_run.train(tmp_path / "slow", recipe=served(url))
    assert weight_bytes(path) == weight_bytes(run[0])
    assert recorded(path) == recorded(run[0])


def test_a_killed_run_goes_on_to_the_same(run, tmp_path):
    with judging(says) as (url, _):
        path = killed_and_resumed(tmp_path / "killed", recipe=served(url))
    assert weight_bytes(path) == weight_bytes(run[0])
    assert recorded(path) == recorded(run[0])


def test_the_labels_decide_what_is_trained(run, tmp_path):
    with judging(lambda body: "no") as (url, _):
        path = trained_run.train(tmp_path / "other", recipe=served(url))
    assert weight_bytes(path) != weight_bytes(run[0])


LOCAL = '[models.oracle]\nname = "tiny:layers=2,hidden=64"\ndtype = "fp32"\n'


@pytest.mark.parametrize("form", ["classification", "ranking"])
def test_a_model_that_is_here_labels_and_a_killed_run_goes_on_to_the_same(tmp_path, form):
    recipe = HEAD + LOCAL + STAGE + stream(', verdict = "likelihood", lag = 0, updates = 3', form)
    whole = trained_run.train(tmp_path / "whole", recipe=recipe)
    values, exchanges = recorded(whole)
    assert values[0]["feedback_labels"] > 0
    assert all(str(answer).startswith("P(") for of in exchanges for *_, answer, _ in of)
    path = killed_and_resumed(tmp_path / "killed", recipe=recipe)
    assert weight_bytes(path) == weight_bytes(whole)
    assert recorded(path) == recorded(whole)


def test_an_annotator_that_fails_stops_the_run(tmp_path):
    with judging(lambda body: Raw(400, "down")) as (url, _), pytest.raises(InfrastructureError, match="400, 'down'"):
        trained_run.train(tmp_path / "run", recipe=served(url))


@pytest.mark.parametrize(
    ("models", "keys", "words"),
    [
        ("", "", "streams: it asks the model 'oracle', but there are policy"),
        ("[models.oracle]\nsnapshots = { every = 1 }\n", "", "pool of snapshots"),
        (
            '[models.oracle.endpoint]\nbase_url = "http://127.0.0.1:1/v1"\nmodel = "big"\n',
            ', verdict = "likelihood"',
            "name a model that is here",
        ),
    ],
)
def test_annotators_that_cannot_be_asked_are_refused(tmp_path, models, keys, words):
    file = tmp_path / "recipe.toml"
    file.write_text(HEAD + models + STAGE + stream(keys))
    with pytest.raises(ConfigError, match=words):
        resolve(toml.read(file, []))


def test_an_annotator_that_learns_is_refused(tmp_path):
    file = tmp_path / "recipe.toml"
    seats = 'seats = { models = { agent = ["policy", "oracle"] } }\n'
    learns = 'learners = { oracle = { streams = [], estimator = { name = "grpo" } } }\n'
    file.write_text(seats + HEAD + LOCAL + STAGE + stream() + learns)
    with pytest.raises(ConfigError, match="streams: it asks the model 'oracle', which learns in the run"):
        resolve(toml.read(file, []))
