"""What a folder of runs holds, as a table."""

from __future__ import annotations

from pathlib import Path

from rich.table import Table

from sojourn.errors import RecordError
from sojourn.record import metrics
from sojourn.record.intervals import Summary
from sojourn.record.run import RunFolder


def listing(folder: Path) -> Table:
    """One row per run, newest last."""
    if not folder.is_dir():
        raise RecordError(f"no folder '{folder}': train something first, or name the folder that holds your runs")
    shown = Table("run", "stage", "step", "success now", "evaluations (95% interval)", box=None)
    paths = sorted((p.parent for p in folder.glob("*/config.toml")), key=lambda p: p.stat().st_mtime)
    if not paths:
        shown.caption = f"no runs in '{folder}' yet: sojourn train recipes/toy/train.toml"
    for path in paths:
        shown.add_row(path.name, *_row(RunFolder.read(path)))
    return shown


def _row(run: RunFolder) -> tuple[str, str, str, str]:
    last = None
    for line in metrics.read(run.path / "metrics.jsonl"):
        last = line
    found = [f"{e['name']} {Summary.from_json(e['summary']).overall.success.percent}" for e in run.evaluations()]
    if last is None:
        return "-", "-", "-", "\n".join(found)
    success = last.values.get("success")  # demonstrations have none
    return last.stage, str(last.step + 1), "-" if success is None else f"{success:.0%}", "\n".join(found)
