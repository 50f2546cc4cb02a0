"""Checks a family, what it says of itself, and its lists of tasks."""

from __future__ import annotations

import json
import random
from typing import Any

from sojourn.abilities import Opens
from sojourn.checks.env.play import Case, short
from sojourn.checks.env.resources import held_resources
from sojourn.checks.promise import BrokenError, DoubtfulError, NotOfferedError
from sojourn.envs.about import About, about_of
from sojourn.envs.tools import Tools, as_family
from sojourn.rollout.world import world_of
from sojourn.types import Task

COMPARED, COMPARED_LISTED = 1_000, 100_000  # tasks of each split, generated ones and those that are listed


async def opens(case: Case) -> str:
    case.before = held_resources(case.scratch)
    case.family = as_family(case.family)
    if not isinstance(case.family, Opens):
        return "an EnvFamily"
    await case.family.open()
    return "an EnvFamily, opened"


async def declares_source(case: Case) -> str:
    of_plain_class = isinstance(case.family, Tools)
    source = case.family.plain if of_plain_class else case.family  # a plain class has its own `about`
    about: object = about_of(source)
    if about is None and of_plain_class:
        raise NotOfferedError(
            "a plain class need not have `about`: give it one with its source and licence to share it"
        )
    if about is None:
        raise DoubtfulError("no `about`: say its source and its licence, as in about = About(source=..., licence=...)")
    if not isinstance(about, About):
        raise BrokenError(f"about is {short(about)}: expected an About")
    texts = {"source": about.source, "licence": about.licence, "seats": about.seats}
    if empty := [name for name, text in texts.items() if not (isinstance(text, str) and text.strip())]:
        raise BrokenError(f"about.{empty[0]} is {short(texts[empty[0]])}: expected a text")
    if not about.modalities:
        raise BrokenError("about.modalities is empty: expected what observations are made of, such as text")
    if about.smallest:
        type(case.family)(**about.smallest)
    return about.licence


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
    listed = isinstance(case.family, Tools) and not case.family.seeded
    for split in ("train", "test"):
        tasks = case.family.tasks(split)
        most = COMPARED_LISTED if listed or isinstance(tasks, list | tuple) else COMPARED
        first = [tasks[index] for index in range(min(most, len(tasks)))]
        seen[split] = {_content(case.family, task): index for index, task in reversed(list(enumerate(first)))}
    if common := seen["train"].keys() & seen["test"].keys():
        one = min(common)
        raise BrokenError(f"train task {seen['train'][one]} is test task {seen['test'][one]} too: {short(one)}")
    return f"first {len(seen['train'])} and {len(seen['test'])} compared"


def _content(family: Any, task: Task) -> str:
    """Returns what a task is made of; the seed is no part of that where the class of the world takes none."""
    world = world_of(family, task)
    seed = 0 if isinstance(world, Tools) and not world.seeded else task.seed
    return json.dumps([task.env, dict(task.data), seed], sort_keys=True)
