"""Auctions with private values: sealed bids at the first or second price, and the English auction of a rising price.

Ours; the rules are those of Vickrey 1961 ("Counterspeculation, Auctions, and Competitive Sealed Tenders"). What an item
is worth to a bidder is drawn by seed, and known to that bidder alone. At the second price, and in the English auction,
nothing earns more than truth, whatever the others do; at the first price one must bid less than the item is worth.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from sojourn.envs.about import About
from sojourn.envs.fields import SIZES, require_one_of, require_within
from sojourn.errors import ConfigError
from sojourn.tasks.splits import of_task, tasks_of
from sojourn.types import Task
from sojourn_worlds.auction.house import KINDS, LIMITS, House, draw, names, scripted
from sojourn_worlds.table import Table

ATTEMPTS = 10_000  # plays that are drawn before a config counts as impossible


@dataclass(frozen=True, kw_only=True)
class Auction:
    """`items` sold one after the other to `bidders`, to each of whom an item is worth between 1 and `highest`.

    `kind`: "first_price", "second_price", "english" (the price starts at `rise` and rises by as much each time, until
    one bidder is left), or "any" (by seed). `opponent`: how high the world's bidders go, "truthful" (what it is worth
    to them), "shade" (less by one part in `bidders`, the equilibrium at the first price), "random" (any amount below
    what it is worth), "any" (one of these for each, by seed), or "self", where the policy sits in every seat.

    Against the world's the reward is the surplus (worth minus price of what was won) as a part of the most that could
    have been had against these bids, down to -1, and a play succeeds with `threshold` or more; there is always
    something to be had. In "self" it is the surplus as a part of what all items are worth to the bidder.
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
        return tasks_of("auction", self, split)

    def make(self, task: Task) -> Table:
        own = of_task(self, task)
        for attempt in range(ATTEMPTS):
            lots = draw(own.kind, own.opponent, own.bidders, own.items, own.highest, own.rise, f"{task.seed} {attempt}")
            if own.opponent == "self":
                return Table(House(lots, task.seed), choices=own.choices, advised=False)
            if sum(lots.best(item) for item in range(own.items)) > 0:
                others = {name: scripted for name in names(own.bidders) if name != lots.alone}
                house = House(lots, task.seed, own.threshold)
                return Table(house, others, alone=lots.alone, choices=own.choices)
        raise ConfigError(
            f"auction: no {own.items} items were found of which any is worth winning for one of {own.bidders}: raise "
            "`highest`, or lower `rise` or `bidders`"
        )
