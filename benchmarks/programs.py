"""Trains models through programs that talk to them over HTTP, beside Sojourn's own agent, from the same starts.

    python benchmarks/programs.py                                  # a tiny model; about an hour on two cores
    python benchmarks/programs.py --setting smollm2                # adapters of SmolLM2-135M-Instruct
    python benchmarks/programs.py --seeds 0 --variants openai      # into the work folder
    python benchmarks/programs.py --dry                            # builds every recipe, runs nothing

The game of the README, whose ceiling is 100% in four guesses. For each seed a model is cloned from demonstrations
(the recipe that ends in `_warmup`), and each variant goes on from there by the same RL: `plain`, the agent of Sojourn;
`openai`, a loop of tool calls on OpenAI's SDK (`tool_loop.py`), as a function in the process that trains; `agents_sdk`,
the loop of a framework, OpenAI's Agents SDK (`agents_loop.py`), as such a function; `sandbox`, a loop that uses nothing
but the standard library (`standard_loop.py`), as a process in a sandbox for each episode. They see the same prompts, to
the token; their samples differ by their seeds. Nothing was tuned for the programs.

In the setting `tiny` a model from scratch writes its calls as text, so that a loop carries them out when the framework
returns its last word; in `smollm2` adapters are trained, and calls are the chat format's own, which the framework
carries out by itself. (The tiny model, with calls of that form, five times as long, did not learn by this RL: it went
from 53% to 60%, and at thrice the learning rate to 32%; one seed.)

The framework is taken from the environment that trains or, where it is not there, from the one that `make clients`
installed below `--clients`. What is finished stays in `--folder`; `bakeoff.py` says how trainings are run and compared.
The table's cost is the time of a step beside that of `plain`, clients and processes included, which run on the same
cores.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from bakeoff import HERE, WARMUP, Bakeoff, Job, bake, joined, recorded, summary, told
from machine import RESULTS, write

from sojourn.train.resolve import resolve

BASE, FRAMEWORK = "plain", "agents_sdk"
SANDBOX = {
    "name": "program",
    "command": ["/usr/bin/python3", "agent.py"],
    "files": {"agent.py": (HERE / "standard_loop.py").read_text()},
}
VARIANTS: dict[str, dict[str, Any]] = {
    BASE: {},
    "openai": {"agent": {"name": "python", "function": "benchmarks.tool_loop:agent"}},
    FRAMEWORK: {"agent": {"name": "python", "function": "benchmarks.agents_loop:agent"}},
    "sandbox": {"agent": SANDBOX},
}


@dataclass(frozen=True)
class Setting:
    """Holds what is compared: `name` is the stem of the recipes and of the result."""

    name: str
    variants: tuple[str, ...]
    seeds: range

    @property
    def bakeoff(self) -> Bakeoff:
        variants = {name: VARIANTS[name] for name in self.variants}
        return Bakeoff(HERE / f"{self.name}.toml", HERE / f"{self.name}_warmup.toml", variants, BASE)


SETTINGS = {
    "tiny": Setting("programs", (BASE, "openai", FRAMEWORK, "sandbox"), range(5)),
    "smollm2": Setting("programs_smollm2", (BASE, "openai", FRAMEWORK), range(3)),
}


def find_framework(clients: Path) -> None:
    """Lets this process, and the trainings that it starts, import the framework. Raises `SystemExit` where it is
    nowhere."""
    minor = sys.version_info[1]
    place = clients.absolute() / "openai-agents" / "lib" / f"python3.{minor}" / "site-packages"
    if find_spec("agents") is None and place.is_dir():
        os.environ["SOJOURN_AGENTS_SDK"] = str(place)
        sys.path.append(str(place))
    if find_spec("agents") is None:
        raise SystemExit(
            f"OpenAI's Agents SDK is neither installed here nor in {place}: run `python benchmarks/clients.py "
            f"openai-agents`, or leave the variant {FRAMEWORK} out"
        )


def main(given: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description="programs as agents, against Sojourn's own agent")
    parser.add_argument("--setting", choices=list(SETTINGS), default="tiny")
    parser.add_argument("--seeds", type=lambda text: [int(s) for s in text.split(",")])
    parser.add_argument("--variants", type=lambda text: text.split(","), metavar="A,B")
    parser.add_argument("--workers", type=int, default=2, help="trainings at once, of one thread each")
    parser.add_argument("--clients", type=Path, default=HERE.parent / ".venvs" / "clients")
    parser.add_argument("--folder", type=Path, help="(default: one for each setting, for temporary files)")
    parser.add_argument("--add", action="store_true", help="add to the result: what it has is not made again")
    parser.add_argument("--dry", action="store_true", help="build every recipe, run nothing")
    options = parser.parse_args(given)
    setting = SETTINGS[options.setting]
    seeds, chosen = options.seeds or list(setting.seeds), options.variants or setting.variants
    if unknown := set(chosen) - set(setting.variants):
        known = ", ".join(setting.variants)
        parser.error(f"{options.setting} has no variant {sorted(unknown)[0]}: choose among {known}")
    names = [name for name in setting.variants if name in (BASE, *chosen)]
    whole = options.add or (len(names) == len(setting.variants) and set(seeds) >= set(setting.seeds))
    known = recorded(setting.name) if options.add else {}
    if FRAMEWORK in names:
        find_framework(options.clients)
    folder = (options.folder or Path(tempfile.gettempdir()) / f"sojourn-{setting.name}").resolve()
    folder.mkdir(parents=True, exist_ok=True)
    if options.dry:
        dry(setting.bakeoff, names, folder)
        return
    made = bake(setting.bakeoff, names, seeds, folder, options.workers, known)
    runs = joined(known, made, setting.variants)
    found = {"summary": summary(BASE, runs), "runs": runs}
    print(told(BASE, found), flush=True)
    print(write(setting.name, found, "openai", "openai-agents", folder=RESULTS if whole else folder))


def dry(bakeoff: Bakeoff, names: Sequence[str], folder: Path) -> None:
    for variant in (WARMUP, *names):
        resolve(Job(bakeoff, variant, 0).tables(folder))
        print(f"{variant} can be built")


if __name__ == "__main__":
    main(sys.argv[1:])
