"""Where a run that is resumed goes on: its checkpoint, and its metrics up to there."""

from __future__ import annotations

from collections.abc import Callable

from sojourn.errors import RecordError
from sojourn.record import checkpoint, metrics
from sojourn.record.checkpoint import Checkpoint
from sojourn.record.run import RunFolder
from sojourn.record.run_status import SKIPPED_CHECKPOINTS
from sojourn.train.recipe import Recipe


def find_resumed(folder: RunFolder, tell: Callable[[str], None]) -> Checkpoint | None:
    """The checkpoint to go on from; of newer ones that are damaged the terminal is told, and so is the run's record."""
    damaged: list[str] = []
    found = checkpoint.latest(folder.checkpoints, damaged.append)
    for sentence in damaged:
        tell(sentence)
    if damaged:
        earlier = folder.read_json(SKIPPED_CHECKPOINTS, [])
        kept = [sentence for sentence in earlier if sentence not in damaged] if isinstance(earlier, list) else []
        folder.write_json(SKIPPED_CHECKPOINTS, [*kept, *damaged])
    return found


def cut_metrics(recipe: Recipe, jsonl: metrics.Jsonl, found: Checkpoint | None) -> None:
    """Drops the metrics that a killed run wrote after the checkpoint it is resumed from."""
    position = found.state() if found is not None else {"stage": 0, "step": 0, "parts": {}}
    match position:
        case {"stage": int(number), "step": int(step), "parts": dict()} if 0 <= number < len(recipe.stages):
            jsonl.truncate(step, recipe.stages[number].name)
            for later in recipe.stages[number + 1 :]:
                jsonl.truncate(0, later.name)
        case _:
            raise RecordError(
                f"the state of {found and found.path} is of no step of the {len(recipe.stages)} stages of this run: "
                "restore its config.toml, or delete this checkpoint to go on from an earlier one"
            )
