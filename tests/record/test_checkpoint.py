"""A checkpoint is there complete or not at all, and its state comes back."""

from __future__ import annotations

import json
import multiprocessing
import os
from pathlib import Path

import numpy as np
import pytest

from sojourn.errors import RecordError
from sojourn.record import checkpoint

STATE = {
    "step": 3,
    "rng": {"state": 2**127 + 5, "kind": "PCG64"},
    "curriculum": {"seen": np.arange(6, dtype=np.int64).reshape(2, 3), "rate": 0.1 + 0.2, "names": ["a", None, True]},
    "nested": [{"x": np.array([1.5, np.nan], dtype=np.float32)}],
    "empty": {},
}


def weights(folder: Path) -> None:
    (folder / "adapter").mkdir()
    (folder / "adapter" / "model.bin").write_bytes(b"w" * 1000)


def test_state_and_weights_come_back(tmp_path: Path):
    saved = checkpoint.save(tmp_path, 3, weights, STATE)
    found = checkpoint.latest(tmp_path)
    assert found == saved
    assert (found.weights / "adapter" / "model.bin").read_bytes() == b"w" * 1000
    state = found.state()
    np.testing.assert_array_equal(state["curriculum"].pop("seen"), STATE["curriculum"]["seen"])
    x = state["nested"][0]["x"]
    np.testing.assert_array_equal(x, STATE["nested"][0]["x"])
    assert x.dtype == np.float32
    assert state["rng"] == STATE["rng"]
    assert state["curriculum"] == {"rate": 0.1 + 0.2, "names": ["a", None, True]}
    assert state["empty"] == {}


def test_numpy_generators_resume(tmp_path: Path):
    rng = np.random.default_rng(5)
    rng.random(3)
    saved = checkpoint.save(tmp_path, 0, weights, {"rng": rng.bit_generator.state, "mt": np.random.MT19937(1).state})
    other = np.random.default_rng()
    other.bit_generator.state = saved.state()["rng"]
    assert other.random() == rng.random()
    twister = np.random.MT19937()
    twister.state = saved.state()["mt"]
    assert twister.random_raw() == np.random.MT19937(1).random_raw()


def test_the_last_ones_and_the_marked_ones_are_kept(tmp_path: Path):
    for step in range(6):
        checkpoint.save(tmp_path, step, weights, {}, keep=2, mark=step == 1)
    assert [c.step for c in checkpoint.checkpoints(tmp_path)] == [1, 4, 5]
    checkpoint.checkpoints(tmp_path)[1].mark()
    checkpoint.save(tmp_path, 6, weights, {}, keep=1)
    assert [c.step for c in checkpoint.checkpoints(tmp_path)] == [1, 4, 6]
    checkpoint.truncate(tmp_path, 4)
    assert [c.step for c in checkpoint.checkpoints(tmp_path)] == [1, 4]


@pytest.mark.parametrize("name", ["weights/adapter/model.bin", "state.npz", "checkpoint.json"])
@pytest.mark.parametrize("cut", [True, False])
def test_incomplete_ones_are_skipped(tmp_path: Path, name: str, cut: bool):
    first = checkpoint.save(tmp_path, 1, weights, STATE)
    second = checkpoint.save(tmp_path, 2, weights, STATE)
    if cut:
        os.truncate(second.path / name, 10)
    else:
        (second.path / name).unlink()
    assert checkpoint.latest(tmp_path) == first


def test_a_failed_write_leaves_the_previous_one(tmp_path: Path):
    def fail(folder: Path) -> None:
        weights(folder)
        raise RuntimeError("disk full")

    first = checkpoint.save(tmp_path, 1, weights, {"n": 1})
    with pytest.raises(RuntimeError, match="disk full"):
        checkpoint.save(tmp_path, 1, fail, {"n": 2})
    assert os.listdir(tmp_path) == ["step-000001"]
    assert first.state() == {"n": 1}


def _die(folder: Path) -> None:
    def die(weights_folder: Path) -> None:
        weights(weights_folder)
        os._exit(9)

    checkpoint.save(folder, 2, die, {})


def test_a_killed_write_leaves_the_previous_one(tmp_path: Path):
    checkpoint.save(tmp_path, 1, weights, {"n": 1})
    process = multiprocessing.get_context("spawn").Process(target=_die, args=(tmp_path,))
    process.start()
    process.join()
    assert process.exitcode == 9
    assert len(os.listdir(tmp_path)) == 2  # what was half written is there, and is not a checkpoint
    assert checkpoint.latest(tmp_path).step == 1
    checkpoint.save(tmp_path, 2, weights, {})
    assert sorted(os.listdir(tmp_path)) == ["step-000001", "step-000002"]


def test_the_same_step_again_replaces_it_even_when_cut_off(tmp_path: Path):
    checkpoint.save(tmp_path, 1, weights, {"n": 1})
    checkpoint.save(tmp_path, 1, weights, {"n": 2})
    assert checkpoint.latest(tmp_path).state() == {"n": 2}
    (tmp_path / "step-000001").rename(tmp_path / ".step-000001.old")  # stopped between the two renames
    assert checkpoint.latest(tmp_path).state() == {"n": 2}
    checkpoint.save(tmp_path, 1, weights, {"n": 3})
    assert checkpoint.latest(tmp_path).state() == {"n": 3}
    assert os.listdir(tmp_path) == ["step-000001"]


def test_no_checkpoint(tmp_path: Path):
    assert checkpoint.latest(tmp_path / "nothing") is None


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"a": {3: 1}}, r"state\.a has the key 3"),
        ({"a": [object()]}, r"state\.a\.0 is a object"),
        ({"a": np.array([None])}, r"state\.a is an array of objects"),
        ({"__array__": 1}, "has the key '__array__'"),
    ],
)
def test_what_cannot_be_kept_is_refused(tmp_path: Path, state: dict, message: str):
    with pytest.raises(RecordError, match=message):
        checkpoint.save(tmp_path, 0, weights, state)
    assert os.listdir(tmp_path) == []


def test_files_are_json_and_arrays(tmp_path: Path):
    saved = checkpoint.save(tmp_path, 0, weights, STATE)
    assert json.loads((saved.path / "state.json").read_text())["step"] == 3
    with np.load(saved.path / "state.npz", allow_pickle=False) as arrays:
        assert len(arrays.files) == 2


def test_a_damaged_state_says_so(tmp_path: Path):
    saved = checkpoint.save(tmp_path, 0, weights, STATE)
    path = saved.path / "state.npz"
    path.write_bytes(b"x" * path.stat().st_size)
    with pytest.raises(RecordError, match="resume from an earlier checkpoint"):
        saved.state()
