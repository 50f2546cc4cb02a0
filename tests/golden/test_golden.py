"""What short runs of every kind compute stays the same, bit for bit, however the code is laid out and said.

Where a change is meant to change it, `python tests/golden/test_golden.py > tests/golden/digests.json` records it anew,
and the change says why.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import runs

DIGESTS = Path(__file__).with_name("digests.json")
KNOWN = json.loads(DIGESTS.read_text()) if DIGESTS.exists() else {}
OTHER = "not x86-64, where another arithmetic is done"


def computed(*names: str) -> dict[str, dict[str, str]]:
    """Returns the digests of runs, made in a process whose arithmetic is that of any x86-64."""
    command = [sys.executable, str(Path(__file__).with_name("runs.py")), *names]
    done = subprocess.run(command, env=runs.portable(), capture_output=True, text=True, check=False, cwd=runs.ROOT)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def here() -> list[str]:
    """Returns the runs that can be made on this machine."""
    browser = shutil.which(os.environ.get("SOJOURN_CHROMIUM", "chromium")) or shutil.which("google-chrome")
    return [name for name in runs.RUNS if name != "miniwob" or browser]


@pytest.fixture(scope="module")
def found() -> dict[str, dict[str, str]]:
    return computed(*here())


@pytest.mark.skipif(os.uname().machine != "x86_64", reason=OTHER)
@pytest.mark.parametrize("name", runs.RUNS)
def test_a_run_computes_what_it_did(found, name):
    if name not in found:
        pytest.skip("Chromium is not installed")
    known = KNOWN[name]
    if name in runs.NATIVE:
        known = known.get(runs.processor()) or pytest.skip(f"recorded on other processors than {runs.processor()}")
    assert found[name] == known


@pytest.mark.skipif(os.uname().machine != "x86_64", reason=OTHER)
def test_a_run_that_was_killed_and_resumed_computes_it_too(tmp_path):
    """Its exports and metrics, too: nothing is lost or repeated."""
    file, path = tmp_path / "toy.toml", tmp_path / "toy"
    file.write_text(runs.RUNS["toy"][0])
    command = [sys.executable, "-m", "sojourn", "train"]
    process = subprocess.Popen(
        [*command, str(file), "--out", str(path)], env=runs.portable(), stdout=subprocess.DEVNULL
    )
    give_up = time.monotonic() + 200
    while process.poll() is None and time.monotonic() < give_up:
        if (path / "checkpoints" / "step-000003").exists():  # in the second stage
            process.send_signal(signal.SIGKILL)
        time.sleep(0.01)
    assert process.wait() == -signal.SIGKILL, "the run ended before it could be killed"
    subprocess.run([*command, "--resume", str(path)], env=runs.portable(), check=True, stdout=subprocess.DEVNULL)
    told = [
        sys.executable,
        "-c",
        f"import json, runs, pathlib; print(json.dumps(runs.digests(pathlib.Path('{path}'))))",
    ]
    done = subprocess.run(told, env=runs.portable(), capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == KNOWN["toy"]


if __name__ == "__main__":
    recorded = {**KNOWN, **computed(*here())}
    for name in runs.NATIVE:
        recorded[name] = {**KNOWN.get(name, {}), runs.processor(): recorded[name]}
    print(json.dumps(recorded, indent=1))
