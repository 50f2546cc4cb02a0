"""The command as a user meets it: one clear line and exit code 2 for what cannot be; nothing half-written stays."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.text import Text
from spawned import sojourn
from typer.main import get_command
from typer.testing import CliRunner

from sojourn import cli
from sojourn.cli import COMMANDS, app

RECIPE = """
name = "t"
losses = [{ name = "ppo" }]
[model]
name = "tiny"
dtype = "fp32"
[env]
name = "toy"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "r.toml").write_text(RECIPE)
    return tmp_path


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["train", "absent.toml"], "no config file"),
        (["train", "r.toml", "optim.lrr=1"], "did you mean 'lr'?"),
        (["train", "r.toml", "seed=1", "seed=2"], "override 'seed': this value is given twice: give it once"),
        (["eval", "r.toml", "--split", "train", "evaluation.split=test"], "--split gives the value of 'evaluation.spl"),
        (["eval", "r.toml", "--greedy", "evaluation.temperature=1"], "--greedy gives the value of 'evaluation.tempera"),
        (["train", "r.toml", "model.name=nowhere/no-such-model"], "nowhere/no-such-model"),
        (["train", "r.toml", "--dry", "model.name=absent.gguf"], "absent.gguf"),
        (["train", "r.toml", "--dry", "record.folder=r.toml"], "r.toml is no folder"),
        (["train", "r.toml", "record.sinks=[{name='trackio'}]"], "trackio"),
        (["train", "r.toml", "--resume", "seed=1"], "not a run folder"),
        (["train", "--resume", "absent"], "--resume absent: this is not a run folder"),
        (["export", "runs/a@100", "--format", "chat", "--out", "x.jsonl"], "give the run folder, runs/a, and"),
        (["eval", "absent"], "absent"),
        (["eval", "r.toml", "agent.name=mcts", "--budgets", "8", "--curve", "no/x.png"], "there is no folder 'no'"),
        (["runs", ".", "--curve", "x.png", "--diff"], "--curve draws, and --diff prints"),
        (["runs", ".", "--curve", "x.png", "--json"], "--curve draws, and --json prints"),
        (["runs", "a", "b", "--diff", "--tag", "x"], "leave out --name and --tag"),
        (["runs", ".", "--curve", "x.png", "--name", "other"], "there are no runs in '.' yet"),
        (["runs", "absent"], "no folder"),
        (["play", "tyo"], "did you mean 'toy'?"),
        (["check", "nowhere:Env"], "nowhere"),
    ],
)
def test_one_line_and_exit_code_2(folder, words, sentence):
    done = sojourn(folder, *words)
    assert done.returncode == 2, done.stderr
    assert sentence in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert "Traceback" not in done.stderr + done.stdout
    left = [p.name for p in folder.glob("runs/*")]
    assert not left


def test_an_error_of_the_system_names_the_file(capsys):
    with pytest.raises(SystemExit):
        cli._end(PermissionError(13, "Permission denied", "here/lamps.py"))
    assert capsys.readouterr().err == "sojourn: here/lamps.py: Permission denied\n"


CLONES = ("estimator.name=constant", "losses=[{name='nll'}]")


def test_dry_shows_every_value_and_its_origin(folder):
    done = sojourn(folder, "train", "r.toml", "optim.lr=3e-6", "--dry")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert any("stages.0.optim.lr = 3e-06" in line and "command line" in line for line in lines)
    assert any("model.name = 'tiny'" in line and "r.toml" in line for line in lines)
    assert any("seed = 0" in line and "default" in line for line in lines)
    done = sojourn(folder, "train", "r.toml", "renderer.name=chatml", "--dry")  # for which a tokenizer is loaded
    assert re.search(r"^the first prompt of the world 'toy'.*: \d\d+ tokens$", done.stdout, re.MULTILINE)
    done = sojourn(folder, "train", "r.toml", "groups={name='experts',width=5,distinct_tasks=4}", "--dry", *CLONES)
    assert "stage 'train': 50 demonstrations of 4 of the 100,000 tasks of 'train', 12.5 of each" in done.stdout, done


