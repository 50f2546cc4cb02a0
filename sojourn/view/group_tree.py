"""Draws the plays of a group that forked as a tree: each is a line of turns, which begins where it left another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from markupsafe import Markup

from sojourn.terminal.numbers import number
from sojourn.types import Branch
from sojourn.view.branches import EDGE, LANE, RADIUS, STEP

LABEL = 60  # pixels for the reward at the end of a line


class Node(NamedTuple):
    """A turn of a play, with its place on the play's page."""

    link: str
    action: str
    advantage: float | None


class Line(NamedTuple):
    """A play, in the order of the group."""

    id: str
    branch: Branch | None
    nodes: Sequence[Node]
    reward: float | None


def tree_svg(lines: Sequence[Line]) -> Markup:
    """Returns the tree as SVG, or nothing if no play is a branch. Turns are coloured by the sign of their advantage; a
    branch begins at the turn before its fork, in the line of the play which took that turn."""
    if not any(line.branch for line in lines):
        return Markup("")
    places = {line.id: at for at, line in enumerate(lines)}
    starts = [_start(line, places) for line in lines]
    edges, dots = list[Markup](), list[Markup]()
    for at, (line, start) in enumerate(zip(lines, starts, strict=True)):
        y = EDGE + LANE * at
        before = _centre(_holder(at, start - 1, lines, starts, places), start - 1) if start else None
        for turn, node in enumerate(line.nodes[start:], start):
            x = EDGE + STEP * turn
            if before is not None:
                edges.append(_edge(*before, x, y))
            dots.append(_dot(node, x, y, turn, line.branch.reason if line.branch and turn == start else ""))
            before = x, y
        if line.reward is not None:
            end = EDGE + STEP * max(len(line.nodes) - 1, start) + 2 * RADIUS
            dots.append(Markup('<text class="leaf" x="{}" y="{}">{}</text>').format(end, y + 4, number(line.reward)))
    width = 2 * EDGE + STEP * max(len(line.nodes) for line in lines) + LABEL
    height = 2 * EDGE + LANE * (len(lines) - 1)
    return Markup('<svg class="branches" viewBox="0 0 {} {}" width="{}" height="{}" role="img">{}{}</svg>').format(
        width, height, width, height, Markup("").join(edges), Markup("").join(dots)
    )


def _start(line: Line, places: dict[str, int]) -> int:
    """Returns the number of the first turn that is the play's own; 0 also where the play that it left is not there."""
    if line.branch is None or line.branch.of not in places:
        return 0
    return min(sum(line.branch.turns), len(line.nodes))


def _holder(at: int, turn: int, lines: Sequence[Line], starts: Sequence[int], places: dict[str, int]) -> int:
    """Returns the line in which a turn that a play shares is drawn."""
    passed: set[int] = set()
    while turn < starts[at] and at not in passed:  # as damaged records may name each other
        passed.add(at)
        branch = lines[at].branch
        assert branch is not None
        at = places[branch.of]
    return at


def _centre(lane: int, turn: int) -> tuple[int, int]:
    return EDGE + STEP * turn, EDGE + LANE * lane


def _edge(px: int, py: int, x: int, y: int) -> Markup:
    return Markup('<path class="branch-edge" d="M{} {}C{} {} {} {} {} {}"/>').format(px, py, px + 12, py, px, y, x, y)


def _dot(node: Node, x: int, y: int, turn: int, reason: str) -> Markup:
    sign = "" if not node.advantage else " up" if node.advantage > 0 else " down"
    advantage = "" if node.advantage is None else f"advantage {number(node.advantage)}"
    title = "\n".join(filter(None, (node.action, advantage, reason and f"forked: {reason}")))
    return Markup(
        '<a href="{}"><circle class="turn-node{}" cx="{}" cy="{}" r="{}"><title>{}</title></circle>'
        '<text x="{}" y="{}">{}</text></a>'
    ).format(node.link, sign, x, y, RADIUS, title, x, y + 3, turn + 1)
