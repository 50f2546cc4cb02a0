"""One run in the terminal: what it is, how far it is, what its evaluations and its last steps say, what failed."""

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

from sojourn.errors import RecordError
from sojourn.record import metrics
from sojourn.record.episodes.episode_row import EpisodeRow
from sojourn.record.episodes.store import EpisodeStore
from sojourn.record.run import RunFolder
from sojourn.record.run_status import RunStatus, read_status
from sojourn.terminal.clean import clean, line
from sojourn.terminal.evaluations import side_by_side
from sojourn.terminal.numbers import bars, duration, number
from sojourn.terminal.plain import plain
from sojourn.terminal.rows import Column, rows
from sojourn.terminal.runs import STYLES

NEWEST = 10  # episodes that are listed
LAST = 5  # steps whose numbers are shown
FAILURES = 10_000  # failed episodes whose causes are counted
LABEL, VALUE, TREND = 11, 7, 24  # columns


@dataclass(frozen=True)
class Measure:
    """A row of the table of steps: its name, and its value in a step's metrics (NaN where there is none)."""

    label: str
    value: Callable[[Mapping[str, float]], float]
    percent: bool = False
    bounded: bool = False  # between 0 and 1

    def shown(self, value: float) -> str:
        if not math.isfinite(value):
            return "-"
        said = f"{100 * value:.0f}%" if self.percent else number(value)
        return said if len(said) <= VALUE else f"{value:.1e}"


def _named(label: str, name: str = "", percent: bool = False) -> Measure:
    return Measure(label, lambda values: values.get(name or label, math.nan), percent, percent)


def _share(label: str, name: str) -> Measure:
    """A part of the step's time."""
    return Measure(label, lambda v: v.get(name, math.nan) / (v.get("seconds_step") or math.nan), True, True)


def _rate(label: str, count: str, seconds: str) -> Measure:
    return Measure(label, lambda v: v.get(count, math.nan) / (v.get(seconds) or math.nan))


MEASURES = (
    _named("success", percent=True), _named("reward"), _named("loss"), _named("entropy"), _named("kl"),
    _named("drift"), _named("clipped", "clip_fraction", True), _named("grad norm", "grad_norm"),
    _named("malformed", percent=True), _named("cut off", "cut_off", True), _named("no signal", "zero_signal", True),
    _named("lag", "lag_mean"), _named("errors"), _share("env", "seconds_env"), _share("sampling", "seconds_sample"),
    _share("train", "seconds_train"), _share("other", "seconds_other"), _named("seconds", "seconds_step"),
    _rate("sampled/s", "sampled_tokens", "seconds_sample"), _rate("trained/s", "trained_tokens", "seconds_train"),
    _named("cached", "sampler_reuse", True), _named("batch", "sampler_batch"),
)  # fmt: skip


def overview(path: Path, width: int, stage: str = "") -> Group:
    """All of a run that fits a screen or two; what cannot be read of it is said at the end."""
    run = read_status(path)
    lines: list[RenderableType] = list(_head(run, width))
    missing = list(run.missing)
    with told_in(missing):
        if run.evaluations:
            lines += [Text(), _evaluations(run, width)]
        measured = _lines(path, missing)
        lines += _steps(measured, stage or run.stage, width)
        with EpisodeStore(path) as store:
            lines += _failures(store)
            lines += _newest(store, path, stage, [at.stage for at in measured], width)
    lines += [Text(f"missing: {line(sentence, 500)}", "red") for sentence in dict.fromkeys(missing)]
    return Group(*lines)


def as_json(path: Path) -> str:
    """How the run stands, with its last step's metrics and the number of episodes of each step."""
    run = read_status(path)
    missing = list(run.missing)
    with told_in(missing), EpisodeStore(path) as store:
        counts = [plain(count) for count in store.steps()]
    last = _lines(path, missing)[-1:]
    data = {"name": run.name, **plain(run), "last": plain(last[0]) if last else None, "episodes": counts}
    return json.dumps(data | {"missing": missing}, indent=1)


