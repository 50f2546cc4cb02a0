"""Publications: new weights that wait for the end of an engine's current step."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(eq=False)
class Publication:
    """New weights that wait for the end of the current step. `load` takes them, in the engine's thread; they are those
    of one model, or of all where `model` is None."""

    load: Callable[[], None]
    version: int
    model: str | None
    future: asyncio.Future[None]

    def changes(self, model: str) -> bool:
        """Returns whether the weights of this model change."""
        return self.model in (None, model)
