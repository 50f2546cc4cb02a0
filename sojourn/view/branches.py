"""The turns of a seat as a small drawing: one after another to the right, branches and new contexts below."""

from __future__ import annotations

from markupsafe import Markup

from sojourn.types import Trajectory

STEP, LANE, EDGE = 28, 26, 14  # pixels between turns, between branches, and around
RADIUS = 8


def places(trajectory: Trajectory) -> list[tuple[int, int]]:
    """Column and lane of each turn; the first to follow a turn stays in its lane, others have one of their own."""
    found: list[tuple[int, int]] = []
    followed: set[int] = set()
    lanes = 0
    for turn in trajectory.turns:
        column, lane = (found[turn.parent][0] + 1, found[turn.parent][1]) if turn.parent >= 0 else (0, lanes)
        if turn.parent >= 0 and turn.parent in followed:
            lane = lanes
        lanes = max(lanes, lane + 1)
        followed.add(turn.parent)
        found.append((column, lane))
    return found


def drawing(trajectory: Trajectory, seat: int, linked: bool) -> Markup:
    """As SVG; nothing where no turn branches. Where it is `linked`, each turn leads to its place on the page."""
    if all(turn.parent == at - 1 for at, turn in enumerate(trajectory.turns)):
        return Markup("")
    at = [(EDGE + STEP * column, EDGE + LANE * lane) for column, lane in places(trajectory)]
    lines, dots = Markup(""), Markup("")
    for number, turn in enumerate(trajectory.turns):
        x, y = at[number]
        if turn.parent >= 0:
            px, py = at[turn.parent]
            lines += Markup('<path class="twig" d="M{} {}C{} {} {} {} {} {}"/>').format(
                px, py, px + 12, py, px, y, x, y
            )
        dot = Markup('<circle class="turned" cx="{}" cy="{}" r="{}"/><text x="{}" y="{}">{}</text>').format(
            x, y, RADIUS, x, y + 3, number + 1
        )
        dots += Markup('<a href="#turn-{}.{}">{}</a>').format(seat, number, dot) if linked else dot
    width, height = max(x for x, _ in at) + EDGE, max(y for _, y in at) + EDGE
    return Markup('<svg class="branches" viewBox="0 0 {} {}" width="{}" height="{}" role="img">{}{}</svg>').format(
        width, height, width, height, lines, dots
    )
