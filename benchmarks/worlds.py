"""Measures each world: the rewards of its expert and of a random policy, its speed, and the cost of a fork.

    python benchmarks/worlds.py [world ...]

Writes `measured.json` in the package that the world is in (`sojourn` or `sojourn_worlds`), which `sojourn envs` shows,
and a page for each world in `docs/worlds`, with an episode of its expert. Every world is measured in a process of its
own, as it comes; those that cannot be made without fields have them in `FIELDS` or, adapters, in `adapted`. What cannot
be measured here keeps what was measured before.
"""

from __future__ import annotations

import asyncio
import inspect
import io
import json
import os
import subprocess
import sys
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from adapted import EXAMPLES, example
from machine import processor

from sojourn import env_catalog
from sojourn.agents.person import play_in_terminal
from sojourn.checks.env.measure import measure
from sojourn.config import plugins
from sojourn.config.lookup import find, names
from sojourn.config.registry import build

ROOT = Path(__file__).parent.parent
PAGES = ROOT / "docs" / "worlds"
LIMIT_S = 300
LONGEST = 6_000  # characters of an episode
FIELDS: dict[str, dict[str, Any]] = {
    "tools": {"cls": "examples.guess:Guess"},
    "miniwob": {"pages": ["experts"]},
    "mixed": {"worlds": [{"name": "toy"}, {"name": "shop"}]},
    "recorded": {"files": ["recipes/others/theirs.chat.jsonl"]},
}


def fields_of(name: str) -> dict[str, Any]:
    """Those of an adapter are its smallest example, where it has one."""
    cls = find("env", name)
    adapts = cls.__module__.startswith("sojourn_worlds.adapters.")
    return dict(FIELDS.get(name) or EXAMPLES.get(name) or (cls.about.smallest if adapts else {}))


def made(name: str) -> Any:
    """The world; of one whose example needs more than its fields, the class."""
    return find("env", name) if name in EXAMPLES else build("env", {"name": name, **fields_of(name)}).value


def one(name: str) -> None:
    """Measures a world and prints what was found, as JSON."""
    fields = fields_of(name)
    with ExitStack() as stack:
        more = stack.enter_context(example(name)) if name in EXAMPLES else {}
        family = build("env", {"name": name, **fields, **more}).value
        found = asyncio.run(measure(family))
        episode = asyncio.run(_episode(family)) if found.expert else ""
    print(json.dumps({"measured": found.to_json(), "fields": fields, "episode": episode}))


async def _episode(family: Any) -> str:
    from rich.console import Console

    file = io.StringIO()
    await play_in_terminal(family, family.tasks("test")[0], Console(file=file, width=100), expert=True)
    text = "\n".join(line.rstrip() for line in file.getvalue().splitlines())
    return text if len(text) <= LONGEST else f"{text[: LONGEST // 2]}\n[...]\n{text[-LONGEST // 2 :]}"


def page(entry: env_catalog.World, family: Any, episode: str) -> str:
    name = entry.name
    lines = [f"# {name}", "", inspect.cleandoc(family.__doc__ or ""), "", "| | |", "|---|---|"]
    lines += [f"| {label} | {value.replace('|', '/')} |" for label, value in env_catalog.details(entry, family)]
    if episode:
        lines += ["", "An episode of its expert, on the first test task:", "", "```text", episode, "```"]
    return "\n".join(lines) + "\n"


def index() -> str:
    rows = [env_catalog.row(entry) for entry in env_catalog.worlds()]
    lines = ["# Worlds", "", "Made by `python benchmarks/worlds.py`. " + env_catalog.CAPTION + ".", ""]
    lines += ["| " + " | ".join(rows[0]) + " |", "|" + "---|" * len(rows[0])]
    for cells in rows:
        link = f"[{cells['name']}]({cells['name']}.md)" if (PAGES / f"{cells['name']}.md").exists() else cells["name"]
        lines.append("| " + " | ".join([link, *list(cells.values())[1:]]) + " |")
    return "\n".join(lines) + "\n"


def keep(name: str, found: dict[str, Any]) -> None:
    """Writes what was measured of a world into its package."""
    package = plugins.top_level(find("env", name).__module__)
    known = {**env_catalog.measurements(package), name: found}
    ordered = {key: known[key] for key in names("env") if key in known}
    (Path(sys.modules[package].__path__[0]) / env_catalog.MEASURED).write_text(json.dumps(ordered, indent=1) + "\n")
    env_catalog.measurements.cache_clear()


def main(asked: list[str]) -> None:
    where = f"{datetime.now(UTC).date().isoformat()}, {os.cpu_count()} cores of {processor()}"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    PAGES.mkdir(parents=True, exist_ok=True)
    for name in asked or names("env"):
        command = [sys.executable, __file__, "--one", name]
        try:
            child = subprocess.run(
                command, capture_output=True, text=True, cwd=ROOT, env=environment, timeout=LIMIT_S, check=False
            )
        except subprocess.TimeoutExpired:
            print(f"{name}: not done within {LIMIT_S} s", file=sys.stderr)
            continue
        if child.returncode:
            print(f"{name}: {(child.stderr.strip().splitlines() or ['no word'])[-1]}", file=sys.stderr)
            continue
        found = json.loads(child.stdout.splitlines()[-1])
        keep(name, {"measured": found["measured"], "fields": found["fields"], "where": where})
        family = made(name)
        entry = env_catalog.describe(name, family)
        (PAGES / f"{name}.md").write_text(page(entry, family, found["episode"]))
        print("  ".join(f"{key} {value}" for key, value in env_catalog.row(entry).items() if value))
    (PAGES / "README.md").write_text(index())


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))  # for the environment in examples/
    if sys.argv[1:2] == ["--one"]:
        one(sys.argv[2])
    else:
        main(sys.argv[1:])
