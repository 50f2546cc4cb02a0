"""A shop's database, the operations on it, and the possible wishes of its customers."""

from __future__ import annotations

import copy
import hashlib
import json
import random
import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from sojourn_worlds.answers import one_number, one_of

Database = dict[str, Any]

# fmt: off
FIRST = (
    "Ada", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gita", "Hugo", "Ines", "Jan", "Kira", "Leo", "Mina", "Noel", "Olga",
    "Paul", "Rosa", "Sam", "Tess", "Uma",
)
LAST = (
    "Abel", "Brook", "Costa", "Dietz", "Evans", "Frost", "Grant", "Hill", "Ito", "Jones", "Khan", "Lund", "Mora",
    "Novak", "Okoye", "Pratt", "Reyes", "Silva",
)
STREETS = ("Oak", "Elm", "Lake", "Hill", "Park", "Mill", "River", "Church", "Garden", "Station")
# fmt: on
PRODUCTS = ("mug", "lamp", "chair", "kettle", "backpack", "jacket", "clock", "pillow")
COLOURS = ("blue", "red", "green", "black", "white", "yellow")
STATUSES = ("pending", "shipped", "delivered")
ORDER = re.compile(r"\bw\d{4}\b", re.IGNORECASE)  # the number of an order
DAYS = 30  # how long after delivery things can be returned or exchanged


def draw_database(rng: random.Random, users: int) -> Database:
    items = {}
    for product in PRODUCTS:
        for colour in rng.sample(COLOURS, 3):
            items[f"{product}-{colour}"] = {"price": rng.randint(5, 90), "in_stock": rng.random() < 0.7}
    database: Database = {"users": {}, "items": items, "orders": {}, "transferred": []}
    numbers = iter(rng.sample(range(1000, 10_000), 3 * users))
    for first, last in zip(rng.sample(FIRST, users), rng.sample(LAST, users), strict=True):
        code = rng.randint(10, 99)
        user = f"{first}_{last}_{code}".lower()
        database["users"][user] = {
            "name": f"{first} {last}",
            "email": f"{first}.{last}{code}@mail.test".lower(),
            "zip": str(rng.randint(10_000, 99_999)),
            "address": draw_address(rng),
            "orders": [f"W{next(numbers)}" for _ in range(rng.randint(2, 3))],
        }
        products = iter(rng.sample(PRODUCTS, len(PRODUCTS)))  # no product twice, so that its name tells the order
        for order in database["users"][user]["orders"]:
            database["orders"][order] = _draw_order(rng, user, database, [next(products), next(products)])
    return database


def draw_address(rng: random.Random) -> str:
    return f"{rng.randint(1, 99)} {rng.choice(STREETS)} Street"


def _other_address(rng: random.Random, address: str) -> str:
    """Draws another address. What is drawn again takes no number of `rng`, so that all else that it draws stays."""
    other, again = draw_address(rng), random.Random(address)
    while other == address:
        other = draw_address(again)
    return other


def _draw_order(rng: random.Random, user: str, database: Database, products: list[str]) -> dict[str, Any]:
    chosen = [rng.choice([item for item in database["items"] if item.startswith(f"{p}-")]) for p in products]
    status = rng.choice(STATUSES)
    return {
        "user": user,
        "items": chosen,
        "total": sum(database["items"][item]["price"] for item in chosen),
        "status": status,
        "days_since_delivery": rng.randint(1, 2 * DAYS) if status == "delivered" else None,
        "address": database["users"][user]["address"],
    }


