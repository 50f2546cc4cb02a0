"""Writes the model card of an exported model: its task and data, how well it does, its licence and recipe."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from sojourn import env_catalog
from sojourn.abilities import ExportedModel
from sojourn.config.lookup import user_code
from sojourn.config.registry import build
from sojourn.errors import MissingExtraError, RecordError, SojournError
from sojourn.plot import curve
from sojourn.protocols import EnvFamily
from sojourn.record import metrics
from sojourn.record.changes import recorded_changes
from sojourn.record.episodes.store import EpisodeStore
from sojourn.record.episodes.vocabulary import read as read_vocabulary
from sojourn.record.run import RunFolder
from sojourn.record.run_weights import Weights
from sojourn.record.stopped import stopped_stages
from sojourn.record.summary import Summary
from sojourn.rollout.world import worlds_of
from sojourn.train.seating import POLICY
from sojourn.version import VERSION

CURVE, CARD = "curve.png", "README.md"
MAX_PROMPT = 6_000  # characters of a prompt that the card shows
Config = Mapping[str, Any]  # of a run, whole: the card reads names from it, so that it needs none of the run's own code


class Evaluated(NamedTuple):
    """An evaluation of the run, with the number of steps over all stages that were done before it."""

    name: str
    steps: int
    summary: Summary


def write_card(
    run: RunFolder, config: Config, weights: Weights, made: ExportedModel, out: Path, model: str = POLICY
) -> None:
    """Writes README.md, and the run's curve beside it where steps were recorded and matplotlib is installed."""
    with suppress(RecordError, MissingExtraError):
        curve([run.path], out / CURVE)
    parts = [
        _front_matter(made),
        f"# {config.get('name', run.path.resolve().name)}",
        _origin(run, weights, made, model),
        f"## Use\n\nIn this folder:\n\n```python\n{made.use}```",
        f"## Task\n\n{_worlds(config)}{_first_prompt(run)}",
        f"## Data\n\n{_data(run, config, weights)}{_changes(run)}",
        f"## Results\n\n{_results(run, config, weights, (out / CURVE).exists())}",
        f"## Licence\n\n{_licence(made)}",
        f"## Recipe\n\n```toml\n{run.config_text.rstrip()}\n```",
    ]
    (out / CARD).write_text("\n\n".join(parts) + "\n", errors="replace")


def _front_matter(made: ExportedModel) -> str:
    """Returns the metadata that model hubs read."""
    lines = [
        f"license: {made.licence if made.licence != 'unknown' else 'other'}",
        f"library_name: {made.library}",
        "pipeline_tag: text-generation",
        "tags: [sojourn, reinforcement-learning, agent]",
    ]
    return "\n".join(["---", *lines, "---"])


def _origin(run: RunFolder, weights: Weights, made: ExportedModel, model: str) -> str:
    step = f"after {weights.checkpoint.step} steps of training" if weights.checkpoint else "before any training"
    return (
        f"A language model ({made.architecture}, {made.parameters:,} parameters) trained as an agent with Sojourn "
        f"{run.versions.get('sojourn', VERSION)}: the weights '{weights.name}' of the run "
        f"`{run.path.resolve().name}`, {step}. The base model is {made.base}."
        + (
            ""
            if model == POLICY
            else f" It is the model '{model}', which learned beside the policy; results are the policy's."
        )
    )


def _changes(run: RunFolder) -> str:
    """Returns what of the recipe was changed while the run was trained, and which stages were stopped early."""
    lines = [str(resumed) for resumed in recorded_changes(run)]
    lines += [f"'{name}' ended after step {one.step}: {one.reason}" for name, one in stopped_stages(run).items()]
    return "\n\n" + "\n".join(f"- {line}" for line in lines) if lines else ""


def _worlds(config: Config) -> str:
    """Returns what each world of the run is, and where it comes from; a sentence where its code is not there."""
    table = config.get("env", {})
    try:
        with user_code("env"):
            family = build("env", table, "env").value
            return "\n\n".join(_world(world, str(_split(config))) for world in worlds_of(family))
    except SojournError as error:
        return f"**{table.get('name', 'env')}**, of which this card says no more, as its code is not there: {error}."


