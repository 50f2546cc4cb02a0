"""Pages that imitate sites: mail, posts, flights, search, contacts, menus, a terminal."""

from __future__ import annotations

import re

from sojourn_worlds.miniwob.experts.forms import pick_date
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
    sections,
)
from sojourn_worlds.miniwob.page import Element, Page

MAIL = {"reply": "reply", "trash": "trash", "star": "star"}  # what goals say of each; all others forward
NAME = r"([A-Z][\w-]+(?: [A-Z][\w-]+)?)"  # a few have two words
BY = (rf"(?:by|from) {NAME}", rf"{NAME} (?:sent|wants his)")  # whose message it is
TO = (rf"to {NAME}", rf"(?:[Ss]end|[Gg]ive|[Ff]orward) {NAME}", rf"^{NAME} (?:wants the|is waiting)")


def _mail(page: Page) -> str:
    """Opens the message, then replies to it or forwards it; marks and deletes messages in the list, without opening
    them."""
    verb = _verb(page)
    if elements_of(page, "textarea"):
        return _write(page, verb)
    if any(e.name == "close email" for e in page.elements):
        if verb in ("reply", "forward"):
            return click(named(page, verb.capitalize(), "item"))
        return click(named(page, verb, "item"))
    mails = [e for e in elements_of(page, "item") if e.name not in ("open search", "trash", "star")]
    wanted = next((e for e in mails if e.name.startswith(f"{_who(page, BY)} ")), None)
    if wanted is None:
        raise fail(page, "message")
    if verb in ("reply", "forward"):
        return click(wanted)
    following = page.elements[page.elements.index(wanted) :]
    return click(next(e for e in following if e.name == verb))


def _verb(page: Page) -> str:
    goal = re.sub(r'"[^"]*"', "", page.goal)
    return next((verb for verb, word in MAIL.items() if word in goal), "forward")


def _who(page: Page, patterns: tuple[str, ...]) -> str:
    match = next(filter(None, (re.search(pattern, page.goal) for pattern in patterns)), None)
    if not match:
        raise fail(page, "name in its goal")
    return match[1]


def _write(page: Page, verb: str) -> str:
    area = only(page, "textarea")
    if verb == "reply":
        text = quoted(page)[0]
        return click(named(page, "send reply", "item")) if area.value == text else enter(area, text)
    to, wanted = named(page, "to", "textbox"), _who(page, TO)
    return click(named(page, "send forward", "item")) if to.value == wanted else enter(to, wanted)


def _post(page: Page) -> str:
    match = re.search(r"user (@[\w]+), click on the \"(.+)\"", page.goal)
    if not match:
        raise fail(page, "user in its goal")
    user, what = match[1], match[2]
    mine = next(items for text, items in sections(page, "item") if user in text.split())
    names = (what, f"{what} {user}", what.lower())
    return click(next((e for e in mine if e.name in names), None) or next(e for e in mine if e.name == "more"))


def _posts(page: Page) -> str:
    """Clicks a button on all posts of a user, or on as many as the goal says."""
    user, what = re.search(r"by (@\w+)", page.goal), quoted(page)[0].lower()
    if not user:
        raise fail(page, "user in its goal")
    counted = re.search(r"on (\d+) post", page.goal)
    posts = sections(page, "item")
    mine = [e for text, items in posts if user[1] in text.split() for e in items if e.name == what]
    wanted = [e.id for e in (sorted(mine, key=lambda e: e.state != "on")[: int(counted[1])] if counted else mine)]
    for element in elements_of(page, "item"):
        if (element.id in wanted) != (element.state == "on"):
            return click(element)
    return press(page)


def _search(page: Page) -> str:
    """Searches, then turns to the page of the wanted result, and clicks it. There are three results to a page, and the
    links below them are the pages."""
    field, wanted = only(page, "textbox"), quoted(page)[0]
    if field.value != wanted:
        return enter(field, wanted)
    links = elements_of(page, "link")
    results = [e for e in links if not re.fullmatch(r"\d|<|>", e.name)]
    if not results or click(named(page, "Search", "button")) not in _since(page, enter(field, wanted)):
        return click(named(page, "Search", "button"))
    number, (leaf, index) = nth(page), divmod(nth(page) - 1, 3)
    if results[index].name == wanted and _leaf(page) == leaf + 1:
        return click(results[index])
    if _leaf(page) == leaf + 1:
        raise fail(page, f"result {number}")
    return click(named(page, str(leaf + 1), "link"))


def _since(page: Page, action: str) -> tuple[str, ...]:
    return (
        page.actions_taken[len(page.actions_taken) - page.actions_taken[::-1].index(action) :]
        if action in page.actions_taken
        else page.actions_taken
    )


