"""What a match looks like in a terminal: each turn, what was shown (once while all see the same) and what all did."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from sojourn.arena.lockstep import OperatorTurn
from sojourn.arena.match import TaskResult
from sojourn.terminal.clean import clean, line
from sojourn.terminal.numbers import number, signed
from sojourn.types import Message, Role, Task

STYLES = ("cyan", "magenta", "green", "yellow", "blue", "red")
MAX_CHARACTERS = 1200  # characters of what a world said


@dataclass
class MatchDisplay:
    """Prints a match as it goes; `brief` leaves the turns out."""

    console: Console
    names: Sequence[str]
    brief: bool = False
    no_difference_yet: bool = True  # whether all have done the same in this task so far

    def task(self, at: int, count: int, task: Task) -> None:
        self.no_difference_yet = True
        if not self.brief:
            told = f"task {at} of {count}: {line(task.env)}, {line(task.split)}, seed {task.seed}"
            self.console.print(Rule(Text(told, "bold"), align="left", characters="═"))

    def show_observations(self, turn: int, rows: Sequence[OperatorTurn]) -> None:
        """What the turn begins with."""
        if self.brief:
            return
        self.console.print(Rule(Text(f"turn {turn}", "bold"), align="left", style="dim", characters="─"))
        views: dict[str, list[OperatorTurn]] = {}
        for row in rows:
            views.setdefault(repr(row.observed), []).append(row)
        for alike in views.values():
            shown, names = alike[0].observed, [row.name for row in alike]
            if len(views) > 1:
                self.console.print(self._names(names))
            for message in shown:
                style = "dim" if message.role is Role.SYSTEM else ""
                self.console.print(Text(clean(message_line(message), MAX_CHARACTERS), style), soft_wrap=False)
            images = sum(len(message.images) for message in shown)
            if images:
                self.console.print(Text(f"({images} images)", "dim"))

    def show_actions(self, turn: int, rows: Sequence[OperatorTurn]) -> None:
        """What all did in the turn, and what came of it."""
        done = [row for row in rows if row.acted]
        if self.brief or not rows:
            return
        if self.no_difference_yet and len({row.message and message_line(row.message) for row in done}) > 1:
            self.no_difference_yet = False
            self.console.print(Text("they part here", "bold"))
        width = min(max(map(len, self.names)), 24) + 2
        for row in rows:
            self.console.print(self._row(row, width), no_wrap=True, overflow="ellipsis", crop=True)
            for told in filter(None, (row.refused and f"refused: {row.refused}", row.ended and _ending(row))):
                style = "red" if row.failed else "yellow" if row.refused and told.startswith("refused") else "bold"
                self.console.print(Text(" " * width + clean(told, 300), style))

    def task_result(self, at: int, count: int, bout: TaskResult) -> None:
        """A line for a task that is over."""
        told = Text(f"task {at}/{count} ", "bold")
        for number_, (group, scores) in enumerate(zip(bout.groups, bout.scores, strict=True)):
            episode = group.episodes[0]
            told.append(f" {self.names[number_]} ", self._style(self.names[number_]))
            if episode.error is not None:
                told.append("failed", "red")
                continue
            told.append("✓" if group.trajectories[0].success else "✗")
            told.append(f" {number(sum(score.total for score in scores))}")
        self.console.print(told)

    def _row(self, row: OperatorTurn, width: int) -> Text:
        reward = f"{signed(row.reward)} = {number(row.total)}" if row.reward or row.total else ""
        said = line(message_line(row.message), 400) if row.message is not None else "-" if row.acted else ""
        room = max(20, self.console.width - width - (len(reward) + 2 if reward else 0))
        said = said if len(said) <= room else said[: room - 1] + "…"
        name = row.name if len(row.name) <= width - 2 else row.name[: width - 3] + "…"
        told = Text(f"{name:<{width}}", self._style(row.name)).append(said, "default")
        return told.append(f"{' ' * (room - len(said))}  {reward}", "bold") if reward else told

    def _names(self, names: Sequence[str]) -> Text:
        told = Text()
        for at, name in enumerate(names):
            told.append(", " if at else "").append(name, self._style(name))
        return told.append(" sees:" if len(names) == 1 else " see:", "dim")

    def _style(self, name: str) -> str:
        return STYLES[list(self.names).index(name) % len(STYLES)]


def _ending(row: OperatorTurn) -> str:
    return f"failed, which does not count as its play: {row.ended}" if row.failed else f"over: {row.ended}"


def task_table(names: Sequence[str], bouts: Sequence[TaskResult]) -> Table:
    """Each task with what every operator earned in it."""
    made = Table("task", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in names:
        made.add_column(name, justify="right", overflow="fold")
    for bout in bouts:
        made.add_row(
            f"{bout.number + 1} {line(bout.task.env, 30)} {bout.task.seed}", *map(_cell, bout.groups, bout.scores)
        )
    return made


def _cell(group, scores) -> str | Text:
    if not group.trajectories:
        return Text("failed", "red")
    return f"{'✓' if group.trajectories[0].success else '✗'} {number(scores[0].total)}"


def message_line(message: Message) -> str:
    """What was said, calls as they would be written in Python."""
    calls = [f"{c.name}({', '.join(f'{key}={value!r}' for key, value in c.arguments.items())})" for c in message.calls]
    return "\n".join(filter(None, [message.text, *calls])) or (f"(thinks) {message.thought}" if message.thought else "")
