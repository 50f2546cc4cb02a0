"""The text of a page: one short line per element, named so that an action can copy its words.

    button Ok                       click Ok
    textbox Username: bob           type Username "alice"
    checkbox abc: on                click abc
    options red | green             select green
    circle blue 57,103 20x20        click 57,103

A name that occurs again gets a number, `Ok (2)`; a form field without a name is called by its role, `textbox (2)`;
other nameless elements and drawn shapes are called by the coordinates of their centre. There are no quotation marks, so
that a name has the same tokens in the page as in the action.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

NAMED_BY_POSITION = frozenset(
    {"item", "image", "canvas"}
)  # roles that are called by coordinates when they have no name
FIELDS = frozenset(
    {"textbox", "textarea", "password", "spinbutton", "date", "time", "month", "week", "color", "slider"}
)


@dataclass(frozen=True, kw_only=True)
class Element:
    """An element of the page that an action can name by `label`. `option` is its index where it is an option of a
    list."""

    id: int
    role: str
    name: str
    label: str
    value: str = ""
    state: str = ""
    option: int = -1
    x: int = 0
    y: int = 0
    w: int = 0
    h: int = 0


@dataclass(frozen=True, kw_only=True)
class Page:
    """One reading of a page. `raw` is the page's own reward, and counts only when `done`.

    `in_order` lists what is shown from top to bottom, with text as strings; `actions_taken` the episode's actions so
    far.
    """

    text: str
    elements: tuple[Element, ...]
    goal: str
    done: bool
    raw: float
    in_order: tuple[Element | str, ...] = ()
    actions_taken: tuple[str, ...] = ()

    def labelled(self, label: str) -> list[Element]:
        return [element for element in self.elements if element.label == label]


@dataclass(frozen=True, kw_only=True)
class PageReader:
    """Turns the browser's report of a page into a `Page`."""

    refs: str
    filler: bool
    longest: int

    def __call__(self, report: Mapping[str, Any], page: str = "") -> Page:
        names = _Names(self.refs)
        lines, in_order, text = [], [], ""
        for entry in report["entries"]:
            if entry["kind"] in ("text", "cell"):
                text += f" {entry['text']}" if entry["kind"] == "text" else " |"
                continue
            lines += (prose := self._prose(text))
            text, known = "", len(names.elements)
            if entry["kind"] in ("element", "shape"):
                lines += names.lines(self._plain(entry), shape=entry["kind"] == "shape")
            elif entry["kind"] in ("dom", "domtext"):
                lines.append(names.markup(entry))
            in_order += [*prose, *names.elements[known:]]
        last = self._prose(text)
        whole = page or "\n".join([*lines, *last]) or "(empty page)"
        return Page(
            text=whole if len(whole) <= self.longest else whole[: self.longest] + "…",
            elements=tuple(names.elements),
            goal=str(report["goal"]),
            done=bool(report["done"]),
            raw=float(report["raw"]),
            in_order=(*in_order, *last),
        )

    def _plain(self, entry: Mapping[str, Any]) -> Mapping[str, Any]:
        """Returns the entry without a name that was taken from filler text beside it."""
        return entry if self.filler or not entry.get("borrowed") else {**entry, "name": ""}

    def _prose(self, text: str) -> list[str]:
        line = text.strip(" |")
        return [line] if line and self.filler else []


class _Names:
    """Labels the elements of one reading, and collects them."""

    def __init__(self, refs: str) -> None:
        self.refs = refs
        self.elements: list[Element] = []
        self._seen: Counter[str] = Counter()

    def _label(self, wanted: str) -> str:
        if self.refs == "number":
            return str(len(self.elements) + 1)
        self._seen[wanted] += 1
        return wanted if self._seen[wanted] == 1 else f"{wanted} ({self._seen[wanted]})"

    def _add(self, entry: Mapping[str, Any], label: str, **changed: Any) -> None:
        kept = {key: entry[key] for key in ("id", "role", "name", "value", "state", "x", "y", "w", "h")}
        self.elements.append(Element(**{**kept, **changed}, label=label))

    def lines(self, entry: Mapping[str, Any], *, shape: bool) -> Iterable[str]:
        role, name, place = entry["role"], entry["name"], f"{entry['x']},{entry['y']}"
        placed = shape or (not name and role in NAMED_BY_POSITION)
        label = place if placed and self.refs == "name" else self._label(name or role)
        self._add(entry, label)
        if placed:
            line = _shape_line(entry, place)
        elif self.refs == "name":
            line = f"{role} {label}" if name else label
        else:
            line = f"{role} {name}".strip()
        yield (f"{label} " if self.refs == "number" else "") + line + _value_suffix(entry)
        if entry["options"]:
            yield "options " + " | ".join(self._options(entry))

    def _options(self, entry: Mapping[str, Any]) -> Iterable[str]:
        for index, name in enumerate(entry["options"]):
            label = self._label(name)
            self._add(entry, label, role="option", name=name, option=index)
            yield label if self.refs == "name" else f"{label} {name}"

    def markup(self, entry: Mapping[str, Any]) -> str:
        """Returns one line of the DOM reading; the numbers are those of the page's own `core.getDOMInfo`."""
        indent = " " * entry["depth"]
        if entry["kind"] == "domtext":
            return indent + entry["text"]
        self._add(entry, str(entry["ref"]))
        for index, name in enumerate(entry["options"]):
            self._add(entry, f"{entry['ref']}.{index + 1}", role="option", name=name, option=index)
        mark = f"#{entry['mark']}" if entry["mark"] else ""
        name = f" {entry['name']}" if entry["name"] else ""
        value = f" ={entry['value']}" if entry["value"] else ""
        options = " | ".join(f"{entry['ref']}.{i + 1} {name}" for i, name in enumerate(entry["options"]))
        return f"{indent}{entry['ref']} {entry['tag']}{mark}{name}{value}" + (f" [{options}]" if options else "")


def _shape_line(entry: Mapping[str, Any], place: str) -> str:
    role, name, size = entry["role"], entry["name"], f"{entry['w']}x{entry['h']}"
    if role == "line":
        return f"line {name}"
    if role.startswith("poly"):
        paint, _, points = name.partition(" ")
        return f"{role} {paint} {place} {size}: {points}"
    return " ".join(part for part in (role, name, place, size) if part)


def _value_suffix(entry: Mapping[str, Any]) -> str:
    value = "*" * len(entry["value"]) if entry["role"] == "password" else entry["value"]
    details = ", ".join(part for part in (value, entry["state"]) if part)
    return f": {details}" if details else ""


def choices(page: Page) -> tuple[str, ...]:
    """Returns every click and select that is possible now, as actions."""
    actions = [
        f"{'select' if element.role == 'option' else 'click'} {element.label}"
        for element in page.elements
        if element.state != "disabled"
    ]
    return tuple(dict.fromkeys(actions))


def elements_of(page: Page, *roles: str) -> Sequence[Element]:
    return [element for element in page.elements if element.role in roles]
