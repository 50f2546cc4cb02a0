"""Values of turns from the plays that branched after them, and advantages of these."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal, NamedTuple

import numpy as np

from sojourn.branching.certainty import sampled_entropy
from sojourn.config.fields import Range
from sojourn.config.unused import refuse_unused
from sojourn.credit.by_turn import returns_to_go
from sojourn.credit.relative import GroupEstimator, Values, centred, per_label, seats, standardised
from sojourn.credit.tree import Node, leaves, paths
from sojourn.types import Credit, Group, Score


class Way(NamedTuple):
    """One of the ways in which plays went on: what it is worth, how many went it, and the entropy of its first turn."""

    value: float
    leaves: int = 1
    entropy: float = 0.0


class Tree(NamedTuple):
    values: Mapping[Node, float]
    ways: Mapping[Node | str, Sequence[Way]]  # after a turn or, by the seat, at the start
    leaves: Mapping[Node, Sequence[int]]


@dataclass(frozen=True, kw_only=True)
class TreeValues(GroupEstimator):
    """Credits a turn with how far its value, by the plays that branched after it, is above the value before (VinePPO:
    Kazemnejad et al. 2024, arXiv:2410.01679; TreeRL: Hou et al. 2025, arXiv:2506.11902, section 3; AT2PO: Zong et al.
    2026, arXiv:2601.04767).

    `value` says what a turn is worth: "mean", the mean return of the plays that share it, its leaves (Monte Carlo).
    With the others, values go back through the tree from fork to fork (temporal differences): "children" is the mean
    value of the ways in which plays went on, whatever the number of their leaves, "max" the largest one, and "entropy"
    their mean with weights in proportion to exp(H), where H is minus the mean log-probability of the tokens of a way's
    first turn. All are in whole returns: rewards that came before a fork are the same on its sides, and cancel.

    Turns between two forks are told apart by nothing and have the same advantage. `against` says what their value is
    measured from: "parent", the value before the last fork, above which "max" never is; "siblings", the mean value of
    the other ways in which plays went on there; "group", the mean return of all plays of the seat in the group; "both",
    the sum of the differences from parent and group. With `by_leaves` it is divided by the root of the number of
    leaves, so that turns which many plays share do not count that often: with "both" these are the global and local
    advantages of TreeRL. With `scale_by_std`, returns are divided by their standard deviation in the group first, to
    which `epsilon` is added: with "group" and "entropy" this is what AT2PO's script trains with. `discount` is that of
    a turn; as returns are of the start, the advantage of turn t has the factor discount^t.

    Without branches the advantage is the return minus its mean or, against siblings, that of RLOO. A turn that several
    plays share has the same in each. "children" and "mean" are TD(0) and TD(1); there is no lambda between them.
    VinePPO plays on from every state to value it, and does not train what it plays for that. TreeRL's code divides the
    parent's value by the root of its own leaves, and subtracts from each return the mean of the others. AT2PO's code
    keeps a given number of leaves of a tree, drawn at random.
    """

    value: Literal["mean", "children", "max", "entropy"] = "mean"
    against: Literal["parent", "siblings", "group", "both"] = "parent"
    discount: Annotated[float, Range(0, 1)] = 1.0
    by_leaves: bool = False
    scale_by_std: bool = False
    epsilon: Annotated[float, Range(0)] = 1e-6

    def __post_init__(self) -> None:
        if not self.scale_by_std:
            refuse_unused(self, ["epsilon"], "with scale_by_std = false")

    @property
    def group_relative(self) -> bool:
        return self.discount == 1

    def _credit(self, group: Group, scores: Sequence[Score]) -> list[Credit]:
        normalise = partial(standardised, epsilon=self.epsilon) if self.scale_by_std else centred
        tree = self._tree(group, per_label(seats(group), self._returns(scores), normalise))
        return [
            Credit.per_turn(trajectory, self._advantages(tree, trajectory.agent, path))
            for trajectory, path in zip(group.trajectories, paths(group), strict=True)
        ]

    def _returns(self, scores: Sequence[Score]) -> Values:
        """Returns the discounted return of each trajectory: (G,)."""
        return np.array([returns_to_go(s, self.discount)[0] if len(s.turns) else s.total for s in scores])

    def _tree(self, group: Group, returns: Values) -> Tree:
        before: dict[Node, Node | str] = {}
        ways = defaultdict[Node | str, list[Way]](list)
        for trajectory, path, total in zip(group.trajectories, paths(group), returns, strict=True):
            start = trajectory.agent
            before.update(zip(path, [start, *path], strict=False))
            ways[path[-1] if path else start].append(Way(float(total)))  # here it ended
        values, sharing = dict[Node, float](), leaves(group)
        for node in sorted(before, key=lambda node: -node.turn):  # what follows a turn comes before it
            values[node] = self._backed_up(ways[node])
            turn = group.trajectories[node.holder].turns[node.turn]
            ways[before[node]].append(Way(values[node], len(sharing[node]), sampled_entropy(turn)))
        return Tree(values, ways, sharing)

    def _backed_up(self, ways: Sequence[Way]) -> float:
        """Returns what a turn is worth by the ways in which plays went on after it."""
        values = np.array([way.value for way in ways])
        match self.value:
            case "mean":
                return float(np.average(values, weights=[way.leaves for way in ways]))
            case "children":
                return float(values.mean())
            case "max":
                return float(values.max())
            case "entropy":
                return float(np.average(values, weights=np.exp([way.entropy for way in ways])))

    def _advantages(self, tree: Tree, seat: str, path: Sequence[Node]) -> list[float]:
        """Returns the advantage of each turn of a trajectory: (T,)."""
        advantages: list[float] = []
        before = value = others = self._backed_up(tree.ways[seat])  # of the start
        for node, previous in zip(path, [seat, *path], strict=False):
            ways = tree.ways[previous]
            if len(ways) > 1 or not advantages:
                before, value = value, tree.values[node]
                others = (sum(way.value for way in ways) - value) / (len(ways) - 1) if len(ways) > 1 else value
            differences = {
                "parent": value - before,
                "siblings": value - others,
                "group": value,  # the mean return is 0 here
                "both": 2 * value - before,
            }
            advantages.append(differences[self.against] / (len(tree.leaves[node]) ** 0.5 if self.by_leaves else 1))
        return advantages
