"""Real clients do a small task through the gateway: which turns extend, and that tokens are exact.

    python benchmarks/clients.py [NAME ...] [--home FOLDER] [--record] [--keep FOLDER]

Every client of `tests/gateway/clients/table.py` (or those whose names are given) is installed at its version, into an
environment of its own below `--home`, and started in a fresh folder with the base URL of a gateway on this machine. The
model is scripted, and tokenises its replies oddly (`tests/gateway/clients/task.py`). It is checked that the recorded
tokens are the sampled ones, that each turn's prompt is what was sampled from, that no request failed, and that the task
was done. With `--record`, what the clients sent is written into `tests/gateway/recorded/`, without texts of others.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from string import Template
from typing import Any

import uvicorn
from machine import write

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from sojourn.gateway.request_notes import PLACE  # noqa: E402
from sojourn.gateway.server import Gateway  # noqa: E402
from sojourn.gateway.session import Session  # noqa: E402
from sojourn.gateway.sessions import Sessions  # noqa: E402
from tests.gateway.clients.neutral import record  # noqa: E402
from tests.gateway.clients.recording import Recorder  # noqa: E402
from tests.gateway.clients.table import CLIENTS, Client  # noqa: E402
from tests.gateway.clients.task import ANSWER, FILES  # noqa: E402
from tests.gateway_sessions import cause, exact, session  # noqa: E402

PROGRAMS = ROOT / "tests" / "gateway" / "clients" / "programs"
KEY, CONTEXT, LONGEST_S = "recorded", 1_000_000, 300
QUIET = {"NO_PROXY": "127.0.0.1", "CI": "1", "NO_COLOR": "1", "TERM": "dumb", "DO_NOT_TRACK": "1",
         "OTEL_SDK_DISABLED": "true", "CREWAI_DISABLE_TELEMETRY": "true", "LITELLM_LOCAL_MODEL_COST_MAP": "True",
         "CREWAI_TRACING_ENABLED": "false", "LANGSMITH_TRACING": "false"}  # fmt: skip


@dataclass
class Outcome:
    """Holds what became of one client. `extended` counts the turns that went on from an earlier one, `windows` those
    that began a new context by why; `prompted` are the tokens of all prompts and samples, `stored` those of turns."""

    client: str
    variant: str
    version: str
    api: str
    turns: int = 0
    extended: int = 0
    windows: dict[str, int] = field(default_factory=dict[str, int])
    prompted: int = 0
    stored: int = 0
    differences: dict[int, str] = field(default_factory=dict[int, str])
    unused: dict[str, int] = field(default_factory=dict[str, int])
    other_requests: dict[str, int] = field(default_factory=dict[str, int])
    faults: list[str] = field(default_factory=list[str])


def install(client: Client, home: Path) -> Path:
    """Returns the folder of the client's programs, which are installed there if they are not yet."""
    place = home / client.name
    place.mkdir(parents=True, exist_ok=True)
    wanted = " ".join(client.packages)
    binaries = place / ("node_modules/.bin" if client.npm else "bin")
    ready = place / "ready"
    if ready.exists() and ready.read_text() == wanted:
        return binaries
    if client.npm:
        commands = [["npm", "install", "--no-audit", "--no-fund", "--prefix", str(place), *client.packages]]
    else:
        commands = [["python3", "-m", "venv", str(place)], [str(binaries / "pip"), "install", "-q", *client.packages]]
    for command in commands:
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    ready.write_text(wanted)
    return binaries


