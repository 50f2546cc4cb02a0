"""Shows the progress of a run: as a live panel on a terminal, as one line per step elsewhere."""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from sojourn.errors import failure_and_place
from sojourn.intervals import wilson
from sojourn.record.diagnosis import MORE_CONTEXT
from sojourn.record.summary import Summary
from sojourn.terminal.clean import one_line
from sojourn.terminal.evaluations import side_by_side
from sojourn.terminal.numbers import duration, metric, number, percent, sparkline
from sojourn.terminal.other_models import of_other_models
from sojourn.terminal.output import CleanConsole
from sojourn.types import Episode

MAX_CAUSES = 20  # causes of failure that are printed one by one
PROGRESS_S = 30.0  # the time between two lines about an evaluation, where there is no panel
MAX_WORLDS = 8  # environments whose success is shown
TIME_PARTS = {"env": "env", "sample": "sampling", "train": "train", "publish": "publish", "other": "other"}


@dataclass
class _Stage:
    """The progress of the current stage or evaluation."""

    name: str = ""
    steps: int = 0
    done: int = 0
    episodes: int = 0  # expected in a step; 0 if unknown
    started: float = field(default_factory=time.monotonic)
    values: Mapping[str, float] = field(default_factory=dict)
    seconds: deque[float] = field(default_factory=lambda: deque(maxlen=10))
    curve: deque[float] = field(default_factory=lambda: deque(maxlen=24))
    playing: list[bool] = field(default_factory=list)  # success of the trained seats of this step's episodes so far
    played: int = 0  # those episodes
    ended: int = 0  # episodes of an evaluation


