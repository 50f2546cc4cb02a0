"""A whole match: operators from their names, made ready, through all tasks, to the tables at the end."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console

from sojourn.arena import match_display, results
from sojourn.arena.checkpoints import CheckpointOperator
from sojourn.arena.endpoint import Remote
from sojourn.arena.match import Match, TaskResult
from sojourn.arena.match_display import MatchDisplay
from sojourn.arena.operators import ExpertOperator, Operator, PersonOperator, RandomOperator
from sojourn.arena.recording import Recording
from sojourn.arena.results import Result
from sojourn.config import toml
from sojourn.errors import ConfigError
from sojourn.protocols import EnvFamily
from sojourn.render import pieces
from sojourn.rollout.play import Limits
from sojourn.rollout.world import opened
from sojourn.tasks.listed import check_task, listed
from sojourn.types import Task


@dataclass(frozen=True, kw_only=True)
class MatchConfig:
    """What a match is to be. `operators` as they are named on the command line; `table` is the world's config."""

    operators: Sequence[str]
    others: str = ""
    seat: str = ""
    tasks: int = 8
    first: int = 0
    split: str = "test"
    seed: int = 0
    turns: int = 0  # of an episode; 0: as many as the longest of the named runs allows, else 50
    greedy: bool = False
    brief: bool = False
    key: str = ""
    out: Path | None = None


DEFAULT_TURNS = 50


def operator(text: str, asked: MatchConfig, console: Console, stream: TextIO | None = None) -> Operator:
    """The operator that a text names."""
    simple: Mapping[str, Callable[[], Operator]] = {
        "expert": lambda: ExpertOperator("expert"),
        "random": lambda: RandomOperator("random"),
        "person": lambda: PersonOperator("person", console, stream),
    }
    if text in simple:
        return simple[text]()
    if text.startswith(("http://", "https://")):
        return Remote.at(text, asked.key)
    return CheckpointOperator.parse(text, asked.greedy)


def operators(asked: MatchConfig, console: Console, stream: TextIO | None = None) -> list[Operator]:
    """All of them, numbered where two have the same name."""
    if not asked.operators:
        raise ConfigError("nobody plays: name at least one --operator, such as --operator expert --operator runs/x")
    made = [operator(text, asked, console, stream) for text in asked.operators]
    if sum(isinstance(one, PersonOperator) for one in made) > 1:
        raise ConfigError("--operator person is given twice, but one person sits at a terminal: name it once")
    count: Counter[str] = Counter()
    for one in made:
        count[one.name] += 1
        one.name += f"-{count[one.name]}" if count[one.name] > 1 else ""
    return made


async def run_match(
    family: EnvFamily, table: Mapping[str, Any], asked: MatchConfig, console: Console, stream: TextIO | None = None
) -> list[Result]:
    """Plays a match, shows it, and records it where `asked.out` says so."""
    tasks = _tasks(family, asked)
    seated = operators(asked, console, stream)
    others = operator(asked.others, asked, console) if asked.others else None
    if isinstance(others, PersonOperator):
        raise ConfigError("--others person: a person takes one seat alone: name another operator for the others")
    names = [one.name for one in seated]
    shown = MatchDisplay(console, names, asked.brief)
    limits = _limits(asked, table)
    match = Match(family, seated, limits, shown, asked.seed, asked.seat, others)
    match.check(tasks)
    bouts: list[TaskResult] = []
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(opened(family))
        for one in (*seated, *([others] if others else ())):
            stack.push_async_callback(one.close)
            await one.open(family, limits)
        if not asked.turns:
            match.limits = _training_limits(seated, limits)
        recording = _recording(stack, asked, table, match, names)
        try:
            await _play(match, tasks, bouts, shown, recording)
        except asyncio.CancelledError:
            console.print("stopped: what follows is of the tasks that were played to their ends", style="yellow")
            _print_results(console, names, bouts, recording)
            raise
        return _print_results(console, names, bouts, recording)


async def _play(
    match: Match, tasks: Sequence[Task], bouts: list[TaskResult], shown: MatchDisplay, recording: Recording | None
) -> None:
    for number, task in enumerate(tasks):
        shown.task(number + 1, len(tasks), task)
        bout = await match.play_task(number, task)
        bouts.append(bout)
        shown.task_result(number + 1, len(tasks), bout)
        if recording is not None:
            recording.add_task(shown.names, bout)
        if any(isinstance(one, PersonOperator) and one.left for one in match.operators):
            return


def _print_results(
    console: Console, names: Sequence[str], bouts: Sequence[TaskResult], recording: Recording | None
) -> list[Result]:
    found = results.results(names, bouts)
    if bouts:
        console.print()
        console.print(match_display.task_table(names, bouts))
        console.print(results.result_table(found))
        if len(names) > 1:
            console.print()
            console.print(results.difference_table(results.differences(names, bouts)))
    if recording is not None:
        recording.add_results(found)
        console.print(f"recorded in {recording.folder.path}: sojourn view {recording.folder.path}", soft_wrap=True)
    return found


def _tasks(family: EnvFamily, asked: MatchConfig) -> Sequence[Task]:
    offered = listed(family, asked.split)
    found = offered[asked.first : asked.first + asked.tasks]
    if not len(found):
        raise ConfigError(
            f"--split {asked.split} --first {asked.first}: this split has {len(offered)} tasks: name others"
        )
    for task in found:
        check_task(task)
    return list(found)


def _limits(asked: MatchConfig, table: Mapping[str, Any]) -> Limits:
    own = table.get("rollout", {}).get("limits", {})
    limits = (
        Limits(**{key: own[key] for key in ("turns", "stall_s") if key in own}) if own else Limits(turns=DEFAULT_TURNS)
    )
    return replace(limits, turns=asked.turns) if asked.turns else limits


def _training_limits(seated: Sequence[Operator], limits: Limits) -> Limits:
    """The turns that the runs were trained with, where any plays: the longest."""
    turns = [
        one.model.recipe.rollout.limits.turns for one in seated if isinstance(one, CheckpointOperator) and one.model
    ]
    return replace(limits, turns=max(turns)) if turns else limits


def _recording(
    stack: AsyncExitStack, asked: MatchConfig, table: Mapping[str, Any], match: Match, names: Sequence[str]
) -> Recording | None:
    if asked.out is None:
        return None
    facts = {
        "operators": dict(zip(names, asked.operators, strict=True)), "others": asked.others, "seat": asked.seat,
        "split": asked.split, "tasks": asked.tasks, "first": asked.first, "seed": asked.seed, "greedy": asked.greedy,
    }  # fmt: skip
    limits = {"turns": match.limits.turns, "stall_s": match.limits.stall_s}
    made = {"name": "arena", "seed": asked.seed, "env": table["env"], "rollout": {"limits": limits}}
    recording = stack.enter_context(Recording(asked.out, toml.dump(made), asked.seed, facts))
    filled = [one.model for one in match.operators if isinstance(one, CheckpointOperator) and one.model]
    recording.write_vocabulary([found for one in filled if (found := pieces.of(one.renderer)) is not None])
    match.on_blobs = recording.write_blobs
    return recording
