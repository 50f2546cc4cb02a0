"""What a person sees while a run trains: a live panel on a terminal, one line per step anywhere else."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from sojourn.record.intervals import Summary, table, wilson
from sojourn.types import Episode

BARS = "▁▂▃▄▅▆▇█"


@dataclass
class _Stage:
    """The stage that runs now."""

    name: str = ""
    steps: int = 0
    done: int = 0
    episodes: int = 0  # expected in a step; 0 when unknown
    started: float = field(default_factory=time.monotonic)
    values: Mapping[str, float] = field(default_factory=dict)
    seconds: deque[float] = field(default_factory=lambda: deque(maxlen=10))
    curve: deque[float] = field(default_factory=lambda: deque(maxlen=24))
    playing: list[bool] = field(default_factory=list)  # success of this step's episodes so far


class Display:
    """The progress of a run. Use as a context manager; nothing is printed before it is entered.

    `live` is None to decide by whether the console is a terminal. The interval beside a step's success treats its
    episodes as independent (a step knows only its rate): read evaluations for intervals that do not.
    """

    def __init__(self, title: str = "", *, console: Console | None = None, live: bool | None = None) -> None:
        self.title = title
        self.console = console or Console()
        self.live = self.console.is_terminal if live is None else live
        self._stage = _Stage()
        self._evaluations: dict[str, Summary] = {}
        self._evaluating = _Stage()  # the evaluation that runs now, if it has a name
        self._message = ""
        self._screen: Live | None = None

    def stage(self, name: str, steps: int, *, start: int = 0, episodes: int = 0) -> None:
        """A stage of `steps` begins (or goes on at `start`), with `episodes` expected in each step."""
        self._stage = _Stage(name, steps, start, episodes)
        self._print(f"{name}: {steps} steps" + (f", from step {start}" if start else ""))
        self._refresh()

    def evaluating(self, name: str, episodes: int) -> None:
        """An evaluation of so many episodes begins."""
        self._evaluating = _Stage(f"evaluating {name}", episodes=episodes)
        self._refresh()

    def episode(self, episode: Episode) -> None:
        """An episode is done, of the evaluation if one runs; why it failed is shown, each cause once."""
        if episode.error is not None and episode.error not in self._message:
            self.message(f"an episode failed: {episode.error}")
        now = self._evaluating if self._evaluating.name else self._stage
        now.playing += [trajectory.success for trajectory in episode.trajectories if trajectory.trainable]

    def step(self, step: int, values: Mapping[str, float]) -> None:
        """Step `step` (from 0) is done, with these metrics; what is absent is not shown."""
        stage = self._stage
        now = time.monotonic()
        stage.seconds.append(values.get("seconds_step", now - stage.started))
        stage.started, stage.done, stage.values, stage.playing = now, step + 1, dict(values), []
        if math.isfinite(success := values.get("success", math.nan)):
            stage.curve.append(success)
        self._print(self._line())
        self._refresh()

    def evaluation(self, name: str, summary: Summary) -> None:
        """An evaluation is done; the last four are shown side by side."""
        self._evaluating = _Stage()
        self.recall(name, summary)
        overall = summary.overall
        self._print(
            f"evaluation {name}: success {overall.success.percent}, reward {_number(overall.reward.mean)}, "
            f"{overall.episodes} episodes of {overall.tasks} tasks"
            + (f", {summary.errors} errors" * bool(summary.errors))
        )
        self._refresh()

    def recall(self, name: str, summary: Summary) -> None:
        """An evaluation of before a restart."""
        self._evaluations.pop(name, None)
        self._evaluations[name] = summary

    def message(self, text: str) -> None:
        self._message = text
        self._print(text)
        self._refresh()

    def render(self) -> RenderableType:
        """The panel as it is now."""
        parts: list[RenderableType] = [self._progress()]
        if self._stage.name:
            parts.append(self._numbers())
        if self._evaluations:
            parts += [Text(), table(self._last_evaluations(), brief=True)]
        if self._message:
            parts.append(Text(self._message, style="dim", overflow="ellipsis", no_wrap=True))
        return Panel(Group(*parts), title=self.title or None, title_align="left", width=min(self.console.width, 100))

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
            self.console.print(table(self._last_evaluations()))

    def _print(self, text: str) -> None:
        if not self.live:
            self.console.print(text, soft_wrap=True, markup=False, highlight=False)

    def _refresh(self) -> None:
        if self._screen is not None:
            self._screen.refresh()

    def _last_evaluations(self) -> dict[str, Summary]:
        return dict(list(self._evaluations.items())[-4:])

    def _line(self) -> str:
        stage, values = self._stage, self._stage.values
        parts = [f"{stage.name} {stage.done}/{stage.steps}", f"success {self._success()}"]
        parts += [
            f"{name} {_of(values, name)}" for name in ("reward", "loss", "entropy", "kl", "drift") if name in values
        ]
        parts += [f"{name} {value}" for name, value in self._learnt()]
        for name, label in (("malformed", "malformed"), ("cut_off", "cut off"), ("zero_signal", "no signal")):
            if name in values:
                parts.append(f"{label} {_percent(values, name)}")
        if "lag_mean" in values:
            parts.append(f"lag {values['lag_mean']:.1f}/{values.get('lag_max', math.nan):.0f}")
        if values.get("errors"):
            parts.append(f"errors {values['errors']:.0f}")
        parts += [text for text in (self._speed(), self._split()) if text]
        return "  ".join([*parts, f"{stage.seconds[-1]:.1f} s", f"left {self._left()}"])

    def _success(self) -> str:
        rate, episodes = self._stage.values.get("success", math.nan), self._stage.values.get("episodes", 0)
        if not math.isfinite(rate):
            return "-"
        return wilson(rate * episodes, episodes).percent if episodes else f"{100 * rate:.0f}%"

    def _progress(self) -> RenderableType:
        stage = self._stage
        grid = Table.grid(padding=(0, 1), expand=True)
        grid.add_column(no_wrap=True)
        grid.add_column(ratio=1)
        grid.add_column(no_wrap=True, justify="right")
        if stage.steps:
            bar = ProgressBar(total=stage.steps, completed=stage.done)
            grid.add_row(Text(f"{stage.name} {stage.done}/{stage.steps}", style="bold"), bar, f"left {self._left()}")
        now = self._evaluating if self._evaluating.name else stage
        if now.playing or self._evaluating.name:
            count = len(now.playing)
            done = f"{count}/{now.episodes}" if now.episodes else str(count)
            bar = ProgressBar(total=max(now.episodes, count, 1), completed=count, style="dim")
            won = f"{sum(now.playing)} won so far"  # no rate: those that are lost take longer
            grid.add_row(f"{self._evaluating.name or 'episodes'} {done}", bar, won)
        return grid

    def _numbers(self) -> RenderableType:
        values = self._stage.values
        lag = (
            f"{values['lag_mean']:.1f}, at most {values.get('lag_max', math.nan):.0f}" if "lag_mean" in values else "-"
        )
        pairs = [
            ("success", f"{self._success()}"), ("trend", _spark(self._stage.curve) or "-"),
            ("reward", _of(values, "reward")), ("malformed", _percent(values, "malformed")),
            ("loss", _of(values, "loss")), ("grad norm", _of(values, "grad_norm")),
            ("entropy", _of(values, "entropy")), ("kl", _of(values, "kl")),
            ("drift", _of(values, "drift")), ("cut off", _percent(values, "cut_off")),
            ("lag", lag), ("no signal", _percent(values, "zero_signal")),
            ("lr", _of(values, "lr")), ("errors", _of(values, "errors")),
            *self._learnt(),
        ]  # fmt: skip
        wide = 2 if self.console.width >= 72 else 1
        rows = [pairs[n : n + wide] for n in range(0, len(pairs), wide)]
        long = [[("speed", self._speed() or "-")], [("time", self._split() or "-")]]
        if "sampler_batch" in values:
            batch, cached = values["sampler_batch"], _percent(values, "sampler_reuse")
            long.append([("sampler", f"{batch:.1f} contexts at a time, {cached} of prompt tokens cached")])
        return Group(_grid(rows), _grid(long))

    def _learnt(self) -> list[tuple[str, str]]:
        """How well a critic and streams that learn do."""
        values = self._stage.values
        errors = sorted(name for name in values if name.endswith("_error") and name != "value_error")
        found = [(name.removesuffix("_error").replace("_", " "), f"error {_number(values[name])}") for name in errors]
        if "explained_variance" in values:
            found.insert(0, ("critic", f"explains {_percent(values, 'explained_variance')}"))
        return found

    def _speed(self) -> str:
        values, parts = self._stage.values, []
        if values.get("seconds_sample") and "sampled_tokens" in values:
            parts.append(f"{_number(values['sampled_tokens'] / values['seconds_sample'])} sampled tok/s")
        if values.get("seconds_train") and "trained_tokens" in values:
            parts.append(f"{_number(values['trained_tokens'] / values['seconds_train'])} trained tok/s")
        if "episodes_per_s" in values:
            parts.append(f"{_number(values['episodes_per_s'])} ep/s")
        return ", ".join(parts)

    def _split(self) -> str:
        """How the step's time divides (see `timeline.Timeline`)."""
        values = self._stage.values
        whole = values.get("seconds_step", 0.0)
        names = (
            ("seconds_env", "env"),
            ("seconds_sample", "sampling"),
            ("seconds_train", "train"),
            ("seconds_other", "other"),
        )
        shares = [f"{label} {100 * values[name] / whole:.0f}%" for name, label in names if whole and name in values]
        return " ".join(shares)

    def _left(self) -> str:
        stage = self._stage
        if not stage.seconds:
            return "-"
        return _duration(sum(stage.seconds) / len(stage.seconds) * max(stage.steps - stage.done, 0))


def _grid(rows: Sequence[Sequence[tuple[str, str]]]) -> Table:
    """Rows of labels and their values."""
    grid = Table.grid(padding=(0, 2))
    for _ in rows[0]:
        grid.add_column(style="dim", no_wrap=True, min_width=9)
        grid.add_column(no_wrap=True, overflow="ellipsis")
    for row in rows:
        grid.add_row(*(text for pair in row for text in pair))
    return grid


def _of(values: Mapping[str, float], name: str) -> str:
    return _number(values[name]) if name in values else "-"


def _percent(values: Mapping[str, float], name: str) -> str:
    return f"{100 * values[name]:.1f}%" if name in values else "-"


def _number(value: float) -> str:
    """Three digits, without exponents where they are not needed."""
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def _duration(seconds: float) -> str:
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02d}:{second:02d}" if hours else f"{minute}:{second:02d}"


def _spark(values: deque[float]) -> str:
    """Success rates from 0 to 1 as a line of bars."""
    return "".join(BARS[min(int(max(value, 0.0) * len(BARS)), len(BARS) - 1)] for value in values)
