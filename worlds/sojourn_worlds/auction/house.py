"""What is sold in a play, to whom, and how a sale goes on."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sojourn.errors import ActionError
from sojourn_worlds.table import pick, plain

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
    """All that is decided before a play: the kind of auction, what each item is worth to each, how high others go."""

    kind: str
    highest: int
    rise: int
    worth: tuple[tuple[int, ...], ...]  # by item, then bidder
    limits: tuple[tuple[int, ...], ...]  # the same; of no meaning for those whom the policy plays
    alone: str  # the policy's seat; empty where it has all

    @property
    def bidders(self) -> tuple[str, ...]:
        return names(len(self.worth[0]))

    def winning(self, item: int) -> int:
        """The least that wins an item for the lonely seat against the limits of the others: a bid, or a price."""
        own = self.bidders.index(self.alone)
        limits = self.limits[item]
        others = [limit for bidder, limit in enumerate(limits) if bidder != own]
        if self.kind == "english":
            return max(limit // self.rise + 1 for limit in others) * self.rise
        first = limits.index(max(others)) if limits.index(max(others)) != own else len(limits)
        return max(others) if own < first and max(others) > 0 else max(others) + 1

    def best(self, item: int) -> int:
        """The most that can be had of an item against the limits of the others."""
        own = self.bidders.index(self.alone)
        if self.kind == "second_price":
            price = max(limit for bidder, limit in enumerate(self.limits[item]) if bidder != own)
        else:
            price = self.winning(item)
        return max(0, self.worth[item][own] - price)


def names(bidders: int) -> tuple[str, ...]:
    return tuple(f"bidder{number + 1}" for number in range(bidders))


def draw(kind: str, limit: str, bidders: int, items: int, highest: int, rise: int, seed: str) -> Lots:
    rng = random.Random(f"auction {seed}")
    worth = tuple(tuple(rng.randint(1, highest) for _ in range(bidders)) for _ in range(items))
    chosen = rng.choice(KINDS) if kind == "any" else kind
    known = [rng.choice(LIMITS) if limit == "any" else limit for _ in range(bidders)]
    limits = tuple(tuple(_limit(rng, known[i], value, bidders) for i, value in enumerate(row)) for row in worth)
    alone = "" if limit == "self" else rng.choice(names(bidders))
    return Lots(chosen, highest, rise, worth, limits, alone)


def _limit(rng: random.Random, kind: str, worth: int, bidders: int) -> int:
    below = rng.randint(0, worth)
    return {"shade": worth * (bidders - 1) // bidders, "random": below}.get(kind, worth)


@dataclass
class House:
    lots: Lots
    seed: int
    threshold: float = 0.9
    item: int = 0
    said: list[str] = field(default_factory=list)  # of the bidders still in, in their order, at this price
    price: int = 0  # of the English auction
    inside: tuple[int, ...] = ()  # the bidders still in
    sold: list[tuple[int, int]] = field(default_factory=list)  # the winner (-1: nobody) and the price, by item

    def __post_init__(self) -> None:
        self._open()

    @property
    def mover(self) -> str | None:
        if self.item == len(self.lots.worth):
            return None
        return self.lots.bidders[self.inside[len(self.said)]]

    def brief(self, seat: str) -> str:
        others = len(self.lots.bidders) - 1
        return (
            f"You bid against {others} other{'s' if others > 1 else ''} for {len(self.lots.worth)} items, one after "
            f"the other. {RULES[self.lots.kind].format(rise=self.lots.rise)} An item is worth 1 to "
            f"{self.lots.highest} to each bidder, who alone knows it. You gain its worth, less what you pay for it. "
            + ("Say stay or out." if self.lots.kind == "english" else "Say your bid, a whole number.")
        )

    def view(self, seat: str) -> str:
        worth = self.lots.worth[self.item][self.lots.bidders.index(seat)]
        lines = [f"Item {self.item + 1} of {len(self.lots.worth)} is worth {worth} to you."]
        if self.lots.kind == "english":
            others = len(self.inside) - 1
            lines.append(f"The price is {self.price}, {others} other{'s are' if others > 1 else ' is'} in.")
        if self.sold and (self.lots.kind != "english" or self.price == self.lots.rise):
            lines.insert(0, self._told(seat))
        return " ".join(lines)

    def choices(self) -> Sequence[str]:
        if self.lots.kind == "english":
            return (STAY, OUT)
        return [str(bid) for bid in range(self.lots.highest + 1)]

    def play(self, said: str) -> Mapping[str, float]:
        if self.lots.kind == "english":
            self.said.append((STAY, OUT)[pick(said, (STAY, OUT))])
        else:
            self.said.append(str(self._bid(said)))
        if len(self.said) < len(self.inside):
            return {}
        before = {name: self.reward(name) for name in self.lots.bidders}
        sale = self._rung() if self.lots.kind == "english" else self._sealed()
        if sale is None:
            return {}
        self.sold.append(sale)
        self.item += 1
        self._open()
        seats = [self.lots.alone] if self.lots.alone else self.lots.bidders
        return {name: self.reward(name) - before[name] for name in seats}

    def surplus(self, name: str) -> int:
        own = self.lots.bidders.index(name)
        return sum(self.lots.worth[i][own] - price for i, (winner, price) in enumerate(self.sold) if winner == own)

    def reward(self, name: str) -> float:
        """What a bidder has earned so far, from -1 to 1."""
        own = self.lots.bidders.index(name)
        items = range(len(self.lots.worth))
        if self.lots.alone == name:
            whole = sum(self.lots.best(item) for item in items)
        else:
            whole = sum(self.lots.worth[item][own] for item in items)
        return max(-1.0, self.surplus(name) / max(whole, 1))

    def success(self) -> bool:
        return self.reward(self.lots.alone) >= self.threshold - 1e-9

    def info(self) -> Mapping[str, float]:
        """What the seller got, and the part of the items sold that went to whom they are worth most."""
        sold = zip(self.lots.worth, self.sold, strict=False)
        rightly = [winner >= 0 and worth[winner] == max(worth) for worth, (winner, _) in sold]
        revenue = sum(price for _, price in self.sold)
        return {"revenue": float(revenue), "efficiency": sum(rightly) / max(len(rightly), 1)}

    def key(self) -> str:
        sold = ",".join(f"{winner}:{price}" for winner, price in self.sold)
        return f"auction/{self.seed}/{sold}/{self.price}/{self.inside}/{self.mover}"

    def expert(self) -> str:
        """The truth, where nothing is better; at the first price the lowest bid that wins: it sees the others' bids."""
        worth = self.lots.worth[self.item][self.lots.bidders.index(self.lots.alone)]
        if self.lots.kind == "english":
            return STAY if self.price <= worth else OUT
        if self.lots.kind == "second_price":
            return str(worth)
        winning = self.lots.winning(self.item)
        return str(winning if winning < worth else 0)

    def _open(self) -> None:
        self.said = []
        self.inside = tuple(range(len(self.lots.bidders)))
        self.price = self.lots.rise if self.lots.kind == "english" else 0

    def _bid(self, said: str) -> int:
        found = re.fullmatch(r"(?:bid )?([0-9]{1,5})", plain(said))
        if found is None or int(found[1]) > self.lots.highest:
            raise ActionError(f'"{said[:30]}" is no bid: say a whole number from 0 to {self.lots.highest}.')
        return int(found[1])

    def _sealed(self) -> tuple[int, int]:
        """Among equal bids the bidder with the lowest number wins; nobody wins with 0."""
        bids = [int(bid) for bid in self.said]
        high = max(bids)
        winner = bids.index(high)
        second = max(bid for bidder, bid in enumerate(bids) if bidder != winner)
        if high == 0:
            return -1, 0
        return winner, high if self.lots.kind == "first_price" else second

    def _rung(self) -> tuple[int, int] | None:
        """What comes of one price of the English auction: a sale, or the next price."""
        stay = [bidder for bidder, said in zip(self.inside, self.said, strict=True) if said == STAY]
        if len(stay) == 1:
            return stay[0], self.price
        if not stay or self.price > self.lots.highest:
            return -1, 0
        self.inside, self.said, self.price = tuple(stay), [], self.price + self.lots.rise
        return None

    def _told(self, seat: str) -> str:
        winner, price = self.sold[-1]
        who = "Nobody" if winner < 0 else self.lots.bidders[winner]
        if who == seat:
            who = "You"
        return f"{who} won item {len(self.sold)}" + (f" for {price}." if winner >= 0 else ".")


def scripted(house: House) -> str:
    """What the mover says who goes as high as its limit."""
    mover = house.mover
    assert mover is not None
    limit = house.lots.limits[house.item][house.lots.bidders.index(mover)]
    if house.lots.kind == "english":
        return STAY if house.price <= limit else OUT
    return str(limit)
