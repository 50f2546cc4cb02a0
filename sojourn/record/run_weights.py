"""Finds the weights of a run by their name, as commands and configs write it: RUN, RUN@STAGE, RUN@STEP, RUN@last."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from sojourn.errors import ConfigError, RecordError
from sojourn.record import checkpoint
from sojourn.record.checkpoint import BEST, Checkpoint
from sojourn.record.run import RunFolder
from sojourn.record.stopped import stopped_stages
from sojourn.record.summary import Summary

BEFORE, LAST = "before", "last"


class Weights(NamedTuple):
    """Weights of a run with the name that follows the folder and an @. Without a checkpoint: the initial weights."""

    name: str
    checkpoint: Checkpoint | None


class NamedRun(NamedTuple):
    """A run folder with the name of its weights, which is empty for the best, or else the newest."""

    folder: Path
    weights: str

    @classmethod
    def parse(cls, text: str | Path) -> NamedRun:
        """Splits a text such as runs/x, runs/x@warmup or runs/x@120. A folder whose own name has an @ stays whole.
        Raises `ConfigError` where nothing follows the @ of a run."""
        text = str(text)
        if Path(text).exists() or "@" not in text:
            return cls(Path(text), "")
        folder, _, weights = text.rpartition("@")
        if not (Path(folder) / "config.toml").is_file():
            return cls(Path(text), "")
        if not weights:
            raise ConfigError(
                f"'{text}' names no weights after its @: name some, such as {folder}@{LAST}, or leave the @ out"
            )
        return cls(Path(folder), weights)


def available_weights(run: Path) -> list[Weights]:
    """Returns all weights of a run, the oldest first: the initial ones, and every checkpoint.

    The checkpoint at the end of a stage is named after the stage, others after their number of steps.
    """
    folder = RunFolder.read(run)
    stages, stopped = folder.config.get("stages", []), stopped_stages(folder)
    done, ends = 0, dict[int, str]()
    for stage in stages if isinstance(stages, list) else ():
        name, steps = str(stage.get("name", "")), int(stage.get("steps", 0))
        ends[done + (stopped[name].step if name in stopped else steps)] = name
        done += steps
    held = checkpoint.checkpoints(run / "checkpoints")
    return [Weights(BEFORE, None), *(Weights(ends.get(c.step, str(c.step)), c) for c in held)]


def find_weights(run: Path, name: str, report: Callable[[str], None] = lambda sentence: None) -> Weights:
    """Returns the weights of this name (a stage, a number of steps, "before", "best" or "last"), by default those that
    did best of the run's evaluations, or the newest where none were kept for that.

    `report` gets a sentence for each damaged checkpoint in whose place another one is returned.
    """
    available = available_weights(run)
    if name in ("", BEST, LAST):
        found = checkpoint.best(run / "checkpoints", report) if name != LAST else None
        if found is None and name == BEST:
            raise ConfigError(
                f"'{run}@{name}': this run has no best checkpoint: record.keep_best = true keeps that of the best "
                "evaluation after training"
            )
        found = found or checkpoint.latest(run / "checkpoints", report)
        if found is None:
            raise RecordError(
                f"'{run}' has no complete checkpoint yet: train it first, or name its initial weights, {run}@{BEFORE}"
            )
        return next((one for one in available if one.checkpoint == found), Weights(str(found.step), found))
    for one in available:
        if name == one.name or (one.checkpoint is not None and name == str(one.checkpoint.step)):
            if one.checkpoint is not None:
                one.checkpoint.verify()
            return one
    raise ConfigError(
        f"'{run}@{name}': this run has no such weights; it has {', '.join(one.name for one in available)}"
    )


def best_evaluation(run: RunFolder) -> Mapping[str, Any] | None:
    """Returns the evaluation after training with the most success, then the most reward; None where there is none. Of
    equal ones it is the last that ended a stage, else the first. One that repeats another's numbers does not count."""
    best: Mapping[str, Any] | None = None
    highest = float("-inf"), float("-inf")
    for evaluation in run.evaluations():
        if "same_as" in evaluation or evaluation["name"] == BEFORE:
            continue
        overall = Summary.from_json(evaluation["summary"]).overall
        result = overall.success.mean, overall.reward.mean
        ends = evaluation["name"] == evaluation["stage"]
        if best is None or result > highest or (result == highest and ends):
            best, highest = evaluation, result
    return best


def mark_best(run: RunFolder) -> None:
    """Marks the checkpoint of the best evaluation, where there is one."""
    evaluation = best_evaluation(run)
    if evaluation is not None:
        step = run.stage_starts.get(str(evaluation["stage"]), 0) + int(evaluation["step"])
        for one in checkpoint.checkpoints(run.checkpoints):
            if one.step == step:
                one.mark_best()