def _world(family: EnvFamily, split: str) -> str:
    name = next(iter(family.tasks(split))).env
    entry = env_catalog.describe(name, family)
    source = f"\n\nSource: {entry.about.source}. Licence: {entry.about.licence}." if entry.about is not None else ""
    return f"**{name}**\n\n{entry.text}{source}"


def _first_prompt(run: RunFolder) -> str:
    """Returns what the model sees before its first action, in one task of the record."""
    vocabulary = read_vocabulary(run.path)
    row, trajectories = None, ()
    if vocabulary is None:
        return ""
    with EpisodeStore(run.path) as store, suppress(RecordError):
        row = next(store.query(failed=False), None)
        trajectories = () if row is None else store.read(row).episode.trajectories
    seen = next((t.prompt(0) for t in trajectories if t.trainable and t.turns), None)
    if row is None or seen is None:
        return ""
    text = vocabulary.text(seen)
    cut = f"\n... ({len(text):,} characters in all)" if len(text) > MAX_PROMPT else ""
    return (
        f"\n\nWhat the model sees before its first action, in one task of the split '{row.split}' ({len(seen):,} "
        f"tokens):\n\n~~~~text\n{text[:MAX_PROMPT].rstrip()}{cut}\n~~~~"
    )


def _data(run: RunFolder, config: Config, weights: Weights) -> str:
    """Returns a table of the stages that came before these weights, with the episodes that each took."""
    played: Counter[str] = Counter()
    steps: Counter[str] = Counter()
    done = weights.checkpoint.step if weights.checkpoint is not None else 0
    starts = run.stage_starts
    for line in metrics.read(run.path / "metrics.jsonl"):
        if line.stage in starts and starts[line.stage] + line.step < done:
            played[line.stage] += int(line.values.get("episodes", 0))
            steps[line.stage] += 1
    if not steps:
        return "None: these weights are those that the run began with."
    rows = [
        f"| {name} | {steps[name]} | {played[name]:,} | {_component(stage.get('groups'))} | "
        f"{_component(stage.get('estimator'))} | {', '.join(map(_component, stage.get('losses', ())))} |"
        for stage in config.get("stages", ())
        if steps[name := str(stage.get("name"))]
    ]
    head = "| stage | steps | episodes | from | advantages by | losses |\n|---|---|---|---|---|---|\n"
    return (
        f"Episodes of the tasks of the split '{_split(config)}'; seed {config.get('seed', 0)}.\n\n{head}"
        + "\n".join(rows)
    )


def _results(run: RunFolder, config: Config, weights: Weights, drawn: bool) -> str:
    """Returns a table of the run's evaluations up to these weights, with 95% intervals, and the curve."""
    panel = config.get("evaluation", {})
    done = weights.checkpoint.step if weights.checkpoint is not None else 0
    rows = []
    for one in _evaluations(run):
        whole = one.summary.overall
        if one.steps <= done:
            rows.append(
                f"| {one.name} | {one.steps} | {whole.success.percent} | {whole.reward.mean:.3f} | "
                f"{whole.tasks} | {whole.episodes} |"
            )
    if not rows:
        return "The run has not evaluated these weights."
    sampled = f"sampled at temperature {panel.get('temperature')}, with 95% intervals"
    said = f"On tasks of the split '{panel.get('split')}', {sampled}:"
    head = "| evaluation | steps | success | mean reward | tasks | episodes |\n|---|---|---|---|---|---|\n"
    picture = f"\n\n![success over the steps of the whole run]({CURVE})" if drawn else ""
    return f"{said}\n\n{head}" + "\n".join(rows) + picture


def _evaluations(run: RunFolder) -> list[Evaluated]:
    starts = run.stage_starts
    return [
        Evaluated(str(e["name"]), starts.get(str(e["stage"]), 0) + int(e["step"]), Summary.from_json(e["summary"]))
        for e in run.evaluations()
    ]


def _component(table: Any) -> str:
    return f"`{table['name']}`" if isinstance(table, Mapping) and "name" in table else "its own"


def _split(config: Config) -> Any:
    """Returns the split that was trained on."""
    return config.get("curriculum", {}).get("split", "train")


def _licence(made: ExportedModel) -> str:
    if made.licence == "unknown":
        return (
            f"These weights derive from {made.base}, which says nothing of its licence: look it up before you pass "
            "them on."
        )
    return f"These weights derive from {made.base}, whose licence is {made.licence}: it holds for them too."
