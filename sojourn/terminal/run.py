"""Prints one run: its status, stages, evaluations, last steps, failed episodes and newest episodes."""

from __future__ import annotations

import json
import math
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from sojourn.config.lookup import likely
from sojourn.errors import ConfigError, RecordError
from sojourn.record import metrics
from sojourn.record.diagnosis import findings
from sojourn.record.episodes.episode_row import EpisodeRow
from sojourn.record.episodes.store import EpisodeStore
from sojourn.record.run import RunFolder
from sojourn.record.run_status import CHAT_FORMAT, RunStatus, read_status
from sojourn.record.stage_names import stages_in_words
from sojourn.terminal.clean import clean, one_line, shell_word
from sojourn.terminal.evaluations import side_by_side
from sojourn.terminal.jsonable import jsonable
from sojourn.terminal.numbers import duration, number, sparkline
from sojourn.terminal.other_models import of_other_models
from sojourn.terminal.parts import summary
from sojourn.terminal.rows import Column, rows
from sojourn.terminal.runs import STYLES

NEWEST_EPISODES = 10
LAST_STEPS = 5  # whose values are shown
MAX_FAILURES = 10_000  # failed episodes whose causes are counted
LABEL, VALUE, TREND, MIN_TREND = 11, 7, 24, 8  # widths in characters


@dataclass(frozen=True)
class Measure:
    """A row of the table of steps. `value` computes it from a step's metrics, NaN if the step has none."""

    label: str
    value: Callable[[Mapping[str, float]], float]
    percent: bool = False
    bounded: bool = False  # between 0 and 1

    def format(self, value: float) -> str:
        if not math.isfinite(value):
            return "-"
        text = f"{100 * value:.0f}%" if self.percent else number(value)
        return text if len(text) <= VALUE else f"{value:.1e}"


def _metric(label: str, name: str = "", percent: bool = False) -> Measure:
    return Measure(label, lambda values: values.get(name or label, math.nan), percent, percent)


def _time_fraction(label: str, name: str) -> Measure:
    """Returns the measure of a part of the step's time."""
    return Measure(label, lambda v: v.get(name, math.nan) / (v.get("seconds_step") or math.nan), True, True)


def _rate(label: str, count: str, seconds: str) -> Measure:
    return Measure(label, lambda v: v.get(count, math.nan) / (v.get(seconds) or math.nan))


MEASURES = (
    _metric("success", percent=True), _metric("reward"), _metric("loss"), _metric("entropy"), _metric("kl"),
    _metric("drift"), _metric("clipped", "clip_fraction", True), _metric("grad norm", "grad_norm"),
    _metric("malformed", percent=True), _metric("cut off", "cut_off", True), _metric("no signal", "zero_signal", True),
    _metric("lag", "lag_mean"), _metric("errors"), _time_fraction("env", "seconds_env"),
    _time_fraction("sampling", "seconds_sample"), _time_fraction("train", "seconds_train"),
    _time_fraction("other", "seconds_other"), _metric("seconds", "seconds_step"),
    _rate("sampled/s", "sampled_tokens", "seconds_sample"), _rate("trained/s", "trained_tokens", "seconds_train"),
    _metric("cached", "sampler_reuse", True), _metric("batch", "sampler_batch"),
    _metric("asked", "asked_tokens"), _metric("cost", "asked_cost"),
)  # fmt: skip


def overview(path: Path, width: int, stage: str = "") -> Group:
    """Returns an overview of a run, one or two screens long; problems with reading it are listed at the end."""
    run = read_status(path)
    lines: list[RenderableType] = list(_head(run, width))
    problems, of_parts = list(run.missing), list[Text]()
    with collect_problems(problems):
        of_parts = summary(path)
    with collect_problems(problems):
        if run.evaluations:
            lines += [Text(), _evaluations(run, width)]
        measured = _lines(path, problems)
        lines += _steps(measured, stage or run.stage, width)
        lines += of_parts
        with EpisodeStore(path) as store:
            lines += [Text(f"diagnosis: {clean(str(finding))}", "yellow") for finding in findings(store, measured)]
            lines += _failures(store, path)
            lines += _newest(store, path, stage, [at.stage for at in measured], width)
    lines += [Text(f"missing: {one_line(sentence, 500)}", "red") for sentence in dict.fromkeys(problems)]
    return Group(*lines)