def digest(database: Database) -> str:
    return hashlib.sha256(json.dumps(database, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class Wish:
    """One request of a customer: `kind` is cancel, return, exchange, address, total, status or repair."""

    kind: str
    order: str
    item: str = ""
    detail: str = ""  # the reason to cancel, the new item, or the new address
    stranger: bool = False  # the order is another customer's

    @property
    def said(self) -> str:
        """Returns the customer's words for it, without the details that it is asked for."""
        thing = " ".join(reversed(self.item.split("-")))
        if self.stranger:
            return f"I want to cancel order {self.order}. It is a friend's, but that is fine."
        return {
            "cancel": f"I want to cancel my order with the {thing}.",
            "return": f"I want to return the {thing}.",
            "exchange": f"I want to exchange the {thing} for the {self.detail.partition('-')[2]} one.",
            "address": f"Please send my order with the {thing} to another address.",
            "total": f"How much is the whole order with the {thing}?",
            "status": f"What is the status of my order with the {thing}?",
            "repair": f"The {thing} is broken. I want it repaired.",
        }[self.kind]

    def denial(self, database: Database) -> str:
        """Returns why the policy forbids it, empty where it does not."""
        order = database["orders"][self.order]
        if self.stranger:
            return "not theirs"
        if self.kind in ("cancel", "address"):
            return "" if order["status"] == "pending" else "not pending"
        if self.kind in ("return", "exchange"):
            if order["status"] != "delivered":
                return "not delivered"
            if order["days_since_delivery"] > DAYS:
                return "too late"
            if self.kind == "exchange" and not database["items"][self.detail]["in_stock"]:
                return "out of stock"
        return ""

    def call(self, database: Database) -> str:
        """Returns the call that the agent should make in the end."""
        if denial := self.denial(database):
            return f'deny("{self.order}", "{denial}")'
        order = database["orders"][self.order]
        return {
            "cancel": f'cancel_order("{self.order}", "{self.detail}")',
            "return": f'return_item("{self.order}", "{self.item}")',
            "exchange": f'exchange_item("{self.order}", "{self.item}", "{self.detail}")',
            "address": f'change_address("{self.order}", "{self.detail}")',
            "total": f'say("Order {self.order} is {order["total"]} dollars in all.")',
            "status": f'say("Order {self.order} is {order["status"]}.")',
            "repair": f'transfer("{self.order}")',
        }[self.kind]

    def fact(self, database: Database) -> str | float | None:
        """Returns what the customer has to be told, None where nothing."""
        return database["orders"][self.order][self.kind] if self.kind in ("total", "status") else None

    def told(self, text: str, current: bool) -> str | float | None:
        """Returns the one answer to this wish in a sentence, right or wrong, None where there is none.

        A sentence that names no order is about the `current` wish, and one that names several is about none.
        """
        named = {order.upper() for order in re.findall(ORDER, text)}
        if self.kind not in ("total", "status") or not (named == {self.order} if named else current):
            return None
        return one_of(text, STATUSES) if self.kind == "status" else one_number(re.sub(ORDER, "", text))

    def apply(self, database: Database) -> None:
        """Applies it to the database, where it is allowed."""
        if self.kind in ("total", "status") or self.denial(database):
            return
        if self.kind == "repair":
            transfer(database, self.order)
        else:
            change(database, self.kind, self.order, self.item, self.detail)


def change(database: Database, kind: str, order: str, item: str = "", detail: str = "") -> None:
    """Carries out what a status and the stock allow; raises ValueError, with nothing changed, otherwise."""
    if order not in database["orders"]:
        raise ValueError(f"there is no order {order[:20]!r}, look the customer up for theirs")
    record = database["orders"][order]
    wanted = "pending" if kind in ("cancel", "address") else "delivered"
    if record["status"] != wanted:
        raise ValueError(f"order {order} is {record['status']}, but this needs one that is {wanted}")
    if kind in ("return", "exchange") and item not in record["items"]:
        raise ValueError(f"order {order} has no {item[:30]!r}, it has {', '.join(record['items'])}")
    if kind == "exchange":
        if detail not in database["items"] or detail.partition("-")[0] != item.partition("-")[0]:
            raise ValueError(f"{detail[:30]!r} is no other {item.partition('-')[0]}, look the product up")
        if not database["items"][detail]["in_stock"]:
            raise ValueError(f"{detail} is out of stock")
    if kind == "address":
        record["address"] = detail
    elif kind == "cancel":
        record |= {"status": "cancelled", "reason": detail}
    elif kind == "return":
        record |= {"status": "return asked", "returned": item}
    else:
        record |= {"status": "exchange asked", "exchanged": item, "for": detail}


def transfer(database: Database, order: str) -> None:
    database["transferred"] = sorted({*database["transferred"], order})


@dataclass(frozen=True)
class Case:
    """A database, the caller, their wishes in order, and what they know of themselves."""

    database: Database
    user: str
    wishes: tuple[Wish, ...]
    knows_email: bool
    knows_order: bool

    @cached_property
    def gold(self) -> Database:
        """Returns the database as it should be in the end."""
        after = copy.deepcopy(self.database)
        for wish in self.wishes:
            wish.apply(after)
        return after

    @cached_property
    def denials(self) -> dict[str, str]:
        denials = {wish.order: wish.denial(self.database) for wish in self.wishes}
        return {order: reason for order, reason in denials.items() if reason}

    @cached_property
    def facts(self) -> list[str | float | None]:
        """Returns what has to be told, by number of the wish; None where nothing."""
        return [wish.fact(self.database) for wish in self.wishes]


def draw_case(rng: random.Random, users: int, requests: int, denied: float) -> Case:
    """Returns the first case of a generator that has as many wishes, of different orders, each forbidden or not as
    drawn.
    """
    while True:
        database = draw_database(rng, users)
        user = rng.choice(sorted(database["users"]))
        possible = _wishes(rng, database, user)
        chosen: list[Wish] = []
        for _ in range(requests):
            forbidden = rng.random() < denied
            taken = {wish.order for wish in chosen}
            fitting = [w for w in possible if bool(w.denial(database)) == forbidden and w.order not in taken]
            kinds = sorted({wish.kind for wish in fitting})
            if kinds:
                kind = rng.choice(kinds)
                chosen.append(rng.choice([wish for wish in fitting if wish.kind == kind]))
        if len(chosen) == requests:
            return Case(database, user, tuple(chosen), rng.random() < 0.5, rng.random() < 0.5)


def _wishes(rng: random.Random, database: Database, user: str) -> list[Wish]:
    """Returns all wishes that this customer may have."""
    wishes = []
    for order, facts in sorted(database["orders"].items()):
        if facts["user"] != user:
            wishes.append(Wish("cancel", order, detail="no longer needed", stranger=True))
            continue
        for item in facts["items"]:
            product = item.partition("-")[0]
            others = [i for i in database["items"] if i.startswith(f"{product}-") and i != item]
            wishes += [Wish("exchange", order, item, other) for other in others]
            wishes.append(Wish("cancel", order, item, rng.choice(("no longer needed", "ordered by mistake"))))
            wishes.append(Wish("address", order, item, _other_address(rng, facts["address"])))
            wishes += [Wish(kind, order, item) for kind in ("return", "total", "status", "repair")]
    return wishes
