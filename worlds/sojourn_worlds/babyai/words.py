"""The agent's view in words: things ahead and to the sides, and how far the walls are."""

from __future__ import annotations

from typing import Any


def describe(grid: Any, visible: Any, carrying: Any) -> str:
    """Returns the package's view (the agent in the middle of the lowest row, facing up) in a line or two."""
    width, height = grid.width, grid.height
    middle, last = width // 2, height - 1
    seen = [
        (forward, right, thing)
        for forward in range(height)
        for right in range(-middle, middle + 1)
        if (forward or right) and visible[middle + right, last - forward]
        and (thing := grid.get(middle + right, last - forward)) is not None
    ]  # fmt: skip
    things = sorted((abs(f) + abs(r), f, r, t) for f, r, t in _named(seen))
    walls = [where(f, r) for f, r in _nearest_walls(seen)]
    lines = [f"You see: {', '.join(f'{name} {where(f, r)}' for _, f, r, name in things) or 'nothing'}."]
    if walls:
        lines.append(f"Walls: {', '.join(walls)}.")
    if carrying:
        lines.append(f"You carry a {carrying.color} {carrying.type}.")
    return " ".join(lines)


def _named(seen: list[tuple[int, int, Any]]) -> list[tuple[int, int, str]]:
    return [(forward, right, name_of(thing)) for forward, right, thing in seen if thing.type != "wall"]


def name_of(thing: Any) -> str:
    if thing.type == "door":
        state = "open" if thing.is_open else "locked" if thing.is_locked else "closed"
        return f"{state} {thing.color} door"
    return f"{thing.color} {thing.type}"


def _nearest_walls(seen: list[tuple[int, int, Any]]) -> list[tuple[int, int]]:
    """Returns the first wall straight ahead, to the left and to the right, where it is in view."""
    walls = [(forward, right) for forward, right, thing in seen if thing.type == "wall"]
    ahead = sorted(wall for wall in walls if wall[1] == 0)
    left = sorted((wall for wall in walls if wall[0] == 0 and wall[1] < 0), reverse=True)
    right = sorted(wall for wall in walls if wall[0] == 0 and wall[1] > 0)
    return [side[0] for side in (ahead, left, right) if side]


def where(forward: int, right: int) -> str:
    parts = [f"{forward} forward"] if forward else []
    if right:
        parts.append(f"{abs(right)} {'right' if right > 0 else 'left'}")
    return " ".join(parts)