def require_stage(path: Path, stage: str) -> None:
    """Raises ConfigError for a stage that a run neither trains nor has episodes of."""
    with EpisodeStore(path) as store:
        recorded = [count.stage for count in store.steps()]
    listed = RunFolder.read(path).config.get("stages", ())
    trained = [str(one.get("name", "")) for one in listed if isinstance(one, Mapping)]
    known = dict.fromkeys([*trained, *recorded])
    if stage not in known:
        names = stages_in_words(one_line(name, 40) for name in known) or "no stages yet"
        raise ConfigError(f"--stage {stage}: {path} has the stages {names}{likely(stage, known)}")


def as_json(path: Path, stage: str = "") -> str:
    """Returns the status of a run as JSON, with the last step's metrics and the number of episodes of each step, of all
    stages or of one."""
    run = read_status(path)
    missing, counts, found = list(run.missing), [], []
    measured = _lines(path, missing)
    with collect_problems(missing), EpisodeStore(path) as store:
        counts = [jsonable(count) for count in store.steps() if stage in ("", count.stage)]
        found = findings(store, measured)
    last = [at for at in measured if stage in ("", at.stage)][-1:]
    data = {"name": run.name, **jsonable(run), "last": jsonable(last[0]) if last else None, "episodes": counts}
    data["diagnosis"] = [jsonable(finding) for finding in found]
    return json.dumps(data | {"missing": missing}, indent=1)


