"""What a run forgets that goes on from a checkpoint: whatever it recorded in the steps after it."""

from __future__ import annotations

from sojourn.record.episodes.store import EpisodeStore
from sojourn.record.run import RunFolder
from sojourn.record.stage_names import EVALUATION_PREFIX
from sojourn.train.recipe import Recipe


def forget_lost_steps(folder: RunFolder, store: EpisodeStore, recipe: Recipe, number: int, step: int) -> None:
    """Removes what stage `number` recorded from `step` on, and all later stages: their episodes, and the evaluations
    of weights that are lost, by which a stage would end and weights be chosen."""
    stage, later = recipe.stages[number].name, {one.name for one in recipe.stages[number + 1 :]}
    store.truncate(stage, step)
    for name in later:
        store.truncate(name, 0)
    known = folder.evaluations()
    kept = [e for e in known if e["stage"] not in later and not (e["stage"] == stage and e["step"] > step)]
    if len(kept) < len(known):
        folder.write_json("evaluations.json", kept)
        for name in {e["name"] for e in known} - {e["name"] for e in kept}:
            store.truncate(f"{EVALUATION_PREFIX}{name}", 0)
