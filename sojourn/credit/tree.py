"""The turns of plays that fork, as the nodes of a tree."""

from __future__ import annotations

from typing import NamedTuple

from sojourn.types import Group


class Node(NamedTuple):
    """A turn, by the number of the trajectory that trains it in `group.trajectories` (`Group.holders`) and its own."""

    holder: int
    turn: int


def paths(group: Group) -> list[list[Node]]:
    """Returns the nodes of each trajectory, from its first turn to its last: (T,) each."""
    return [[Node(holder, turn) for turn, holder in enumerate(holders)] for holders in group.holders]


def leaves(group: Group) -> dict[Node, list[int]]:
    """Returns, for each node, the numbers of the trajectories that share the turn."""
    found: dict[Node, list[int]] = {}
    for number, path in enumerate(paths(group)):
        for node in path:
            found.setdefault(node, []).append(number)
    return found
