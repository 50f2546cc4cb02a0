"""A scene of two seats: what they have to agree on, what each outcome is worth to each, and their secrets."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import product

from sojourn.tasks.splits import draw_for_seed

SEATS = ("ann", "bob")
KINDS = ("price", "split", "schedule", "contract")
THINGS = ("bicycle", "guitar", "sofa", "camera", "tent", "piano", "canoe", "printer")
GOODS = ("tea", "coffee", "honey", "cheese", "bread", "jam", "olives", "apples", "figs", "rice")
EVENTS = ("dinner", "workshop", "rehearsal", "meeting", "picnic", "lesson")
SECRETS = ("divorce", "surgery", "lottery", "bankruptcy", "prison", "pregnancy", "lawsuit", "adoption", "inheritance")

Deal = Mapping[str, str]  # an option for every issue


@dataclass(frozen=True)
class Scene:
    """`points[seat][issue][option]`; without a deal a seat has `fallback[seat]`. `secrets` must not be said."""

    about: str
    issues: Mapping[str, tuple[str, ...]]
    points: Mapping[str, Mapping[str, Mapping[str, int]]]
    fallback: Mapping[str, int]
    secrets: Mapping[str, str]

    @cached_property
    def deals(self) -> list[dict[str, str]]:
        return [dict(zip(self.issues, options, strict=True)) for options in product(*self.issues.values())]

    def gain(self, seat: str, deal: Deal) -> int:
        """Returns what a deal gives a seat beyond its fallback."""
        return sum(self.points[seat][issue][option] for issue, option in deal.items()) - self.fallback[seat]

    @cached_property
    def fair(self) -> dict[str, str]:
        """Returns the deal of the greatest product of gains (Nash 1950); of several, the first."""
        return max(self.deals, key=lambda deal: self._product(deal))

    def _product(self, deal: Deal) -> int:
        gains = [self.gain(seat, deal) for seat in SEATS]
        return gains[0] * gains[1] if min(gains) > 0 else 0

    def goal(self, seat: str, deal: Deal) -> float:
        """Returns the gain as a fraction of that of the fair deal, from 0 to 1."""
        return max(0.0, min(1.0, self.gain(seat, deal) / self.gain(seat, self.fair)))

    def material(self, seat: str, deal: Deal) -> float:
        """Returns the gain as a fraction of the greatest possible, from -1 to 1."""
        return max(-1.0, self.gain(seat, deal) / max(self.gain(seat, other) for other in self.deals))

    def favourites(self, seat: str, issue: str) -> list[str]:
        points = self.points[seat][issue]
        return [option for option in points if points[option] == max(points.values())]


def written(deal: Deal) -> str:
    return ", ".join(f"{issue}={option}" for issue, option in deal.items())


@lru_cache(512)
def draw(seed: int, kind: str) -> Scene:
    """Returns the first scene of a seed in which both can gain, and neither can have all. Of those about prices there
    are few: what is sold, with its prices, is in one split alone."""
    scene = _first(random.Random(f"social {seed}"), kind)
    if "price" not in scene.issues:
        return scene
    return draw_for_seed(seed, "social price", lambda rng: _first(rng, "price"), _content)


def _content(scene: Scene) -> str:
    return f"{scene.about} {scene.issues}"  # both seats see this, and besides what only they know


def _first(rng: random.Random, kind: str) -> Scene:
    while True:
        scene = _draw(rng, rng.choice(KINDS) if kind == "mixed" else kind)
        gains = [scene.gain(seat, scene.fair) for seat in SEATS]
        contested = any(scene.favourites("ann", i) != scene.favourites("bob", i) for i in scene.issues)
        if min(gains) >= 2 and contested:
            return scene


def _draw(rng: random.Random, kind: str) -> Scene:
    hidden = rng.sample(SECRETS, 2)
    secrets = {seat: hidden[number] for number, seat in enumerate(SEATS)}
    if kind == "price":
        about, issues, points = _price(rng)
        fallback = {seat: rng.randint(1, 4) for seat in SEATS}
    else:
        about, issues, points = {"split": _split, "schedule": _schedule, "contract": _contract}[kind](rng)
        fallback = {seat: rng.randint(0, 3) for seat in SEATS}
    return Scene(about, issues, points, fallback, secrets)


Drawn = tuple[str, dict[str, tuple[str, ...]], dict[str, dict[str, dict[str, int]]]]


def _price(rng: random.Random) -> Drawn:
    start, step = rng.choice((20, 40, 60, 100)), rng.choice((5, 10, 20))
    prices = tuple(str(start + step * number) for number in range(9))
    rising = {"price": {price: number for number, price in enumerate(prices)}}
    falling = {"price": {price: 8 - number for number, price in enumerate(prices)}}
    return f"Ann sells a {rng.choice(THINGS)} to Bob.", {"price": prices}, {"ann": rising, "bob": falling}


def _split(rng: random.Random) -> Drawn:
    goods = rng.sample(GOODS, 4)
    points = {seat: {good: {s: (s == seat) * rng.randint(1, 6) for s in SEATS} for good in goods} for seat in SEATS}
    return "Ann and Bob share out what is left.", dict.fromkeys(goods, SEATS), points


def _schedule(rng: random.Random) -> Drawn:
    issues = {"day": ("monday", "tuesday", "wednesday", "thursday", "friday"), "time": ("morning", "noon", "evening")}
    return f"Ann and Bob plan a {rng.choice(EVENTS)}.", issues, _free(rng, issues)


def _contract(rng: random.Random) -> Drawn:
    issues = {
        "pay": ("low", "middle", "high"),
        "start": ("now", "spring", "autumn"),
        "place": ("home", "office", "both"),
    }
    points = _free(rng, issues)
    for seat, order in (("ann", (3, 1, 0)), ("bob", (0, 1, 3))):  # Ann pays
        weight = rng.randint(1, 3)
        points[seat]["pay"] = {option: weight * value for option, value in zip(issues["pay"], order, strict=True)}
    return "Ann wants to hire Bob.", issues, points


def _free(rng: random.Random, issues: Mapping[str, tuple[str, ...]]) -> dict[str, dict[str, dict[str, int]]]:
    return {
        seat: {issue: {o: rng.randint(0, 6) for o in options} for issue, options in issues.items()} for seat in SEATS
    }
