"""Trains tiny models through programs that talk to them over HTTP, beside Sojourn's own agent, from the same starts.

    python benchmarks/programs.py                                  # all; about an hour on two cores
    python benchmarks/programs.py --seeds 0 --variants openai      # into the work folder
    python benchmarks/programs.py --dry                            # builds every recipe, runs nothing

The game of the README, whose ceiling is 100% in four guesses. For each seed a model is cloned from demonstrations
(`programs_warmup.toml`), and each variant goes on from there by the same RL: `plain`, the agent of Sojourn; `openai`,
a loop of tool calls on OpenAI's SDK (`tool_loop.py`), as a function in the process that trains; `sandbox`, a loop that
uses nothing but the standard library (`standard_loop.py`), as a process in a sandbox for each episode. They see the
same prompts, to the token; their samples differ by their seeds. Nothing was tuned for the programs.

What is finished stays in `--folder`; `bakeoff.py` says how trainings are run and compared. The table's cost is the time
of a step beside that of `plain`, clients and processes included, which run on the same cores.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bakeoff import HERE, WARMUP, Bakeoff, Job, bake, summary, told
from machine import RESULTS, write

from sojourn.train.resolve import resolve

BASE = "plain"
SEEDS = range(5)
SANDBOX = {
    "name": "program",
    "command": ["/usr/bin/python3", "agent.py"],
    "files": {"agent.py": (HERE / "standard_loop.py").read_text()},
}
VARIANTS: dict[str, dict[str, Any]] = {
    BASE: {},
    "openai": {"agent": {"name": "python", "function": "benchmarks.tool_loop:agent"}},
    "sandbox": {"agent": SANDBOX},
}
BAKEOFF = Bakeoff(HERE / "programs.toml", HERE / "programs_warmup.toml", VARIANTS, BASE)


def main(given: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description="programs as agents, against Sojourn's own agent")
    parser.add_argument("--seeds", type=lambda text: [int(s) for s in text.split(",")], default=list(SEEDS))
    parser.add_argument("--variants", type=lambda text: text.split(","), default=list(VARIANTS), metavar="A,B")
    parser.add_argument("--workers", type=int, default=2, help="trainings at once, of one thread each")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "sojourn-programs")
    parser.add_argument("--dry", action="store_true", help="build every recipe, run nothing")
    options = parser.parse_args(given)
    if unknown := set(options.variants) - set(VARIANTS):
        parser.error(f"no variant {sorted(unknown)[0]}: choose among {', '.join(VARIANTS)}")
    names = [name for name in VARIANTS if name in (BASE, *options.variants)]
    whole = len(names) == len(VARIANTS) and set(options.seeds) >= set(SEEDS)
    options.folder.mkdir(parents=True, exist_ok=True)
    if options.dry:
        for variant in (WARMUP, *names):
            resolve(Job(BAKEOFF, variant, 0).tables(options.folder))
            print(f"{variant} can be built")
        return
    done = bake(BAKEOFF, names, options.seeds, options.folder.resolve(), options.workers)
    found = {"summary": summary(BASE, done["runs"]), **done}
    print(told(BASE, found), flush=True)
    print(write("programs", found, folder=RESULTS if whole else options.folder))


if __name__ == "__main__":
    main(sys.argv[1:])
