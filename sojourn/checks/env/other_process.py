"""Checks a family in another process: its tasks and plays must be the same there, and its processes must end with it.

This needs a family whose class can be imported and whose fields are plain Python values.
"""

from __future__ import annotations

import ast
import asyncio
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from sojourn.abilities import Closes, Opens
from sojourn.checks.env.play import Case, Event, Play, closing, first_difference, play_through
from sojourn.checks.env.resources import Process, alive, processes
from sojourn.checks.promise import BrokenError, NotOfferedError
from sojourn.codec import from_plain, to_json, to_plain
from sojourn.types import Message, Task

TIMEOUT_S = 300
ENDS_S = 30.0  # as long as a browser or a Java machine may take to end on a busy machine
COMPARED_TASKS = 20  # of each split


# In this process


async def ids_stable(case: Case) -> str:
    there = await _ask(case, "ids", {})
    for split, ids in there.items():
        tasks = case.family.tasks(split)
        for index, other in enumerate(ids):
            if tasks[index].id != other:
                raise BrokenError(f'tasks("{split}")[{index}].id is {tasks[index].id} here, {other} in another process')
    return "the same in another process"


async def plays_alike(case: Case) -> str:
    numbered = list(enumerate(case.plays))
    there = await _ask(case, "plays", {"plays": [_script(case, number, play.actions) for number, play in numbered]})
    for (_, play), data in zip(numbered, there, strict=True):
        if difference := first_difference(_events(_data(play.events)), _events(data)):
            raise BrokenError(f"in another process, {difference}")
    return f"{len(there)} plays are the same in another process"


async def dies(case: Case) -> str:
    """Kills a process in the middle of a play: the processes that the world started there must end by themselves."""
    if not case.starts_processes:
        raise NotOfferedError("it starts no process")
    actions = case.plays[0].actions
    there = await _ask(case, "killed", {"plays": [_script(case, 0, actions[: len(actions) // 2])]})
    left = {Process(number, start): name for number, start, name in there}
    until = time.monotonic() + ENDS_S
    while outliving := [process for process in left if alive(process)]:
        if time.monotonic() > until:
            for process in outliving:
                os.kill(process.number, signal.SIGKILL)
            raise BrokenError(f"its process was killed, but {left[outliving[0]]} lives on: {len(outliving)} in all")
        await asyncio.sleep(0.05)
    return f"{len(left)} processes end with the one that plays"


async def _ask(case: Case, job: str, more: Mapping[str, Any]) -> Any:
    """Returns the answer of `main` in another process, with another hash seed for strings."""
    literal = _literal(case.family)
    hashing = "1" if os.environ.get("PYTHONHASHSEED", "random") != "1" else "2"
    paths = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    environment = {**os.environ, "PYTHONPATH": paths, "PYTHONHASHSEED": hashing}
    return await asyncio.to_thread(_answer, {"family": literal, "job": job, **more}, environment)


def _answer(asked: Mapping[str, Any], environment: Mapping[str, str]) -> Any:
    """Runs the other process and returns its answer, which comes in a file as the world may print anything."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:  # a dying process may still write there
        answer, errors = Path(folder, "answer.json"), Path(folder, "errors.txt")
        with errors.open("w") as stderr:  # no pipe: what outlives the process would keep it open
            child = subprocess.run(
                [sys.executable, "-c", f"from {__name__} import main; main()"],
                input=json.dumps({**asked, "answer": str(answer)}),
                env={**environment, "TMPDIR": folder},
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                text=True,
                timeout=TIMEOUT_S,
            )
        if not answer.exists():
            lines = errors.read_text(errors="replace").strip().splitlines() or [f"exit status {child.returncode}"]
            raise BrokenError(f"another process cannot do it: {lines[-1]}")
        return json.loads(answer.read_text())


def _literal(family: Any) -> str:
    """Returns the path of a family's class and its fields as a Python literal."""
    kind = type(family)
    path = f"{kind.__module__}:{kind.__qualname__}"
    if not is_dataclass(kind) or "<locals>" in path or kind.__module__ == "__main__":
        raise NotOfferedError("the family cannot be made again by name in another process")
    values = {f.name: getattr(family, f.name) for f in fields(kind) if f.init}
    literal = repr((path, values))
    try:
        same = ast.literal_eval(literal)[1] == values
    except (SyntaxError, ValueError):
        same = False
    if not same:
        raise NotOfferedError("the family's fields cannot be written down for another process")
    return literal


def _script(case: Case, number: int, actions: Sequence[Message]) -> Any:
    task = case.task_of(number)
    return {"task": to_plain(task), "actions": to_plain(actions)}


# In the other process


def main() -> None:
    asked = json.load(sys.stdin)
    _write_answer(
        asked, asyncio.run({"ids": _list_ids, "plays": _play, "killed": _play_and_be_killed}[asked["job"]](asked))
    )


def _write_answer(asked: Mapping[str, Any], answer: Any) -> None:
    Path(asked["answer"]).write_text(json.dumps(answer))


async def _list_ids(asked: Mapping[str, Any]) -> Any:
    family = await _opened(asked)
    try:
        splits = {split: family.tasks(split) for split in ("train", "test")}
        return {split: [tasks[i].id for i in range(min(COMPARED_TASKS, len(tasks)))] for split, tasks in splits.items()}
    finally:
        await _closed(family)


async def _play(asked: Mapping[str, Any]) -> Any:
    family = await _opened(asked)
    try:
        events: list[Any] = []
        for script in asked["plays"]:
            async with closing(Play(family.make(from_plain(script["task"], Task)))) as play:
                await play_through(play, from_plain(script["actions"], list[Message]))
            events.append(_data(play.events))
        return events
    finally:
        await _closed(family)


async def _play_and_be_killed(asked: Mapping[str, Any]) -> None:
    family = await _opened(asked)
    [script] = asked["plays"]
    play = Play(family.make(from_plain(script["task"], Task)))
    await play_through(play, from_plain(script["actions"], list[Message]))
    running = [[*process, name] for process, name in processes(os.environ["TMPDIR"]).items() if alive(process)]
    _write_answer(asked, running)
    os.kill(os.getpid(), signal.SIGKILL)


async def _opened(asked: Mapping[str, Any]) -> Any:
    path, values = ast.literal_eval(asked["family"])
    module, _, names = path.partition(":")
    kind: Any = importlib.import_module(module)
    for name in names.split("."):
        kind = getattr(kind, name)
    family = kind(**values)
    if isinstance(family, Opens):
        await family.open()
    return family


async def _closed(family: Any) -> None:
    if isinstance(family, Closes):
        await family.close()


# Conversion of the types to JSON and back


def _data(events: Sequence[Event]) -> Any:
    return json.loads(to_json(to_plain(events)))


def _events(data: Any) -> list[Event]:
    return [replace(event, action=None, key=None) for event in from_plain(data, list[Event])]
