"""Names the stages of a run for people: in keys of a config by their names, and in lists without every evaluation."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

EVALUATION_PREFIX = "evaluation-"  # of the stages in which evaluations are recorded
MOST = 3  # evaluations that are listed one by one
NUMBERED = re.compile(r"^stages\.(\d+)(?=\.|$)")


def stages_in_words(stages: Iterable[str]) -> str:
    """Returns the names of stages; of more than `MOST` evaluations the number."""
    names = list(stages)
    evaluations = [name for name in names if name.startswith(EVALUATION_PREFIX)]
    if len(evaluations) <= MOST:
        return ", ".join(names)
    trained = ", ".join(name for name in names if name not in evaluations)
    counted = f"{len(evaluations)} evaluations ({evaluations[0]} to {evaluations[-1]})"
    return f"{trained} and {counted}" if trained else counted


def named(key: str, config: Mapping[str, Any]) -> str:
    """Returns a dotted key in which a stage has its name in place of its number, as a command line takes it."""
    stages: Any = config.get("stages")
    tables: Sequence[Any] = stages if isinstance(stages, list) else ()

    def name(match: re.Match[str]) -> str:
        table = tables[int(match[1])] if int(match[1]) < len(tables) else None
        return f"stages.{table['name']}" if isinstance(table, Mapping) and table.get("name") else match[0]

    return NUMBERED.sub(name, key)
