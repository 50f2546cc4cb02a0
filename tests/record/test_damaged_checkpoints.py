"""Whoever uses an older checkpoint, as the newest is damaged, says so, in the terminal and in the record of the run."""

import asyncio
import io
import json
import shutil
from pathlib import Path

import pytest
from rich.console import Console

from sojourn.config import toml
from sojourn.display import Display
from sojourn.errors import RecordError
from sojourn.record import checkpoint
from sojourn.record.run import RunFolder
from sojourn.record.run_status import State, read_status
from sojourn.train.resolve import resolve
from sojourn.train.run import run_recipe


@pytest.fixture
def damaged(trained, tmp_path) -> Path:
    run = shutil.copytree(trained, tmp_path / "run")
    newest = checkpoint.checkpoints(run / "checkpoints")[-1]
    file = next(newest.weights.glob("*.safetensors"))
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    return run


def resumed(run: Path) -> str:
    """What a resumed run prints."""
    file = io.StringIO()
    recipe = resolve(toml.read(run)).recipe
    with RunFolder.open(run) as folder, Display(console=Console(file=file, width=400), live=False) as display:
        asyncio.run(run_recipe(recipe, folder, display, resume=True))
    return file.getvalue()


def test_a_run_that_is_resumed_from_an_older_one_says_so_for_good(damaged):
    text = resumed(damaged)
    sentence = next(line for line in text.splitlines() if "is damaged" in line)
    assert "step-000002 is damaged" in sentence
    assert "safetensors has another checksum than when it was written" in sentence
    assert sentence.endswith("step-000001 is used instead, 1 step earlier")
    assert json.loads((damaged / "passed_over.json").read_text()) == [sentence]
    now = read_status(damaged)
    assert now.state is State.FINISHED
    assert f"resumed: {sentence}" in now.missing
    assert checkpoint.latest(damaged / "checkpoints").step == 2  # type: ignore[union-attr]
    assert "is damaged" not in resumed(damaged)
    assert json.loads((damaged / "passed_over.json").read_text()) == [sentence]


def test_an_evaluation_of_an_older_one_says_so(damaged, monkeypatch, capsys):
    from sojourn.commands.evaluate import evaluate

    monkeypatch.setenv("COLUMNS", "400")
    evaluate(damaged)
    told = capsys.readouterr().out
    assert told.count("step-000002 is damaged") == 1
    assert "step-000001 is used instead, 1 step earlier" in told
    assert "evaluation step 1" in told


def test_where_none_is_whole_it_is_one_error(damaged):
    for one in checkpoint.checkpoints(damaged / "checkpoints"):
        (one.path / "state.json").unlink()
    with pytest.raises(RecordError, match="step-000002 is damaged"):
        resumed(damaged)
    assert not (damaged / "passed_over.json").exists()
