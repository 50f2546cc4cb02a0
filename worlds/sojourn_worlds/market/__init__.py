"""A shelf of products that differ in place, badges, price and rating at random: which does the agent buy for a user?

A task is a shelf and a user's preferences. An action inspects a product, asks the user, reads the history, or buys; an
observation is the shelf, or what was learnt. Every action but buying costs a little; buying ends the episode, with a
reward for the product's value to the user, and so does the last of `turns` actions.

After ACES (Allouah et al. 2025, arXiv:2508.02630), which randomises a grid of product listings to measure what moves an
agent's choices: our analysis of recorded episodes is `readout`. The user with a profile of preferences, stated or to be
learnt, and the running costs of learning are those of the principles of UA2 (Yang et al. 2024, arXiv:2402.07744). It
differs from ACES in that the products are generated rather than real listings (so there are no effects of single
products), that the page is text, and that there is a right choice, which the reward is for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from sojourn.envs.about import About
from sojourn.envs.fields import SIZES, require_one_of, require_within
from sojourn.tasks.splits import make_tasks_from_data
from sojourn.types import Task
from sojourn_worlds.market.play import Purchase, Rules
from sojourn_worlds.market.shelf import BRANDS, Shelf, shelf

SHAPE = ("products", "columns", "aspects", "badges")
PROFILES = ("told", "asked", "past")


@dataclass(frozen=True, kw_only=True)
class Market:
    """Purchases for a user: look, learn what costs something to learn, and buy what is worth the most to the user.

    `products` stand in rows of `columns`, with `badges` or without. The user cares about `aspects` of price, stars and
    three features: "told" in the `profile`, to be "asked" one by one, or to be inferred from what was taken in the
    "past". Features are `hidden` until a product is inspected. Inspecting, asking and the history cost `cost` each. A
    purchase earns 1 for the best product, 0 for one worth the average of the shelf, and no less than -1; buying the
    best is a success. The expert pays for what it has to learn. An episode ends, without purchase, after `turns`
    actions. `choices` lists all actions.
    """

    products: int = 8
    columns: int = 4
    aspects: int = 2
    profile: Literal["told", "asked", "past"] = "told"
    hidden: bool = True
    badges: bool = True
    cost: float = 0.02
    turns: int = 20
    choices: bool = False
    train: int = 100_000
    test: int = 1_000

    about: ClassVar[About] = About(
        source="ours, after ACES (Allouah et al. 2025) and UA2 (Yang et al. 2024)",
        licence="Apache-2.0",
        smallest={"products": 4, "columns": 2, "aspects": 1, "hidden": False, "choices": True},
    )

    def __post_init__(self) -> None:
        limits = {
            "products": (2, len(BRANDS)),
            "columns": (1, len(BRANDS)),
            "aspects": (1, 5),
            "cost": (0, 0.2),
            "turns": (1, 1_000),
            **SIZES,
        }
        require_within("market", self, limits)
        require_one_of("market", self, {"profile": tuple(PROFILES)})

    def tasks(self, split: str) -> Sequence[Task]:
        return make_tasks_from_data("market", self, split, {name: getattr(self, name) for name in SHAPE})

    def make(self, task: Task) -> Purchase:
        rules = Rules(self.profile, self.hidden, self.cost, self.turns, self.choices)
        return Purchase(shelf_of(task), task.id, rules)


def shelf_of(task: Task) -> Shelf:
    """Returns the shelf of a task, with its user's preferences."""
    return shelf(task.seed, tuple((name, task.data[name]) for name in SHAPE))
