"""What `sojourn show` tells of the parts of a run."""

import json
import math

import pytest
from typer.testing import CliRunner

from sojourn.abilities import PartLoad, PartState
from sojourn.cli import app
from sojourn.errors import ConfigError
from sojourn.record.parts import PARTS, PartsFile, Reading
from sojourn.terminal import parts
from sojourn.terminal import run as runs
from tests.terminal.conftest import HOSTILE, printed


def sampler(number: int, busy: float, **more) -> PartLoad:
    numbers = {"busy_share": busy, "sampled_tokens_per_s": 1234.5, "memory_bytes": 2.5e9, "queued_mean_s": 0.004}
    facts = {"node": f"node-{number}", "engine": "sojourn"}
    return PartLoad(**{"name": f"sampler {number}", "kind": "sampler", "facts": facts, "numbers": numbers, **more})


def write(run, *readings: Reading) -> None:
    file = PartsFile(run / PARTS)
    for one in readings:
        file.write(one)
    file.close()


@pytest.fixture
def recorded(run):
    down = sampler(1, 0.0, state=PartState.DOWN, seen_s=31.4, note="its process has ended", numbers={"restarts": 2})
    driver = PartLoad(name="driver", kind="driver", facts={"node": "head"}, numbers={"busy_share": 0.1})
    write(
        run,
        Reading(0, "rl", 1e9, 4.0, (driver, sampler(0, 0.0), sampler(1, 0.5))),
        Reading(1, "rl", 1e9, 4.0, (driver, sampler(0, 0.5), sampler(1, 0.75))),
        Reading(2, "rl", 1e9, 4.0, (driver, sampler(0, 0.999), down)),
    )
    return run


def test_each_part_is_shown_with_its_units(recorded):
    text = printed(parts.tables(recorded, 160), 160)
    assert "parts after step 2 of rl" in text
    assert "means and rates are over the 4 s before" in text
    assert "driver  node head" in text
    assert "2 samplers  engine sojourn" in text
    [row] = [line.split() for line in text.splitlines() if line.startswith("sampler 0")]
    assert row[2:] == ["up", "node-0", "100%", "▁▅█", "1,234", "2.5", "GB", "4", "ms", "-"]
    assert "its process has ended; last seen 31 s before this reading" in text
    assert "--json" not in text


@pytest.mark.parametrize("width", [40, 80])
def test_what_does_not_fit_is_said(recorded, width):
    text = printed(parts.tables(recorded, width), width)
    assert "100%" in text
    assert "some numbers do not fit: --json shows all of them" in " ".join(text.split())


def test_the_run_says_which_parts_it_has_and_which_are_gone(recorded):
    text = printed(runs.overview(recorded, 120), 120)
    assert "parts: driver, 2 samplers    what each does: sojourn show" in text
    assert "sampler 1 is down after step 2 of rl: its process has ended; last seen 31 s before this reading" in text
    assert "sampler 0 is" not in text


def test_a_run_without_a_record_of_them_says_so(run):
    assert "nothing is recorded of the parts" in printed(parts.tables(run, 80), 80)
    assert "--parts" not in printed(runs.overview(run, 80), 80)
    assert json.loads(parts.as_json(run)) == {"readings": 0, "last": None}


def test_hostile_parts_are_cleaned(run):
    hostile = PartLoad(
        name=HOSTILE, kind=HOSTILE, state=PartState.SILENT, note=HOSTILE, seen_s=math.inf,
        facts={HOSTILE: HOSTILE}, numbers={HOSTILE: 1e300, "a_bytes": -1e300, "b_s": math.nan},
    )  # fmt: skip
    write(run, Reading(0, HOSTILE, 1e300, math.nan, (hostile, PartLoad(name="b", kind=HOSTILE))))
    for width in (40, 120):
        printed(parts.tables(run, width), 1000)
        assert "\\x1b[31mred" in printed(runs.overview(run, width), 1000)


def test_for_scripts(recorded):
    done = CliRunner().invoke(app, ["show", str(recorded), "--parts", "--json"])
    assert done.exit_code == 0, done.output
    data = json.loads(done.output)
    assert data["readings"] == 3
    assert data["last"]["parts"][2]["state"] == "down"
    shown = CliRunner().invoke(app, ["show", str(recorded), "--parts"])
    assert "2 samplers" in shown.output
    with pytest.raises(ConfigError, match="--parts shows the parts of the whole run"):
        CliRunner().invoke(app, ["show", str(recorded), "--parts", "--step", "1"], catch_exceptions=False)


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("a_share", 0.256, "26%"), ("a_bytes", 0.0, "0 B"), ("a_s", 0.0, "0 s"), ("a_s", 0.0123, "12.3 ms"),
        ("a_s", 75.0, "75 s"), ("a_per_s", 12.0, "12"), ("a", math.nan, "-"), ("a", None, "-"),
    ],
)  # fmt: skip
def test_a_number_has_the_unit_that_its_name_ends_in(name, value, text):
    assert parts.cell(name, value) == text
    assert parts.heading(name) == ("a/s" if name == "a_per_s" else "a")
