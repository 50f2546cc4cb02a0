"""Lets branched plays be trained as if each had been played by itself, where whole trajectories are what counts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from sojourn.abilities import ComparesWholeTrajectories
from sojourn.composite import with_bases
from sojourn.types import Group


def trained_groups(components: Iterable[object], groups: Sequence[Group]) -> Sequence[Group]:
    """Returns the groups as a batch is to hold them: with branches, whose shared turns are trained once, or, where one
    of the losses and streams is of whole trajectories, with every play by itself."""
    whole = (isinstance(one, ComparesWholeTrajectories) and one.whole_trajectories for one in with_bases(components))
    return without_branches(groups) if any(whole) else groups


def without_branches(groups: Sequence[Group]) -> list[Group]:
    """Returns the groups with every play by itself, so that a turn that plays share is in each of them."""
    return [replace(group, episodes=tuple(replace(e, branch=None) for e in group.episodes)) for group in groups]
