"""Pages of drawn shapes, and all that is dragged."""

from __future__ import annotations

import re

from sojourn_worlds.miniwob.experts.look import Expert, click, elements_of, fail, named, nth, only, press
from sojourn_worlds.miniwob.page import Element, Page

SHAPES = ("circle", "rect", "polygon", "text")
KINDS = {"circle": "circle", "rectangle": "rect", "triangle": "polygon"}
LARGE = 15  # pixels, of a side: large shapes have 20, small ones 10; of letters the height counts


def at(x: float, y: float) -> str:
    return f"{round(x)},{round(y)}"


def _spot(element: Element) -> str:
    return at(element.x, element.y)


def _middle(box: Element) -> str:
    """Returns a point within a frame that is not its centre: that would name the frame, of which only the line can be
    touched."""
    return at(box.x + 2, box.y + 2)


def _drawn(page: Page, *roles: str) -> list[Element]:
    return list(elements_of(page, *(roles or SHAPES)))


def _paint(element: Element) -> str:
    words = element.name.split()
    if element.role == "text":
        return words[1] if len(words) > 1 else "black"
    return words[0] if words else ""


def _fits(element: Element, wanted: str) -> bool:
    """Returns whether a shape is what a goal calls "small red letter", "large item", "blue 7" ..."""
    *words, kind = wanted.split()
    letter = element.name.split()[0] if element.role == "text" else ""
    kinds = {
        "item": True,
        "letter": letter.isalpha(),
        "digit": letter.isdigit(),
        "shape": element.role != "text",
        **{name: element.role == role for name, role in KINDS.items()},
    }
    if not kinds.get(kind, letter == kind):
        return False
    size = element.h if element.role == "text" else max(element.w, element.h)
    large = size > LARGE
    return all(word == ("large" if large else "small") if word in ("large", "small") else word == _paint(element)
               for word in words)  # fmt: skip


def _click_shape(page: Page) -> str:
    wanted = page.goal.removeprefix("Click on a ")
    return click(next(e for e in _drawn(page) if _fits(e, wanted)))


def _count_shape(page: Page) -> str:
    wanted = page.goal.removeprefix("How many ").removesuffix("s are there?")
    return click(named(page, str(sum(_fits(e, wanted) for e in _drawn(page))), "button"))


def _identify(page: Page) -> str:
    shape = _drawn(page)[0]
    letter = shape.name.split()[0] if shape.role == "text" else ""
    kinds = {"circle": "Circle", "rect": "Rectangle", "polygon": "Triangle"}
    return click(named(page, kinds.get(shape.role) or ("Letter" if letter.isalpha() else "Number"), "button"))


def _ascending(page: Page) -> str:
    return click(_drawn(page)[0])


def _pie(page: Page) -> str:
    """Clicks the item once the pie has opened, which takes a while; before, clicks the sign in the middle, which opens
    it."""
    wanted = re.findall(r'"([^"]*)"', page.goal)[0]
    texts = [e for e in elements_of(page, "text") if e.h > 10]
    for element in texts:
        if element.name.split()[0] == wanted and element.w > 3:
            return click(element)
    return click(next(e for e in texts if e.name.startswith("+")))


def _grid(page: Page) -> str:
    match = re.search(r"\((-?\d),(-?\d)\)", page.goal)
    circles = elements_of(page, "circle")
    if not match:
        raise fail(page, "point in its goal")
    across, down = sorted({e.x for e in circles}), sorted({e.y for e in circles}, reverse=True)
    x, y = across[int(match[1]) + 2], down[int(match[2]) + 2]
    return click(next(e for e in circles if (e.x, e.y) == (x, y)))


def _addition(page: Page) -> str:
    field = only(page, "textbox")
    total = str(len(elements_of(page, "box")))
    return press(page) if field.value == total else f'type {field.label} "{total}"'


def _line(page: Page) -> str:
    """Drags a line through the dot; once it is drawn, which shows as a path, presses the button."""
    if elements_of(page, "path"):
        return press(page)
    dot = only(page, "circle")
    if "vertical" in page.goal:
        return f"drag {at(dot.x, dot.y - 25)} to {at(dot.x, dot.y + 25)}"
    return f"drag {at(dot.x - 20, dot.y)} to {at(dot.x + 20, dot.y)}"


def _box(page: Page) -> str:
    small, large = named(page, "s", "item"), named(page, "L", "item")
    inside = abs(small.x - large.x) < 12 and abs(small.y - large.y) < 12
    return press(page) if inside else f"drag {_spot(small)} to {_spot(large)}"


