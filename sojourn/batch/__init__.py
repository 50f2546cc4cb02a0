"""From groups and credit to one packed batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sojourn.abilities import HasColumns
from sojourn.batch.choose import choose
from sojourn.batch.flatten import flatten, gather
from sojourn.batch.weigh import Aggregate, weigh
from sojourn.protocols import Loss
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
    """The step's batch: every sampled token of every trainable trajectory exactly once, weighed for `aggregate`, with
    the columns that losses make from the step as a whole. What a critic should have said is the stream "targets"."""
    batch, places = flatten(groups)
    advantages = gather([[c.tokens for c in judged] for judged in credit], places, len(batch))
    targets = [[c.targets for c in judged if c.targets is not None] for judged in credit]
    if any(targets) or not len(batch):  # a filter may have left no group to say it
        streams = {**streams, "targets": targets}
    weights = weigh(groups, aggregate)
    batch = replace(
        batch,
        advantages=advantages,
        weight=gather(weights, places, len(batch)),
        streams={name: gather(values, places, len(batch)) for name, values in streams.items()},
    )
    columns = [loss.columns(batch) for loss in losses if isinstance(loss, HasColumns)]
    made = {name: values for some in columns for name, values in some.items()}
    return replace(batch, streams={**batch.streams, **made})
