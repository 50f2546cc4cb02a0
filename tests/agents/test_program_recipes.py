"""Recipes whose agents are programs: they learn through the one loop, and what cannot be with them is refused."""

import pytest
import tomli_w
from typer.testing import CliRunner

from sojourn.cli import app
from sojourn.config.toml import Tables
from sojourn.errors import ConfigError
from sojourn.train.resolve import resolve

STAGE = {
    "name": "rl",
    "steps": 2,
    "groups": {"name": "slots", "width": 2, "size": 4},
    "estimator": {"name": "grpo"},
    "losses": [{"name": "ppo"}],
}
TABLE = {
    "name": "programs",
    "model": {"name": "tiny:layers=1,hidden=64", "dtype": "fp32"},
    "env": {"name": "toy", "rooms": 2, "side_rooms": 0, "doors": 0, "decoys": 0, "choices": True},
    "agent": {"name": "python", "function": "tests.program_worlds:chooses"},
    "backend": {"name": "torch", "threads": 1, "kernel": False},
    "evaluation": {"tasks": 4},
    "rollout": {"limits": {"turns": 4}},
    "stages": [STAGE],
}


@pytest.mark.parametrize(
    ("groups", "words"),
    [
        ({"name": "experts", "width": 2}, "Experts gives the samples of plays"),
        ({"name": "dagger", "width": 2}, "gives the samples of plays"),
        ({"name": "slots", "branching": {"name": "uniform"}}, "forks plays"),
    ],
)
def test_what_needs_to_give_or_to_copy_the_samples_of_a_program_is_refused(groups, words):
    with pytest.raises(ConfigError, match=words):
        resolve(Tables({**TABLE, "stages": [{**STAGE, "groups": groups}]}))


def test_a_program_is_no_base_of_another_agent():
    table = {**TABLE, "agent": {"name": "instructed", "text": "x", "base": TABLE["agent"]}}
    with pytest.raises(ConfigError, match="Python is a program"):
        resolve(Tables(table))


def test_a_program_learns_through_the_one_loop_and_its_run_is_shown_but_not_replayed(tmp_path):
    (tmp_path / "train.toml").write_text(tomli_w.dumps(TABLE))
    done = command("train", tmp_path / "train.toml", "--out", tmp_path / "run")
    assert "evaluation rl: success" in done
    assert "program_failed" not in command("show", tmp_path / "run", "--step", "1")
    assert "acted, and no program acts the same way twice" in command("replay", tmp_path / "run", "--all", code=1)


def command(*arguments, code=0):
    """Returns what a command prints, as one line."""
    done = CliRunner().invoke(app, list(map(str, arguments)))
    assert done.exit_code == code, done.output
    return " ".join(done.output.split())
