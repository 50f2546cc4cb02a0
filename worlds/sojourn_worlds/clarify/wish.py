"""A user's wish: what there is to order, what of it the user wants, and how it says so."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from sojourn.tasks.splits import draw_for_seed


class Attribute(NamedTuple):
    name: str
    options: tuple[str, ...]
    when: str = ""  # the option of another attribute that it depends on; it always applies where empty


def attributes_of(text: str) -> tuple[Attribute, ...]:
    """Parses `size: small large; ice: crushed cubed if iced`."""
    attributes = []
    for entry in text.split(";"):
        name, _, rest = entry.strip().partition(": ")
        options, _, when = rest.partition(" if ")
        attributes.append(Attribute(name, tuple(options.split()), when))
    return tuple(attributes)


# A value names its attribute: no two attributes of a thing share one. What depends comes after what it depends on.
THINGS = {
    "coffee": "size: small medium large; milk: oat soy dairy; serving: hot iced; syrup: vanilla caramel hazelnut; "
    "cup: mug paper glass; ice: crushed cubed if iced",
    "pizza": "base: thin thick; sauce: tomato pesto cream; cheese: mozzarella cheddar feta; handover: delivery pickup; "
    "cut: squares slices; place: door lobby if delivery",
    "taxi": "time: now tonight tomorrow; car: sedan van limousine; payment: cash card; luggage: none some lots; "
    "driver: quiet chatty; receipt: emailed printed if card",
    "shirt": "size: small medium large; colour: white blue black green; sleeves: short long; collar: round pointed; "
    "fabric: cotton linen silk; cuffs: buttoned folded if long",
    "hotel room": "bed: single double twin; view: sea city garden; breakfast: included excluded; floor: low high; "
    "stay: weekday weekend; diet: vegan vegetarian omnivore if included",
    "print job": "paper: a4 a3 letter; ink: colour grey; sides: one both; binding: staple spiral unbound; "
    "copies: ten fifty hundred; edge: left top if both",
    "bouquet": "flower: roses tulips lilies; wrap: ribbon kraft; card: written blank; vase: clay crystal; "
    "scent: strong mild; tone: funny formal if written",
    "bicycle": "frame: steel carbon; bars: flat drop; tyres: slim wide; gears: three eight twelve; "
    "power: electric manual; battery: removable fixed if electric",
}
MOST = 5  # attributes of a thing that do not depend


@dataclass(frozen=True)
class Wish:
    """A user's wish: its attributes in order, the value of each, and which of them the user said or does not mind."""

    thing: str
    attributes: tuple[Attribute, ...]
    values: Mapping[str, str]  # of all attributes, also those that do not apply or do not matter
    given: frozenset[str]
    indifferent: frozenset[str]
    indirect: frozenset[str] = frozenset()  # those of which the user says what it does not want

    def applying(self, values: Mapping[str, str]) -> list[Attribute]:
        """Returns the attributes that apply to an order, or to a part of one."""
        return [a for a in self.attributes if not a.when or a.when in values.values()]

    @property
    def hidden(self) -> list[str]:
        """Returns what has to be asked, in order."""
        return [a.name for a in self.applying(self.values) if a.name not in self.given | self.indifferent]

    def options(self, name: str) -> tuple[str, ...]:
        return next(a.options for a in self.attributes if a.name == name)

    def questions(self, name: str) -> int:
        """Returns how often the user has to be asked about an attribute until its value is known."""
        return len(self.options(name)) - 1 if name in self.indirect else 1

    @property
    def needed(self) -> int:
        """Returns how many questions have to be asked."""
        return sum(map(self.questions, self.hidden))

    def order(self) -> str:
        return ", ".join(self.values[a.name] for a in self.applying(self.values))


def draw(seed: int, size: Mapping[str, Any]) -> Wish:
    """Returns the wish of a seed. What is shown first and the right order are, together, in one split alone."""
    return draw_for_seed(seed, "clarify", lambda rng: _draw(rng, size), _content)


def _content(wish: Wish) -> str:
    given = [(name, wish.values[name]) for name in sorted(wish.given)]
    return f"{wish.thing} {[a.name for a in wish.attributes]} {given} {wish.order()}"


def _draw(rng: random.Random, size: Mapping[str, Any]) -> Wish:
    thing = rng.choice(sorted(THINGS))
    *free, depending = attributes_of(THINGS[thing])
    chosen = rng.sample(free, size["attributes"])
    if size["dependent"]:
        parent = next(a for a in free if depending.when in a.options)
        chosen = [*([] if parent in chosen else [parent]), *chosen][: size["attributes"]]
    attributes = [a for a in free if a in chosen] + ([depending] if size["dependent"] else [])
    values = {a.name: rng.choice(a.options) for a in attributes}
    given, indifferent = set(), set()
    for attribute in attributes:
        chance = rng.random()
        if not attribute.when and chance < size["given"]:
            given.add(attribute.name)
        elif not attribute.when and depending.when not in attribute.options:  # what others depend on always matters
            indifferent |= {attribute.name} if chance < size["given"] + size["indifferent"] else set()
    values |= {a.name: a.options[0] for a in attributes if a.name in indifferent}
    wish = Wish(thing, tuple(attributes), values, frozenset(given), frozenset(indifferent))
    share = size.get("indirect", 0.0)
    return replace(wish, indirect=frozenset(name for name in wish.hidden if rng.random() < share)) if share else wish
