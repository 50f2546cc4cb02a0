"""Finds the checkpoint that a run is resumed from, and removes the metrics of later steps."""

from __future__ import annotations

from sojourn.display import Display
from sojourn.errors import RecordError
from sojourn.record import checkpoint, metrics, parts
from sojourn.record.checkpoint import Checkpoint
from sojourn.record.run import RunFolder
from sojourn.record.run_status import SKIPPED_CHECKPOINTS
from sojourn.train.recipe import Recipe
from sojourn.train.weights import check_models


def checkpoint_to_resume(recipe: Recipe, folder: RunFolder, display: Display) -> Checkpoint | None:
    """Returns the checkpoint to resume from; newer ones that are damaged are reported in the terminal and recorded.
    Refuses a recipe whose models are others than those of the run (`check_models`)."""
    damaged: list[str] = []
    found = checkpoint.latest(folder.checkpoints, damaged.append)
    for sentence in damaged:
        display.message(sentence)
    if damaged:
        earlier = folder.read_json(SKIPPED_CHECKPOINTS, [])
        kept = [sentence for sentence in earlier if sentence not in damaged] if isinstance(earlier, list) else []
        folder.write_json(SKIPPED_CHECKPOINTS, [*kept, *damaged])
    check_models(recipe, folder)
    return found


def truncate_metrics(recipe: Recipe, jsonl: metrics.Jsonl, found: Checkpoint | None) -> None:
    """Removes the metrics, and the loads of parts, that a killed run wrote after the checkpoint that it is resumed
    from."""
    position = found.state() if found is not None else {"stage": 0, "step": 0, "parts": {}}
    match position:
        case {"stage": int(number), "step": int(step), "parts": dict()} if 0 <= number < len(recipe.stages):
            for from_step, stage in ((step, recipe.stages[number]), *((0, s) for s in recipe.stages[number + 1 :])):
                jsonl.truncate(from_step, stage.name)
                parts.truncate(jsonl.path.with_name(parts.PARTS), from_step, stage.name)
        case _:
            raise RecordError(
                f"the state of {found and found.path} belongs to no step of the {len(recipe.stages)} stages of this "
                "run: restore its config.toml, or delete this checkpoint to go on from an earlier one"
            )
