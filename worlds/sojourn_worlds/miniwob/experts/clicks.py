"""Pages that are solved by clicking what the goal names: buttons, links, tabs, menus, boxes."""

from __future__ import annotations

import re
from itertools import pairwise

from sojourn_worlds.miniwob.experts.look import Expert, click, elements_of, fail, named, nth, only, press, prose, quoted
from sojourn_worlds.miniwob.page import Element, Page

PAINTS = {"grey": "gray", "cyan": "aqua"}  # the names that readings use


def _button(page: Page) -> str:
    return click(named(page, quoted(page)[0], "button"))


def _dialog(page: Page) -> str:
    return click(named(page, "x", "button"))


def _link(page: Page) -> str:
    return click(named(page, quoted(page)[0].strip(), "link"))


def _checkboxes(page: Page) -> str:
    wanted = page.goal.removeprefix("Select ").removesuffix(" and click Submit.").split(", ")
    for element in elements_of(page, "checkbox"):
        if (element.name in wanted) != (element.state == "on"):
            return click(element)
    return press(page)


def _option(page: Page) -> str:
    element = named(page, page.goal.removeprefix("Select ").removesuffix(" and click Submit."), "radio")
    return press(page) if element.state == "on" else click(element)


def _tab(page: Page) -> str:
    return click(named(page, page.goal.removeprefix("Click on ").removesuffix("."), "tab"))


def _tab_link(page: Page) -> str:
    """Clicks the link where it is in sight, else the tab or section after the open one."""
    wanted = quoted(page)[0].strip()
    for element in elements_of(page, "link"):
        if element.name == wanted:
            return click(element)
    tabs = elements_of(page, "tab")
    open_tab = next((index for index, tab in enumerate(tabs) if tab.state == "open"), -1)
    return click(tabs[(open_tab + 1) % len(tabs)])


def _section(page: Page) -> str:
    section = only(page, "tab")
    return press(page) if section.state == "open" else click(section)


def _tree(page: Page) -> str:
    """Clicks the wanted file or folder where it is in sight, else the first folder that is still closed."""
    wanted, entries = quoted(page)[0], elements_of(page, "folder", "file")
    for element in entries:
        if element.name == wanted:
            return click(element)
    return click(next(element for element in entries if element.role == "folder" and element.state != "open"))


def _widget(page: Page) -> str:
    kind = quoted(page)[0]
    return click(elements_of(page, "textbox" if kind == "text" else kind)[0])


def _test(page: Page) -> str:
    return click(only(page, "button"))


def _one(page: Page) -> str:
    return click(named(page, "ONE", "button"))


def _then(page: Page) -> str:
    """Clicks ONE, then waits as many steps as the goal gives seconds, then clicks TWO."""
    one, two = named(page, "ONE", "button"), named(page, "TWO", "button")
    if click(one) not in page.actions_taken:
        return click(one)
    waited = len(page.actions_taken) - page.actions_taken.index(click(one))
    seconds = re.search(r"wait (\d+)", page.goal)
    return "wait" if seconds and waited < int(seconds[1]) else click(two)


def _colour(page: Page) -> str:
    match = re.search(r"Click on the (\w+) colored", page.goal)
    if not match:
        raise fail(page, "colour in its goal")
    return click(named(page, PAINTS.get(match[1], match[1]), "item"))


def _menu(page: Page) -> str:
    """Clicks the menu item where it is in sight; else moves the mouse over the deepest visible item on the way to
    it."""
    *way, wanted = page.goal.removeprefix("Select ").split(">")
    visible = {element.name: element for element in elements_of(page, "menuitem")}
    if wanted in visible:
        return click(visible[wanted])
    path = [name for name in way if name in visible]
    if not path:
        raise fail(page, f"item {way[0]!r}")
    return f"hover {visible[path[-1]].label}"


