"""What losses choose among the tokens of each minibatch, by the weights that it is about to update."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sojourn.abilities import Chooses
from sojourn.protocols import Loss, Trainer
from sojourn.types import Batch


async def choose(part: Batch, losses: Sequence[Loss], trainer: Trainer) -> Batch:
    """Returns a minibatch with the columns that losses make of it right before its update.

    Where a loss makes any, the trainer's present weights score the tokens first, which costs one pass without
    gradients for each minibatch. What is chosen so does not depend on how the minibatch is divided for memory.
    """
    choosing = [loss for loss in losses if isinstance(loss, Chooses) and loss.chooses]
    if not choosing or not part.weight.any():
        return part
    logprobs = (await trainer.forward(part)).logprobs
    made = {name: values for loss in choosing for name, values in loss.choose(part, logprobs).items()}
    return replace(part, streams={**part.streams, **made})
