"""The record of what the parts of a run do: written, read, resumed, bounded, and read where it is damaged."""

import json
import math

import pytest

from sojourn.abilities import PartLoad, PartState
from sojourn.errors import RecordError
from sojourn.record import parts
from sojourn.record.parts import PartsFile, Reading, newest, read, truncate


def load(name: str = "sampler 0", **more) -> PartLoad:
    return PartLoad(**{"name": name, "kind": "sampler", "facts": {"node": "a"}, "numbers": {"busy_share": 0.5}, **more})


def reading(step: int, stage: str = "rl", *loads: PartLoad) -> Reading:
    return Reading(step, stage, 1e9 + step, 2.0, loads or (load(),))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "parts.jsonl"


def written(path, *readings: Reading) -> list[Reading]:
    file = PartsFile(path)
    for one in readings:
        file.write(one)
    file.close()
    return list(read(path))


def test_what_is_written_is_read(path):
    down = load("sampler 1", state=PartState.DOWN, seen_s=None, note="its process has ended", numbers={})
    readings = [reading(0), reading(1, "rl", load(), down)]
    assert written(path, *readings) == readings
    assert newest(path) == readings[-1]
    assert list(readings[1].kinds) == ["sampler"]
    data = json.loads(path.read_text().splitlines()[0])
    assert data["parts"][0]["numbers"] == {"busy_share": 0.5}


def test_only_the_owner_may_read_it_in_a_private_folder(path):
    path.parent.chmod(0o700)
    written(path, reading(0))
    assert path.stat().st_mode & 0o777 == 0o600


def test_numbers_that_are_not_finite_and_long_texts_are_recorded(path):
    odd = load(numbers={"a_s": math.nan, "b": math.inf, **{f"n{n}": n for n in range(99)}}, note="x" * 9999)
    [found] = written(path, reading(0, "rl", odd))
    assert math.isnan(found.parts[0].numbers["a_s"])
    assert math.isnan(found.parts[0].numbers["b"])
    assert len(found.parts[0].numbers) == parts.MAX_NUMBERS
    assert len(found.parts[0].note) == parts.MAX_TEXT


def test_secrets_are_not_recorded(path):
    written(path, reading(0, "rl", load(note="failed: api_key = 'sk-abcdefghijklmnopqrstuvwx'")))
    assert "sk-abcdefghijklmnop" not in path.read_text()


def test_a_resumed_run_loses_what_came_after_its_checkpoint(path):
    kept = [reading(-1, ""), reading(0, "warmup"), reading(0), reading(1)]
    written(path, *kept, reading(2), reading(3))
    truncate(path, 2, "rl")
    assert list(read(path)) == kept
    assert written(path, reading(2)) == [*kept, reading(2)]
    truncate(path, 0, "warmup")
    assert list(read(path)) == kept[:1]
    truncate(path.with_name("absent"), 0, "rl")
    assert not path.with_name("absent").exists()


def test_a_half_written_line_is_left_out_and_removed(path):
    written(path, reading(0), reading(1))
    path.write_bytes(path.read_bytes()[:-20])
    assert list(read(path)) == [reading(0)]
    assert written(path, reading(2)) == [reading(0), reading(2)]


def test_the_file_is_bounded_and_old_readings_lie_further_apart(path, monkeypatch):
    monkeypatch.setattr(parts, "MAX_BYTES", 20_000)
    file = PartsFile(path)
    for step in range(2000):
        file.write(reading(step))
        assert path.stat().st_size < 20_400
    file.close()
    steps = [one.step for one in read(path)]
    assert steps == sorted(steps)
    assert steps[-20:] == list(range(1980, 2000)), "the newest are all there"
    assert steps[0] == 0, "the first is kept"
    lines = [b"%03d\n" % n for n in range(100)]
    assert parts._thinned(lines) == [*lines[:50:2], *lines[50:]], "of the older half every second one is removed"
    assert steps[5] - steps[0] > 5 * 5


def test_many_parts_are_counted_where_a_line_has_no_room(path):
    many = tuple(load(f"sampler {n}", note="n" * 200, facts={str(k): "f" * 200 for k in range(20)}) for n in range(900))
    [found] = written(path, Reading(0, "rl", 1e9, 1.0, many))
    assert path.stat().st_size < parts.MAX_LINE_BYTES
    assert found.left_out == 900 - len(found.parts) > 0


@pytest.mark.parametrize(
    "line",
    [
        "[]", "{}", "nonsense", "[" * 9999, '{"step": 1e999, "stage": "", "unix_s": 0, "over_s": 0, "parts": []}',
        '{"step": 0, "stage": "", "unix_s": 0, "over_s": 0, "parts": "many"}',
        '{"step": 0, "stage": "", "unix_s": 0, "over_s": 0, "parts": [{"name": "a"}]}',
        '{"step": 0, "stage": "", "unix_s": 0, "over_s": 0, "parts": [{"name": "a", "kind": "b", "state": "odd",'
        ' "seen_s": 0, "facts": {}, "numbers": {}}]}',
        '{"step": 0, "stage": "", "unix_s": 0, "over_s": 0, "parts": [{"name": "a", "kind": "b", "state": "up",'
        ' "seen_s": 0, "facts": [], "numbers": {}}]}',
    ],
)  # fmt: skip
def test_odd_lines_are_left_out(path, line):
    written(path, reading(0))
    path.write_text(path.read_text() + line + "\n")
    assert list(read(path)) == [reading(0)]
    assert newest(path) == reading(0)


def test_something_else_than_a_file_is_told_of(path):
    assert list(read(path)) == []
    assert newest(path) is None
    path.mkdir()
    for use in (read, newest, PartsFile):
        with pytest.raises(RecordError, match=r"parts\.jsonl"):
            use(path)
