"""Prints a match: for each turn the observation (once while it is the same for all) and the action of each operator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.console import Group as Lines
from rich.rule import Rule
from rich.text import Text

from sojourn.arena.lockstep import OperatorTurn
from sojourn.arena.match import TaskResult
from sojourn.call_text import call_text
from sojourn.terminal.clean import clean, one_line
from sojourn.terminal.numbers import number, signed
from sojourn.terminal.rows import Column, rows, total_width
from sojourn.types import Group, Message, Role, Score, Task

STYLES = ("cyan", "magenta", "green", "yellow", "blue", "red")
MAX_CHARACTERS = 1200  # of a message of the environment


@dataclass
class MatchDisplay:
    """Prints a match while it is played; `brief` leaves out the turns."""

    console: Console
    names: Sequence[str]
    brief: bool = False
    all_acted_alike: bool = True  # whether all operators have acted alike in this task

    def task(self, at: int, count: int, task: Task) -> None:
        self.all_acted_alike = True
        if not self.brief:
            title = f"task {at} of {count}: {one_line(task.env)}, {one_line(task.split)}, seed {task.seed}"
            self.console.print(Rule(Text(title, "bold"), align="left", characters="═"))

    def show_observations(self, number: int, turns: Sequence[OperatorTurn]) -> None:
        """Prints the observations of a turn, each with the operators that see it."""
        if self.brief:
            return
        self.console.print(Rule(Text(f"turn {number}", "bold"), align="left", style="dim", characters="─"))
        views: dict[str, list[OperatorTurn]] = {}
        for turn in turns:
            views.setdefault(repr(turn.observed), []).append(turn)
        for alike in views.values():
            observed, names = alike[0].observed, [turn.name for turn in alike]
            if len(views) > 1:
                self.console.print(self._names(names))
            for message in observed:
                style = "dim" if message.role is Role.SYSTEM else ""
                self.console.print(Text(clean(message_line(message), MAX_CHARACTERS), style), soft_wrap=False)
            images = sum(len(message.images) for message in observed)
            if images:
                self.console.print(Text(f"({images} images)", "dim"))

    def show_actions(self, number: int, turns: Sequence[OperatorTurn]) -> None:
        """Prints the action of each operator with its reward, and whether it was refused or ended the episode."""
        done = [turn for turn in turns if turn.acted]
        if self.brief or not turns:
            return
        if self.all_acted_alike and len({turn.message and message_line(turn.message) for turn in done}) > 1:
            self.all_acted_alike = False
            self.console.print(Text("The operators' actions differ from here on.", "bold"))
        short = dict(zip(self.names, short_names(self.names), strict=True))
        width = max(map(len, short.values())) + 2
        for turn in turns:
            self.console.print(self._line(turn, short[turn.name], width), no_wrap=True, overflow="ellipsis", crop=True)
            for note in filter(None, (turn.refused and f"refused: {turn.refused}", turn.ended and _ending(turn))):
                style = "red" if turn.failed else "yellow" if turn.refused and note.startswith("refused") else "bold"
                self.console.print(Text(" " * width + clean(note, 300), style))

    def task_result(self, at: int, count: int, result: TaskResult) -> None:
        """Prints a line for a task that is over."""
        text = Text(f"task {at}/{count} ", "bold")
        for index, (group, scores) in enumerate(zip(result.groups, result.scores, strict=True)):
            episode = group.episodes[0]
            text.append(f" {self.names[index]} ", self._style(self.names[index]))
            if episode.error is not None:
                text.append("failed", "red")
                continue
            text.append("✓" if group.trajectories[0].success else "✗")
            text.append(f" {number(sum(score.total for score in scores))}")
        self.console.print(text)

    def _line(self, turn: OperatorTurn, name: str, width: int) -> Text:
        """Returns an operator's name, its action, and its reward with the sum so far."""
        reward = f"{signed(turn.reward)} = {number(turn.total)}" if turn.reward or turn.total else ""
        action = one_line(message_line(turn.message), 400) if turn.message is not None else "-" if turn.acted else ""
        room = max(20, self.console.width - width - (len(reward) + 2 if reward else 0))
        action = action if len(action) <= room else action[: room - 1] + "…"
        text = Text(f"{name:<{width}}", self._style(turn.name)).append(action, "default")
        return text.append(f"{' ' * (room - len(action))}  {reward}", "bold") if reward else text

    def _names(self, names: Sequence[str]) -> Text:
        text = Text()
        for at, name in enumerate(names):
            text.append(", " if at else "").append(name, self._style(name))
        return text.append(" observes:" if len(names) == 1 else " observe:", "dim")

    def _style(self, name: str) -> str:
        return STYLES[list(self.names).index(name) % len(STYLES)]


def _ending(turn: OperatorTurn) -> str:
    return f"failed, so this episode is not counted: {turn.ended}" if turn.failed else f"over: {turn.ended}"


def task_table(names: Sequence[str], tasks: Sequence[TaskResult], width: int) -> Lines:
    """Returns a table with the success and the reward of every operator on each task. Names that are too long for it
    stand below it, and their numbers in it."""
    labels = [f"{result.number + 1} {one_line(result.task.env, 30)} {result.task.seed}" for result in tasks]
    cells = [[_cell(result.groups[at], result.scores[at]) for result in tasks] for at in range(len(names))]

    def columns(headings: Sequence[str]) -> list[Column]:
        of_operators = [Column(heading=h, cells=c, right=True) for h, c in zip(headings, cells, strict=True)]
        return [Column(heading="task", cells=labels), *of_operators]

    if total_width(columns(names)) <= width:
        return Lines(*rows(columns(names), width))
    numbers = [str(at + 1) for at in range(len(names))]
    legend = [Text(f"{at}: {one_line(name)}", "dim") for at, name in zip(numbers, names, strict=True)]
    return Lines(*rows(columns(numbers), width), *legend)


def short_names(names: Sequence[str], most: int = 22) -> list[str]:
    """Returns names of at most `most` characters. Long ones lose their beginning, as runs differ in their end, and are
    numbered where two would be alike."""
    short = [_ending_of(name, most) for name in names]
    if len(set(short)) == len(names):
        return short
    return [f"{number} {_ending_of(name, most - 3)}" for number, name in enumerate(names, 1)]


def _ending_of(text: str, most: int) -> str:
    return text if len(text) <= most else f"…{text[1 - most :]}"


def _cell(group: Group, scores: Sequence[Score]) -> str:
    if not group.trajectories:
        return "failed"
    return f"{'✓' if group.trajectories[0].success else '✗'} {number(scores[0].total)}"


def message_line(message: Message) -> str:
    """Returns the text of a message and its tool calls as they would be written in Python."""
    return "\n".join(filter(None, [message.text, *map(call_text, message.calls)])) or (
        f"(reasoning) {message.thought}" if message.thought else ""
    )
