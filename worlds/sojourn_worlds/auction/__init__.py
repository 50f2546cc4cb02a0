"""Auctions with private values: sealed bids at the first or the second price, and the English (ascending) auction.

A task draws each item's private value to each bidder. An action is a bid, or in the English auction whether to stay;
the observation tells the next item's value to the bidder and how the last sale ended. The reward of each sale is the
bidder's surplus (value minus price of what was won), as a fraction of what could be had; the episode ends when all
items are sold.

Ours; the rules are those of Vickrey 1961 ("Counterspeculation, Auctions, and Competitive Sealed Tenders"). At the
second price, and in the English auction, no bid earns more than the truthful one, whatever the others do; at the first
price one must bid less than the item's value.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from sojourn.envs.about import About
from sojourn.envs.fields import SIZES, require_one_of, require_within
from sojourn.errors import ConfigError
from sojourn.tasks.splits import family_of_task, make_tasks_from_fields
from sojourn.types import Task
from sojourn_worlds.auction.house import KINDS, LIMITS, House, draw, names, scripted
from sojourn_worlds.turn_based import TurnBasedEnv

MAX_ATTEMPTS = 10_000  # draws before a config counts as impossible


@dataclass(frozen=True, kw_only=True)
class Auction:
    """`items` sold one after the other to `bidders`, each of whom values an item between 1 and `highest`.

    `kind`: "first_price", "second_price", "english" (the price starts at `rise` and rises by as much each time, until
    one bidder is left), or "any" (by seed). `opponent`: how high the world's bidders go: "truthful" (up to their
    value), "shade" (less by one part in `bidders`, the equilibrium at the first price), "random" (any amount below
    their value), "any" (one of these for each bidder, by seed), or "self", where the policy sits in every seat.

    Against the world's bidders the reward is the surplus (value minus price of what was won) as a fraction of the most
    that could have been had against these bids, at least -1, and an episode is a success with `threshold` or more; in
    every task some surplus can be had. In "self" the reward is the surplus as a fraction of the bidder's values of all
    items.
    """

    about: ClassVar[About] = About(
        source="ours: the auctions of Vickrey 1961",
        licence="Apache-2.0",
        seats="1-n",
        smallest={"kind": "second_price", "items": 1, "bidders": 2, "highest": 10},
    )

    kind: str = "second_price"
    bidders: int = 3
    items: int = 3
    highest: int = 20
    rise: int = 2
    opponent: str = "any"
    threshold: float = 0.9
    choices: bool = False
    train: int = 100_000
    test: int = 1_000

    def __post_init__(self) -> None:
        limits = {"bidders": (2, 8), "items": (1, 50), "highest": (4, 10_000), "rise": (1, self.highest)}
        require_within("auction", self, {**limits, "threshold": (0, 1), **SIZES})
        require_one_of("auction", self, {"kind": (*KINDS, "any"), "opponent": ("self", *LIMITS, "any")})

    @property
    def seats(self) -> tuple[str, ...]:
        return names(self.bidders) if self.opponent == "self" else ("agent",)

    def tasks(self, split: str) -> Sequence[Task]:
        return make_tasks_from_fields("auction", self, split)

    def make(self, task: Task) -> TurnBasedEnv:
        config = family_of_task(self, task)
        for attempt in range(MAX_ATTEMPTS):
            lots = draw(
                config.kind,
                config.opponent,
                config.bidders,
                config.items,
                config.highest,
                config.rise,
                f"{task.seed} {attempt}",
            )
            if config.opponent == "self":
                return TurnBasedEnv(House(lots, task.seed), choices=config.choices, has_expert=False)
            if sum(lots.best_surplus(item) for item in range(config.items)) > 0:
                others = {name: scripted for name in names(config.bidders) if name != lots.policy_seat}
                house = House(lots, task.seed, config.threshold)
                return TurnBasedEnv(house, others, policy_seat=lots.policy_seat, choices=config.choices)
        raise ConfigError(
            f"auction: no {config.items} items were found of which any is worth winning for one of {config.bidders}: "
            "raise `highest`, or lower `rise` or `bidders`"
        )
