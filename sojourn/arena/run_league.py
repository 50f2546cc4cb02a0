"""Runs a whole league: opens the operators, plays all games, prints the ratings, and writes them."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

from sojourn.arena.checkpoints import CheckpointOperator
from sojourn.arena.league import Game, League, Standing, standings
from sojourn.arena.league_measures import league_measures
from sojourn.arena.operators import Operator, PersonOperator
from sojourn.arena.plot_league import Rated, league_curve
from sojourn.arena.run_match import MatchConfig, chosen_tasks, limits_of, operators, training_limits
from sojourn.errors import ConfigError, InfrastructureError
from sojourn.intervals import Estimate
from sojourn.plot import figure_class
from sojourn.protocols import EnvFamily
from sojourn.record.atomic import require_place, write_file
from sojourn.record.run_weights import available_weights
from sojourn.rollout.world import open_world
from sojourn.terminal.clean import one_line
from sojourn.terminal.numbers import number
from sojourn.terminal.rows import Column, rows

EVERY = "*"  # in the place of a checkpoint's name: all of them


async def run_league(
    family: EnvFamily,
    table: Mapping[str, Any],
    config: MatchConfig,
    console: Console,
    out: Path | None = None,
    curve: Path | None = None,
) -> list[Standing]:
    """Plays a league and prints it; writes its games to `out` (JSON), and the ratings of checkpoints against their
    steps to `curve` (PNG), where these are given."""
    if curve is not None:
        figure_class(curve)
    if out is not None:
        require_place(out)
    tasks = chosen_tasks(family, config)
    players = operators(replace(config, operators=_expanded(config.operators)), console)
    if any(isinstance(one, PersonOperator) for one in players):
        raise ConfigError("--operator person: nobody plays a league in person: use sojourn arena")
    names, limits = [one.name for one in players], limits_of(config, table)
    league = League(family, players, limits, config.seed)
    league.check(tasks)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(open_world(family))
        for one in players:
            stack.push_async_callback(one.close)
            await one.open(family, limits)
        if not config.turns:
            league.limits = training_limits(players, limits)
        with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
            bar = progress.add_task("games", total=league.games(tasks))
            games = await league.play(tasks, lambda game: progress.advance(bar))
        measures = await league_measures(players, family, config.split)
    if failure := next((game.error for game in games if game.error), None):
        failed = sum(game.points is None for game in games)
        if failed == len(games):
            raise InfrastructureError(f"all {failed} games failed: {failure}")
        console.print(f"{failed} of {len(games)} games failed, the first by {one_line(failure)}", style="yellow")
    found = standings(names, games, config.seed)
    console.print(*rows(_columns(found), console.width), sep="\n")
    if measures:
        console.print("", *rows(_measure_columns(measures), console.width), sep="\n")
    if out is not None:
        written = json.dumps(_record(names, config, games, found) | {"measures": measures}, indent=1)
        write_file(out, lambda temporary: temporary.write_text(written + "\n"))
        console.print(f"written to {out}", soft_wrap=True)
    if curve is not None:
        league_curve(_rated(players, found), curve)
        console.print(f"drawn to {curve}", soft_wrap=True)
    return found


def _expanded(named: Sequence[str]) -> list[str]:
    """Returns the operators, with every checkpoint of a run in the place of RUN@*."""
    found: list[str] = []
    for text in named:
        run, at, weights = text.rpartition("@")
        if not (at and weights == EVERY):
            found.append(text)
            continue
        if not (Path(run) / "config.toml").is_file():
            raise ConfigError(f"--operator {text}: {run} is no run folder")
        found += [f"{run}@{one.name}" for one in available_weights(Path(run))]
    return found


def _columns(found: Sequence[Standing]) -> list[Column]:
    cells = {
        "rating": [f"{one.rating.mean:.0f}" for one in found],
        "95%": [_interval(one.rating) for one in found],
        "points": ["-" if math.isnan(one.points) else f"{100 * one.points:.0f}%" for one in found],
        "reward": [number(one.reward.mean) for one in found],
        "games": [str(one.rating.n) for one in found],
        "failed": [str(one.failed) if one.failed else "" for one in found],
    }
    columns = [
        Column(heading=name, cells=texts, right=True, drop_priority=int(name == "failed"))
        for name, texts in cells.items()
    ]
    return [Column(heading="operator", cells=[one_line(one.name) for one in found]), *columns]


def _measure_columns(measures: Mapping[str, Mapping[str, float]]) -> list[Column]:
    names = dict.fromkeys(name for of in measures.values() for name in of)
    columns = [
        Column(heading=name, cells=[number(of[name]) if name in of else "-" for of in measures.values()], right=True)
        for name in names
    ]
    return [Column(heading="measured", cells=list(map(one_line, measures))), *columns]


def _interval(rating: Estimate) -> str:
    return f"{rating.low:.0f} to {rating.high:.0f}" if math.isfinite(rating.high) else "-"


def _record(
    names: Sequence[str], config: MatchConfig, games: Sequence[Game], found: Sequence[Standing]
) -> dict[str, Any]:
    def bounded(value: float) -> float | None:
        return round(value, 4) if math.isfinite(value) else None

    return {
        "operators": list(names), "split": config.split, "tasks": config.tasks, "first": config.first,
        "seed": config.seed, "greedy": config.greedy,
        "standings": [
            {
                "name": one.name, "rating": bounded(one.rating.mean), "low": bounded(one.rating.low),
                "high": bounded(one.rating.high), "games": one.rating.n, "points": bounded(one.points),
                "reward": [bounded(value) for value in one.reward[:3]],
                "failed": one.failed,
            }
            for one in found
        ],
        "games": [game._asdict() for game in games],
    }  # fmt: skip


def _rated(players: Sequence[Operator], found: Sequence[Standing]) -> list[Rated]:
    """Returns the ratings with the runs and steps of those that are checkpoints."""
    by_name = {one.name: one.rating for one in found}
    runs = {player.run.resolve() for player in players if isinstance(player, CheckpointOperator)}
    called = Counter(run.name for run in runs)
    rated: list[Rated] = []
    for player in players:
        if isinstance(player, CheckpointOperator):
            run = player.run.resolve()
            name = run.name if called[run.name] == 1 else f"{run.parent.name}/{run.name}"
            rated.append(Rated(name, player.step, by_name[player.name]))
        else:
            rated.append(Rated(player.name, None, by_name[player.name]))
    return rated
