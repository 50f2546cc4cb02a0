"""Runs that learn from the people of a live service: which those are, and how they go on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sojourn.terminal.clean import shell_word

if TYPE_CHECKING:
    from sojourn.train.recipe import Recipe


def learns_from_service(recipe: Recipe) -> bool:
    """Returns whether a stage trains on the sessions of the service of the run itself."""
    from sojourn.abilities import parts_of
    from sojourn.sources.live import Live

    parts = [part for stage in recipe.stages for part in parts_of(stage.groups)]
    return any(isinstance(part, Live) and not part.folder for part in parts)


def resume_command(recipe: Recipe, run: Path) -> str:
    """Returns the command by which a run goes on."""
    if recipe.release is not None and learns_from_service(recipe):
        return f"sojourn live {shell_word(str(run))} --resume"
    return f"sojourn train --resume {shell_word(str(run))}"


def unserved_note(recipe: Recipe, run: Path) -> str:
    """Returns that a run waits for the sessions of a service which nobody runs, or nothing."""
    from sojourn.live.service_lock import ServiceLock

    if not learns_from_service(recipe) or ServiceLock(run / "live").is_taken:
        return ""
    return (
        "nobody serves this run: it trains on the sessions that are kept, then waits for more; "
        f"`{resume_command(recipe, run)}` serves it, too"
    )
