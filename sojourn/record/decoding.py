"""Tells from a run folder how the evaluations of a run were decoded."""

from __future__ import annotations

from pathlib import Path

from sojourn.record.run import RunFolder
from sojourn.record.stage_names import EVALUATION_PREFIX


def not_drawn(run: Path, stage: str) -> str:
    """Returns the setting by which what an evaluation recorded was not drawn from the policy's whole distribution, so
    that log-probabilities do not say how likely it was, such as "evaluation.temperature = 0"; empty for stages and
    other evaluations."""
    if not stage.startswith(EVALUATION_PREFIX):
        return ""
    settings = RunFolder.read(run).config.get("evaluation", {})
    if settings.get("temperature", 1.0) == 0:
        return "evaluation.temperature = 0"
    for key, whole in (("top_p", 1), ("top_k", 0), ("min_p", 0)):
        if (value := settings.get(key, whole)) != whole:
            return f"evaluation.{key} = {value:g}"
    return ""
