"""Packs the groups of a step and their credit into one batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sojourn.abilities import Chooses, HasOwnMean, columns_of
from sojourn.batch.flatten import add_up, flatten, gather
from sojourn.batch.weigh import Aggregate, weigh
from sojourn.protocols import Loss, Trainer
from sojourn.types import Batch, Credit, Group, Streams

__all__ = ["Aggregate", "choose", "to_batch"]


def to_batch(
    groups: Sequence[Group],
    credit: Sequence[Sequence[Credit]],
    streams: Streams,
    *,
    aggregate: Aggregate,
    losses: Sequence[Loss] = (),
) -> Batch:
    """Returns the step's batch: every sampled token of every trainable trajectory once, weighted by `aggregate`. A turn
    that branched plays share has their weights together, and the mean of their advantages by these weights.

    Each `HasColumns` loss then adds its columns to `streams`; a critic's targets are the stream "targets".
    """
    batch, spans = flatten(groups)
    weights = weigh(groups, aggregate)
    advantages = gather([[c.tokens for c in of_group] for of_group in credit], spans, len(batch), weights)
    if not len(batch) or any(c.targets is not None for of_group in credit for c in of_group):  # also in an empty batch
        missing = float("nan")  # the target of every token of a trajectory without targets
        targets = [[c.targets or tuple(a * missing for a in c.tokens) for c in of_group] for of_group in credit]
        streams = {**streams, "targets": targets}
    batch = replace(
        batch,
        advantages=advantages,
        weight=add_up(weights, spans, len(batch)),
        streams={name: gather(values, spans, len(batch), weights) for name, values in streams.items()},
    )
    return replace(batch, streams={**batch.streams, **columns_of(losses, batch)})


async def choose(part: Batch, losses: Sequence[Loss], trainer: Trainer) -> Batch:
    """Returns a minibatch with the columns of losses with means of their own, which are then of the minibatch, and
    those that losses compute from the present model's log-probabilities.

    Where a loss `Chooses`, the trainer scores the tokens first: one pass without gradients for each minibatch.
    """
    own = [loss for loss in losses if isinstance(loss, HasOwnMean) and loss.own_mean]
    part = replace(part, streams={**part.streams, **columns_of(own, part)})
    choosing = [loss for loss in losses if isinstance(loss, Chooses) and loss.chooses]
    if not choosing or not part.weight.any():
        return part
    logprobs = (await trainer.forward(part)).logprobs
    chosen = {name: values for loss in choosing for name, values in loss.choose(part, logprobs).items()}
    return replace(part, streams={**part.streams, **chosen})
