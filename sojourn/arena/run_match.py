"""Runs a whole match: creates the operators, plays all tasks, prints the results, and records them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console

from sojourn.arena import match_display, results
from sojourn.arena.checkpoints import CheckpointOperator
from sojourn.arena.endpoint import RemoteOperator
from sojourn.arena.match import Match, TaskResult
from sojourn.arena.match_display import MatchDisplay
from sojourn.arena.operators import ExpertOperator, Operator, PersonOperator, RandomOperator
from sojourn.arena.recording import Recording
from sojourn.arena.results import Result
from sojourn.config import toml
from sojourn.errors import ConfigError, InfrastructureError, failure_and_place
from sojourn.protocols import EnvFamily
from sojourn.render import pieces
from sojourn.rollout.limits import Limits
from sojourn.rollout.world import open_world
from sojourn.tasks.listed import check_task, some_tasks
from sojourn.terminal.clean import shell_word
from sojourn.types import Task


@dataclass(frozen=True, kw_only=True)
class MatchConfig:
    """The options of a match. `operators` and `others` are named as on the command line."""

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


def operator(text: str, config: MatchConfig, console: Console, stream: TextIO | None = None) -> Operator:
    """Returns the operator that a text names: expert, random, person, an endpoint's address, or a run."""
    simple: Mapping[str, Callable[[], Operator]] = {
        "expert": lambda: ExpertOperator("expert"),
        "random": lambda: RandomOperator("random"),
        "person": lambda: PersonOperator("person", console, stream),
    }
    if text in simple:
        return simple[text]()
    if text.startswith(("http://", "https://")):
        return RemoteOperator.at(text, config.key)
    return CheckpointOperator.parse(text, config.greedy)


def operators(config: MatchConfig, console: Console, stream: TextIO | None = None) -> list[Operator]:
    """Returns all operators; those with the same name get a number."""
    if not config.operators:
        raise ConfigError("--operator is missing: name at least one, such as --operator expert --operator runs/x")
    created = [operator(text, config, console, stream) for text in config.operators]
    if sum(isinstance(one, PersonOperator) for one in created) > 1:
        raise ConfigError("--operator person is given twice, but only one person can use the terminal: name it once")
    taken: set[str] = set()
    for one in created:
        names = (one.name, *(f"{one.name}-{number}" for number in range(2, len(created) + 1)))
        one.name = next(name for name in names if name not in taken)
        taken.add(one.name)
    return created


async def run_match(
    family: EnvFamily, table: Mapping[str, Any], config: MatchConfig, console: Console, stream: TextIO | None = None
) -> list[Result]:
    """Plays a match, prints it, and records it if `config.out` names a folder."""
    tasks = chosen_tasks(family, config)
    players = operators(config, console, stream)
    others = operator(config.others, config, console) if config.others else None
    if isinstance(others, PersonOperator):
        raise ConfigError("--others person: a person can only play as --operator: name another operator for --others")
    names = [one.name for one in players]
    screen = MatchDisplay(console, names, config.brief)
    limits = limits_of(config, table)
    match = Match(family, players, limits, screen, config.seed, config.seat, others)
    match.check(tasks)
    played: list[TaskResult] = []
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(open_world(family))
        for one in (*players, *([others] if others else ())):
            stack.push_async_callback(one.close)
            await one.open(family, limits)
        if not config.turns:
            match.limits = training_limits(players, limits)
        recording = _recording(stack, config, table, match, names)
        try:
            await _play(match, tasks, played, screen, recording)
        except asyncio.CancelledError:
            console.print("The match was stopped. These are the results of its finished tasks.", style="yellow")
            _print_results(console, names, played, recording)
            raise
        found = _print_results(console, names, played, recording)
    episodes = [episode for result in played for group in result.groups for episode in group.episodes]
    if episodes and all(episode.error is not None for episode in episodes) and not _person_left(match):
        cause = failure_and_place(episodes[-1].error, episodes[-1].traceback)
        raise InfrastructureError(f"all of {len(episodes)} episodes failed; the last cause: {cause}")
    return found


async def _play(
    match: Match, tasks: Sequence[Task], played: list[TaskResult], screen: MatchDisplay, recording: Recording | None
) -> None:
    for number, task in enumerate(tasks):
        screen.task(number + 1, len(tasks), task)
        result = await match.play_task(number, task)
        played.append(result)
        screen.task_result(number + 1, len(tasks), result)
        if recording is not None:
            recording.add_task(screen.names, result)
        if _person_left(match):
            return


def _person_left(match: Match) -> bool:
    return any(isinstance(one, PersonOperator) and one.left for one in match.operators)


def _print_results(
    console: Console, names: Sequence[str], played: Sequence[TaskResult], recording: Recording | None
) -> list[Result]:
    """Prints the results of the finished tasks, records them, and returns them."""
    summary = results.match_results(names, played)
    if played:
        console.print()
        console.print(match_display.task_table(names, played, console.width))
        console.print()
        console.print(results.result_table(summary, console.width))
        if len(names) > 1:
            console.print()
            differences = results.paired_differences(names, played)
            console.print(results.difference_table(differences, console.width))
    if recording is not None:
        recording.add_results(summary)
        path = recording.folder.path
        console.print(f"recorded in {path}: sojourn view {shell_word(path)}", soft_wrap=True)
    return summary


def chosen_tasks(family: EnvFamily, config: MatchConfig) -> Sequence[Task]:
    offered = some_tasks(family, config.split)
    chosen = offered[config.first : config.first + config.tasks]
    if not len(chosen):
        raise ConfigError(
            f"--split {config.split} --first {config.first}: this split has {len(offered)} tasks, so choose a smaller "
            "--first"
        )
    for task in chosen:
        check_task(task)
    return list(chosen)


def limits_of(config: MatchConfig, table: Mapping[str, Any]) -> Limits:
    """Returns the limits of the config, with the turn limit of the command line if there is one."""
    given = table.get("rollout", {}).get("limits", {})
    limits = (
        Limits(**{key: given[key] for key in ("turns", "stall_s") if key in given})
        if given
        else Limits(turns=DEFAULT_TURNS)
    )
    return replace(limits, turns=config.turns) if config.turns else limits


def training_limits(players: Sequence[Operator], limits: Limits) -> Limits:
    """Returns the limits with the longest turn limit of the runs that play, if any does."""
    turns = [
        one.model.recipe.rollout.limits.turns for one in players if isinstance(one, CheckpointOperator) and one.model
    ]
    return replace(limits, turns=max(turns)) if turns else limits


def _recording(
    stack: AsyncExitStack, config: MatchConfig, table: Mapping[str, Any], match: Match, names: Sequence[str]
) -> Recording | None:
    if config.out is None:
        return None
    facts = {
        "operators": dict(zip(names, config.operators, strict=True)), "others": config.others, "seat": config.seat,
        "split": config.split, "tasks": config.tasks, "first": config.first, "seed": config.seed,
        "greedy": config.greedy,
    }  # fmt: skip
    limits = {"turns": match.limits.turns, "stall_s": match.limits.stall_s}
    arena_config = {"name": "arena", "seed": config.seed, "env": table["env"], "rollout": {"limits": limits}}
    recording = stack.enter_context(Recording(config.out, toml.dump(arena_config), config.seed, facts))
    models = [one.model for one in match.operators if isinstance(one, CheckpointOperator) and one.model]
    recording.write_vocabulary([known for model in models if (known := pieces.of(model.renderer)) is not None])
    match.on_blobs = recording.write_blobs
    return recording