def _leaf(page: Page) -> int:
    """Returns which page of results is shown, from the clicks since the last search."""
    number = 1
    for action in _since(page, click(named(page, "Search", "button"))):
        words = action.removeprefix("click ")
        link = next((e for e in page.elements if e.label == words and e.role == "link"), None)
        name = link.name if link else words
        number = int(name) if name.isdigit() else number + {"<": -1, ">": 1}.get(name, 0)
    return number


def _contact(page: Page) -> str:
    match = re.search(r"Find ([\w-]+) in .* (phone|email|address)", page.goal)
    if not match:
        raise fail(page, "name in its goal")
    if prose(page).split()[0] == match[1]:
        return click(elements_of(page, "link")[("phone", "email", "address").index(match[2])])
    return click(named(page, ">", "link"))


def _food(page: Page) -> str:
    """Orders dishes by name, or a number of dishes of a kind, which the pictures beside each show."""
    dishes = _dishes(page)
    if match := re.search(r"Order (\d+) items that are ([\w-]+)", page.goal):
        fitting = [name for name, (_, _, kinds, _) in dishes.items() if match[2].lower() in kinds]
        wanted = {name: index < int(match[1]) for index, name in enumerate(fitting)}
    else:
        wanted = dict.fromkeys(page.goal.removeprefix("Order one of each item: ").split(", "), True)
    for name, (minus, plus, _, count) in dishes.items():
        goal = int(wanted.get(name, False))
        if count != goal:
            return click(plus if count < goal else minus)
    return press(page, "Order!")


def _dishes(page: Page) -> dict[str, tuple[Element, Element, list[str], int]]:
    dishes: dict[str, tuple[Element, Element, list[str], int]] = {}
    name, kinds, count, minus = "", [], 0, None
    for part in page.in_order:
        if isinstance(part, str):
            if part.isdigit():
                count = int(part)
            else:
                name, kinds, count = part, [], 0
        elif part.role == "image":
            kinds = [*kinds, part.name]
        elif part.name == "-":
            minus = part
        elif part.name == "+" and minus is not None:
            dishes[name] = (minus, part, kinds, count)
    return dishes


def _flight(page: Page) -> str:
    match = re.search(r"the (\w+) one-way flight from: (.+) to: (.+) on", page.goal)
    if not match:
        raise fail(page, "flight in its goal")
    if offers := [e for e in elements_of(page, "button") if e.name.startswith("Book flight")]:
        if match[1] == "cheapest":
            return click(min(offers, key=lambda e: int(re.sub(r"\D", "", e.name))))
        times = [_minutes(text) for text in re.findall(r"Duration:\s+(\d+h \d+m)", prose(page))]
        return click(min(zip(times, offers, strict=True), key=lambda pair: pair[0])[1])
    for name, place in (("From", match[2]), ("To", match[3])):
        field = named(page, name, "textbox")
        if place not in field.value or "(" not in field.value:
            offered = [e for e in elements_of(page, "item") if place in e.name]
            return click(offered[0]) if offered else enter(field, place)
    return pick_date(page, named(page, "Departure Date", "textbox")) or click(named(page, "Search", "button"))


def _minutes(text: str) -> int:
    hours, rest = text.removesuffix("m").split("h ")
    return int(hours) * 60 + int(rest)


def _terminal(page: Page) -> str:
    """Lists the files, then removes the one that the goal asks for."""
    lines = prose(page).splitlines()
    ending = re.search(r"extension (\.[\w.]*\w)", page.goal)
    listed = next((lines[n + 1] for n, line in enumerate(lines[:-1]) if line.endswith("$ ls")), None)
    if listed is None:
        command = "ls"
    else:
        files = listed.split()
        command = "rm " + next(f for f in files if (f.endswith(ending[1]) if ending else "." not in f))
    return (
        "press Enter" if page.actions_taken and page.actions_taken[-1] == f'type "{command}"' else f'type "{command}"'
    )


def _popup(page: Page) -> str:
    """Closes the notice that may cover the form, then fills in the form."""
    for element in elements_of(page, "button", "link", "item"):
        if element.name in ("Cancel", "x"):
            return click(element)
    name, password = quoted(page)[:2]
    return fill(page, [(named(page, "Username"), name), (named(page, "Password"), password)], "OK")


SITES: dict[str, Expert] = {
    "book-flight": _flight,
    "book-flight-nodelay": _flight,
    "email-inbox": _mail,
    "email-inbox-delete": _mail,
    "email-inbox-forward": _mail,
    "email-inbox-forward-nl": _mail,
    "email-inbox-important": _mail,
    "email-inbox-noscroll": _mail,
    "email-inbox-reply": _mail,
    "email-inbox-star-reply": _mail,
    "login-user-popup": _popup,
    "order-food": _food,
    "phone-book": _contact,
    "search-engine": _search,
    "social-media": _post,
    "social-media-all": _posts,
    "social-media-some": _posts,
    "terminal": _terminal,
}
