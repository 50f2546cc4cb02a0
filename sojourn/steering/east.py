"""Entropic activation steering (EAST): a direction of the residual stream along which a policy is less certain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sojourn.errors import ConfigError
from sojourn.types import FloatArray


@dataclass(frozen=True)
class Decisions:
    """The decisions of one play: the hidden states (T, H) after a layer at the last token of each prompt, and the
    entropy (T,) of the policy's actions there, in nats."""

    states: FloatArray
    entropies: FloatArray


def east(plays: Sequence[Decisions]) -> FloatArray:
    """Returns the steering vector (H,): u = 1/Z sum_k sum_t h_t^k (z_t^k - mean_t' z_t'^k), where z are the hidden
    states of play k and h the entropies of its decisions (Rahn, D'Oro and Bellemare 2024, arXiv:2406.00244).

    Z is the sum of all entropies, so that u is the mean state of decisions, weighted by their entropy, from which the
    mean state of each decision's own play was taken away. A play of one decision adds nothing. Of the paper a reader's
    account was read: that Z is this sum, and the mean that of the same play, follows from it, not from the text.
    """
    total = sum(float(play.entropies.sum(dtype=np.float64)) for play in plays)
    if not total > 0:
        raise ConfigError(
            f"all decisions of {len(plays)} plays are certain: their entropy is 0, and tells no direction: name steps "
            "in which the policy did not always do the same"
        )
    vector = np.zeros(plays[0].states.shape[1])
    for play in plays:
        states = play.states.astype(np.float64)
        vector += play.entropies.astype(np.float64) @ (states - states.mean(axis=0))
    if not vector.any():
        raise ConfigError(
            "no play has decisions that differ, but EAST compares the decisions of one play: name a stage whose plays "
            "have several turns"
        )
    return (vector / total).astype(np.float32)
