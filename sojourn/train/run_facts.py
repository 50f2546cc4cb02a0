"""Writes into a run folder what its models are, how chats are formatted, and what the tokens mean."""

from __future__ import annotations

from sojourn.abilities import HasNote
from sojourn.protocols import Renderer
from sojourn.record.episodes import vocabulary
from sojourn.record.run import RunFolder
from sojourn.record.run_status import CHAT_FORMAT
from sojourn.render import pieces
from sojourn.train.recipe import Recipe
from sojourn.train.weights import identities


def write_facts(folder: RunFolder, recipe: Recipe, renderer: Renderer) -> None:
    """Writes the identities of all models, the note of the chat format, and the text of each token, where these are
    known."""
    folder.write_json("models.json", identities(recipe))
    if isinstance(renderer, HasNote):
        folder.write_json(CHAT_FORMAT, renderer.note)
    if (known := pieces.of(renderer)) is not None:
        vocabulary.write(folder.path, known)
