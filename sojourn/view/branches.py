"""Draws the turns of a seat as a small tree: turns follow each other to the right, branches and new contexts go
below."""

from __future__ import annotations

from markupsafe import Markup

from sojourn.types import Trajectory

STEP, LANE, EDGE = 28, 26, 14  # pixels between turns, between lanes, and around the drawing
RADIUS = 8


def layout(trajectory: Trajectory) -> list[tuple[int, int]]:
    """Returns the column and the lane of each turn. The first child of a turn stays in its lane, others get a new
    one."""
    cells: list[tuple[int, int]] = []
    followed: set[int] = set()
    lanes = 0
    for turn in trajectory.turns:
        column, lane = (cells[turn.parent][0] + 1, cells[turn.parent][1]) if turn.parent >= 0 else (0, lanes)
        if turn.parent >= 0 and turn.parent in followed:
            lane = lanes
        lanes = max(lanes, lane + 1)
        followed.add(turn.parent)
        cells.append((column, lane))
    return cells


def branch_svg(trajectory: Trajectory, seat: int, linked: bool) -> Markup:
    """Returns the tree of turns as SVG, or nothing if no turn branches. If `linked`, each turn links to its place on
    the page."""
    if all(turn.parent == at - 1 for at, turn in enumerate(trajectory.turns)):
        return Markup("")
    centres = [(EDGE + STEP * column, EDGE + LANE * lane) for column, lane in layout(trajectory)]
    lines, dots = list[Markup](), list[Markup]()
    for number, turn in enumerate(trajectory.turns):
        x, y = centres[number]
        if turn.parent >= 0:
            px, py = centres[turn.parent]
            edge = Markup('<path class="branch-edge" d="M{} {}C{} {} {} {} {} {}"/>')
            lines.append(edge.format(px, py, px + 12, py, px, y, x, y))
        dot = Markup('<circle class="turn-node" cx="{}" cy="{}" r="{}"/><text x="{}" y="{}">{}</text>').format(
            x, y, RADIUS, x, y + 3, number + 1
        )
        dots.append(Markup('<a href="#turn-{}.{}">{}</a>').format(seat, number, dot) if linked else dot)
    width, height = max(x for x, _ in centres) + EDGE, max(y for _, y in centres) + EDGE
    return Markup('<svg class="branches" viewBox="0 0 {} {}" width="{}" height="{}" role="img">{}{}</svg>').format(
        width, height, width, height, Markup("").join(lines), Markup("").join(dots)
    )
