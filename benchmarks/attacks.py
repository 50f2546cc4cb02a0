"""Attacks every world as `sojourn check --attack` does, as root and as an ordinary user.

    python benchmarks/attacks.py [world ...] [--as root] [--as user]

Writes what was tried and what held to `benchmarks/results/attacks.json` and as a table to `docs/attacks.md`. Every
world is attacked in a process of its own; as an ordinary user (number 65534) where this is run by root, whose Python
that user must be able to read. A world whose packages or programs are missing keeps what was found before.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from adapted import EXAMPLES, example
from machine import processor

from sojourn.checks.attack import Attacked, attack_env
from sojourn.config.lookup import names
from sojourn.config.registry import build
from sojourn.errors import SojournError
from worlds import fields_of

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "attacks.json"
PAGE = ROOT / "docs" / "attacks.md"
NOBODY = "65534"
LIMIT_S = 3_600
QUICK: dict[str, dict[str, Any]] = {  # what a world allows an action to take, lowered, and pages where text is typed
    "terminal": {"timeout_s": 1.5},
    "python": {"timeout_s": 1.5},
    "repo": {"timeout_s": 1.5},
    "miniwob": {"pages": ["terminal", "login-user", "search-engine", "text-editor", "email-inbox-nl-turk"]},
}

HEAD = """\
Made by `python benchmarks/attacks.py`: what `sojourn check WORLD --attack` tried, and what held, as root and as an
ordinary user. An attack holds when it is paid no more than an idle play, is not excused as a failure of the
infrastructure, and harms nothing beside its play; `sojourn/checks/attack` says what it cannot see."""


def one(name: str) -> None:
    """Attacks one world and prints what was found, as JSON."""
    with ExitStack() as stack:
        more = stack.enter_context(example(name)) if name in EXAMPLES else {}
        family = build("env", {"name": name, **fields_of(name), **more, **QUICK.get(name, {})}).value
        began = time.monotonic()
        found = asyncio.run(attack_env(family))
    print(json.dumps({**_told(found), "seconds": round(time.monotonic() - began, 1)}))


def _told(found: Attacked) -> dict[str, Any]:
    tallies = {t.category: {"tried": t.tried, "held": t.held, "broken": t.broken[:20]} for t in found.tallies}
    return {"tried": found.tried, "held": found.held, "categories": tallies}


def attacked(name: str, who: str) -> dict[str, Any] | str:
    """Attacks a world in a process of its own; returns what was found, or a sentence where nothing was."""
    with tempfile.TemporaryDirectory() as home:
        os.chmod(home, 0o777)
        keep = ("PATH", "LANG", "SOJOURN_CHROMIUM", "JAVA_HOME", "OMP_NUM_THREADS", "SSL_CERT_FILE")
        environment = {key: os.environ[key] for key in os.environ if key in keep or key.endswith("_PYTHON")}
        environment |= {"HOME": home, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, __file__, "--one", name]
        if who == "user" and os.geteuid() == 0:
            command = ["setpriv", "--reuid", NOBODY, "--regid", NOBODY, "--clear-groups", *command]
        pipe = subprocess.PIPE
        child = subprocess.Popen(
            command, stdout=pipe, stderr=pipe, text=True, cwd=home, env=environment, start_new_session=True
        )
        try:
            said, errors = child.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.communicate()
            return f"not done within {LIMIT_S} s"
        if child.returncode:
            return (errors.strip().splitlines() or ["it said nothing"])[-1][:300]
        return json.loads(said.splitlines()[-1])


def page(known: dict[str, Any]) -> str:
    lines = [
        "# Attacks on the worlds",
        "",
        HEAD,
        "",
        "| world | as root: held / tried | as a user: held / tried | what did not hold |",
        "|---|---|---|---|",
    ]
    for name, found in known.items():
        cells = [_cell(found.get(who)) for who in ("root", "user")]
        faults = [b for f in found.values() for c in f["categories"].values() for b in c["broken"]]
        lines.append(f"| {name} | {cells[0]} | {cells[1]} | {faults[0].replace('|', '/') if faults else ''} |")
    where = f"{datetime.now(UTC).date().isoformat()}, {os.cpu_count()} cores of {processor()}"
    return "\n".join([*lines, "", f"Last run: {where}.", ""])


def _cell(found: dict[str, Any] | None) -> str:
    return f"{found['held']} / {found['tried']}" if found else ""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("worlds", nargs="*")
    parser.add_argument("--as", dest="who", action="append", choices=("root", "user"))
    parser.add_argument("--one")
    asked = parser.parse_args()
    if asked.one:
        try:
            one(asked.one)
        except SojournError as error:
            sys.exit(str(error))
        return
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for name in asked.worlds or names("env"):
        for who in asked.who or (("root", "user") if os.geteuid() == 0 else ("user",)):
            found = attacked(name, who)
            told = found if isinstance(found, str) else f"{found['held']} / {found['tried']} held"
            print(f"{name} as {who}: {told}", flush=True)
            if not isinstance(found, str):
                known.setdefault(name, {})[who] = found
                ordered = {key: known[key] for key in names("env") if key in known}
                RESULTS.write_text(json.dumps(ordered, indent=1) + "\n")
                PAGE.write_text(page(ordered))


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))  # for the environment in examples/
    main()