@contextmanager
def warned_in(missing: list[str]) -> Iterator[None]:
    """What is warned of is added to the sentences."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    missing += dict.fromkeys(str(warning.message) for warning in caught)


@contextmanager
def told_in(missing: list[str]) -> Iterator[None]:
    """What is warned of and what cannot be read is added to the sentences."""
    with warned_in(missing):
        try:
            yield
        except RecordError as error:
            missing.append(str(error))


def _lines(path: Path, missing: list[str]) -> list[metrics.Line]:
    try:
        return list(metrics.read(path / "metrics.jsonl"))
    except RecordError as error:
        missing.append(str(error))
        return []


def _head(run: RunStatus, width: int) -> Iterator[Text]:
    told = Text(line(run.name), "bold").append(f"  {run.state}", f"not bold {STYLES.get(run.state, '')}".strip())
    if run.total:
        told.append(f"  {run.done} of {run.total} steps", "not bold")
    yield told
    if run.cause:
        yield Text(f"failed: {clean(run.cause)}", "red")
    worlds = ", ".join(run.worlds)
    facts = {"recipe": run.recipe, "model": run.model, "worlds": worlds, "tags": ", ".join(run.tags)}
    if run.seed is not None:
        facts["seed"] = str(run.seed)
    said = "  ".join(f"{name} {line(value)}" for name, value in facts.items() if value)
    if said:
        yield Text(said)
    try:
        config = RunFolder.read(run.path).config
    except RecordError:
        return
    for stage in config.get("stages", ()):
        if isinstance(stage, Mapping):
            yield Text(f"stage {line(_stage(stage))}", "dim")


def _stage(stage: Mapping[str, Any]) -> str:
    """A stage in one line: where its groups come from, how they are credited, what is minimised."""
    groups = stage.get("groups", {})
    sizes = " x ".join(str(groups[key]) for key in ("width", "size") if key in groups)
    lag = f", lag at most {groups['max_lag']}" if groups.get("max_lag") else ""
    parts = [
        f"{groups.get('name', '')} {sizes}{lag}".strip(),
        str(stage.get("estimator", {}).get("name", "")),
        " + ".join(str(loss.get("name", "")) for loss in stage.get("losses", ())),
        f"lr {stage.get('optim', {}).get('lr', '-')}",
    ]
    return f"{stage.get('name', '')}, {stage.get('steps', '-')} steps: " + "; ".join(filter(None, parts))


def _evaluations(run: RunStatus, width: int) -> RenderableType:
    """As many as fit: the first, and the last ones."""
    room = max((width - 18) // 17, 2)
    found = run.evaluations
    kept = found if len(found) <= room else (found[0], *found[len(found) - room + 1 :])
    table = side_by_side({line(evaluation.name): evaluation.summary for evaluation in kept})
    left = len(found) - len(kept)
    note = Text(f"{left} evaluations between the first and these: --json has them", "dim")
    return Group(table, note) if left else table


def _steps(measured: Sequence[metrics.Line], stage: str, width: int) -> list[RenderableType]:
    """A row for each measure: its course through the stage, and its values in the last steps."""
    found = [at for at in measured if at.stage == stage]
    if not found:
        return []
    room = min(LAST if width < 100 else 2 * LAST, len(found))
    trend = min(max(width - LABEL - (VALUE + 1) * room - 4, 8), 2 * TREND, max(len(found), 8))
    head = " ".join(f"{at.step:>{VALUE}}" for at in found[-room:])
    lines: list[RenderableType] = [Text(), Text(f"{f'{line(stage, 40)}, step':<{LABEL + trend + 2}}  {head}", "dim")]
    for measure in MEASURES:
        values = [measure.value(at.values) for at in found]
        if not any(map(math.isfinite, values)):
            continue
        course = bars(values, trend, 0.0 if measure.bounded else None, 1.0 if measure.bounded else None)
        last = " ".join(f"{measure.shown(value):>{VALUE}}" for value in values[-room:])
        lines.append(Text(f"{measure.label:<{LABEL}} {course:<{trend}}   {last}"))
    worlds = [name for name in found[-1].values if name.startswith("success_")]
    if worlds:
        shares = "  ".join(f"{line(name[8:], 30)} {found[-1].values[name]:.0%}" for name in worlds)
        lines.append(Text(f"success in the last step: {shares}", "dim"))
    spent = sum(at.values.get("seconds_step", 0.0) for at in found)
    return [*lines, Text(f"{len(found)} steps took {duration(spent)}", "dim")]


def _failures(store: EpisodeStore) -> list[RenderableType]:
    """Episodes that broke, by what broke them."""
    causes = Counter(line(entry.error or "", 300) for entry in store.query(failed=True, limit=FAILURES))
    if not causes:
        return []
    lines = [Text(f"{count:5} x {cause}", "red") for cause, count in causes.most_common(8)]
    more = [Text(f"and {len(causes) - 8} other causes", "dim")] if len(causes) > 8 else []
    return [Text(), Text("episodes that failed, by cause", "dim"), *lines, *more]


def _newest(store: EpisodeStore, path: Path, stage: str, trained: Sequence[str], width: int) -> list[RenderableType]:
    """The newest episodes of a stage, by default the last that was trained."""
    held = list(dict.fromkeys(count.stage for count in store.steps()))
    if stage and stage not in held:
        raise RecordError(f"no stage '{stage}' in {path}: it has {', '.join(held) or 'none yet'}")
    chosen = stage or next(iter([name for name in reversed(trained) if name in held] or held[-1:]), "")
    found = list(store.query(stage=chosen, newest=True, limit=NEWEST)) if chosen else []
    if not found:
        return [Text(), Text(f"no episodes in {line(str(path))} yet", "dim")]
    lines: list[RenderableType] = [Text(), Text(f"newest episodes of {line(chosen, 40)}", "dim")]
    lines += rows(episode_columns(found), width)
    others = [name for name in held if name != chosen]
    lines.append(
        Text(f"\nread one: sojourn show {line(str(path))} EPISODE    a step's groups: --step N (from 0)", "dim")
    )
    if others:
        lines.append(Text(f"other stages: --stage {', '.join(line(name, 40) for name in others)}", "dim"))
    return lines


def episode_columns(entries: Sequence[EpisodeRow]) -> list[Column]:
    """The columns of a list of episodes."""
    return [
        Column(heading="episode", cells=[line(entry.id) for entry in entries]),
        Column(heading="step", cells=[str(entry.step) for entry in entries], right=True),
        Column(heading="of", cells=[line(_of(entry), 30) for entry in entries], leaves=2),
        Column(heading="turns", cells=[str(entry.turns) for entry in entries], right=True, leaves=3),
        Column(heading="tokens", cells=[str(entry.sampled) for entry in entries], right=True, leaves=4),
        Column(heading="ending", cells=[line(entry.ending or "failed", 20) for entry in entries]),
        Column(heading="success", cells=[_number(entry.success) for entry in entries], right=True, leaves=1),
        Column(heading="reward", cells=[_number(entry.reward) for entry in entries], right=True),
    ]


def _of(entry: EpisodeRow) -> str:
    return ", ".join((entry.env, *entry.tags))


def _number(value: float | None) -> str:
    return "-" if value is None else number(value)
