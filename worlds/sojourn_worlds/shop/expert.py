"""The expert policy: it searches for words of the goal, opens a product that satisfies it, chooses options, and buys.

It reads the catalogue to tell which results are worth opening, and looks for any product that earns the whole reward,
the goal's target or not. It is a function of the state alone, so it goes on from wherever a policy stopped.
"""

from __future__ import annotations

from collections.abc import Sequence

from sojourn_worlds.shop.catalogue import Product
from sojourn_worlds.shop.reward import Goal, judge, serves
from sojourn_worlds.shop.store import BACK, BUY, LONGEST_QUERY, NEXT, PREVIOUS, State, Store


def advise(store: Store, goal: Goal, state: State) -> str:
    """Returns the next action towards a reward of 1."""
    if not state.page:
        return f"search[{_query(store, goal)}]"
    if not state.product:
        return f"click[{_result(store, goal, state)}]"
    wanted = plan(store.catalogue.by_id[state.product], goal)
    if state.part or wanted is None:
        return f"click[{PREVIOUS}]"
    return f"click[{_option(store.catalogue.by_id[state.product], wanted, dict(state.chosen))}]"


def plan(product: Product, goal: Goal) -> dict[str, str] | None:
    """Returns the options to choose for the whole reward, None where the product cannot earn it."""
    chosen: dict[str, str] = {}
    for want in goal.options:
        pairs = [pair for pair in product.clicks.values() if pair[0] not in chosen and serves(pair, want)]
        if not pairs:
            return None
        name, value = min(pairs, key=lambda pair: (pair[1] != want[1], product.surcharges.get(pair, 0.0)))
        chosen[name] = value
    return chosen if judge(product, chosen, goal).reward == 1.0 else None


def queries(goal: Goal) -> list[str]:
    """Returns what to search for, the target's own title last."""
    options = [value for _, value in goal.options]
    candidates = [
        " ".join([*goal.attributes, goal.target.kind]),
        " ".join([*goal.attributes, goal.target.kind, *options]),
        goal.target.title,
    ]
    return [query[:LONGEST_QUERY] for query in candidates]


def _query(store: Store, goal: Goal) -> str:
    candidates = queries(goal)
    for query in candidates:
        if any(_good(page, goal) for page in store.pages(query)):
            return query
    return candidates[-1]


def _good(products: Sequence[Product], goal: Goal) -> list[Product]:
    return [product for product in products if plan(product, goal) is not None]


def _result(store: Store, goal: Goal, state: State) -> str:
    """Returns the first product on this page that can earn the whole reward; else the link towards the nearest page
    with one.
    """
    pages = store.pages(state.query)
    if not pages:
        return BACK
    if here := _good(pages[state.page - 1], goal):
        return here[0].id
    if any(_good(page, goal) for page in pages[state.page :]):
        return NEXT
    return PREVIOUS if any(_good(page, goal) for page in pages[: state.page - 1]) else BACK


def _option(product: Product, wanted: dict[str, str], chosen: dict[str, str]) -> str:
    """Returns the next value to click: one that the goal wants, or a cheaper one where a dearer was chosen
    needlessly."""
    target = dict(wanted)
    for name in chosen:
        values = product.options[name]
        target.setdefault(name, min(values, key=lambda value, name=name: product.surcharges.get((name, value), 0.0)))
    for label, (name, value) in product.clicks.items():
        dear = product.surcharges.get((name, chosen.get(name, "")), 0.0) > 0
        if target.get(name) == value != chosen.get(name) and (name in wanted or dear):
            return label
    return BUY