@contextmanager
def collect_warnings(problems: list[str]) -> Iterator[None]:
    """Adds the messages of all warnings to `problems`."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    problems += dict.fromkeys(str(warning.message) for warning in caught)


@contextmanager
def collect_problems(problems: list[str]) -> Iterator[None]:
    """Adds the messages of all warnings and of a RecordError to `problems`."""
    with collect_warnings(problems):
        try:
            yield
        except RecordError as error:
            problems.append(str(error))


def _lines(path: Path, problems: list[str]) -> list[metrics.Line]:
    try:
        return list(metrics.read(path / "metrics.jsonl"))
    except RecordError as error:
        problems.append(str(error))
        return []


def _head(run: RunStatus, width: int) -> Iterator[Text]:
    head = Text(one_line(run.name), "bold").append(f"  {run.state}", f"not bold {STYLES.get(run.state, '')}".strip())
    if run.total:
        head.append(f"  {run.done} of {run.total} steps", "not bold")
    yield head
    if run.cause:
        yield Text(f"failed: {clean(run.cause)}", "red")
    yield from (Text(one_line(sentence, 500)) for sentence in (*run.changes, *run.stopped))
    worlds = ", ".join(run.worlds)
    facts = {"recipe": run.recipe, "model": run.model, "worlds": worlds, "tags": ", ".join(run.tags)}
    if run.seed is not None:
        facts["seed"] = str(run.seed)
    text = "  ".join(f"{name} {one_line(value)}" for name, value in facts.items() if value)
    if text:
        yield Text(text)
    try:
        folder = RunFolder.read(run.path)
        config, chat_format = folder.config, folder.read_json(CHAT_FORMAT, "")
    except RecordError:
        return
    if chat_format:
        yield Text(one_line(str(chat_format), 500), "dim")
    for stage in config.get("stages", ()):
        if isinstance(stage, Mapping):
            yield Text(f"stage {one_line(_stage(stage))}", "dim")


def _stage(stage: Mapping[str, Any]) -> str:
    """Describes a stage of a config in one line: source of its groups, estimator, losses, learning rate."""
    groups = stage.get("groups", {})
    sizes = " x ".join(str(groups[key]) for key in ("width", "size") if key in groups)
    lag = f", lag at most {groups['max_lag']}" if groups.get("max_lag") else ""
    parts = [
        f"{groups.get('name', '')} {sizes}{lag}".strip(),
        str(stage.get("estimator", {}).get("name", "")),
        " + ".join(str(loss.get("name", "")) for loss in stage.get("losses", ())),
        f"lr {stage.get('optim', {}).get('lr', '-')}",
    ]
    if learners := stage.get("learners"):
        parts.append(f"also learning: {', '.join(map(str, learners))}")
    return f"{stage.get('name', '')}, {stage.get('steps', '-')} steps: " + "; ".join(filter(None, parts))


def _evaluations(run: RunStatus, width: int) -> RenderableType:
    """Returns the table of the first and of the last evaluations, as many as fit."""
    room = max((width - 18) // 17, 2)
    evaluations = run.evaluations
    count = len(evaluations)
    kept = evaluations if count <= room else (evaluations[0], *evaluations[count - room + 1 :])
    table = side_by_side({one_line(evaluation.name): evaluation.summary for evaluation in kept})
    omitted = count - len(kept)
    note = Text(f"{omitted} evaluation{'s' * (omitted != 1)} after the first not shown: --json shows all", "dim")
    return Group(table, note) if omitted else table


def _steps(measured: Sequence[metrics.Line], stage: str, width: int) -> list[RenderableType]:
    """Returns a row for each measure: its values over the stage as a sparkline, and its values in the last steps."""
    of_stage = [at for at in measured if at.stage == stage]
    if not of_stage:
        return []
    fitting = max((width - LABEL - MIN_TREND - 3) // (VALUE + 1), 1)
    room = min(LAST_STEPS if width < 100 else 2 * LAST_STEPS, fitting, len(of_stage))
    trend = min(max(width - LABEL - (VALUE + 1) * room - 3, MIN_TREND), 2 * TREND, max(len(of_stage), MIN_TREND))
    head = " ".join(f"{at.step:>{VALUE}}" for at in of_stage[-room:])
    lines: list[RenderableType] = [
        Text(),
        Text(f"{f'{one_line(stage[: min(40, LABEL + trend - 4)])}, step':<{LABEL + trend + 2}}  {head}", "dim"),
    ]
    for measure in MEASURES:
        values = [measure.value(at.values) for at in of_stage]
        if not any(map(math.isfinite, values)):
            continue
        curve = sparkline(values, trend, 0.0 if measure.bounded else None, 1.0 if measure.bounded else None)
        last = " ".join(f"{measure.format(value):>{VALUE}}" for value in values[-room:])
        lines.append(Text(f"{measure.label:<{LABEL}} {curve:<{trend}}   {last}"))
    worlds = [name for name in of_stage[-1].values if name.startswith("success_")]
    if worlds:
        rates = "  ".join(f"{one_line(name[8:], 30)} {of_stage[-1].values[name]:.0%}" for name in worlds)
        lines.append(Text(f"success in the last step: {rates}", "dim"))
    for model, told in of_other_models(of_stage[-1].values):
        lines.append(Text(f"{one_line(model, 40)} in the last step: {told}", "dim"))
    lines += _beliefs(of_stage[-1].values, width)
    spent, tokens, cost = (
        sum(at.values.get(name, 0.0) for at in of_stage) for name in ("seconds_step", "asked_tokens", "asked_cost")
    )
    asked = f"; models were asked for {tokens:,.0f} tokens" + f", cost {cost:.4g}" * bool(cost) if tokens else ""
    return [*lines, Text(f"{len(of_stage)} steps took {duration(spent)}{asked}", "dim")]


def _beliefs(values: Mapping[str, float], width: int) -> list[RenderableType]:
    """Returns a table of each world and tag where the curriculum tells of them: its share of the draws, the success
    rate that is expected of its tasks, and how many of its episodes were observed."""
    kinds = [name.removeprefix("draw_share_") for name in values if name.startswith("draw_share_")]
    if not kinds:
        return _population(values)

    def cells(measure: str, percent: bool = True) -> list[str]:
        found = [values.get(f"{measure}_{kind}", math.nan) for kind in kinds]
        return [("-" if math.isnan(value) else f"{value:.0%}" if percent else number(value)) for value in found]

    columns = [
        Column(heading="curriculum", cells=[one_line(kind, 40) for kind in kinds]),
        Column(heading="draws", cells=cells("draw_share"), right=True),
        Column(heading="expected", cells=cells("predicted_success"), right=True),
        Column(heading="episodes", cells=cells("observed", percent=False), right=True, drop_priority=1),
    ]
    return [Text(), *rows(columns, width), *_population(values), Text()]


def _population(values: Mapping[str, float]) -> list[RenderableType]:
    """Returns what a curriculum that makes tasks did after the last step, and what its next task is expected to be."""
    if "tasks_made" not in values:
        return []
    done = ", ".join(f"{number(values[f'tasks_{what}'])} {what}" for what in ("made", "refused", "dropped"))
    drawn = {name.removeprefix("drawn_"): value for name, value in values.items() if name.startswith("drawn_")}
    means = "  ".join(f"{one_line(name, 30)} {value:.3g}" for name, value in drawn.items())
    return [Text(f"{number(values['population'])} tasks, after {done} in the last step; the next: {means}", "dim")]


def _failures(store: EpisodeStore, path: Path) -> list[RenderableType]:
    """Returns the most frequent causes of failed episodes, and the command that lists the episodes."""
    causes = Counter(one_line(entry.error or "", 300) for entry in store.query(failed=True, limit=MAX_FAILURES))
    if not causes:
        return []
    lines = [Text(f"{count:5} x {cause}", "red") for cause, count in causes.most_common(8)]
    more = [Text(f"and {len(causes) - 8} other causes", "dim")] if len(causes) > 8 else []
    listing = Text(f"to read one: sojourn show {shell_word(path)} --find error:any", "dim")
    return [Text(), Text("failed episodes by cause", "dim"), *lines, *more, listing]


def _newest(store: EpisodeStore, path: Path, stage: str, trained: Sequence[str], width: int) -> list[RenderableType]:
    """Returns a table of the newest episodes of a stage, by default the last one that was trained."""
    recorded = list(dict.fromkeys(count.stage for count in store.steps()))
    chosen = stage or next(iter([name for name in reversed(trained) if name in recorded] or recorded[-1:]), "")
    entries = list(store.query(stage=chosen, newest=True, limit=NEWEST_EPISODES)) if chosen else []
    if not entries:
        of_stage = f" of the stage {one_line(stage, 40)}" if stage else ""
        return [Text(), Text(f"{one_line(str(path))} has no episodes{of_stage} yet", "dim")]
    lines: list[RenderableType] = [Text(), Text(f"newest episodes of {one_line(chosen, 40)}", "dim")]
    lines += rows(episode_columns(entries), width)
    others = [name for name in recorded if name != chosen]
    lines.append(
        Text(
            f"\nread an episode: sojourn show {shell_word(path)} EPISODE    groups of a step: --step N (from 0)",
            "dim",
        )
    )
    if others:
        lines.append(Text(f"other stages: --stage {stages_in_words(one_line(name, 40) for name in others)}", "dim"))
    return lines


def episode_columns(entries: Sequence[EpisodeRow]) -> list[Column]:
    """Returns the columns of a table of episodes."""
    return [
        Column(heading="episode", cells=[one_line(entry.id) for entry in entries]),
        Column(heading="step", cells=[str(entry.step) for entry in entries], right=True),
        Column(heading="task", cells=[one_line(_task_label(entry), 30) for entry in entries], drop_priority=2),
        Column(heading="turns", cells=[str(entry.turns) for entry in entries], right=True, drop_priority=3),
        Column(heading="tokens", cells=[str(entry.sampled) for entry in entries], right=True, drop_priority=4),
        Column(heading="ending", cells=[one_line(entry.ending or "failed", 20) for entry in entries]),
        Column(heading="success", cells=[_number(entry.success) for entry in entries], right=True, drop_priority=1),
        Column(heading="reward", cells=[_number(entry.reward) for entry in entries], right=True),
    ]


def _task_label(entry: EpisodeRow) -> str:
    return ", ".join((entry.env, *entry.tags))


def _number(value: float | None) -> str:
    return "-" if value is None else number(value)