def _scroll_list(page: Page) -> str:
    wanted = page.goal.removeprefix("Select ").removesuffix(" from the scroll list and click Submit.").split(", ")
    chosen = [name for name in only(page, "list").value.split(", ") if name]
    for name in [*wanted, *chosen]:
        if (name in wanted) != (name in chosen):
            return f"select {named(page, name, 'option').label}"
    return press(page)


def _focus(page: Page) -> str:
    return click(elements_of(page, "textbox")[0])


def _focus_nth(page: Page) -> str:
    return click(elements_of(page, "textbox")[nth(page) - 1])


def _odd_or_even(page: Page) -> str:
    """Clicks the right one of the two buttons between which each number stands."""
    for odd, number, even in zip(page.in_order, page.in_order[1:], page.in_order[2:], strict=False):
        if isinstance(number, str) and isinstance(odd, Element) and isinstance(even, Element):
            wanted = odd if int(number) % 2 else even
            if wanted.state != "on":
                return click(wanted)
    return press(page)


def _generate(page: Page) -> str:
    text = next((part for part in page.in_order if isinstance(part, str)), "-")
    rule = re.search(r"(less|greater) than (-?\d+)|\b(odd|even)\b", page.goal)
    if not rule:
        raise fail(page, "rule in its goal")
    number = int(text) if re.fullmatch(r"-?\d+", text) else None
    if number is None:
        fits = False
    elif rule[3]:
        fits = number % 2 == (rule[3] == "odd")
    else:
        fits = number < int(rule[2]) if rule[1] == "less" else number > int(rule[2])
    return press(page) if fits else click(named(page, "Generate", "button"))


def _ticket(page: Page) -> str:
    """Clicks the button of the best flight: a button shows the price, and the duration stands above it."""
    offers = [(part, above) for above, part in pairwise(page.in_order) if isinstance(part, Element)]

    def price(offer: tuple[Element, object]) -> int:
        return int(re.sub(r"\D", "", offer[0].name))

    def minutes(offer: tuple[Element, object]) -> int:
        hours, _, rest = str(offer[1]).partition("h ")
        return int(hours) * 60 + int(rest.removesuffix("m"))

    by = minutes if "duration" in page.goal else price
    best = min if re.search(r"cheapest|shortest", page.goal) else max
    return click(best(offers, key=by)[0])


def _stock(page: Page) -> str:
    limit, price = re.search(r"\$([\d.]+\d)", page.goal), re.search(r"price: \$([\d.]+)", prose(page))
    if not limit or not price:
        raise fail(page, "price")
    return click(named(page, "Buy", "button")) if float(price[1]) < float(limit[1]) else "wait"


CLICKS: dict[str, Expert] = {
    "button-delay": _then,
    "buy-ticket": _ticket,
    "click-button": _button,
    "click-button-sequence": _then,
    "click-checkboxes": _checkboxes,
    "click-checkboxes-large": _checkboxes,
    "click-checkboxes-transfer": _checkboxes,
    "click-collapsible": _section,
    "click-collapsible-2": _tab_link,
    "click-collapsible-2-nodelay": _tab_link,
    "click-collapsible-nodelay": _section,
    "click-color": _colour,
    "click-dialog": _dialog,
    "click-dialog-2": _button,
    "click-link": _link,
    "click-menu": _menu,
    "click-option": _option,
    "click-scroll-list": _scroll_list,
    "click-tab": _tab,
    "click-tab-2": _tab_link,
    "click-tab-2-easy": _tab_link,
    "click-tab-2-hard": _tab_link,
    "click-tab-2-medium": _tab_link,
    "click-test": _test,
    "click-test-2": _one,
    "click-test-transfer": _one,
    "click-widget": _widget,
    "focus-text": _focus,
    "focus-text-2": _focus_nth,
    "generate-number": _generate,
    "navigate-tree": _tree,
    "odd-or-even": _odd_or_even,
    "stock-market": _stock,
    "unicode-test": _button,
}
