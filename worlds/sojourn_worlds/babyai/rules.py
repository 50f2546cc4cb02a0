"""The actions, and which of them change nothing."""

from __future__ import annotations

from typing import Any

from sojourn_worlds.babyai.words import name_of

ACTIONS = ("turn left", "turn right", "go forward", "pick up", "drop", "toggle")  # by the package's numbers


def refusal(world: Any, action: int) -> str:
    """Returns why an action changes nothing here; empty where it changes something."""
    ahead: Any = world.grid.get(*world.front_pos)
    thing = "nothing" if ahead is None else "a wall" if ahead.type == "wall" else f"the {name_of(ahead)}"
    match ACTIONS[action]:
        case "go forward" if ahead is not None and not ahead.can_overlap():
            return f"You cannot go forward: {thing} is in the way."
        case "pick up" if world.carrying is not None:
            return f"You carry the {name_of(world.carrying)} already, drop it first."
        case "pick up" if ahead is None or not ahead.can_pickup():
            return f"You cannot pick up what is in front of you: {thing}."
        case "drop" if world.carrying is None:
            return "You carry nothing that you could drop."
        case "drop" if ahead is not None:
            return f"There is no room in front of you: {thing} is there."
        case "toggle" if ahead is None or ahead.type not in ("door", "box"):
            return f"You can toggle a door or a box in front of you, but there is {thing}."
        case "toggle" if ahead and ahead.type == "door" and ahead.is_locked and not _has_key(world, ahead):
            return f"The {ahead.color} door is locked, carry the {ahead.color} key."
    return ""


def _has_key(world: Any, door: Any) -> bool:
    return world.carrying is not None and (world.carrying.type, world.carrying.color) == ("key", door.color)
