"""Gives the adapters of other ecosystems what they are measured on: their tests' examples, with the servers they need.

The interpreters that have the packages of other ecosystems are those that `make adapters` builds, named by variables
such as SOJOURN_OPENENV_PYTHON.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

TESTS = Path(__file__).parent.parent / "worlds" / "tests" / "adapters"
EXAMPLES: Mapping[str, Mapping[str, Any]] = {
    "mcp": {"check": "mcp_hooks:moved", "hidden": ("dump", "crash", "sleep")},
    "aviary": {"dataset": "aviary_hooks:Safes", "expert": "aviary_hooks:halve", "scale": 0.5},
    "openenv": {"expert": "openenv_hooks:count_up"},
    "verifiers": {"taskset": "verifiers_toy", "expert": "verifiers_hooks:halve"},
    "browsergym": {"ids": ("miniwob.click-button",), "turns": 3, "expert": "browsergym_hooks:press"},
    "nemo_gym": {"expert": "nemo_gym_hooks:count"},
    "alfworld": {"alike": 2, "copies": 1},
}


@contextmanager
def example(name: str) -> Iterator[dict[str, Any]]:
    """The fields that name what is there meanwhile: a server, pages, an interpreter, a file of tasks."""
    sys.path.insert(0, str(TESTS))
    import served

    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        match name:
            case "mcp":
                tasks = [_transfer(amount) for amount in range(1, 81)]
                command = (sys.executable, str(TESTS / "mcp_ledger.py"), "{folder}")
                more = {"instructions": _file(folder, tasks), "command": command}
            case "openenv" | "nemo_gym":
                python = served.interpreter(name.upper())
                url, _ = stack.enter_context(served.serving(python, TESTS / f"{name}_server.py"))
                more = {"url": url}
            case "verifiers":
                more = {"python": served.interpreter("VERIFIERS"), "paths": (str(TESTS),)}
            case "browsergym":
                environment = {"MINIWOB_URL": stack.enter_context(served.pages())}
                more = {"python": served.interpreter("BROWSERGYM"), "environment": environment}
                more["chromium"] = shutil.which("chromium") or ""
            case "alfworld":
                more = {"cache": str(folder), "python": os.environ.get("SOJOURN_ALFWORLD_PYTHON", "")}
            case _:
                more = {}
        if name == "nemo_gym":
            from nemo_gym_hooks import row

            more["instructions"] = _file(folder, [row(i, 3 * i + 4) for i in range(80)])
        yield more


def _transfer(amount: int) -> dict[str, Any]:
    return {
        "instruction": f"Give {amount} of ada's euros to bob.",
        "wanted": {"ada": 100 - amount, "bob": 50 + amount},
        "solution": [f"transfer('ada', 'bob', {amount})", "finish()"],
    }


def _file(folder: Path, rows: Sequence[Mapping[str, Any]]) -> str:
    file = folder / "tasks.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    return str(file)
