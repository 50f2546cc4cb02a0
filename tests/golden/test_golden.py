"""What short runs of every kind compute stays the same, bit for bit, however the code is laid out and said.

Where a change is meant to change it, `PYTHONPATH=tests python tests/golden/test_golden.py` records it anew in
`digests.json`, and the change says why. That replaces what was recorded on a processor like this one; what others
recorded is left. Where a generation of processors computes otherwise although its elementary functions are those of
others, `--own` records what is of this generation alone.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import golden_runs
import pytest
from spawned import killed, resumed, script
from trained_run import KILLED

from sojourn.envs.chromium import find_chromium
from sojourn.errors import ConfigError


def computed(*names: str) -> dict[str, Any]:
    """Returns the digests of runs by name, and under "arithmetic" what they were made with, in a process of its own."""
    said = script(Path(golden_runs.__file__), *names, environment=golden_runs.portable())
    return json.loads(said.splitlines()[-1])


def here() -> list[str]:
    """Returns the runs that can be made on this machine."""
    try:
        find_chromium()
    except ConfigError:
        return [name for name in golden_runs.RUNS if name != "miniwob"]
    return list(golden_runs.RUNS)


def recorded(name: str, arithmetic: str) -> dict[str, str]:
    """Returns the digests of a run that were recorded on a machine like this one; none where that never was."""
    known = golden_runs.KNOWN.get(golden_runs.own_key(arithmetic), golden_runs.KNOWN.get(arithmetic, {})).get(name, {})
    return known.get(golden_runs.processor(), {}) if name in golden_runs.NATIVE else known


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="recorded on x86-64 alone")
@pytest.mark.parametrize("name", golden_runs.RUNS)
def test_a_run_computes_what_it_did(name):
    if name not in here():
        pytest.skip("Chromium is not installed")
    found = computed(name)
    known = {kind: of for kind, of in recorded(name, found["arithmetic"]).items() if kind in found[name]}
    if not known:
        pytest.skip(f"recorded on no processor like {golden_runs.processor()}")
    assert {kind: found[name][kind] for kind in known} == known


def test_a_run_that_was_killed_and_resumed_computes_it_too(tmp_path):
    """Its exports and metrics, too: nothing is lost or repeated."""
    file, path = tmp_path / "toy.toml", tmp_path / "toy"
    file.write_text(golden_runs.RUNS["toy"][0])
    killed(KILLED, tmp_path, "train", str(file), "--out", str(path), environment=golden_runs.portable())
    assert (path / "checkpoints" / "step-000003").exists()  # in the second stage
    resumed(path, golden_runs.portable())
    said = script(Path(golden_runs.__file__), "--of", str(path), environment=golden_runs.portable())
    found = json.loads(said)["digests"]
    assert found == computed("toy")["toy"]
    assert set(golden_runs.KINDS) - set(found) <= {"parquet"}  # which an extra reads


if __name__ == "__main__":
    made = computed(*here())
    arithmetic = made.pop("arithmetic")
    own = golden_runs.own_key(arithmetic)
    key = own if "--own" in sys.argv or own in golden_runs.KNOWN else arithmetic
    before = golden_runs.KNOWN.get(key, {})
    for native in golden_runs.NATIVE:
        made[native] = {golden_runs.processor(): made[native]}
    merged = {name: {**before.get(name, {}), **of} for name, of in made.items()}
    golden_runs.DIGESTS.write_text(json.dumps({**golden_runs.KNOWN, key: {**before, **merged}}, indent=1) + "\n")