@contextmanager
def serving(recorder: Recorder) -> Iterator[str]:
    """Serves an application on a free port of this machine, in a thread."""
    config = uvicorn.Config(recorder, port=0, log_level="error", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/s/{KEY}"
    finally:
        server.should_exit = True
        thread.join()


def start(client: Client, places: Mapping[str, str]) -> Iterator[str]:
    """Runs the client's commands one after another; yields what went wrong."""
    for name, text in client.files.items():
        Path(places["home"], name).write_text(Template(text).substitute(places))
    for name, text in FILES.items():
        Path(places["task"], name).write_text(text)
    own = {name: Template(value).substitute(places) for name, value in client.environment.items()}
    path = f"{places['bin']}:{os.environ['PATH']}"
    environment = {"PATH": path, "HOME": places["home"], "USER": "user", "LANG": "C.UTF-8", **QUIET, **own}
    for number, command in enumerate(client.commands):
        words = [Template(word).safe_substitute(places) for word in command]
        with Path(places["home"], f"log{number}.txt").open("wb") as log:
            try:
                done = subprocess.run(
                    words, cwd=places["task"], env=environment, stdin=subprocess.DEVNULL, stdout=log,
                    stderr=subprocess.STDOUT, timeout=LONGEST_S, check=False,
                )  # fmt: skip
            except subprocess.TimeoutExpired:
                yield f"command {number + 1} did not end within {LONGEST_S} s"
                continue
        if done.returncode:
            yield f"command {number + 1} ended with the status {done.returncode}"


def run(client: Client, binaries: Path, folder: Path, recorded: Path | None) -> Outcome:
    """Lets one client do the task and checks what was recorded of it."""
    one, sampler = session(client.script, KEY, thinking=True, max_context=CONTEXT)
    gateway = Gateway(Sessions())
    gateway.sessions.open(one)
    recorder = Recorder(gateway.app())
    places = {"bin": str(binaries.absolute()), "programs": str(PROGRAMS)}
    for name in ("home", "task"):
        places[name] = str(folder / name)
        (folder / name).mkdir(parents=True)
    with serving(recorder) as base:
        faults = list(start(client, {**places, "base": base}))
    outcome = Outcome(client.name, client.variant, client.version, client.api, faults=faults)
    answer = folder / "task" / ANSWER
    if not answer.exists() or answer.read_text() != "".join(FILES.values()):
        faults.append(f"the task was not done: {answer.name} does not hold both texts")
    asked = [exchange for exchange in recorder.exchanges if exchange.asks]
    faults += [f"{exchange.path} failed: {bytes(exchange.answer)[:300]!r}" for exchange in asked if exchange.failed]
    other = [exchange for exchange in recorder.exchanges if not exchange.asks]
    outcome.other_requests = dict(Counter(f"{one.method} {one.path} {one.status}" for one in other))
    try:
        exact(one, sampler)
    except AssertionError as error:
        faults.append(f"the recorded tokens are not the sampled ones: {error}")
    _count(outcome, one, sum(map(len, sampler.prompts)))
    if recorded is not None and not faults:
        recorded.mkdir(exist_ok=True)
        _keep(client, one, record(asked, folder), recorded / f"{client.key}.json")
    return outcome


def _keep(client: Client, one: Session, requests: Sequence[dict[str, Any]], path: Path) -> None:
    """Writes a fixture: the requests, whose lists of tools are kept once each, and the turns that they became."""
    tools: list[Any] = []
    for request in requests:
        listed = request["body"].pop("tools")
        if listed not in tools:
            tools.append(listed)
        request["tools"] = tools.index(listed)
    turns = [{"parent": turn.parent, "cause": cause(turn)} for turn in one.turns]
    fixture = {"client": client.name, "version": client.version, "api": client.api, "turns": turns,
               "tools": tools, "requests": requests}  # fmt: skip
    path.write_text(json.dumps(fixture, indent=1, ensure_ascii=False) + "\n")


def _count(outcome: Outcome, one: Session, prompted: int) -> None:
    sampled = sum(len(turn.sample.tokens) for turn in one.turns)
    outcome.turns = len(one.turns)
    outcome.extended = sum(turn.parent >= 0 for turn in one.turns)
    counts = {name.partition("_")[::2]: number for name, number in sorted(one.counts.items())}
    outcome.windows = {name: number for (kind, name), number in counts.items() if kind == "window"}
    outcome.unused = {name: number for (kind, name), number in counts.items() if kind == "unused"}
    outcome.differences = {at: turn.notes[PLACE] for at, turn in enumerate(one.turns) if PLACE in turn.notes}
    outcome.prompted = prompted + sampled
    outcome.stored = sum(len(turn.context) for turn in one.turns) + sampled


def row(outcome: Outcome) -> str:
    share = outcome.extended / max(outcome.turns - 1, 1)
    windows = ", ".join(f"{number} {cause}" for cause, number in outcome.windows.items() if cause != "first")
    fault = f" | FAULT: {'; '.join(outcome.faults)}" if outcome.faults else ""
    head = f"{outcome.client:15} {outcome.version:10} {outcome.api:10} {outcome.turns:5} {share:8.0%}"
    named = f" ({outcome.variant})" if outcome.variant else ""
    return f"{head} {outcome.prompted / max(outcome.stored, 1):6.1f}  {windows or '-'}{named}{fault}"


HEAD = f"{'client':15} {'version':10} {'API':10} {'turns':5} extended fewer  new contexts after the first"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--home", type=Path, default=ROOT / ".venvs" / "clients")
    parser.add_argument("--keep", type=Path, help="keeps the clients' folders and logs here")
    parser.add_argument("--record", action="store_true")
    options = parser.parse_args()
    chosen = [one for one in CLIENTS if not options.names or {one.name, one.key} & set(options.names)]
    recorded = ROOT / "tests" / "gateway" / "recorded" if options.record else None
    print(HEAD, flush=True)
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory() as work:
        for client in chosen:
            binaries = install(client, options.home)
            outcomes.append(run(client, binaries, (options.keep or Path(work)).absolute() / client.key, recorded))
            print(row(outcomes[-1]), flush=True)
    figures: dict[str, Any] = {"clients": [asdict(outcome) for outcome in outcomes]}
    if not options.names:
        write("clients", figures)
    if any(outcome.faults for outcome in outcomes):
        sys.exit("some clients had faults")


if __name__ == "__main__":
    main()
