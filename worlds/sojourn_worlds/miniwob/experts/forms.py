"""Pages that are solved by filling in fields: text, dates, lists, sliders, spinners, sums."""

from __future__ import annotations

import re
from collections.abc import Sequence

from sojourn_worlds.miniwob.experts.look import (
    Expert,
    click,
    elements_of,
    enter,
    fail,
    fill,
    named,
    nth,
    only,
    press,
    prose,
    quoted,
)
from sojourn_worlds.miniwob.page import Element, Page

MONTHS: tuple[str, ...] = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)


def _texts(page: Page, wanted: Sequence[str], submit: str = "Submit") -> str:
    return fill(page, zip(elements_of(page, "textbox", "password"), wanted, strict=True), submit)


def _enter_text(page: Page) -> str:
    return _texts(page, quoted(page)[:1])


def _enter_cased(page: Page) -> str:
    text = quoted(page)[0]
    return _texts(page, [text.upper() if "upper" in page.goal else text.lower()])


def _enter_password(page: Page) -> str:
    return _texts(page, quoted(page)[:1] * 2)


def _login_user(page: Page) -> str:
    return _texts(page, quoted(page)[:2], "Login")


def _list(page: Page) -> str:
    wanted = page.goal.removeprefix("Select ").removesuffix(" from the list and click Submit.")
    if only(page, "list").value == wanted:
        return press(page)
    return f"select {named(page, wanted, 'option').label}"


def date_of(page: Page) -> tuple[int, int, int]:
    """Returns month, day and year of the goal's date."""
    match = re.search(r"(\d\d?)/(\d\d?)/(\d{4})", page.goal)
    if not match:
        raise fail(page, "date in its goal")
    return int(match[1]), int(match[2]), int(match[3])


def pick_date(page: Page, field: Element) -> str | None:
    """Returns the next action towards the goal's date in a calendar of jQuery UI; None where the field has that
    date."""
    month, day, year = date_of(page)
    if field.value == f"{month:02d}/{day:02d}/{year}":
        return None
    header = re.search(rf"({'|'.join(MONTHS)}) (\d{{4}})", prose(page))
    if not header:
        return click(field)
    shown_month, wanted_month = int(header[2]) * 12 + MONTHS.index(header[1]), year * 12 + month - 1
    if shown_month == wanted_month:
        return click(named(page, str(day), "link"))
    return click(named(page, "Prev" if shown_month > wanted_month else "Next", "link"))


def _choose_date(page: Page) -> str:
    return pick_date(page, named(page, "Date", "textbox")) or press(page)


def _enter_date(page: Page) -> str:
    month, day, year = date_of(page)
    return fill(page, [(only(page), f"{year}-{month:02d}-{day:02d}")])


def _enter_time(page: Page) -> str:
    match = re.search(r"(\d+):(\d+) (AM|PM)", page.goal)
    if not match:
        raise fail(page, "time in its goal")
    hour = int(match[1]) % 12 + 12 * (match[3] == "PM")
    return fill(page, [(only(page), f"{hour:02d}:{match[2]}")])


def _find_word(page: Page) -> str:
    words = prose(page).split()
    return fill(page, [(only(page), re.sub(r"[.,]", "", words[nth(page) - 1]))])


def _last_word(page: Page) -> str:
    last = only(page, "textarea").value.split()[-1]
    return fill(page, [(only(page, "textbox"), last.strip(".,"))])


def _to_the_end(page: Page) -> str:
    area = only(page, "textarea")
    way, end = ("up", "above") if "to the top" in page.goal else ("down", "below")
    return f"scroll {way} {area.label}" if end in area.state else press(page)


def _table(page: Page) -> str:
    table = dict(re.findall(r"^(.+?) \| (.+)$", prose(page), re.MULTILINE))
    fields = elements_of(page, "textbox")
    if len(fields) == 1:
        asked = re.search(r"value of (.+) into", page.goal)
        if not asked:
            raise fail(page, "label in its goal")
        return fill(page, [(fields[0], table[asked[1]])])
    return fill(page, [(field, table[field.name]) for field in fields])


