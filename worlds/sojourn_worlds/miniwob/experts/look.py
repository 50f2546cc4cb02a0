"""What the experts share: how they find things on a page, and the actions that they build."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from sojourn.errors import InfrastructureError
from sojourn_worlds.miniwob.page import Element, Page, elements_of

Expert = Callable[[Page], str]
FIELDS = ("textbox", "password", "textarea", "date", "time", "spinbutton")


def quoted(page: Page) -> list[str]:
    return re.findall(r'"([^"]*)"', page.goal)


def click(element: Element) -> str:
    return f"click {element.label}"


def fail(page: Page, what: str) -> InfrastructureError:
    """Says what is missing: one play of the expert is lost, which is tried again, and not the run."""
    shown = ", ".join(element.name for element in page.elements)[:300]
    return InfrastructureError(f"the expert finds no {what} on the page, whose goal is {page.goal!r}: it shows {shown}")


def named(page: Page, name: str, *roles: str) -> Element:
    """Returns the first element of that name; of any role, where no role is given."""
    matching = [e for e in (elements_of(page, *roles) if roles else page.elements) if e.name == name]
    if not matching:
        raise fail(page, f"{' or '.join(roles)} {name!r}".strip())
    return matching[0]


def press(page: Page, name: str = "Submit") -> str:
    """Clicks the button that ends the task."""
    return click(named(page, name, "button", "item"))


def enter(element: Element, text: str) -> str:
    return f'type {element.label} "{text}"'


def fill(page: Page, wanted: Iterable[tuple[Element, str]], submit: str = "Submit") -> str:
    """Types what is missing, field by field, then presses the button."""
    for element, text in wanted:
        if element.value != text:
            return enter(element, text)
    return press(page, submit)


def only(page: Page, *roles: str) -> Element:
    elements = elements_of(page, *(roles or FIELDS))
    if not elements:
        raise fail(page, " or ".join(roles or FIELDS))
    return elements[0]


def nth(page: Page) -> int:
    """Returns the ordinal that the goal names: 1 for "1st"."""
    match = re.search(r"(\d+)(st|nd|rd|th)\b", page.goal)
    if not match:
        raise fail(page, "place such as 2nd")
    return int(match[1])


def prose(page: Page) -> str:
    """Returns the text that is shown beside elements, line by line."""
    return "\n".join(part for part in page.in_order if isinstance(part, str))


def sections(page: Page, *roles: str) -> list[tuple[str, list[Element]]]:
    """Groups the elements of the given roles under the text that was shown last before each."""
    groups: list[tuple[str, list[Element]]] = []
    text, fresh = [], True
    for part in page.in_order:
        if isinstance(part, str):
            text = [part] if fresh else [*text, part]
            fresh = False
        elif part.role in roles:
            if not fresh or not groups:
                groups.append(("\n".join(text), []))
            fresh = True
            groups[-1][1].append(part)
    return groups
