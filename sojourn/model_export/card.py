"""Writes the model card of an exported model: its task and data, how well it does, its licence and recipe."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from sojourn import env_catalog
from sojourn.abilities import ExportedModel
from sojourn.errors import MissingExtraError, RecordError
from sojourn.plot import curve
from sojourn.record import metrics
from sojourn.record.changes import recorded_changes
from sojourn.record.run import RunFolder
from sojourn.record.run_weights import Weights
from sojourn.record.stopped import stopped_stages
from sojourn.record.summary import Summary
from sojourn.rollout.world import worlds_of
from sojourn.train.recipe import Recipe
from sojourn.version import VERSION

CURVE, CARD = "curve.png", "README.md"
LIBRARIES = {"lora": "peft", "gguf": "llama.cpp"}


class Evaluated(NamedTuple):
    """An evaluation of the run, with the number of steps over all stages that were done before it."""

    name: str
    steps: int
    summary: Summary


def write_card(run: RunFolder, recipe: Recipe, weights: Weights, made: ExportedModel, out: Path, format: str) -> None:
    """Writes README.md, and the run's curve beside it where steps were recorded and matplotlib is installed."""
    with suppress(RecordError, MissingExtraError):
        curve([run.path], out / CURVE)
    parts = [
        _front_matter(made, format),
        f"# {recipe.name}",
        _origin(run, weights, made),
        f"## Use\n\nIn this folder:\n\n```python\n{made.use}```",
        f"## Task\n\n{_worlds(recipe)}",
        f"## Data\n\n{_data(run, recipe, weights)}{_changes(run)}",
        f"## Results\n\n{_results(run, recipe, weights, (out / CURVE).exists())}",
        f"## Licence\n\n{_licence(made)}",
        f"## Recipe\n\n```toml\n{run.config_text.rstrip()}\n```",
    ]
    (out / CARD).write_text("\n\n".join(parts) + "\n", errors="replace")


def _front_matter(made: ExportedModel, format: str) -> str:
    """Returns the metadata that model hubs read."""
    lines = [
        f"license: {made.licence if made.licence != 'unknown' else 'other'}",
        f"library_name: {LIBRARIES.get(format, 'transformers')}",
        "pipeline_tag: text-generation",
        "tags: [sojourn, reinforcement-learning, agent]",
    ]
    return "\n".join(["---", *lines, "---"])


def _origin(run: RunFolder, weights: Weights, made: ExportedModel) -> str:
    step = f"after {weights.checkpoint.step} steps of training" if weights.checkpoint else "before any training"
    return (
        f"A language model ({made.architecture}, {made.parameters:,} parameters) trained as an agent with Sojourn "
        f"{run.versions.get('sojourn', VERSION)}: the weights '{weights.name}' of the run "
        f"`{run.path.resolve().name}`, {step}. The base model is {made.base}."
    )


def _changes(run: RunFolder) -> str:
    """Returns what of the recipe was changed while the run was trained, and which stages were stopped early."""
    lines = [str(resumed) for resumed in recorded_changes(run)]
    lines += [f"'{name}' ended after step {one.step}: {one.reason}" for name, one in stopped_stages(run).items()]
    return "\n\n" + "\n".join(f"- {line}" for line in lines) if lines else ""


def _worlds(recipe: Recipe) -> str:
    """Returns what each world of the run is, and where it comes from."""
    lines: list[str] = []
    for family in worlds_of(recipe.env):
        name = next(iter(family.tasks(recipe.curriculum.split))).env
        entry = env_catalog.describe(name, family)
        source = f" Source: {entry.about.source}. Licence: {entry.about.licence}." if entry.about is not None else ""
        lines.append(f"- **{name}**: {entry.summary}{source}")
    return "\n".join(lines)


def _data(run: RunFolder, recipe: Recipe, weights: Weights) -> str:
    """Returns a table of the stages that came before these weights, with the episodes that each took."""
    played: Counter[str] = Counter()
    steps: Counter[str] = Counter()
    done = weights.checkpoint.step if weights.checkpoint is not None else 0
    starts = _starts(recipe)
    for line in metrics.read(run.path / "metrics.jsonl"):
        if line.stage in starts and starts[line.stage] + line.step < done:
            played[line.stage] += int(line.values.get("episodes", 0))
            steps[line.stage] += 1
    if not steps:
        return "None: these weights are those that the run began with."
    rows = [
        f"| {stage.name} | {steps[stage.name]} | {played[stage.name]:,} | {_component(stage.groups)} | "
        f"{_component(stage.estimator)} | {', '.join(map(_component, stage.losses))} |"
        for stage in recipe.stages
        if steps[stage.name]
    ]
    head = "| stage | steps | episodes | from | advantages by | losses |\n|---|---|---|---|---|---|\n"
    return f"Episodes of the tasks of the split '{recipe.curriculum.split}'; seed {recipe.seed}.\n\n{head}" + "\n".join(
        rows
    )


def _results(run: RunFolder, recipe: Recipe, weights: Weights, drawn: bool) -> str:
    """Returns a table of the run's evaluations up to these weights, with 95% intervals, and the curve."""
    panel = recipe.evaluation
    done = weights.checkpoint.step if weights.checkpoint is not None else 0
    rows = []
    for one in _evaluations(run, recipe):
        whole = one.summary.overall
        if one.steps <= done:
            rows.append(
                f"| {one.name} | {one.steps} | {whole.success.percent} | {whole.reward.mean:.3f} | "
                f"{whole.tasks} | {whole.episodes} |"
            )
    if not rows:
        return "The run has not evaluated these weights."
    said = f"On tasks of the split '{panel.split}', sampled at temperature {panel.temperature:g}, with 95% intervals:"
    head = "| evaluation | steps | success | mean reward | tasks | episodes |\n|---|---|---|---|---|---|\n"
    picture = f"\n\n![success over the steps of the whole run]({CURVE})" if drawn else ""
    return f"{said}\n\n{head}" + "\n".join(rows) + picture


def _evaluations(run: RunFolder, recipe: Recipe) -> list[Evaluated]:
    starts = _starts(recipe)
    return [
        Evaluated(str(e["name"]), starts.get(str(e["stage"]), 0) + int(e["step"]), Summary.from_json(e["summary"]))
        for e in run.evaluations()
    ]


def _starts(recipe: Recipe) -> dict[str, int]:
    """Returns how many steps come before each stage."""
    done, starts = 0, dict[str, int]()
    for stage in recipe.stages:
        starts[stage.name] = done
        done += stage.steps
    return starts


def _component(component: Any) -> str:
    return f"`{type(component).__name__}`"


def _licence(made: ExportedModel) -> str:
    if made.licence == "unknown":
        return (
            f"These weights derive from {made.base}, which says nothing of its licence: look it up before you pass "
            "them on."
        )
    return f"These weights derive from {made.base}, whose licence is {made.licence}: it holds for them too."