def _movies(page: Page) -> str:
    match = re.search(r"for (.+) movies directed by (.+) from year (\d+)", page.goal)
    if not match:
        raise fail(page, "film in its goal")
    wanted = {"genre": match[1], "director": match[2], "year": match[3], "date": match[3]}
    fields, last = elements_of(page, "textbox"), page.in_order[-2]
    names = [field.name for field in fields]
    if not names[0] and isinstance(last, str):  # labels stand below their fields
        names = [*names[1:], last]
    by_name = [
        (f, next((v for k, v in wanted.items() if k in n.lower()), "")) for f, n in zip(fields, names, strict=True)
    ]
    return fill(page, by_name, next(e.name for e in reversed(page.elements) if e.role in ("button", "item")))


def _arithmetic(page: Page) -> str:
    field = only(page, "textbox")
    match = re.search(r"(-?\d+)\s*([x×*+-])\s*(-?\d+)", f"{prose(page)} {field.name}")
    if not match:
        raise fail(page, "sum")
    one, two = int(match[1]), int(match[3])
    result = {"+": one + two, "-": one - two}.get(match[2], one * two)
    return fill(page, [(field, str(result))])


def _algebra(page: Page) -> str:
    """Solves the equation for x. Its forms are x + 2 = 43, x - 2 = 43, 2 + x = 43 and 43 - x = 2."""
    match = re.search(r"(x|\d+)\s*([+-])\s*(x|\d+)\s*=\s*(-?\d+)", prose(page))
    if not match:
        raise fail(page, "equation")
    one, sign, two, result = match.groups()
    if one == "x":
        x = int(result) - int(two) if sign == "+" else int(result) + int(two)
    else:
        x = int(result) - int(one) if sign == "+" else int(one) - int(result)
    return fill(page, [(only(page, "textbox"), str(x))])


def _transform(page: Page) -> str:
    return fill(page, [(only(page, "textbox"), prose(page).replace(" ", "").strip())])


def _guess(page: Page) -> str:
    field, hint = only(page), re.search(r"(higher|lower) than (\d+)", prose(page))
    guess = "5" if not hint else str(int(hint[2]) + (1 if hint[1] == "higher" else -1))
    return fill(page, [(field, guess)])


def _spinner(page: Page) -> str:
    """Sets the spinner by arrow keys, since its field takes no text."""
    field, wanted = only(page, "textbox", "spinbutton"), int(_number(page))
    value = int(field.value or 0)
    if value == wanted:
        return press(page)
    keys = ("press ArrowUp", "press ArrowDown")
    return keys[wanted < value] if _on(page, field, keys) else click(field)


def _number(page: Page) -> str:
    match = re.search(r"-?\d+", page.goal)
    if not match:
        raise fail(page, "number in its goal")
    return match[0]


def _slide(page: Page, slider: Element, value: int, wanted: int, page_of: int = 4) -> str | None:
    """Returns the next key that moves a slider, or the click that gives it the focus; None where its value is right. It
    has the focus where only keys were pressed since it was clicked."""
    if value == wanted:
        return None
    if not _on(page, slider, ("press ArrowRight", "press ArrowLeft", "press PageUp", "press PageDown")):
        return click(slider)
    far = abs(wanted - value) >= page_of
    if wanted > value:
        return "press PageUp" if far else "press ArrowRight"
    return "press PageDown" if far else "press ArrowLeft"


def _on(page: Page, slider: Element, keys: Sequence[str]) -> bool:
    """Returns whether only keys were pressed since the slider was clicked."""
    for action in reversed(page.actions_taken):
        if action not in keys:
            return action == click(slider)
    return False


def _slider(page: Page) -> str:
    return _slide(page, only(page, "slider"), int(prose(page)), int(_number(page)), page_of=99) or press(page)


