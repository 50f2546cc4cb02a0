"""The products of the shop, generated from a seed: the same seed gives the same catalogue in every process.

They stand in for the 1.18 million Amazon products of WebShop (Yao et al. 2022, arXiv:2207.01206), whose files
`original` reads. It differs in that a product's true attributes are known instead of mined from its text, prices are
whole dollars (fewer tokens), options may carry a surcharge, product numbers replace ASINs, and images and reviews are
missing.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from sojourn_worlds.shop.vocabulary import (
    BRAND_ENDS,
    BRAND_STARTS,
    CHARGED,
    DEPARTMENTS,
    OPTIONS,
    PEOPLE,
    SENTENCES,
    WISHES,
    Department,
)

TITLE_ATTRIBUTES = 2
ATTRIBUTES = 5


@dataclass(frozen=True, eq=False)
class Product:
    """A product. `attributes` begin with those that the title names; `surcharges` are dollars by (option, value)."""

    id: str
    kind: str
    category: tuple[str, ...]
    brand: str
    title: str
    attributes: tuple[str, ...]
    options: Mapping[str, tuple[str, ...]]
    price: float
    features: tuple[str, ...]
    description: str
    surcharges: Mapping[tuple[str, str], float] = field(default_factory=dict)

    @cached_property
    def text(self) -> str:
        """Returns all that the pages of the product say about it, in lower case."""
        return "\n".join([self.title, *self.features, self.description]).lower()

    @cached_property
    def clicks(self) -> dict[str, tuple[str, str]]:
        """Returns (option, value) by the label to click: the value alone, or "option: value" where two options share
        it.
        """
        pairs = [(name, value) for name, values in self.options.items() for value in values]
        values = [value for _, value in pairs]
        alone = {value for value in values if values.count(value) == 1 and value.lower() not in RESERVED}
        return {value if value in alone else f"{name}: {value}": (name, value) for name, value in pairs}

    def cost(self, chosen: Mapping[str, str]) -> float:
        return self.price + sum(self.surcharges.get(pair, 0.0) for pair in chosen.items())


RESERVED = frozenset({"buy now", "description", "features", "< prev", "next >", "back to search"})


@dataclass(frozen=True, eq=False)
class Catalogue:
    products: tuple[Product, ...]

    @cached_property
    def by_id(self) -> dict[str, Product]:
        return {product.id: product for product in self.products}


def generate(count: int, seed: int) -> Catalogue:
    """Returns `count` products, spread evenly over the kinds and in random order."""
    rng = random.Random(f"catalogue {seed}")
    shelves = [
        (department, group, kind)
        for department, stock in DEPARTMENTS.items()
        for group, kinds in stock.groups.items()
        for kind in kinds
    ]
    places = [shelves[number % len(shelves)] for number in range(count)]
    rng.shuffle(places)
    digits = len(str(count - 1))
    return Catalogue(tuple(_product(rng, f"P{n:0{digits}}", *place) for n, place in enumerate(places)))


def _product(rng: random.Random, id: str, department: str, group: str, kind: str) -> Product:
    stock = DEPARTMENTS[department]
    brand = rng.choice(BRAND_STARTS) + rng.choice(BRAND_ENDS)
    attributes = tuple(rng.sample(stock.attributes, ATTRIBUTES))
    options = _options(rng, stock)
    price = rng.randint(*stock.prices)
    words = {"brand": brand, "kind": kind, "people": rng.choice(PEOPLE), "wish": rng.choice(WISHES)}
    # The attributes that the title does not name are on one of the two pages behind the item's own.
    listed, described = attributes[:-1], attributes[-1]
    return Product(
        id=id,
        kind=kind,
        category=(department, group, kind),
        brand=brand,
        title=f"{brand} {attributes[0]} {kind}, {attributes[1]}",
        attributes=attributes,
        options=options,
        price=float(price),
        features=tuple(sorted(listed)),
        description=f"{rng.choice(SENTENCES).format(**words)} It is {described}.",
        surcharges=_surcharges(rng, options, price),
    )


def _options(rng: random.Random, stock: Department) -> dict[str, tuple[str, ...]]:
    drawn = rng.sample(stock.options, 2)
    names = [name for name in stock.options if name in drawn]
    options = {}
    for name in names:
        values = OPTIONS[name]
        kept = set(rng.sample(values, rng.randint(min(3, len(values)), min(5, len(values)))))
        options[name] = tuple(value for value in values if value in kept)
    return options


def _surcharges(rng: random.Random, options: Mapping[str, tuple[str, ...]], price: int) -> dict[tuple[str, str], float]:
    charged = [name for name in options if name in CHARGED and rng.random() < 0.5]
    step = max(1, price // 10)
    return {(name, value): float(step * rank) for name in charged for rank, value in enumerate(options[name]) if rank}
