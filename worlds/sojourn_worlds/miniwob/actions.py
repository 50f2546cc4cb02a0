"""The action language: one line, one verb, names copied from the page.

    click Ok            click 80,120          type Username "bob"     type "ls"         select red
    press Enter         scroll down [NAME]    hover NAME              drag A to B       wait

Calls in brackets are understood too: `click(Ok)`, `type(3, "bob")`, `drag(4, 5)`. Parsing is strict and happens before
anything touches the page, so a malformed action leaves the world unchanged.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from dataclasses import dataclass

from sojourn.errors import ActionError
from sojourn_worlds.miniwob.page import FIELDS, Element, Page

KEYS = (
    *("Enter", "Tab", "Escape", "Backspace", "Delete", "Space", "Home", "End", "PageUp", "PageDown"),
    *("ArrowUp", "ArrowDown", "ArrowLeft", "ArrowRight", "Shift+Tab"),
    *("Control+A", "Control+C", "Control+X", "Control+V"),
)
WIDTH, HEIGHT = 160, 210  # the task area; what is beside it (the reward display) cannot be reached
MAX_TEXT_CHARS = 1000
MAX_ACTION_CHARS = 2000


@dataclass(frozen=True)
class Point:
    x: int
    y: int


Target = Element | Point


@dataclass(frozen=True, kw_only=True)
class Action:
    verb: str
    target: Target | None = None
    to: Target | None = None
    text: str = ""


def parse(text: str, page: Page) -> Action:
    """Parses an action against the page that the agent saw; raises `ActionError` where that is not possible."""
    line = text.strip()
    if len(line) > MAX_ACTION_CHARS:
        raise ActionError(f"The action has {len(line)} characters; at most {MAX_ACTION_CHARS} can be read.")
    if "\n" in line:
        raise ActionError("Say one action on one line.")
    call = re.fullmatch(r"([a-z]+)\((.*)\)", line)
    verb, rest = (call[1], _without_brackets(call[1], call[2])) if call else line.partition(" ")[::2]
    if verb not in VERBS:
        raise ActionError(f"{verb[:20]!r} is no action: use {', '.join(VERBS)}.")
    return VERBS[verb](rest.strip(), page)


def _without_brackets(verb: str, inner: str) -> str:
    """Returns the arguments of a call in brackets in the form that they have without brackets."""
    if verb == "type":
        return re.sub(r'^([^"]+?), *"', r'\1 "', inner)
    return re.sub(r", *", " to ", inner, count=1) if verb == "drag" and " to " not in inner else inner


def _target(label: str, page: Page, *, option: bool = False, disabled: bool = False) -> Target:
    point = re.fullmatch(r"(\d+), ?(\d+)", label)
    if point and not option and not page.labelled(label):
        return _point(int(point[1]), int(point[2]))
    known = [element for element in page.elements if (element.role == "option") == option]
    for match in (_exact, _with_role, _any_case):
        matches = [element for element in known if match(element, label)]
        if len(matches) == 1 or (matches and match is _exact):
            return matches[0] if disabled else _enabled(matches[0])
    near = difflib.get_close_matches(label, [element.label for element in known], n=1, cutoff=0.6)
    hint = f" Did you mean {near[0]}?" if near else ""
    raise ActionError(f"There is no {label[:40]!r} to {'select' if option else 'use'} on the page.{hint}")


def _point(x: int, y: int) -> Point:
    if x >= WIDTH or y >= HEIGHT:
        raise ActionError(f"{x},{y} is outside the page: x is below {WIDTH}, y below {HEIGHT}.")
    return Point(x, y)


def _exact(element: Element, label: str) -> bool:
    return element.label == label


def _with_role(element: Element, label: str) -> bool:
    return f"{element.role} {element.label}" == label


def _any_case(element: Element, label: str) -> bool:
    return element.label.lower() == label.lower()


def _enabled(element: Element) -> Element:
    if element.state == "disabled":
        raise ActionError(f"{element.label[:40]} is disabled.")
    return element


def _require(rest: str, usage: str) -> str:
    if not rest:
        raise ActionError(f"Say: {usage}")
    return rest


def _click(rest: str, page: Page) -> Action:
    return Action(verb="click", target=_target(_require(rest, "click NAME"), page))


def _hover(rest: str, page: Page) -> Action:
    return Action(verb="hover", target=_target(_require(rest, "hover NAME"), page))


def _type(rest: str, page: Page) -> Action:
    match = re.fullmatch(r'(?:(?P<label>.+?) )?"(?P<text>.*)"', rest)
    if not match:
        raise ActionError('Say: type NAME "text"')
    if len(match["text"]) > MAX_TEXT_CHARS:
        raise ActionError(f"The text has {len(match['text'])} characters; at most {MAX_TEXT_CHARS} can be typed.")
    if match["label"] is None:
        return Action(verb="type", text=match["text"])
    target = _target(match["label"], page)
    if isinstance(target, Element) and target.role not in FIELDS:
        raise ActionError(f"{target.label[:40]} is a {target.role}: nothing can be typed into it.")
    return Action(verb="type", target=target, text=match["text"])


def _select(rest: str, page: Page) -> Action:
    return Action(verb="select", target=_target(_require(rest, "select OPTION"), page, option=True))


def _press(rest: str, page: Page) -> Action:
    if rest not in KEYS:
        raise ActionError(f"{rest[:20]!r} is no key: use {', '.join(KEYS)}.")
    return Action(verb="press", text=rest)


def _scroll(rest: str, page: Page) -> Action:
    direction, _, label = rest.partition(" ")
    if direction not in ("up", "down"):
        raise ActionError("Say: scroll up, or: scroll down")
    target = _target(label, page, disabled=True) if label else None
    if isinstance(target, Point):
        raise ActionError("Scroll something by its name, or the page without one.")
    return Action(verb="scroll", target=target, text=direction)


def _drag(rest: str, page: Page) -> Action:
    for cut in re.finditer(" to ", rest):
        try:
            return Action(verb="drag", target=_target(rest[: cut.start()], page), to=_target(rest[cut.end() :], page))
        except ActionError:
            if " to " not in rest[cut.end() :]:
                raise
    raise ActionError("Say: drag NAME to NAME")


def _wait(rest: str, page: Page) -> Action:
    if rest:
        raise ActionError("Say only: wait")
    return Action(verb="wait")


VERBS: dict[str, Callable[[str, Page], Action]] = {
    "click": _click,
    "type": _type,
    "select": _select,
    "press": _press,
    "scroll": _scroll,
    "hover": _hover,
    "drag": _drag,
    "wait": _wait,
}
