"""A family and its lists of tasks: the same whenever, and wherever, they are asked for."""

from __future__ import annotations

import ast
import asyncio
import json
import os
import random
import subprocess
import sys
from collections.abc import Awaitable, Callable
from dataclasses import fields, is_dataclass
from typing import Any

from sojourn.checks.env.play import Case, short
from sojourn.checks.promise import BrokenError, DoubtfulError, NotOfferedError
from sojourn.envs.tools import as_family
from sojourn.types import Task

REBUILD = """
import ast, importlib, json, sys
path, values, count = ast.literal_eval(sys.stdin.read())
module, _, names = path.partition(":")
family = importlib.import_module(module)
for name in names.split("."):
    family = getattr(family, name)
family = family(**values)
splits = {split: family.tasks(split) for split in ("train", "test")}
print(json.dumps({split: [tasks[i].id for i in range(min(count, len(tasks)))] for split, tasks in splits.items()}))
"""


async def opens(case: Case) -> str:
    case.family = as_family(case.family)
    if not hasattr(case.family, "open"):
        return "an EnvFamily"
    await case.family.open()
    return "an EnvFamily, opened"


async def closed(close: Callable[[], Awaitable[None]]) -> str:
    await close()
    return ""


async def gives_tasks(case: Case) -> str:
    sizes: dict[str, int] = {}
    for split in ("train", "test"):
        tasks = case.family.tasks(split)
        sizes[split] = len(tasks)
        for index in range(min(20, len(tasks))):
            task = tasks[index]
            if not isinstance(task, Task) or task.split != split:
                raise BrokenError(f'tasks("{split}")[{index}] is {short(task)}: expected a Task of that split')
            if json.loads(json.dumps(dict(task.data))) != dict(task.data):
                raise BrokenError(f'tasks("{split}")[{index}].data = {short(task.data)}: expected JSON values alone')
            if case.family.tasks(split)[index].id != task.id:
                raise BrokenError(f'tasks("{split}")[{index}] is another task when asked again')
    if not sizes.get(case.split):
        raise BrokenError(f'tasks("{case.split}") is empty')
    chosen = random.Random(case.seed).sample(range(sizes[case.split]), min(case.episodes, sizes[case.split]))
    case.tasks = [case.family.tasks(case.split)[index] for index in chosen]
    if not all(sizes.values()):
        raise DoubtfulError(
            f"train has {sizes['train']} tasks, test has {sizes['test']}: nothing can be learnt and judged"
        )
    return f"{sizes['train']} to train, {sizes['test']} to test"


async def splits_disjoint(case: Case) -> str:
    seen: dict[str, dict[str, int]] = {}
    for split in ("train", "test"):
        tasks = case.family.tasks(split)
        found = [tasks[index] for index in range(min(1_000, len(tasks)))]
        seen[split] = {json.dumps([t.env, dict(t.data), t.seed], sort_keys=True): i for i, t in enumerate(found)}
    if common := seen["train"].keys() & seen["test"].keys():
        one = min(common)
        raise BrokenError(f"train task {seen['train'][one]} is test task {seen['test'][one]} too: {short(one)}")
    return f"first {len(seen['train'])} and {len(seen['test'])} compared"


async def ids_stable(case: Case) -> str:
    family: Any = case.family
    kind = type(family)
    path = f"{kind.__module__}:{kind.__qualname__}"
    if not is_dataclass(kind) or "<locals>" in path or kind.__module__ == "__main__":
        raise NotOfferedError("the family cannot be made again by name in another process")
    values = {f.name: getattr(family, f.name) for f in fields(kind) if f.init}
    spoken = repr((path, values, 20))
    try:
        same = ast.literal_eval(spoken)[1] == values
    except (SyntaxError, ValueError):
        same = False
    if not same:
        raise NotOfferedError("the family's fields cannot be written down for another process")
    paths = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    hashing = "1" if os.environ.get("PYTHONHASHSEED", "random") != "1" else "2"
    environment = {**os.environ, "PYTHONPATH": paths, "PYTHONHASHSEED": hashing}
    command = [sys.executable, "-c", REBUILD]
    child = await asyncio.to_thread(
        subprocess.run, command, input=spoken, env=environment, capture_output=True, text=True, timeout=100
    )
    if child.returncode:
        raise BrokenError(f"another process cannot list the tasks: {child.stderr.strip().splitlines()[-1:]}")
    for split, ids in json.loads(child.stdout.splitlines()[-1]).items():
        tasks = family.tasks(split)
        for index, there in enumerate(ids):
            if tasks[index].id != there:
                raise BrokenError(f'tasks("{split}")[{index}].id is {tasks[index].id} here, {there} in another process')
    return "the same in another process"
