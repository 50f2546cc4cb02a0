"""A scripted expert: it chooses the next call from what is shown now, and where that is not enough, from the calls
before.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from sojourn_worlds.desktop.tasks import NOTES, Job

ESCAPE = 'key("Escape")'
SLOTS = [(x, y) for y in (-70, 0, 70) for x in (-100, -34, 34, 100)]  # around the middle of a box


def advise(job: Job, screen: Mapping[str, Any], past: Sequence[str]) -> str:
    if job.right(screen):
        return "done()"
    if job.kind == "edit":
        return _edit(job, screen, past)
    widgets = screen["widgets"]["widgets"] if screen["widgets"] else []
    chosen = {"form": _form, "calculator": _calculator, "board": _board}[job.kind](job, widgets, past)
    return chosen or _click(_one(widgets, "button", job.spec["save"]))  # pyright: ignore[reportOptionalSubscript]


def _follow(steps: Sequence[str], past: Sequence[str]) -> str:
    """Returns the next of the steps, of which the first may have just been done."""
    for count in range(len(steps) - 1, 0, -1):
        if list(past[-count:]) == list(steps[:count]):
            return steps[count]
    return steps[0]


def _type(text: str) -> str:
    return f"type({json.dumps(text, ensure_ascii=False)})"


def _edit(job: Job, screen: Mapping[str, Any], past: Sequence[str]) -> str:
    active = [window for window in screen["windows"] if window["active"]]
    if len(active) != 1 or NOTES not in active[0]["title"]:
        return ESCAPE
    return _follow(['key("ctrl+a")', _type(job.wanted.rstrip("\n")), 'key("ctrl+s")'], past)


def _one(widgets: Sequence[Mapping[str, Any]], role: str, name: str) -> Mapping[str, Any]:
    return next(w for w in widgets if w["role"] == role and w["name"] == name)


def _click(widget: Mapping[str, Any]) -> str:
    return f"click({widget['x']}, {widget['y']})"


def _form(job: Job, widgets: Sequence[Mapping[str, Any]], past: Sequence[str]) -> str | None:
    options = [w for w in widgets if w["role"] == "option"]
    if options:  # a menu is open
        right = [w for w in options if w["name"] in job.wanted.values()]
        return _click(right[0]) if right else ESCAPE
    for field in job.spec["fields"] if job.spec else ():
        name, kind = field["name"], field["kind"]
        goal = job.wanted[name]
        if kind == "entry":
            widget = _one(widgets, "entry", name)
            if widget["value"] != goal:
                return _follow([_click(widget), 'key("ctrl+a")', _type(goal)], past)
        elif kind == "check":
            widget = _one(widgets, "checkbox", name)
            if (widget["value"] == "on") != goal:
                return _click(widget)
        elif kind == "radio":
            widget = _one(widgets, "radio", goal)
            if widget["value"] != "on":
                return _click(widget)
        elif kind == "menu":
            widget = _one(widgets, "menu", name)
            if widget["value"] != goal:
                return _click(widget)
        else:
            widget = next(w for w in widgets if w["role"] == "slider" and w["name"].startswith(f"{name} "))
            value = int(widget["value"])
            if value != goal:
                focused = bool(past) and (past[-1] == _click(widget) or _slid(past))
                return f'key("{"Right" if value < goal else "Left"}")' if focused else _click(widget)
    return None


def _slid(past: Sequence[str]) -> bool:
    """Returns whether the last calls moved a slider by keys, after a click on it."""
    for action in reversed(past):
        if action not in ('key("Right")', 'key("Left")'):
            return action.startswith("click(") and action != past[-1]
    return False


def _calculator(job: Job, widgets: Sequence[Mapping[str, Any]], past: Sequence[str]) -> str | None:
    display, steps = _one(widgets, "label", "Display")["value"], job.steps
    if display == job.wanted["Display"]:
        return None
    if display == steps:
        key = "="
    elif display == "0":
        key = steps[0]
    else:
        key = steps[len(display)] if steps.startswith(display) else "C"
    return _click(_one(widgets, "button", key))


def _board(job: Job, widgets: Sequence[Mapping[str, Any]], past: Sequence[str]) -> str | None:
    shapes, boxes = ([w for w in widgets if w["role"] == role] for role in ("shape", "box"))
    for shape in shapes:
        goal = job.wanted[shape["name"]]
        if goal == next((box["name"] for box in boxes if _inside(shape, box)), ""):
            continue
        middle = _one(boxes, "box", goal) if goal else {"x": 400, "y": 80}
        free = next((x, y) for x, y in ((middle["x"] + a, middle["y"] + b) for a, b in SLOTS)
                    if y > 50 and all(abs(o["x"] - x) > 40 or abs(o["y"] - y) > 40 for o in shapes))  # fmt: skip
        return f"drag({shape['x']}, {shape['y']}, {free[0]}, {free[1]})"
    return None


def _inside(shape: Mapping[str, Any], box: Mapping[str, Any]) -> bool:
    return all(abs(shape[at] - box[at]) <= box[size] / 2 - 18 for at, size in (("x", "w"), ("y", "h")))