def _sliders(page: Page) -> str:
    wanted = re.findall(r"-?\d+", page.goal)
    values = [part for part in page.in_order if isinstance(part, str)]
    for slider, value, goal in zip(elements_of(page, "slider"), values, wanted, strict=True):
        if action := _slide(page, slider, int(value), int(goal)):
            return action
    return press(page)


def _sequence(page: Page) -> str:
    """Sets a slider, then a checkbox."""
    number = next(part for part in page.in_order if isinstance(part, str))
    if action := _slide(page, only(page, "slider"), int(number), int(_number(page)), page_of=99):
        return action
    for index, box in enumerate(elements_of(page, "checkbox"), 1):
        if (index == nth(page)) != (box.state == "on"):
            return click(box)
    return press(page)


def _sequence_2(page: Page) -> str:
    """Chooses a radio button, then types a number into a field."""
    match = re.search(r"(\d)\w\w radio button.* (\d)\w\w textbox", page.goal)
    if not match:
        raise fail(page, "places in its goal")
    radio = elements_of(page, "radio")[int(match[1]) - 1]
    if radio.state != "on":
        return click(radio)
    number, place = quoted(page)[0], int(match[2])
    return fill(page, [(e, number if n == place else "") for n, e in enumerate(elements_of(page, "textbox"), 1)])


def _autocomplete(page: Page) -> str:
    start, *end = quoted(page)
    field = named(page, "Tags", "textbox")
    fits = [e for e in elements_of(page, "item") if e.name.startswith(start) and e.name.endswith(end[0] if end else "")]
    if field.value.startswith(start) and field.value.endswith(end[0] if end else "") and not fits:
        return press(page)
    return click(fits[0]) if fits else enter(field, start)


def _copy(page: Page) -> str:
    areas, field = elements_of(page, "textarea"), only(page, "textbox")
    area = areas[nth(page) - 1 if len(areas) > 1 else 0]
    if field.value == area.value:
        return press(page)
    steps = [click(area), "press Control+A", "press Control+C", click(field), "press Control+A", "press Control+V"]
    done = next((n for n in range(len(steps) - 1, 0, -1) if list(page.actions_taken[-n:]) == steps[:n]), 0)
    return steps[done]


def _agreement(page: Page) -> str:
    if "Scroll" not in page.goal:
        return click(named(page, "Cancel", "button"))
    name, wanted = quoted(page)
    field = named(page, "Name", "textbox")
    if field.state == "disabled":
        return f"scroll down {only(page, 'textarea').label}"
    return fill(page, [(field, name)], wanted)


FORMS: dict[str, Expert] = {
    "choose-date": _choose_date,
    "choose-date-easy": _choose_date,
    "choose-date-medium": _choose_date,
    "choose-date-nodelay": _choose_date,
    "choose-list": _list,
    "copy-paste": _copy,
    "copy-paste-2": _copy,
    "enter-date": _enter_date,
    "enter-password": _enter_password,
    "enter-text": _enter_text,
    "enter-text-2": _enter_cased,
    "enter-text-dynamic": _enter_text,
    "enter-time": _enter_time,
    "find-word": _find_word,
    "form-sequence": _sequence,
    "form-sequence-2": _sequence_2,
    "guess-number": _guess,
    "login-user": _login_user,
    "multi-layouts": _movies,
    "multi-orderings": _movies,
    "read-table": _table,
    "read-table-2": _table,
    "scroll-text": _last_word,
    "scroll-text-2": _to_the_end,
    "sign-agreement": _agreement,
    "simple-algebra": _algebra,
    "simple-arithmetic": _arithmetic,
    "text-transform": _transform,
    "use-autocomplete": _autocomplete,
    "use-autocomplete-nodelay": _autocomplete,
    "use-slider": _slider,
    "use-slider-2": _sliders,
    "use-spinner": _spinner,
}
