"""A checkpoint whose parts saved their states in another form is one clear error, which names a way on that works."""

import asyncio
import json
import shutil
from pathlib import Path

import pytest
import trained_run

from sojourn.config import toml
from sojourn.display import Display
from sojourn.errors import RecordError
from sojourn.record import checkpoint
from sojourn.record.run import RunFolder
from sojourn.streams.learner import Learner, layers
from sojourn.train.resolve import resolve
from sojourn.train.run import run_recipe

OVERRIDES = ("stages.rl.steps=2", "record.checkpoint_every=1", "stages.rl.losses=[{name='ppo'}, {name='epo'}]")


class KilledError(Exception):
    pass


@pytest.fixture
def interrupted(tmp_path, monkeypatch) -> Path:
    """A run that was killed after the first step of its second stage, whose loss `epo` has a state."""
    save = checkpoint.save

    def save_and_die(folder, step, *given, **more):
        saved = save(folder, step, *given, **more)
        if step == 2:
            raise KilledError
        return saved

    monkeypatch.setattr(checkpoint, "save", save_and_die)
    with pytest.raises(KilledError):
        trained_run.train(tmp_path / "run", *OVERRIDES)
    monkeypatch.setattr(checkpoint, "save", save)
    return tmp_path / "run"


def resume(folder: Path) -> None:
    recipe = resolve(toml.read(folder)).recipe
    with RunFolder.open(folder) as run, Display(live=False) as display:
        asyncio.run(run_recipe(recipe, run, display, resume=True))


def rewrite(folder: Path, change) -> Path:
    """Saves the newest checkpoint of a run again, with another state."""
    last = checkpoint.checkpoints(folder / "checkpoints")[-1]
    state = last.state()
    change(state["parts"])

    kept = shutil.copytree(last.weights, folder / "kept")
    checkpoint.save(
        folder / "checkpoints",
        last.step,
        lambda target: shutil.copytree(kept, target, dirs_exist_ok=True),  # type: ignore[arg-type, return-value]
        state,
    )
    return last.path


FORMS = {
    "of an earlier version": lambda parts: parts["losses.1"].update(past=[1.5, 1.25]),
    "without a key": lambda parts: parts.update({"losses.1": {}}),
    "of no kind": lambda parts: parts.update({"losses.1": [1, 2]}),
    "missing": lambda parts: parts.pop("losses.1"),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_state_of_another_form_says_what_to_do(interrupted, form):
    path = rewrite(interrupted, FORMS[form])
    told = rf"the saved state of 'losses.1' \(EPO\) in {path} does not fit this version of Sojourn .*versions.json"
    with pytest.raises(RecordError, match=told) as caught:
        resume(interrupted)
    assert "delete the checkpoints from the middle of the stage 'rl', which then begins anew" in str(caught.value)
    shutil.rmtree(path)
    resume(interrupted)  # from the end of the stage before
    assert [c.step for c in checkpoint.checkpoints(interrupted / "checkpoints")][-1] == 3
    steps = [json.loads(line) for line in (interrupted / "metrics.jsonl").read_text().splitlines()]
    assert [(step["stage"], step["step"]) for step in steps] == [("warmup", 0), ("rl", 0), ("rl", 1)]


def test_the_network_of_a_stream_says_it_too():
    """Its state is loaded when the network is made: at the first step."""
    saved = Learner(lambda width: layers(width, 4, 1), 1e-3)
    saved.net(3)
    other = Learner(lambda width: layers(width, 5, 1), 1e-3)
    other.restore(saved.state())
    with pytest.raises(RecordError, match="the saved state of a stream's network does not fit this version of Sojourn"):
        other.net(3)