class Display:
    """Shows the progress of a run. Use it as a context manager; nothing is printed before it is entered.

    With `live = None`, the panel is shown if the console is a terminal. The interval of a step's success treats its
    episodes as independent, because a step records only its rate; the intervals of evaluations do not.
    """

    def __init__(self, title: str = "", *, console: Console | None = None, live: bool | None = None) -> None:
        self.title = title
        self.console = console or CleanConsole()
        self.live = self.console.is_terminal if live is None else live
        self._stage = _Stage()
        self._evaluations: dict[str, Summary] = {}
        self._evaluating = _Stage()  # the current evaluation; none if it has no name
        self._said = 0.0  # when the progress of an evaluation was printed last
        self._message = ""
        self._causes: Counter[str] = Counter()
        self._screen: Live | None = None

    def stage(self, name: str, steps: int, *, start: int = 0, episodes: int = 0) -> None:
        """Starts a stage of `steps` steps (or resumes it at `start`), with `episodes` expected in each step."""
        self._stage = _Stage(name, steps, start, episodes)
        self._print(f"{name}: {steps} steps" + (f", from step {start}" if start else ""))
        self._refresh()

    def evaluating(self, name: str, episodes: int) -> None:
        """Starts an evaluation of this number of episodes."""
        self._evaluating = _Stage(f"evaluating {name}", episodes=episodes)
        self._said = time.monotonic()
        self._refresh()

    def episode(self, episode: Episode) -> None:
        """Counts a finished episode of the current evaluation or step. A cause of failure is printed once, and
        counted."""
        if failure := episode.error or episode.close_error:
            cause = one_line(failure_and_place(failure, episode.traceback), 300)
            self._causes[cause] += 1
            if self._causes[cause] == 1 and len(self._causes) <= MAX_CAUSES:
                what = "an episode failed" if episode.error else "an episode is complete, but its world failed to close"
                self._print(f"{what}: {cause}")
        now = self._evaluating if self._evaluating.name else self._stage
        seats = episode.trajectories if episode.error is None else ()
        now.playing += [trajectory.success for trajectory in seats if trajectory.trainable]
        now.played += bool(seats)
        now.ended += 1
        if self._evaluating.name and time.monotonic() - self._said >= PROGRESS_S:
            self._said = time.monotonic()
            self._print(f"{now.name}: {now.ended}/{now.episodes} episodes, {sum(now.playing)} successful so far")

    def step(self, step: int, values: Mapping[str, float]) -> None:
        """Finishes step `step` (counted from 0) with these metrics; absent metrics are not shown."""
        stage = self._stage
        now = time.monotonic()
        stage.seconds.append(values.get("seconds_step", now - stage.started))
        stage.started, stage.done, stage.values, stage.playing, stage.played = now, step + 1, dict(values), [], 0
        if math.isfinite(success := values.get("success", math.nan)):
            stage.curve.append(success)
        self._print(self._line())
        self._refresh()

    def evaluation(self, name: str, summary: Summary) -> None:
        """Finishes an evaluation; the last four are shown side by side."""
        self._evaluating = _Stage()
        self.recall(name, summary)
        overall = summary.overall
        self._print(
            f"evaluation {name}: success {overall.success.percent}, "
            f"reward {number(overall.reward.mean)} [{number(overall.reward.low)}, {number(overall.reward.high)}], "
            + "".join(f"{measure} {number(value)}, " for measure, value in summary.measures.items())
            + f"{overall.episodes} episodes of {overall.tasks} tasks"
            + (f", {summary.errors} errors" * bool(summary.errors))
        )
        if summary.full_contexts:
            self.message(
                f"{summary.full_contexts} of the {overall.episodes} episodes of {name} ended because their context was "
                f"full: {MORE_CONTEXT}"
            )
        self._refresh()

    def recall(self, name: str, summary: Summary) -> None:
        """Adds the result of an evaluation from before a restart."""
        self._evaluations.pop(name, None)
        self._evaluations[name] = summary

    def message(self, text: str) -> None:
        """Shows a message."""
        self._message = one_line(text, 500)
        self._print(self._message)
        self._refresh()

    def render(self) -> RenderableType:
        """Returns the panel in its current state."""
        width = min(self.console.width, 100)
        parts: list[RenderableType] = [self._progress()]
        if self._stage.values:
            parts.append(self._numbers(width))
        if self._evaluations:
            parts += [Text(), side_by_side(self._last_evaluations(), brief=True)]
        parts += self._failures(width)
        if self._message:
            parts.append(Text(self._message, style="dim"))
        return Panel(Group(*parts), title=self.title or None, title_align="left", width=width)

    def _failures(self, width: int) -> list[RenderableType]:
        """Returns the most frequent causes of failure: two on a small screen, five on others."""
        causes = self._causes.most_common(2 if self.console.height < 30 else 5)
        others = len(self._causes) - len(causes)
        lines = [Text(one_line(f"failed {count} x {cause}", 2 * width - 40), "red") for cause, count in causes]
        return [*lines, *([Text(f"and {others} other causes", "dim")] if others else [])]

    def __enter__(self) -> Display:
        if self.live:
            self._screen = Live(get_renderable=self.render, console=self.console, refresh_per_second=2)
            self._screen.start()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._screen is not None:
            self._screen.stop()
            self._screen = None
        if self._evaluations:
            self.console.print(side_by_side(self._last_evaluations()))
        for cause, count in self._causes.most_common(MAX_CAUSES):
            self.console.print(f"failed {count} x {cause}", soft_wrap=True, markup=False, highlight=False)

    def _print(self, text: str) -> None:
        if not self.live:
            self.console.print(text, soft_wrap=True, markup=False, highlight=False)

    def _refresh(self) -> None:
        if self._screen is not None:
            self._screen.refresh()

    def _last_evaluations(self) -> dict[str, Summary]:
        return dict(list(self._evaluations.items())[-4 if self.console.width >= 80 else -2 :])

    def _line(self) -> str:
        """Returns a step as one line of a log: pairs of a name and a value, separated by two spaces."""
        stage, values = self._stage, self._stage.values
        parts = [f"{stage.name} {stage.done}/{stage.steps}"]
        parts += [f"success {self._success()}"] if "success" in values else []
        parts += [
            f"{name} {metric(values, name)}" for name in ("reward", "loss", "entropy", "kl", "drift") if name in values
        ]
        parts += [f"{name} {value}" for name, value in (*self._learned(), *of_other_models(values))]
        for name, label in (("malformed", "malformed"), ("cut_off", "cut off"), ("zero_signal", "no signal")):
            if name in values:
                parts.append(f"{label} {percent(values, name)}")
        if "lag_mean" in values:
            parts.append(f"lag {values['lag_mean']:.1f}/{values.get('lag_max', math.nan):.0f}")
        if values.get("errors"):
            parts.append(f"errors {values['errors']:.0f}")
        parts += [*self._speed(), *self._split(), f"took {stage.seconds[-1]:.1f} s", f"left {self._left()}"]
        return "  ".join(parts)

    def _success(self) -> str:
        rate, episodes = self._stage.values.get("success", math.nan), self._stage.values.get("episodes", 0)
        if not math.isfinite(rate):
            return "-"
        return wilson(rate * episodes, episodes).percent if episodes else f"{100 * rate:.0f}%"

    def _progress(self) -> RenderableType:
        """Returns the progress bar of the stage, and below it that of the current step or evaluation."""
        stage = self._stage
        grid = Table.grid(padding=(0, 1), expand=True)
        grid.add_column(no_wrap=True, min_width=20)
        grid.add_column(ratio=1)
        grid.add_column(no_wrap=True, justify="right", min_width=14)
        if stage.steps:
            bar = ProgressBar(total=stage.steps, completed=stage.done)
            grid.add_row(Text(f"{stage.name} {stage.done}/{stage.steps}", style="bold"), bar, f"left {self._left()}")
        now = self._evaluating if self._evaluating.name else stage
        over = now is stage and stage.done >= stage.steps
        if now.played or (now.episodes and not over):
            count = now.played
            done = f"{count}/{now.episodes}" if now.episodes else str(count)
            bar = ProgressBar(total=max(now.episodes, count, 1), completed=count, style="dim")
            won = f"{sum(now.playing)} successful so far"  # not a rate, because failed episodes take longer
            grid.add_row(f"{self._evaluating.name or 'episodes'} {done}", bar, won)
        elif not stage.steps:
            grid.add_row(Text("opening the model and the environment", "dim"))
        return grid

    def _numbers(self, width: int) -> RenderableType:
        values = self._stage.values
        lag = f"{values.get('lag_mean', 0.0):.1f}, at most {values.get('lag_max', math.nan):.0f}"
        measured = [
            ("success", "success", self._success()), ("success", "trend", sparkline(self._stage.curve, 24, 0.0, 1.0)),
            ("reward", "reward", metric(values, "reward")), ("malformed", "malformed", percent(values, "malformed")),
            ("loss", "loss", metric(values, "loss")), ("grad_norm", "grad norm", metric(values, "grad_norm")),
            ("entropy", "entropy", metric(values, "entropy")), ("kl", "kl", metric(values, "kl")),
            ("drift", "drift", metric(values, "drift")), ("cut_off", "cut off", percent(values, "cut_off")),
            ("lag_mean", "lag", lag), ("zero_signal", "no signal", percent(values, "zero_signal")),
            ("lr", "lr", metric(values, "lr")), ("errors", "errors", metric(values, "errors")),
        ]  # fmt: skip
        pairs = [*((label, shown) for name, label, shown in measured if name in values), *self._learned()]
        wide = 2 if width >= 72 else 1
        rows = [pairs[n : n + wide] for n in range(0, len(pairs), wide)]
        long = [("speed", ", ".join(self._speed())), ("time", " ".join([*self._took(), *self._split()]))]
        if "sampler_batch" in values:
            batch, cached = values["sampler_batch"], percent(values, "sampler_reuse")
            long.append(("sampler", f"{batch:.1f} sequences per batch, {cached} of prompt tokens cached"))
        long.append(("worlds", self._worlds()))
        return Group(_grid(rows, (width - 4) // wide - 13), _grid([[pair] for pair in long if pair[1]], width - 17))

    def _worlds(self) -> str:
        """Returns the success rate in each environment if there are several."""
        values = self._stage.values
        names = [name for name in values if name.startswith("success_")]
        rates = [f"{one_line(name[8:], 20)} {values[name]:.0%}" for name in names[:MAX_WORLDS]]
        return "  ".join([*rates, *([f"and {len(names) - MAX_WORLDS} more"] if len(names) > MAX_WORLDS else [])])

    def _took(self) -> list[str]:
        return [f"{self._stage.seconds[-1]:.1f} s:"] if self._stage.seconds else []

    def _learned(self) -> list[tuple[str, str]]:
        """Returns the errors of learned streams, and the variance that the critic explains."""
        values = self._stage.values
        errors = sorted(name for name in values if name.endswith("_error") and name != "value_error")
        pairs = [(name.removesuffix("_error").replace("_", " "), f"error {number(values[name])}") for name in errors]
        if "explained_variance" in values:
            pairs.insert(0, ("critic", f"explains {percent(values, 'explained_variance')}"))
        return pairs

    def _speed(self) -> list[str]:
        values, parts = self._stage.values, []
        for name, count, seconds in (
            ("sampled", "sampled_tokens", "seconds_sample"),
            ("trained", "trained_tokens", "seconds_train"),
        ):
            if values.get(seconds) and count in values:
                parts.append(f"{name} {number(values[count] / values[seconds])} tok/s")
        if "episodes_per_s" in values:
            parts.append(f"episodes {number(values['episodes_per_s'])}/s")
        return parts

    def _split(self) -> list[str]:
        """Returns the fractions of the step's time (see `timeline.Timeline`)."""
        values = self._stage.values
        whole = values.get("seconds_step", 0.0)
        shares = {label: values.get(f"seconds_{name}") for name, label in TIME_PARTS.items()}
        return [f"{label} {100 * part / whole:.0f}%" for label, part in shares.items() if whole and part is not None]

    def _left(self) -> str:
        stage = self._stage
        if not stage.seconds:
            return "-"
        return duration(sum(stage.seconds) / len(stage.seconds) * max(stage.steps - stage.done, 0))


def _grid(rows: Sequence[Sequence[tuple[str, str]]], width: int) -> Table:
    """Returns rows of labels and values. Every value has the same width, so that the panel does not move."""
    grid = Table.grid(padding=(0, 2))
    for _ in rows[0] if rows else ():
        grid.add_column(style="dim", no_wrap=True, min_width=9)
        grid.add_column(min_width=width, max_width=width)
    for row in rows:
        grid.add_row(*(text for pair in row for text in pair))
    return grid
