"""The reward of a purchase, which is WebShop's (Yao et al. 2022, arXiv:2207.01206, eq. 1 and its appendix).

    r = r_type * (|U_att ∩ Y_att| + |U_opt ∩ Y_opt| + 1[y_price <= u_price]) / (|U_att| + |U_opt| + 1)

U is what the goal asks for, Y what was bought. With `match` the fraction of the type words of the target's title that
the bought title has too, r_type is 0 if match = 0; 0.1 if match < 0.1; 0.5 if match <= 0.2 and neither the kind (the
query it was crawled with) nor two levels of the category agree; else 1. A goal without a price limit counts it as kept.

It follows the authors' code (web_agent_site/engine/goal.py) and differs from it in this: type words are the words of
the title that are not stop words, numbers, the target's brand or attributes, where theirs are spaCy's nouns; similarity
is difflib's, where theirs is thefuzz's (the same bound, 0.85); there is no table of colour synonyms; each wanted option
counts at most once and only if it was chosen, where theirs also counts bought values that the product's own text names,
which lets a reward pass 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import lru_cache
from typing import NamedTuple

from sojourn_worlds.shop.catalogue import Product
from sojourn_worlds.shop.search import STOP_WORDS, words

ALIKE = 0.85
EXACT_OPTIONS = frozenset({"size"})


@dataclass(frozen=True)
class Goal:
    """Says what to buy. `options` are (name, value); a name is empty where the data do not say it."""

    instruction: str
    target: Product
    attributes: tuple[str, ...]
    options: tuple[tuple[str, str], ...]
    price_limit: float | None = None


class Judgement(NamedTuple):
    """The reward and its parts: r_type, and how many attributes, options and price limits (0 or 1) were met."""

    reward: float
    type: float
    attributes: int
    options: int
    price: int


def judge(product: Product, chosen: Mapping[str, str], goal: Goal) -> Judgement:
    """Returns the reward of buying a product with the chosen options."""
    kind = type_reward(product, goal.target)
    attributes = sum(has_attribute(product, wanted) for wanted in goal.attributes)
    options = sum(any(serves(pair, wanted) for pair in chosen.items()) for wanted in goal.options)
    price = int(goal.price_limit is None or product.cost(chosen) <= goal.price_limit)
    wanted = len(goal.attributes) + len(goal.options) + 1
    return Judgement(kind * (attributes + options + price) / wanted, kind, attributes, options, price)


def type_reward(product: Product, target: Product) -> float:
    """Returns r_type: how well the product is the kind of thing that was asked for."""
    wanted = _type_words(target)
    match = len(wanted & _title_words(product)) / len(wanted) if wanted else 0.2
    same = product.kind == target.kind or len(set(product.category) & set(target.category)) >= 2
    if match == 0:
        return 0.0
    if match < 0.1:
        return 0.1
    return 1.0 if match > 0.2 or same else 0.5


@lru_cache(maxsize=65536)
def _title_words(product: Product) -> frozenset[str]:
    return frozenset(words(product.title))


@lru_cache(maxsize=1024)
def _type_words(target: Product) -> frozenset[str]:
    described = set(words(f"{target.brand} {' '.join(target.attributes)}"))
    return frozenset(word for word in words(target.title) if not word.isdigit()) - described - STOP_WORDS


def has_attribute(product: Product, wanted: str) -> bool:
    """Returns whether one of the product's attributes is similar to the wanted one, or its text says it."""
    return (
        wanted in product.attributes
        or wanted.lower() in product.text
        or any(similar(attribute, wanted) for attribute in product.attributes)
    )


def serves(pair: tuple[str, str], wanted: tuple[str, str]) -> bool:
    """Returns whether a chosen (option, value) is the wanted one; sizes must agree exactly."""
    name, value = pair
    if wanted[0] and wanted[0] != name:
        return False
    return value == wanted[1] or (name not in EXACT_OPTIONS and similar(value, wanted[1]))


@lru_cache(maxsize=65536)
def similar(one: str, other: str) -> bool:
    """Returns whether the word sets of two phrases are similar (token-set ratio above 0.85); a subset always is."""
    first, second = set(words(one)), set(words(other))
    if not first or not second:
        return one == other
    shared = " ".join(sorted(first & second))
    if shared and (first <= second or second <= first):
        return True
    left, right = (" ".join([shared, *sorted(rest)]).strip() for rest in (first - second, second - first))
    return any(SequenceMatcher(None, a, b).ratio() > ALIKE for a, b in ((shared, left), (shared, right), (left, right)))
