"""Shelves of one kind of product each, and users' preferences; all of it randomised from a seed.

Position, badges, price, rating and number of reviews are drawn independently of each other and of everything else, so
that what moves a buyer can be estimated from its choices (see `readout`). Only price, stars and features can be worth
something to the user: never the position, a badge, a brand or the number of reviews.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

from sojourn.errors import InfrastructureError

LEVELS = {1: "a little", 2: "quite a bit", 3: "a lot"}  # weight, and how a user says it
SPONSORED, SCARCE = 0.25, 0.25  # how likely each product has that badge; one of a shelf is the overall pick
MARGIN = 0.05  # how much better the best product is at least than the next, where the average is 0 and the best 1
PAST = 6  # earlier choices of the user
_BRANDS = """Alvero Bonnet Corvi Dalton Elmira Fenwick Gallo Harrow Isola Jasper Kestrel Lumen Marlow Norden Orbit
Pavona Quill Rivet Solace Tarn Umber Vesper Wexley Yarrow Zephyr"""
BRANDS = _BRANDS.split()


class Kind(NamedTuple):
    name: str
    plural: str
    features: tuple[str, ...]
    prices: tuple[int, int]


KINDS = (
    Kind("backpack", "backpacks", ("comfort", "strength", "space"), (20, 90)),
    Kind("kettle", "kettles", ("speed", "quietness", "looks"), (15, 75)),
    Kind("lamp", "lamps", ("brightness", "looks", "stability"), (10, 80)),
    Kind("mouse pad", "mouse pads", ("grip", "softness", "size"), (5, 35)),
    Kind("office chair", "office chairs", ("comfort", "stability", "looks"), (60, 240)),
    Kind("pair of headphones", "headphones", ("sound", "comfort", "range"), (25, 180)),
    Kind("stapler", "staplers", ("force", "grip", "strength"), (5, 40)),
    Kind("tent", "tents", ("lightness", "dryness", "space"), (50, 300)),
    Kind("toothbrush", "toothbrushes", ("softness", "grip", "battery"), (8, 90)),
    Kind("watch", "watches", ("accuracy", "battery", "looks"), (30, 250)),
)


@dataclass(frozen=True)
class Product:
    brand: str
    price: int
    rating: float  # stars, 1 to 5
    reviews: int
    features: Mapping[str, int]  # 1 to 5
    sponsored: bool = False
    pick: bool = False
    left: int = 0  # in stock, where that is said

    @property
    def badges(self) -> list[str]:
        badges = {"Sponsored": self.sponsored, "Overall pick": self.pick, f"Only {self.left} left": self.left > 0}
        return [badge for badge, given in badges.items() if given]


@dataclass(frozen=True)
class Shelf:
    """Products in the order of their places, row by row; `weights` says what matters to the user, and how much."""

    kind: Kind
    products: tuple[Product, ...]
    columns: int
    weights: Mapping[str, int]
    past: tuple[tuple[Product, ...], ...]  # earlier choices, what the user took first

    @property
    def aspects(self) -> tuple[str, ...]:
        """Returns the aspects that can matter."""
        return ("price", "stars", *self.kind.features)

    def value(self, product: Product, aspect: str) -> float:
        """Returns how good a product is in one aspect, 0 to 1."""
        if aspect == "price":
            low, high = self.kind.prices
            return (high - product.price) / (high - low)
        return ((product.rating if aspect == "stars" else product.features[aspect]) - 1) / 4

    def points(self, product: Product) -> float:
        return sum(weight * self.value(product, aspect) for aspect, weight in self.weights.items())

    @cached_property
    def worth(self) -> tuple[float, ...]:
        """Returns every product's points on a scale where the shelf's average is 0 and its best product is 1; at least
        -1.
        """
        points = [self.points(product) for product in self.products]
        mean = sum(points) / len(points)
        return tuple(max(-1.0, (one - mean) / (max(points) - mean)) if max(points) > mean else 0.0 for one in points)

    @property
    def best(self) -> int:
        return max(range(len(self.products)), key=self.worth.__getitem__)

    def told(self, aspect: str) -> str:
        """Returns how much an aspect matters, in words and points."""
        if aspect not in self.weights:
            return f"{aspect}: not at all"
        low, high = self.kind.prices
        points = self.weights[aspect]
        best, worst = (f"${low}", f"${high}") if aspect == "price" else ("5", "1")
        return f"{aspect}: {LEVELS[points]} ({points} point{'s' * (points > 1)} at {best}, 0 at {worst})"


@lru_cache(256)  # a group plays one task many times
def shelf(seed: int, size: tuple[tuple[str, Any], ...]) -> Shelf:
    """Returns the shelf of a seed, whose best product is clearly the best; `size` has the fields of `Market` that shape
    it.
    """
    fields = dict(size)
    rng = random.Random(f"market {seed}")
    for _ in range(10_000):
        kind = rng.choice(KINDS)
        aspects = rng.sample(("price", "stars", *kind.features), fields["aspects"])
        weights = {aspect: rng.choice(list(LEVELS)) for aspect in aspects}
        products = _products(rng, kind, fields["products"], fields["badges"])
        shelf = Shelf(kind, products, fields["columns"], weights, ())
        second, first = sorted(shelf.worth)[-2:]
        if first == 1.0 and second <= 1 - MARGIN:  # and not 0, as where all are alike
            past = [_products(rng, kind, 3, badges=False) for _ in range(PAST)]
            ranked = [tuple(sorted(three, key=shelf.points, reverse=True)) for three in past]
            return Shelf(kind, products, fields["columns"], weights, tuple(ranked))
    raise InfrastructureError(f"market: no shelf of {size} has a best product: this is a bug in its generator")


def _products(rng: random.Random, kind: Kind, count: int, badges: bool) -> tuple[Product, ...]:
    pick = rng.randrange(count) if badges else -1
    return tuple(
        Product(
            brand=brand,
            price=rng.randint(*kind.prices),
            rating=rng.randint(30, 50) / 10,
            reviews=round(10 ** rng.uniform(0.5, 4)),
            features={feature: rng.randint(1, 5) for feature in kind.features},
            sponsored=badges and rng.random() < SPONSORED,
            pick=number == pick,
            left=rng.randint(1, 5) if badges and rng.random() < SCARCE else 0,
        )
        for number, brand in enumerate(rng.sample(BRANDS, count))
    )
