"""The pages of the shop and the links between them: one description, shown as text or served as HTML.

The pages and buttons are WebShop's (Yao et al. 2022, arXiv:2207.01206, figure 1): search, results, item, description,
features. They differ in that a results line is short, reviews and images are missing, and the goal is not repeated.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote, urlencode

from sojourn.errors import ActionError
from sojourn_worlds.shop.catalogue import Catalogue, Product, generate
from sojourn_worlds.shop.original import load
from sojourn_worlds.shop.search import Index, words

BUY, NEXT, PREVIOUS, BACK = "Buy Now", "Next >", "< Prev", "Back to Search"
PARTS = ("Description", "Features")
LONGEST_QUERY = 200
ACTION = re.compile(r"(search|click)\[([^\n]*)\]", re.IGNORECASE)


class State(NamedTuple):
    """Says where a shopper is: at a part of an item, an item, a page (from 1) of results, or (page 0) the search
    page."""

    query: str = ""
    page: int = 0
    product: str = ""
    chosen: tuple[tuple[str, str], ...] = ()  # (option, value), by name
    part: str = ""


SEARCH_PAGE = State()


class Link(NamedTuple):
    """A thing to click; `to` is None where the click buys."""

    label: str
    to: State | None
    chosen: bool = False


class Action(NamedTuple):
    verb: str
    argument: str


def parse(text: str) -> Action:
    """Returns the action that a text says; raises `ActionError` where it is none."""
    match = ACTION.fullmatch(text.strip())
    if not match:
        raise ActionError(f'"{text.strip()[:30]}" is no action, say search[words] or click[name].')
    action = Action(match[1].lower(), " ".join(match[2].split()))
    if action.verb == "search" and not words(action.argument):
        raise ActionError("There are no words to search for, say search[words].")
    if action.verb == "search" and len(action.argument) > LONGEST_QUERY:
        raise ActionError(f"That search is too long, use at most {LONGEST_QUERY} letters.")
    return action


def address(state: State) -> str:
    """Returns the state as the path and query of a web address; `web` reads it back."""
    if not state.page:
        return ""
    fields = [("q", state.query), ("page", str(state.page))]
    if not state.product:
        return f"search?{urlencode(fields)}"
    fields += [(f"option.{name}", value) for name, value in state.chosen]
    part = f"/{state.part.lower()}" if state.part else ""
    return f"item/{quote(state.product, safe='')}{part}?{urlencode(fields)}"


@dataclass(frozen=True, eq=False)
class Store:
    """A catalogue with its search engine, and `results_per_page` products on a page of results."""

    catalogue: Catalogue
    index: Index
    results_per_page: int

    def apply(self, state: State, action: Action) -> State | None:
        """Returns the state that an action leads to, None for buying; raises `ActionError` where the action is
        impossible.
        """
        if action.verb == "search":
            if state.page:
                raise ActionError(f"There is no search box here, say click[{BACK}] first.")
            return State(action.argument, 1)
        for link in self.links(state):
            if link.label.lower() == action.argument.lower():
                return link.to
        raise ActionError(f'There is no "{action.argument[:30]}" to click here.')

    def purchase(self, texts: Iterable[str]) -> State | None:
        """Returns the state in which the actions of a play buy something, None where they do not; those that are
        refused change nothing."""
        state = SEARCH_PAGE
        for text in texts:
            try:
                after = self.apply(state, parse(text))
            except ActionError:
                continue
            if after is None:
                return state
            state = after
        return None

    def links(self, state: State) -> list[Link]:
        return [piece for line in self.lines(state) for piece in line if isinstance(piece, Link)]

    def text(self, state: State) -> str:
        """Returns a page as text; a chosen option value has a star."""
        return "\n".join("".join(_piece_text(piece) for piece in line) for line in self.lines(state))

    def lines(self, state: State) -> list[list[str | Link]]:
        """Returns a page, line by line, as words and links."""
        if not state.page:
            return [["Search the shop."]]
        if not state.product:
            return self._results(state)
        product = self.catalogue.by_id[state.product]
        if state.part:
            return self._part(state, product)
        return self._item(state, product)

    def pages(self, query: str) -> list[tuple[Product, ...]]:
        """Returns what a query finds, page by page."""
        results, size = self.index.search(query), self.results_per_page
        return [results[start : start + size] for start in range(0, len(results), size)]

    def _results(self, state: State) -> list[list[str | Link]]:
        pages = self.pages(state.query)
        back = Link(BACK, SEARCH_PAGE)
        if not pages:
            return [["Nothing found."], [back]]
        lines: list[list[str | Link]] = [[f"Page {state.page} of {len(pages)}"]]
        for product in pages[state.page - 1]:
            line = [Link(product.id, state._replace(product=product.id)), f" {product.title} {dollars(product.price)}"]
            lines.append(line)
        buttons = [back]
        if state.page > 1:
            buttons.append(Link(PREVIOUS, state._replace(page=state.page - 1)))
        if state.page < len(pages):
            buttons.append(Link(NEXT, state._replace(page=state.page + 1)))
        return [*lines, _joined(buttons, " | ")]

    def _item(self, state: State, product: Product) -> list[list[str | Link]]:
        chosen = dict(state.chosen)
        lines: list[list[str | Link]] = [[f"{product.title} {dollars(product.cost(chosen))}"]]
        for name in product.options:
            line: list[str | Link] = [f"{name}: "]
            clicks = [(label, pair[1]) for label, pair in product.clicks.items() if pair[0] == name]
            for number, (label, value) in enumerate(clicks):
                after = state._replace(chosen=tuple(sorted({**chosen, name: value}.items())))
                extra = product.surcharges.get((name, value), 0.0)
                line += [", "] if number else []
                line.append(Link(label, after, chosen=chosen.get(name) == value))
                line += [f" +{dollars(extra)}"] if extra else []
            lines.append(line)
        parts = [Link(part, state._replace(part=part)) for part in PARTS]
        buttons = [Link(BUY, None), *parts, *self._exit_links(state)]
        return [*lines, _joined(buttons, " | ")]

    def _part(self, state: State, product: Product) -> list[list[str | Link]]:
        texts = [product.description] if state.part == "Description" else [f"- {line}" for line in product.features]
        lines: list[list[str | Link]] = [[line] for line in texts if line]
        return [*lines, _joined(self._exit_links(state), " | ")]

    def _exit_links(self, state: State) -> list[Link]:
        before = state._replace(part="") if state.part else state._replace(product="", chosen=())
        return [Link(PREVIOUS, before), Link(BACK, SEARCH_PAGE)]


def dollars(amount: float) -> str:
    return f"${amount:g}" if amount == int(amount) else f"${amount:.2f}"


def _piece_text(piece: str | Link) -> str:
    if isinstance(piece, str):
        return piece
    return f"*{piece.label}" if piece.chosen else piece.label


def _joined(links: list[Link], separator: str) -> list[str | Link]:
    line: list[str | Link] = []
    for number, link in enumerate(links):
        line += [separator, link] if number else [link]
    return line


@lru_cache(maxsize=4)
def _shelf(count: int, seed: int, file: Path | None) -> tuple[Catalogue, Index]:
    catalogue = load(file, count, seed).catalogue if file else generate(count, seed)
    return catalogue, Index(catalogue)


@lru_cache(maxsize=16)
def open_store(count: int, seed: int, file: Path | None, results_per_page: int) -> Store:
    """Returns the store of a configuration, made on first use and shared by all episodes of the process."""
    return Store(*_shelf(count, seed, file), results_per_page)
