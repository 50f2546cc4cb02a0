"""An agent that searches by Monte Carlo tree search, with the policy as the prior."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

from sojourn.config.fields import Range
from sojourn.config.unused import refuse_unused
from sojourn.searchers.ahead import Ahead, Position
from sojourn.searchers.critique import Critique
from sojourn.searchers.tree_search import TreeSearch
from sojourn.types import Turn


@dataclass(eq=False)
class Node:
    """A position of the tree, after the action `text` of the seat `agent`; `totals` are the sums of what simulations
    through it were worth to each seat, and `ranked` is what a critique holds the action to be worth, if one was
    asked."""

    position: Position
    parent: Node | None = None
    agent: str = ""
    text: str = ""
    prior: float = 1.0
    ranked: float | None = None
    visits: int = 0
    totals: dict[str, float] = field(default_factory=lambda: defaultdict[str, float](float))
    children: list[Node] | None = None

    def mean(self, seat: str) -> float:
        return self.totals[seat] / self.visits if self.visits else 0.0

    def path(self) -> Iterator[Node]:
        """Yields this node, its parent, and so on up to the root."""
        node: Node | None = self
        while node is not None:
            yield node
            node = node.parent


@dataclass(frozen=True, kw_only=True)
class MCTS(TreeSearch):
    """Monte Carlo tree search: `simulations` times it goes down the tree to a new position, values it by `rollouts`,
    and adds that to all positions on the way; then it takes the action with the most "visits", or with the highest
    "value" (`final`).

    On the way down it takes the action of the highest Q + `c` * P * sqrt(N) / (1 + n) (PUCT of AlphaZero: Silver et al.
    2017, arXiv:1712.01815). Q is the mean worth to the seat that acts, scaled to 0 ... 1 by the least and greatest
    worth in the tree, as MuZero does (Schrittwieser et al. 2019, arXiv:1911.08265); N and n are the visits of the
    position and of the action, and the prior P is the fraction of the `width` samples that were this action, or with
    `prior` = "uniform" the same for all. An action that was not tried yet has the Q of its position. Where several
    seats act, each is searched for what is best for itself.

    With `rule` = "uct" it is Q + `c` * sqrt(ln N / n) instead, and each action is tried once first, as LATS has it
    (Zhou et al. 2023, arXiv:2310.04406, eq. 1, with w = `c`). LATS values a position by a prompt of the model beside
    the agreement of its samples; here it is played to the end, as in Agent Q (Putta et al. 2024, arXiv:2408.07199).
    With a `critique`, the policy ranks the actions of a position, and Q is mixed with that.
    """

    simulations: Annotated[int, Range(1)] = 16
    c: Annotated[float, Range(0)] = 1.25
    rule: Literal["puct", "uct"] = "puct"
    prior: Literal["policy", "uniform"] = "policy"
    final: Literal["visits", "value"] = "visits"
    critique: Critique | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rule == "uct":
            refuse_unused(self, ["prior"], 'with rule = "uct", which has no prior')

    async def search(self, ahead: Ahead) -> Sequence[Turn]:
        root, bounds = Node(ahead.root), Bounds()
        for _ in range(self.simulations):
            if not ahead.left:
                break
            leaf = self._descend(root, bounds)
            if not leaf.position.over and leaf.children is None and (leaf.visits or leaf is root):
                await self._expand(ahead, leaf)
                leaf = self._descend(leaf, bounds)
            valued = await ahead.valued(leaf.position, self.rollouts, self.critic)
            bounds.include(valued.worths.values())
            for node in leaf.path():
                node.visits += 1
                for seat, worth in valued.worths.items():
                    node.totals[seat] += worth
            if self.ends_search(ahead, valued):
                self._record(ahead, root)
                return ahead.plan(valued.best)
        self._record(ahead, root)
        tried = [child for child in root.children or () if child.visits]
        best = max(tried, key=lambda child: self._rank(child, ahead.name, bounds), default=None)
        return ahead.plan(best.position if best is not None else None)[:1]

    def _rank(self, child: Node, seat: str, bounds: Bounds) -> tuple[float, float]:
        rank = float(child.visits), self._q(child, child, seat, bounds)
        return rank if self.final == "visits" else (rank[1], rank[0])

    def _descend(self, node: Node, bounds: Bounds) -> Node:
        """Returns the node below which nothing is known yet, by the best actions on the way."""
        while node.children:
            seat, visits = node.position.actor, node.visits
            scores = [
                self._q(child, child if child.visits else node, seat, bounds) + self._bonus(child, visits)
                for child in node.children
            ]
            node = node.children[scores.index(max(scores))]
        return node

    def _q(self, child: Node, known: Node, seat: str, bounds: Bounds) -> float:
        """Returns the Q of an action, 0 to 1, of which is known what the position `known` is worth."""
        found = bounds.scaled(known.mean(seat))
        return found if self.critique is None or child.ranked is None else self.critique.mixed(found, child.ranked)

    def _bonus(self, child: Node, visits: int) -> float:
        """Returns what speaks for trying an action again at a position with as many visits."""
        if self.rule == "puct":
            return self.c * child.prior * math.sqrt(visits) / (1 + child.visits)
        return self.c * math.sqrt(math.log(visits) / child.visits) if child.visits else math.inf

    async def _expand(self, ahead: Ahead, node: Node) -> None:
        tried = await ahead.expand(node.position, self.width)
        count, texts = sum(one.times for one in tried), [one.text for one in tried]
        ranked: list[float] | None = None
        if self.critique is not None:
            ranked = await self.critique.worths(ahead, node.position, texts)
        node.children = [
            Node(
                one.position,
                node,
                one.agent,
                one.text,
                one.times / count if self.prior == "policy" else 1 / len(tried),
                None if ranked is None else ranked[number],
            )
            for number, one in enumerate(tried)
        ]

    def _record(self, ahead: Ahead, root: Node) -> None:
        """Records all actions of the tree, those of a position after the position's own."""
        waiting = [(root, -1)]
        for node, number in waiting:
            for child in node.children or ():
                value = child.mean(child.agent) if child.visits else math.nan
                waiting.append((child, ahead.consider(child.text, value, child.visits, number, child.agent)))


@dataclass
class Bounds:
    """The least and the greatest worth in a tree."""

    least: float = math.inf
    greatest: float = -math.inf

    def include(self, worths: Iterable[float]) -> None:
        for worth in worths:
            self.least, self.greatest = min(self.least, worth), max(self.greatest, worth)

    def scaled(self, worth: float) -> float:
        """Returns a worth as a fraction of the way from the least to the greatest; 0.5 where all are equal."""
        return (worth - self.least) / (self.greatest - self.least) if self.greatest > self.least else 0.5
