"""metrics.jsonl survives being cut off and resumed; trackers that are not installed say so."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import pytest

from sojourn.config.registry import build
from sojourn.errors import ConfigError, MissingExtraError, RecordError
from sojourn.record.metrics import Jsonl, Line, Sinks, TensorBoard, Trackio, Wandb, read


def test_lines_are_on_disk_at_once_and_come_back(tmp_path: Path):
    sink = Jsonl(tmp_path / "metrics.jsonl")
    sink.write(0, "rl", {"success": 0.5, "episodes": 4})
    assert list(read(sink.path)) == [Line(0, "rl", {"success": 0.5, "episodes": 4.0})]
    sink.write(1, "rl", {"kl": math.nan, "loss": math.inf})
    assert math.isnan(list(read(sink.path))[1].values["kl"])
    assert [json.loads(line, parse_constant=pytest.fail) for line in sink.path.read_text().splitlines()]
    sink.close()
    assert list(read(tmp_path / "none.jsonl")) == []


def test_resume_cuts_what_came_later(tmp_path: Path):
    sink = Jsonl(tmp_path / "metrics.jsonl")
    for stage in ("warmup", "rl"):
        for step in range(4):
            sink.write(step, stage, {"loss": step})
    sink.truncate(2, "rl")
    sink.write(2, "rl", {"loss": 20})
    assert [(x.stage, x.step, x.values["loss"]) for x in read(sink.path)][4:] == [
        ("rl", 0, 0),
        ("rl", 1, 1),
        ("rl", 2, 20),
    ]
    sink.truncate(3)
    assert [(x.stage, x.step) for x in read(sink.path)] == [("warmup", 0), ("warmup", 1), ("warmup", 2)]
    sink.truncate(9)
    assert len(list(read(sink.path))) == 3
    sink.close()


def test_a_half_written_line_is_left_out_and_does_not_spoil_the_next(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 0, "stage": "rl", "loss": 1}\ngarbage\n{"step": 1, "stage": "rl", "lo')
    assert [x.step for x in read(path)] == [0]
    sink = Jsonl(path)
    sink.write(1, "rl", {"loss": 2})
    sink.truncate(5)
    assert [(x.step, x.values["loss"]) for x in read(path)] == [(0, 1), (1, 2)]
    sink.close()


def test_sinks_write_to_all(tmp_path: Path):
    sinks = Sinks([Jsonl(tmp_path / "a"), Jsonl(tmp_path / "b")])
    sinks.write(3, "rl", {"x": 1})
    sinks.close()
    assert list(read(tmp_path / "a")) == list(read(tmp_path / "b")) == [Line(3, "rl", {"x": 1.0})]


@pytest.mark.parametrize(
    ("config", "package"), [(TensorBoard(), "tensorboard"), (Wandb(), "wandb"), (Trackio(), "trackio")]
)
def test_a_missing_tracker_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config, package: str):
    monkeypatch.setitem(sys.modules, package, None)  # cannot be imported, installed or not
    for module in [name for name in sys.modules if name.startswith("torch.utils.tensorboard")]:
        monkeypatch.delitem(sys.modules, module)
    with pytest.raises(MissingExtraError, match=rf"{package}.*pip install sojourn\[tracking\]"):
        config.bind(tmp_path, {})


def test_tensorboard_keeps_stages_apart(tmp_path: Path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    sink = TensorBoard().bind(tmp_path, {})
    for stage in ("warmup", "rl"):
        for step in range(2):
            sink.write(step, stage, {"loss": step})
    sink.close()
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("rl/loss")] == [(0, 0.0), (1, 1.0)]


@pytest.mark.parametrize("folder", ["/tmp/elsewhere", "../elsewhere", "a/../../b"])
def test_tensorboard_stays_in_the_run_folder(folder: str):
    with pytest.raises(ConfigError, match="expected a folder inside the run folder"):
        build("sink", {"name": "tensorboard", "folder": folder}, "record.sinks.0")


def test_a_folder_in_the_place_of_the_file_is_one_sentence(tmp_path: Path):
    with pytest.raises(RecordError, match=r"cannot be read \(Is a directory\)"):
        list(read(tmp_path))
    with pytest.raises(RecordError, match=r"cannot be written \(Is a directory\)"):
        Jsonl(tmp_path)


def test_a_full_disk_is_one_sentence_and_the_next_line_stands_on_its_own(tmp_path: Path, full_disk):
    sink = Jsonl(tmp_path / "metrics.jsonl")
    sink.write(0, "rl", {"loss": 1})
    with full_disk():
        for call in (lambda: sink.write(1, "rl", {"loss": 2}), sink.close):
            with pytest.raises(RecordError, match=r"metrics\.jsonl cannot be written \(File too large\)"):
                call()
    sink = Jsonl(sink.path)
    sink.write(1, "rl", {"loss": 3})
    sink.close()
    assert [line.values["loss"] for line in read(sink.path)] == [1, 3]
