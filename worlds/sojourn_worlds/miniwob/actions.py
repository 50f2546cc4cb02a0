"""The action language: one line, one verb, words copied from the page.

    click Ok            click 80,120          type Username "bob"     type "ls"         select red
    press Enter         scroll down [NAME]    hover NAME              drag A to B       wait

Brackets do as well: `click(Ok)`, `type(3, "bob")`, `drag(4, 5)`.
Parsing is strict and happens before anything touches the page, so a malformed action leaves the world unchanged.
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
LONGEST_TEXT = 1000
LONGEST_ACTION = 2000


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


def parse(said: str, page: Page) -> Action:
    """Read what the agent said against the page that it saw; raises `ActionError` when that is not possible."""
    line = said.strip()
    if len(line) > LONGEST_ACTION:
        raise ActionError(f"The action has {len(line)} characters; at most {LONGEST_ACTION} can be read.")
    if "\n" in line:
        raise ActionError("Say one action on one line.")
    call = re.fullmatch(r"([a-z]+)\((.*)\)", line)
    verb, rest = (call[1], _unbracketed(call[1], call[2])) if call else line.partition(" ")[::2]
    if verb not in VERBS:
        raise ActionError(f"{verb[:20]!r} is no action: use {', '.join(VERBS)}.")
    return VERBS[verb](rest.strip(), page)


def _unbracketed(verb: str, inner: str) -> str:
    """What stands in brackets, as it is said without them."""
    if verb == "type":
        return re.sub(r'^([^"]+?), *"', r'\1 "', inner)
    return re.sub(r", *", " to ", inner, count=1) if verb == "drag" and " to " not in inner else inner


def _target(label: str, page: Page, *, option: bool = False, disabled: bool = False) -> Target:
    point = re.fullmatch(r"(\d+), ?(\d+)", label)
    if point and not option and not page.labelled(label):
        return _point(int(point[1]), int(point[2]))
    known = [element for element in page.elements if (element.role == "option") == option]
    for match in (_exact, _with_role, _any_case):
        found = [element for element in known if match(element, label)]
        if len(found) == 1 or (found and match is _exact):
            return found[0] if disabled else _enabled(found[0])
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


def _needs(rest: str, usage: str) -> str:
    if not rest:
        raise ActionError(f"Say: {usage}")
    return rest


def _click(rest: str, page: Page) -> Action:
    return Action(verb="click", target=_target(_needs(rest, "click NAME"), page))


def _hover(rest: str, page: Page) -> Action:
    return Action(verb="hover", target=_target(_needs(rest, "hover NAME"), page))


def _type(rest: str, page: Page) -> Action:
    said = re.fullmatch(r'(?:(?P<label>.+?) )?"(?P<text>.*)"', rest)
    if not said:
        raise ActionError('Say: type NAME "text"')
    if len(said["text"]) > LONGEST_TEXT:
        raise ActionError(f"The text has {len(said['text'])} characters; at most {LONGEST_TEXT} can be typed.")
    if said["label"] is None:
        return Action(verb="type", text=said["text"])
    target = _target(said["label"], page)
    if isinstance(target, Element) and target.role not in FIELDS:
        raise ActionError(f"{target.label[:40]} is a {target.role}: nothing can be typed into it.")
    return Action(verb="type", target=target, text=said["text"])


def _select(rest: str, page: Page) -> Action:
    return Action(verb="select", target=_target(_needs(rest, "select OPTION"), page, option=True))


def _press(rest: str, page: Page) -> Action:
    if rest not in KEYS:
        raise ActionError(f"{rest[:20]!r} is no key: use {', '.join(KEYS)}.")
    return Action(verb="press", text=rest)


def _scroll(rest: str, page: Page) -> Action:
    way, _, label = rest.partition(" ")
    if way not in ("up", "down"):
        raise ActionError("Say: scroll up, or: scroll down")
    target = _target(label, page, disabled=True) if label else None
    if isinstance(target, Point):
        raise ActionError("Scroll something by its name, or the page without one.")
    return Action(verb="scroll", target=target, text=way)


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
