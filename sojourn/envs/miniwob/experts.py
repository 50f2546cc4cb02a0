"""Scripted experts: the next action from what the page shows now, so that demonstrations teach only what can be known.

They use nothing that the observation hides: `click-tab-2` and `navigate-tree` open tabs and folders in order until the
goal is in sight. Each can be asked at any point of an episode.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from sojourn.envs.miniwob.page import Element, Page, elements_of
from sojourn.errors import ConfigError

Expert = Callable[[Page], str]


class NoExpertError(ConfigError, AttributeError):
    """The page has no scripted expert; also an `AttributeError`, so that `hasattr(env, "expert")` is False there."""


def _quoted(page: Page) -> list[str]:
    return re.findall(r'"([^"]*)"', page.goal)


def _click(element: Element) -> str:
    return f"click {element.label}"


def _named(page: Page, name: str, *roles: str) -> Element:
    found = [element for element in elements_of(page, *roles) if element.name == name]
    if not found:
        raise ConfigError(f"the expert finds no {' or '.join(roles)} {name!r} on the page: its goal is {page.goal!r}")
    return found[0]


def _button(page: Page) -> str:
    return _click(_named(page, _quoted(page)[0], "button"))


def _dialog(page: Page) -> str:
    return _click(_named(page, "x", "button"))


def _link(page: Page) -> str:
    return _click(_named(page, _quoted(page)[0].strip(), "link"))


def _fill(page: Page, wanted: Sequence[str], submit: str) -> str:
    """Type what is missing, field by field, then press the button."""
    for element, text in zip(elements_of(page, "textbox", "password"), wanted, strict=True):
        if element.value != text:
            return f'type {element.label} "{text}"'
    return _click(_named(page, submit, "button"))


def _enter_text(page: Page) -> str:
    return _fill(page, _quoted(page)[:1], "Submit")


def _enter_password(page: Page) -> str:
    return _fill(page, _quoted(page)[:1] * 2, "Submit")


def _login_user(page: Page) -> str:
    return _fill(page, _quoted(page)[:2], "Login")


def _focus_text(page: Page) -> str:
    return _click(elements_of(page, "textbox")[0])


def _checkboxes(page: Page) -> str:
    wanted = page.goal.removeprefix("Select ").removesuffix(" and click Submit.").split(", ")
    for element in elements_of(page, "checkbox"):
        if (element.name in wanted) != (element.state == "on"):
            return _click(element)
    return _click(_named(page, "Submit", "button"))


def _option(page: Page) -> str:
    wanted = page.goal.removeprefix("Select ").removesuffix(" and click Submit.")
    element = _named(page, wanted, "radio")
    return _click(_named(page, "Submit", "button") if element.state == "on" else element)


def _list(page: Page) -> str:
    wanted = page.goal.removeprefix("Select ").removesuffix(" from the list and click Submit.")
    if elements_of(page, "list")[0].value == wanted:
        return _click(_named(page, "Submit", "button"))
    return f"select {_named(page, wanted, 'option').label}"


def _tab(page: Page) -> str:
    return _click(_named(page, page.goal.removeprefix("Click on ").removesuffix("."), "tab"))


def _tab_link(page: Page) -> str:
    """The link where it is in sight, else the tab after the open one."""
    wanted = _quoted(page)[0].strip()
    for element in elements_of(page, "link"):
        if element.name == wanted:
            return _click(element)
    tabs = elements_of(page, "tab")
    shown = next(index for index, tab in enumerate(tabs) if tab.state == "open")
    return _click(tabs[(shown + 1) % len(tabs)])


def _tree(page: Page) -> str:
    """The wanted file or folder where it is in sight, else the first folder that is still closed."""
    wanted, entries = _quoted(page)[0], elements_of(page, "folder", "file")
    for element in entries:
        if element.name == wanted:
            return _click(element)
    return _click(next(element for element in entries if element.role == "folder" and element.state != "open"))


def _widget(page: Page) -> str:
    kind = _quoted(page)[0]
    return _click(elements_of(page, "textbox" if kind == "text" else kind)[0])


def _test(page: Page) -> str:
    return _click(elements_of(page, "button")[0])


def _test_2(page: Page) -> str:
    return _click(_named(page, "ONE", "button"))


EXPERTS: dict[str, Expert] = {
    "choose-list": _list,
    "click-button": _button,
    "click-checkboxes": _checkboxes,
    "click-dialog": _dialog,
    "click-dialog-2": _button,
    "click-link": _link,
    "click-option": _option,
    "click-tab": _tab,
    "click-tab-2": _tab_link,
    "click-test": _test,
    "click-test-2": _test_2,
    "click-widget": _widget,
    "enter-password": _enter_password,
    "enter-text": _enter_text,
    "enter-text-dynamic": _enter_text,
    "focus-text": _focus_text,
    "login-user": _login_user,
    "navigate-tree": _tree,
}


def expert_of(page: str) -> Expert:
    if page not in EXPERTS:
        raise NoExpertError(f"miniwob has no scripted expert for {page!r}: choose pages among {', '.join(EXPERTS)}")
    return EXPERTS[page]
