"""How long each command takes to start, beside another checkout's: processor time, medians, in turn.

    python benchmarks/startup.py --against OTHER/.venv/bin/python

Each command is run as a user would run it, once untimed and then `REPEATS` times, this checkout and the other taking
turns. The processor time of the process and its children is compared, as it suffers less from other load than the time
on the clock. A command that only one of the two knows is left out.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from machine import write

ROOT = Path(__file__).parent.parent
RUN = ROOT / "tests" / "golden" / "run_2026_11"  # recorded before some of what is compared here was changed
REPEATS = 7
HELPS = (
    "train",
    "eval",
    "runs",
    "show",
    "view",
    "report",
    "play",
    "export",
    "replay",
    "arena",
    "check",
    "envs",
    "methods",
)
COMMANDS = [
    ["--help"],
    *([command, "--help"] for command in HELPS),
    ["train", "--dry", "recipes/toy/train.toml"],
    ["runs", "{runs}"],
    ["show", "{runs}/run"],
    ["show", "{runs}/run", "rl"],
    ["report", "{runs}/run", "--out", "{runs}/report.html"],
    ["export", "{runs}/run", "--out", "{runs}/out.jsonl"],
    ["check", "estimator", "grpo"],
    ["check", "loss", "ppo"],
    ["envs"],
    ["envs", "toy"],
    ["methods"],
]


def seconds(python: str, command: list[str], runs: Path) -> float | None:
    """Returns the processor time of one start in seconds; None where the command failed."""
    for old in (runs / "report.html", runs / "out.jsonl"):
        old.unlink(missing_ok=True)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    words = [word.format(runs=runs) for word in command]
    tree = Path(python).parents[2]
    done = subprocess.run(
        [python, "-m", "sojourn", *words], cwd=tree, capture_output=True, env=os.environ | {"COLUMNS": "100"}
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return spent if done.returncode == 0 else None


def compare(command: list[str], ours: str, other: str, runs: Path) -> dict[str, Any] | None:
    pairs = [(seconds(ours, command, runs), seconds(other, command, runs)) for _ in range(REPEATS + 1)][1:]
    if any(None in pair for pair in pairs):
        return None
    now, then = (statistics.median(side) for side in zip(*pairs, strict=True))
    return {"ms": round(1000 * now), "other_ms": round(1000 * then), "ratio": round(now / then, 3)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--against", required=True, metavar="PYTHON", help="the python of the other checkout's environment"
    )
    other = str(Path(parser.parse_args().against).absolute())
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(RUN, Path(folder) / "run")
        results = {" ".join(c): compare(c, sys.executable, other, Path(folder)) for c in COMMANDS}
    compared = {name.replace("{runs}/", ""): result for name, result in results.items() if result is not None}
    print(write("startup", compared | {"left_out": [name for name, result in results.items() if result is None]}))


if __name__ == "__main__":
    main()
