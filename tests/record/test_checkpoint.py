"""A checkpoint is there complete or not at all, and its state comes back."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from sojourn.config import toml
from sojourn.errors import RecordError
from sojourn.record import checkpoint
from sojourn.record.metrics import Jsonl
from sojourn.train.resolve import resolve
from sojourn.train.resume import truncate_metrics

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


def test_as_many_are_kept_as_asked_from_the_first_on(tmp_path: Path):
    for step in range(5):
        checkpoint.save(tmp_path, step, weights, {}, keep=3)
        assert [c.step for c in checkpoint.checkpoints(tmp_path)] == list(range(step + 1))[-3:]


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
    told: list[str] = []
    assert checkpoint.latest(tmp_path, told.append) == first
    assert [sentence[: len(str(second.path)) + 11] for sentence in told] == [f"{second.path} is damaged"]
    assert told[0].endswith("; step-000001 is used instead, 1 step earlier")


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
    with pytest.raises(RecordError, match=r"is damaged \(its state cannot be read.*or delete it"):
        saved.state()


@pytest.mark.parametrize("text", ["[]", '{"files": ["state.json"]}', '{"files": {"state.json": [1]}}', "{}", "\xff"])
def test_a_manifest_of_another_form_is_incomplete(tmp_path: Path, text: str):
    first, second = (checkpoint.save(tmp_path, step, weights, STATE) for step in (1, 2))
    (second.path / "checkpoint.json").write_text(text, encoding="latin-1")
    assert checkpoint.checkpoints(tmp_path) == [first]
    told: list[str] = []
    assert checkpoint.latest(tmp_path, told.append) == first
    assert [sentence[: len(str(second.path)) + 11] for sentence in told] == [f"{second.path} is damaged"]
    assert told[0].endswith("; step-000001 is used instead, 1 step earlier")


def garble(path: Path) -> None:
    path.write_bytes(b"\x7f" * path.stat().st_size)


def test_a_file_of_other_bytes_and_the_same_length_is_noticed_before_it_is_loaded(tmp_path: Path):
    first, second, third = (checkpoint.save(tmp_path, step, weights, STATE, keep=3) for step in (1, 2, 3))
    garble(third.weights / "adapter" / "model.bin")
    garble(second.path / "state.json")
    assert checkpoint.checkpoints(tmp_path) == [first, second, third]  # listing reads no weights
    with pytest.warns(RuntimeWarning) as told:
        assert checkpoint.latest(tmp_path) == first
    sentences = [str(one.message) for one in told]
    assert ["2 steps earlier" in one for one in sentences] == [True, False]
    assert "(weights/adapter/model.bin has another checksum than when it was written)" in sentences[0]
    garble(first.path / "state.npz")
    with pytest.raises(
        RecordError, match=r"3 is damaged \(weights/adapter/model.bin has another checksum than when it was written\)"
    ):
        checkpoint.latest(tmp_path)


@pytest.mark.parametrize("state", ["[]", "7", '{"x": {"__array__": "b"}}', '{"x": {"__array__": []}}'])
def test_a_state_of_another_form_is_skipped_without_a_digest_too(tmp_path: Path, state: str):
    first, second = (checkpoint.save(tmp_path, step, weights, {"n": 1}) for step in (1, 2))
    (second.path / "state.json").write_text(state)
    files = {"state.json": len(state), "state.npz": (second.path / "state.npz").stat().st_size}
    (second.path / "checkpoint.json").write_text(json.dumps({"files": files}))
    assert checkpoint.checkpoints(tmp_path)[-1].step == 2
    told: list[str] = []
    assert checkpoint.latest(tmp_path, told.append) == first
    assert [sentence[: len(str(second.path)) + 11] for sentence in told] == [f"{second.path} is damaged"]
    assert told[0].endswith("; step-000001 is used instead, 1 step earlier")


def test_a_damaged_one_beyond_does_not_push_out_what_a_resumed_run_saves(tmp_path: Path):
    damaged = [checkpoint.save(tmp_path, step, weights, {}) for step in (8, 9)]
    for one in damaged:
        garble(one.path / "state.json")
    saved = checkpoint.save(tmp_path, 5, weights, {}, keep=1)
    with pytest.warns(RuntimeWarning, match="step-000005 is used instead, [34] steps earlier"):
        assert checkpoint.latest(tmp_path) == saved


def test_a_replacement_that_is_damaged_gives_way_to_what_it_replaced(tmp_path: Path):
    checkpoint.save(tmp_path, 1, weights, {"n": 1}).path.rename(tmp_path / "aside")
    garble(checkpoint.save(tmp_path, 1, weights, {"n": 2}).path / "state.json")
    (tmp_path / "aside").rename(tmp_path / ".step-000001.old")
    with pytest.warns(RuntimeWarning, match="0 steps earlier"):
        found = checkpoint.latest(tmp_path)
    assert found is not None
    assert found.state() == {"n": 1}


def test_a_reader_does_not_take_one_that_is_being_removed_for_a_damaged_one(tmp_path: Path, monkeypatch):
    checkpoint.save(tmp_path, 1, weights, {})
    verify, removed = checkpoint.Checkpoint.verify, []

    def remove_a_part(path: Path) -> None:
        (path / "state.json").unlink()
        removed.append(path)

    def meanwhile(self: checkpoint.Checkpoint) -> None:
        """The run goes on between a reader's look at the folder and its look at the checkpoint."""
        monkeypatch.setattr(checkpoint.Checkpoint, "verify", verify)
        monkeypatch.setattr(
            shutil, "rmtree", lambda path, **how: remove_a_part(path) if str(path).endswith(".gone") else None
        )
        checkpoint.save(tmp_path, 2, weights, {}, keep=1)
        verify(self)

    monkeypatch.setattr(checkpoint.Checkpoint, "verify", meanwhile)
    found = checkpoint.latest(tmp_path)
    assert removed
    assert found is not None
    assert found.step == 2


def test_a_file_where_the_folder_should_be_is_one_sentence(tmp_path: Path):
    (tmp_path / "checkpoints").touch()
    with pytest.raises(RecordError, match="checkpoints is a file, not a folder"):
        checkpoint.latest(tmp_path / "checkpoints")
    with pytest.raises(RecordError, match="step-000001 cannot be written"):
        checkpoint.save(tmp_path / "checkpoints", 1, weights, {})


def test_a_full_disk_is_one_sentence_and_leaves_the_previous_one(tmp_path: Path, full_disk):
    first = checkpoint.save(tmp_path, 1, weights, {"n": 1})
    for step, write in ((1, weights), (2, lambda folder: save_file({"w": np.ones(9)}, folder / "w.safetensors"))):
        with full_disk(), pytest.raises(RecordError, match=rf"step-00000{step} cannot be written \(.*File too large"):
            checkpoint.save(tmp_path, step, write, {})
    assert os.listdir(tmp_path) == ["step-000001"]
    assert checkpoint.latest(tmp_path) == first


@pytest.mark.parametrize("state", [{"stage": 7, "step": 0, "parts": {}}, {"stage": 0}, {"stage": 0, "step": "2"}, {}])
def test_a_state_of_no_stage_of_the_run_is_one_sentence(tmp_path: Path, state: dict):
    recipe = resolve(toml.read(Path(__file__).parents[2] / "recipes" / "toy" / "train.toml")).recipe
    found = checkpoint.save(tmp_path, 1, weights, state)
    jsonl = Jsonl(tmp_path / "metrics.jsonl")
    with pytest.raises(RecordError, match=r"step-000001 belongs to no step of the \d stages of this run"):
        truncate_metrics(recipe, jsonl, found)
    jsonl.close()
