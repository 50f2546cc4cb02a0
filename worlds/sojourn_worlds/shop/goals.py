"""Goals made from a seed, around one product of the generated catalogue.

As in WebShop's synthetic goals, a goal describes a target by kind, attributes and option values, and sets a price limit
at a multiple of ten dollars above what the target costs (the larger of two of the next four); whatever satisfies the
words is as good as the target itself. The sentences are ours. A seed belongs to one split, and the targets of the
splits are different products: those of "test" are every tenth product of the catalogue.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from sojourn_worlds.shop.catalogue import ATTRIBUTES, TITLE_ATTRIBUTES, Catalogue, Product
from sojourn_worlds.shop.reward import Goal

TENTHS = 10
HIGHEST_LIMIT = 990.0
OPENINGS = ("I need", "Find me", "Buy", "I am looking for", "Please get me", "I want")


def seed_of(split: str, number: int) -> int:
    """Returns the seed of a split's task by its number: seeds that end in 9 are "test", all others "train"."""
    if split == "test":
        return TENTHS * number + TENTHS - 1
    return TENTHS * (number // (TENTHS - 1)) + number % (TENTHS - 1)


def make_goal(catalogue: Catalogue, seed: int, size: Mapping[str, Any]) -> Goal:
    """Returns the goal of a seed; `size` has the difficulty fields of `Shop`."""
    rng = random.Random(f"goal {seed}")
    last = seed % TENTHS == TENTHS - 1
    number = rng.randrange(len(catalogue.products) // TENTHS) * TENTHS
    target = catalogue.products[number + (TENTHS - 1 if last else rng.randrange(TENTHS - 1))]
    attributes = _attributes(rng, target, size["attributes"], hidden=size["hidden"])
    names = rng.sample(sorted(target.options), size["options"])
    options = tuple((name, rng.choice(target.options[name])) for name in sorted(names))
    limit = price_limit(rng, target.cost(dict(options))) if size["price_limit"] else None
    text = _sentence(rng, target.kind, attributes, options) + limit_text(limit) + "."
    return Goal(text, target, attributes, options, limit)


def goal_of_purchase(catalogue: Catalogue, seed: int, data: Mapping[str, Any]) -> Goal:
    """Returns the goal that a purchase fulfils: `data["bought"]` names the product and has the options chosen for it.

    It asks for all of these, and for attributes and a price limit as a goal that is made from the seed would.
    """
    rng = random.Random(f"purchase {seed}")
    target, options = catalogue.by_id[data["bought"]["product"]], tuple(sorted(data["bought"]["options"].items()))
    attributes = _attributes(rng, target, data["attributes"], hidden=data["hidden"])
    limit = price_limit(rng, target.cost(dict(options))) if data["price_limit"] else None
    text = _sentence(rng, target.kind, attributes, options) + limit_text(limit) + "."
    return Goal(text, target, attributes, options, limit)


def split_of(catalogue: Catalogue, product: Product) -> str:
    """Returns the split in whose tasks a product may be the target."""
    return "test" if catalogue.products.index(product) % TENTHS == TENTHS - 1 else "train"


def _attributes(rng: random.Random, target: Product, count: int, *, hidden: bool) -> tuple[str, ...]:
    """Draws attributes; those that the title names come first, unless they are to be hidden."""
    in_title, others = target.attributes[:TITLE_ATTRIBUTES], target.attributes[TITLE_ATTRIBUTES:ATTRIBUTES]
    first = () if hidden else rng.sample(in_title, min(count, len(in_title)))
    return (*first, *rng.sample(others, count - len(first)))


def price_limit(rng: random.Random, cost: float) -> float | None:
    """Returns the larger of two of the next four multiples of ten above the cost; None where fewer than two are
    left."""
    start = 10.0 * (int(cost // 10) + 1)
    above = [limit for limit in (start, start + 10, start + 20, start + 30) if limit <= HIGHEST_LIMIT]
    return max(rng.sample(above, 2)) if len(above) >= 2 else None


def limit_text(limit: float | None) -> str:
    return "" if limit is None else f", price under {limit:g} dollars"


def _sentence(rng: random.Random, kind: str, attributes: tuple[str, ...], options: tuple[tuple[str, str], ...]) -> str:
    what = ", ".join(attributes) + " " + kind if attributes else kind
    extras = " and ".join(f"{name} {value}" for name, value in options)
    return f"{rng.choice(OPENINGS)} {what}" + (f" with {extras}" if extras else "")