def test_check_and_envs_list_the_tools_of_a_plain_class(folder):
    tool = "guess(number: int)  Answers higher or lower."
    for command, told in (("check", f"a tool: {tool}"), ("envs", tool)):
        done = sojourn(folder, command, "examples.guess:Guess")
        assert told in done.stdout, done


def test_a_missing_compiler_is_told_once(folder, monkeypatch):
    monkeypatch.setenv("CC", "no-such-compiler")
    for words in (["--dry"], ["steps=1", "evaluation.tasks=1", "model.name=tiny:layers=1,hidden=64"]):
        done = sojourn(folder, "train", "r.toml", "backend.device=cpu", *words)
        assert done.stderr.count("note: the kernels of backend 'torch' are not used") == 1, done.stderr
        assert "there is no C compiler 'no-such-compiler': install gcc or clang" in done.stderr


@pytest.mark.parametrize(("words", "told"), [([], "needs the run folders"), (["runs"], "there is no folder")])
def test_a_curve_that_cannot_be_drawn_is_one_sentence(folder, words, told):
    done = sojourn(folder, "runs", *words, "--curve", "nowhere/curve.png")
    assert done.returncode == 2
    assert told in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_envs_tells_of_a_world_that_cannot_be_made_without_fields(folder):
    done = sojourn(folder, "envs", "gymnasium")
    assert done.returncode == 0
    assert "FrozenLake" in done.stdout


def test_envs_lists_the_worlds(folder):
    done = sojourn(folder, "envs")
    assert done.returncode == 0
    for name in ("toy", "miniwob", "shop", "tools"):
        assert name in done.stdout


@pytest.mark.parametrize("width", ["80", "100"])
def test_envs_has_a_line_for_each_world(width):
    done = CliRunner().invoke(app, ["envs"], env={"COLUMNS": width})
    lines = done.output.splitlines()
    assert max(map(cell_len, lines)) <= int(width)
    body = lines[2 : next(at for at, line in enumerate(lines) if line.startswith("expert and random"))]
    assert len(body) > 40
    assert all(line[0].isalpha() and "…" not in line for line in body)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_says_how_it_is_used(command):
    done = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "80"})
    assert done.exit_code == 0, done.output
    assert f"{command} [OPTIONS]" in done.output
    assert max(map(cell_len, done.output.splitlines())) <= 80


def test_no_word_of_a_help_text_is_taken_for_markup():
    for command in get_command(app).commands.values():
        for text in [command.help, *(getattr(parameter, "help", None) for parameter in command.params)]:
            assert Text.from_markup(text or "").plain == (text or "")


def test_a_second_interrupt_while_an_interrupted_command_ends_is_no_traceback(folder):
    """As the training of a service that was killed had one, in the clean-up of torch."""
    code = """
import atexit, os, signal, sys
from sojourn import cli

def stopped():
    raise KeyboardInterrupt

cli.app = stopped
atexit.register(lambda: os.kill(os.getpid(), signal.SIGINT))
cli.main()
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "")


def test_the_commands_come_without_what_they_work_with(folder):
    heavy = "{'torch', 'transformers', 'sqlite3', 'playwright', 'sojourn.train.recipe', 'sojourn.config.registry'}"
    code = f"import sys, sojourn.cli; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(("typed", "completed"), [("sojourn doc", "doctor"), ("sojourn train --re", "--resume")])
def test_a_shell_completes_commands_and_options(folder, typed, completed):
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(__file__).parent.parent),
        "_SOJOURN_COMPLETE": "complete_bash",
        "COMP_WORDS": typed,
        "COMP_CWORD": str(len(typed.split()) - 1),
    }
    code = "import sys; sys.argv = ['sojourn']; from sojourn.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == [completed], done.stderr