def _one_way(page: Page) -> str:
    """Drags the shape once: after that the page does not show where it began, so the actions taken say that it is
    done."""
    if any(action.startswith("drag ") for action in page.actions_taken):
        return press(page)
    shape = next(e for e in page.elements if e.role in ("circle", "rect", "polygon", "item"))
    match = re.search(r"(left|right|up|down)", page.goal)
    if not match:
        raise fail(page, "direction in its goal")
    dx, dy = {"left": (-40, 0), "right": (40, 0), "up": (0, -40), "down": (0, 40)}[match[1]]
    return f"drag {_spot(shape)} to {at(shape.x + dx, shape.y + dy)}"


def _into(page: Page) -> str:
    """Drags all shapes of a kind into the box, which is the frame that is drawn last."""
    *shapes, box = _drawn(page, "circle", "rect", "polygon")
    match = re.search(r"all (\w+?)s into", page.goal)
    if not match:
        raise fail(page, "kind in its goal")
    for shape in shapes:
        if shape.role == KINDS[match[1]] and not _within(shape, box):
            return f"drag {_spot(shape)} to {_middle(box)}"
        if shape.role != KINDS[match[1]] and _within(shape, box):
            return f"drag {_spot(shape)} to {at(*_beside(box))}"
    return press(page)


def _within(shape: Element, box: Element) -> bool:
    return abs(shape.x - box.x) < box.w / 2 - 8 and abs(shape.y - box.y) < box.h / 2 - 8


def _beside(box: Element) -> tuple[int, int]:
    return (15 if box.x > 80 else 145), (65 if box.y > 120 else 180)


def _apart(page: Page) -> str:
    """Drags the shapes of one kind or colour into the left box, and all others into the right one."""
    *shapes, left, right = _drawn(page, "circle", "rect", "polygon")
    match = re.search(r"all (\w+?)(?: shape)?s into", page.goal)
    if not match:
        raise fail(page, "kind in its goal")
    for shape in shapes:
        chosen = shape.role == KINDS[match[1]] if match[1] in KINDS else _paint(shape) == match[1]
        box = left if chosen else right
        if not _within(shape, box):
            return f"drag {_spot(shape)} to {_middle(box)}"
    return press(page)


def _sort(page: Page) -> str:
    """Drags to each place the number that belongs there, from the first place that holds another."""
    items = [e for e in elements_of(page, "item") if re.fullmatch(r"-?\d+", e.name)]
    for here, number in zip(items, sorted(int(e.name) for e in items), strict=True):
        if int(here.name) != number:
            return f"drag {named(page, str(number), 'item').label} to {here.label}"
    return press(page)


def _reorder(page: Page) -> str:
    """Drags an item of a list of five to its place. The task's grid of nine is left out, where a straight drag does not
    always end where it points."""
    items = elements_of(page, "item")
    match = re.match(r"Drag ([\w-]+) (.*)\.", page.goal)
    if not match:
        raise fail(page, "name in its goal")
    here, where = next(index for index, e in enumerate(items) if e.name == match[1]), match[2]
    steps = {"up by one": here - 1, "down by one": here + 1, "to the top": 0, "to the bottom": len(items) - 1}
    place = next((index for words, index in steps.items() if where.startswith(words)), None)
    return f"drag {items[here].label} to {items[nth(page) - 1 if place is None else place].label}"


def _resize(page: Page) -> str:
    if any(action.startswith("drag ") for action in page.actions_taken):
        return press(page)
    area, wider = only(page, "textarea"), "width" in page.goal
    x, y = area.x + area.w // 2 - 4, area.y + area.h // 2 - 4
    by = -25 if "smaller" in page.goal else 25
    return f"drag {at(x, y)} to {at(x + by * wider, y + by * (not wider))}"


DRAWN: dict[str, Expert] = {
    "ascending-numbers": _ascending,
    "click-pie": _pie,
    "click-shape": _click_shape,
    "count-shape": _count_shape,
    "drag-box": _box,
    "drag-circle": _one_way,
    "drag-items": _reorder,
    "drag-shapes": _into,
    "drag-shapes-2": _apart,
    "drag-single-shape": _one_way,
    "drag-sort-numbers": _sort,
    "draw-line": _line,
    "grid-coordinate": _grid,
    "identify-shape": _identify,
    "resize-textarea": _resize,
    "visual-addition": _addition,
}
