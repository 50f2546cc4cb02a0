"""The state of an auction: the items and their values, the bids, and how a sale is decided."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sojourn.errors import ActionError
from sojourn_worlds.turn_based import pick, plain

KINDS = ("first_price", "second_price", "english")
LIMITS = ("truthful", "shade", "random")
STAY, OUT = "stay", "out"
RULES = {
    "first_price": "All bid at once, unseen. The highest bid wins and is paid. Bid 0 to stay away.",
    "second_price": "All bid at once, unseen. The highest bid wins and pays the second highest. Bid 0 to stay away.",
    "english": "The price rises from {rise} by {rise}. At each price those still in say at once, unseen, whether they "
    "stay. The last to stay wins and pays that price; if all leave at once, nobody does.",
}


@dataclass(frozen=True)
class Lots:
    """Holds all that is drawn before an episode: the kind of auction, each item's value to each bidder, and the others'
    limits."""

    kind: str
    highest: int
    rise: int
    worth: tuple[tuple[int, ...], ...]  # private values by item, then bidder
    limits: tuple[tuple[int, ...], ...]  # how high each bidder goes, likewise; unused for the policy's seats
    policy_seat: str  # empty where the policy has all seats

    @property
    def bidders(self) -> tuple[str, ...]:
        return names(len(self.worth[0]))

    def winning_bid(self, item: int) -> int:
        """Returns the lowest bid (or price) at which the policy's only seat wins an item against the limits of the
        others.
        """
        own = self.bidders.index(self.policy_seat)
        limits = self.limits[item]
        others = [limit for bidder, limit in enumerate(limits) if bidder != own]
        if self.kind == "english":
            return max(limit // self.rise + 1 for limit in others) * self.rise
        first = limits.index(max(others)) if limits.index(max(others)) != own else len(limits)
        return max(others) if own < first and max(others) > 0 else max(others) + 1

    def best_surplus(self, item: int) -> int:
        """Returns the largest surplus that an item can bring against the limits of the others."""
        own = self.bidders.index(self.policy_seat)
        if self.kind == "second_price":
            price = max(limit for bidder, limit in enumerate(self.limits[item]) if bidder != own)
        else:
            price = self.winning_bid(item)
        return max(0, self.worth[item][own] - price)


def names(bidders: int) -> tuple[str, ...]:
    return tuple(f"bidder{number + 1}" for number in range(bidders))


def draw(kind: str, limit: str, bidders: int, items: int, highest: int, rise: int, seed: str) -> Lots:
    rng = random.Random(f"auction {seed}")
    worth = tuple(tuple(rng.randint(1, highest) for _ in range(bidders)) for _ in range(items))
    chosen = rng.choice(KINDS) if kind == "any" else kind
    known = [rng.choice(LIMITS) if limit == "any" else limit for _ in range(bidders)]
    limits = tuple(tuple(_limit(rng, known[i], value, bidders) for i, value in enumerate(row)) for row in worth)
    policy_seat = "" if limit == "self" else rng.choice(names(bidders))
    return Lots(chosen, highest, rise, worth, limits, policy_seat)


def _limit(rng: random.Random, kind: str, worth: int, bidders: int) -> int:
    below = rng.randint(0, worth)
    return {"shade": worth * (bidders - 1) // bidders, "random": below}.get(kind, worth)


@dataclass
class House:
    """The state of one episode, and the rules by which it goes on."""

    lots: Lots
    seed: int
    threshold: float = 0.9
    item: int = 0
    decisions: list[str] = field(default_factory=list)  # of the active bidders, in order, at this price
    price: int = 0  # the current price of the English auction
    active_bidders: tuple[int, ...] = ()  # indices of the bidders who have not left this sale
    sales: list[tuple[int, int]] = field(default_factory=list)  # the winner (-1: nobody) and the price, by item

    def __post_init__(self) -> None:
        self._open_item()

    @property
    def current_seat(self) -> str | None:
        if self.item == len(self.lots.worth):
            return None
        return self.lots.bidders[self.active_bidders[len(self.decisions)]]

    def system_prompt(self, seat: str) -> str:
        others = len(self.lots.bidders) - 1
        return (
            f"You bid against {others} other{'s' if others > 1 else ''} for {len(self.lots.worth)} items, one after "
            f"the other. {RULES[self.lots.kind].format(rise=self.lots.rise)} An item is worth 1 to "
            f"{self.lots.highest} to each bidder, who alone knows it. You gain its worth, less what you pay for it. "
            + ("Say stay or out." if self.lots.kind == "english" else "Say your bid, a whole number.")
        )

    def observe(self, seat: str) -> str:
        worth = self.lots.worth[self.item][self.lots.bidders.index(seat)]
        lines = [f"Item {self.item + 1} of {len(self.lots.worth)} is worth {worth} to you."]
        if self.lots.kind == "english":
            others = len(self.active_bidders) - 1
            lines.append(f"The price is {self.price}, {others} other{'s are' if others > 1 else ' is'} in.")
        if self.sales and (self.lots.kind != "english" or self.price == self.lots.rise):
            lines.insert(0, self._result_of_last_sale(seat))
        return " ".join(lines)

    def choices(self) -> Sequence[str]:
        if self.lots.kind == "english":
            return (STAY, OUT)
        return [str(bid) for bid in range(self.lots.highest + 1)]

    def act(self, action: str) -> Mapping[str, float]:
        if self.lots.kind == "english":
            self.decisions.append((STAY, OUT)[pick(action, (STAY, OUT))])
        else:
            self.decisions.append(str(self._bid(action)))
        if len(self.decisions) < len(self.active_bidders):
            return {}
        before = {name: self.reward(name) for name in self.lots.bidders}
        sale = self._end_of_price_round() if self.lots.kind == "english" else self._sell_by_sealed_bids()
        if sale is None:
            return {}
        self.sales.append(sale)
        self.item += 1
        self._open_item()
        seats = [self.lots.policy_seat] if self.lots.policy_seat else self.lots.bidders
        return {name: self.reward(name) - before[name] for name in seats}

    def surplus(self, name: str) -> int:
        own = self.lots.bidders.index(name)
        return sum(self.lots.worth[i][own] - price for i, (winner, price) in enumerate(self.sales) if winner == own)

    def reward(self, name: str) -> float:
        """Returns what a bidder has earned so far, between -1 and 1."""
        own = self.lots.bidders.index(name)
        items = range(len(self.lots.worth))
        if self.lots.policy_seat == name:
            whole = sum(self.lots.best_surplus(item) for item in items)
        else:
            whole = sum(self.lots.worth[item][own] for item in items)
        return max(-1.0, self.surplus(name) / max(whole, 1))

    def success(self) -> bool:
        return self.reward(self.lots.policy_seat) >= self.threshold - 1e-9

    def info(self) -> Mapping[str, float]:
        """Returns the seller's revenue, and the fraction of the items so far that went to a bidder who values them
        most; those that nobody took count."""
        sales = zip(self.lots.worth, self.sales, strict=False)
        efficient = [winner >= 0 and worth[winner] == max(worth) for worth, (winner, _) in sales]
        revenue = sum(price for _, price in self.sales)
        return {"revenue": float(revenue), "efficiency": sum(efficient) / max(len(efficient), 1)}

    def state_key(self) -> str:
        sales = ",".join(f"{winner}:{price}" for winner, price in self.sales)
        return f"auction/{self.seed}/{sales}/{self.price}/{self.active_bidders}/{self.current_seat}"

    def expert(self) -> str:
        """Returns the truthful bid where nothing is better; at the first price the lowest bid that wins, as it sees the
        others'.
        """
        worth = self.lots.worth[self.item][self.lots.bidders.index(self.lots.policy_seat)]
        if self.lots.kind == "english":
            return STAY if self.price <= worth else OUT
        if self.lots.kind == "second_price":
            return str(worth)
        winning = self.lots.winning_bid(self.item)
        return str(winning if winning < worth else 0)

    def _open_item(self) -> None:
        self.decisions = []
        self.active_bidders = tuple(range(len(self.lots.bidders)))
        self.price = self.lots.rise if self.lots.kind == "english" else 0

    def _bid(self, action: str) -> int:
        match = re.fullmatch(r"(?:bid )?([0-9]{1,5})", plain(action))
        if match is None or int(match[1]) > self.lots.highest:
            raise ActionError(f'"{action[:30]}" is no bid: say a whole number from 0 to {self.lots.highest}.')
        return int(match[1])

    def _sell_by_sealed_bids(self) -> tuple[int, int]:
        """Returns the winner and the price. Among equal bids the bidder with the lowest number wins; nobody wins with
        0.
        """
        bids = [int(bid) for bid in self.decisions]
        high = max(bids)
        winner = bids.index(high)
        second = max(bid for bidder, bid in enumerate(bids) if bidder != winner)
        if high == 0:
            return -1, 0
        return winner, high if self.lots.kind == "first_price" else second

    def _end_of_price_round(self) -> tuple[int, int] | None:
        """Ends one price of the English auction: returns a sale, or raises the price and returns None."""
        stay = [
            bidder for bidder, decision in zip(self.active_bidders, self.decisions, strict=True) if decision == STAY
        ]
        if len(stay) == 1:
            return stay[0], self.price
        if not stay or self.price > self.lots.highest:
            return -1, 0
        self.active_bidders, self.decisions, self.price = tuple(stay), [], self.price + self.lots.rise
        return None

    def _result_of_last_sale(self, seat: str) -> str:
        winner, price = self.sales[-1]
        who = "Nobody" if winner < 0 else self.lots.bidders[winner]
        if who == seat:
            who = "You"
        return f"{who} won item {len(self.sales)}" + (f" for {price}." if winner >= 0 else ".")


def scripted(house: House) -> str:
    """Returns the action of a bidder of the world, who goes as high as its limit."""
    current_seat = house.current_seat
    assert current_seat is not None
    limit = house.lots.limits[house.item][house.lots.bidders.index(current_seat)]
    if house.lots.kind == "english":
        return STAY if house.price <= limit else OUT
    return str(limit)
