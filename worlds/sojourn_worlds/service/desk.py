"""The state of one episode: the agent's calls, what it has found out, and whether it did what it should."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from sojourn.envs.user_seat import AWAITED, STOP, SeatUser
from sojourn_worlds.service.customer import Customer
from sojourn_worlds.service.shop import Case, Database, Wish, change, digest, transfer

LONGEST = 400  # characters of a sentence to the customer


@dataclass
class Desk:
    """You serve the customers of a shop. Do what they want if the rules allow it, then finish.

    1. First find the customer, by email or by name and zip code. Look an order up before you act on it or tell of it.
    2. A pending order can be cancelled or sent to another address, others cannot.
    3. Items of a delivered order can be returned or exchanged up to 30 days after delivery, others cannot.
    4. Exchange only for another colour that is in stock.
    5. Deny every wish about an order of somebody else.
    6. Before a change, say what you will do, with the number of the order, and ask the customer to confirm. Before
       you cancel, ask why.
    7. Deny what is forbidden, with the reason. Tell what you are asked as one number or one status, and name no other
       beside it. For a repair, transfer the order.
    8. Before you finish, ask whether there is anything else.
    """

    case: Case
    user: Customer | SeatUser
    turns: int
    database: Database
    turns_taken: int = 0
    current_customer: str = ""  # the one who was looked up last
    looked_up: set[str] = field(default_factory=set)  # ids
    confirmed: set[str] = field(default_factory=set)  # orders whose change the customer confirmed
    denied: dict[str, str] = field(default_factory=dict)
    answers: dict[int, str | float] = field(default_factory=dict)  # by number of the wish, the last answer
    subgoals_reached: set[str] = field(default_factory=set)
    rules_broken: int = 0
    done: bool = False
    info: dict[str, float] = field(default_factory=dict)

    def __deepcopy__(self, memo: dict[int, Any]) -> Desk:
        kept = {"case": self.case, "info": dict(self.info)}
        copied = {name: copy.deepcopy(value, memo) for name, value in vars(self).items() if name not in kept}
        twin = type(self)(**kept, **copied)
        if isinstance(self.user, Customer):
            twin.user = Customer(self.case, self.user.stated, set(self.user.told), self.user.finished)
        return twin

    def goal(self) -> str:
        return f"Customer: {self.user.opening if isinstance(self.user, SeatUser) else self.user.open()}"

    def say(self, text: str) -> str:
        """Say or ask something."""
        _require_sayable(text)
        assert isinstance(self.user, Customer), "a desk with a seat for the customer has its own"
        current = self._current()
        answer = self.user.reply(text)
        before = len(self.subgoals_reached)
        self._note_consent(text, answer)
        self._answer(text, current)
        self._tell(before, worked=None)
        return f"Customer: {answer}"

    def find_user(self, email: str) -> str:
        """The id of a customer."""
        return self._find("email", lambda facts: facts["email"] == email.strip().lower())

    def find_user_by_name(self, name: str, zip_code: str) -> str:
        """The id of a customer, by first and last name and zip code."""
        same = name.strip().lower()
        return self._find("name", lambda facts: facts["name"].lower() == same and facts["zip"] == zip_code.strip())

    def get_user(self, user_id: str) -> dict[str, Any]:
        """A customer's data and the numbers of their orders."""
        return self._look("users", user_id.strip().lower())

    def get_order(self, order_id: str) -> dict[str, Any]:
        """An order."""
        return self._look("orders", order_id.strip().upper())

    def get_product(self, product: str) -> dict[str, Any]:
        """The items of a product, such as "mug"."""
        name = product.strip().lower()
        items = {item: facts for item, facts in self.database["items"].items() if item.startswith(f"{name}-")}
        if not items:
            raise ValueError(f"there is no product {product[:30]!r}")
        self._record_look_up(name)
        return items

    def cancel_order(self, order_id: str, reason: Literal["no longer needed", "ordered by mistake"]) -> str:
        """Cancel a pending order."""
        return self._change("cancel", order_id, detail=reason)

    def return_item(self, order_id: str, item: str) -> str:
        """Take back an item of a delivered order."""
        return self._change("return", order_id, item)

    def exchange_item(self, order_id: str, item: str, new_item: str) -> str:
        """Exchange an item of a delivered order for another of the same product."""
        return self._change("exchange", order_id, item, new_item)

    def change_address(self, order_id: str, address: str) -> str:
        """Send a pending order to another address."""
        return self._change("address", order_id, detail=address)

    def deny(
        self,
        order_id: str,
        reason: Literal["not pending", "not delivered", "too late", "out of stock", "not theirs"],
    ) -> str:
        """Tell the customer that the rules forbid what they want with an order, and why."""
        order = self._order(order_id)
        self.denied[order] = reason
        self._record_act(order, self.case.denials.get(order) == reason, f"denied {order}")
        return "Customer: I see."

    def transfer(self, order_id: str) -> str:
        """Hand an order over to a human colleague."""
        order = self._order(order_id)
        if order in self.database["transferred"]:
            raise ValueError(f"order {order} has been handed over already")
        transfer(self.database, order)
        self._record_act(order, order in self.case.gold["transferred"], f"transferred {order}")
        return "A colleague will take care of it."

    def finish(self) -> None:
        """End the talk."""
        self.turns_taken += 1
        self.done = True
        self.info = {
            "database": float(digest(self.database) == digest(self.case.gold)),
            "told": float(self._all_told()),
            "denied": float(self.denied == self.case.denials),
            "rules_broken": float(self.rules_broken),
        }

    def reward(self) -> float | None:
        if not self.done:
            return None if self.turns_taken < self.turns else 0.0
        return float(self.success())

    def success(self) -> bool:
        right = self._all_told() and self.denied == self.case.denials and not self.rules_broken
        asked = self.user.finished if isinstance(self.user, Customer) else True  # whether there is anything else
        return self.done and right and asked and digest(self.database) == digest(self.case.gold)

    def expert(self) -> str:
        """Asks all that the rules demand, although it knows the answers."""
        if not isinstance(self.user, Customer):
            return self._act_next(len(self.case.wishes), set(), True)
        return self._act_next(self.user.stated, self.user.told, self.user.finished)

    def state_key(self) -> str:
        user = self.user
        talk = (
            [user.stated, sorted(user.told), user.finished] if isinstance(user, Customer) else [user.talk, user.waiting]
        )
        sets = [sorted(s) for s in (self.looked_up, self.confirmed, self.subgoals_reached)]
        known = [
            sorted(self.denied.items()),
            sorted(self.answers.items()),
            self.rules_broken,
            self.turns_taken,
            self.current_customer,
            self.done,
        ]
        return json.dumps([digest(self.database), self.case.wishes[0].said, self.case.user, talk, sets, known])

    def _act_next(self, stated: int, answered: set[str], finished: bool) -> str:
        facts = self.case.database["users"][self.case.user]
        if self.current_customer != self.case.user:
            if not answered & {"email", "name"} and isinstance(self.user, Customer):
                return 'say("What is your email, or else your name and zip code?")'
            if self.case.knows_email and ("email" in answered or not answered):
                return f'find_user("{facts["email"]}")'
            if "name" not in answered and isinstance(self.user, Customer):
                return 'say("What are your name and zip code?")'
            return f'find_user_by_name("{facts["name"]}", "{facts["zip"]}")'
        for number, wish in enumerate(self.case.wishes[:stated]):
            if not self._is_settled(number, wish):
                return self._handle(number, wish, answered)
        return "finish()" if finished else 'say("Is there anything else?")'

    def _handle(self, number: int, wish: Wish, answered: set[str]) -> str:
        if not wish.stranger and self.case.user not in self.looked_up:
            return f'get_user("{self.case.user}")'
        if wish.order not in self.looked_up:
            return f'get_order("{wish.order}")'
        product = wish.item.partition("-")[0]
        if wish.kind == "exchange" and product not in self.looked_up:
            return f'get_product("{product}")'
        changes = not wish.denial(self.case.database) and wish.kind in ("cancel", "return", "exchange", "address")
        scripted = isinstance(self.user, Customer)
        if changes and scripted and wish.kind in ("cancel", "address") and f"detail {number}" not in answered:
            question = "Why do you want to cancel" if wish.kind == "cancel" else "What is the new address for"
            return f'say("{question} order {wish.order}?")'
        if changes and wish.order not in self.confirmed:
            what = {"address": f"send it to {wish.detail}", "cancel": "cancel it"}
            about = what.get(wish.kind, f"{wish.kind} the {wish.item} of it")
            return f'say("Order {wish.order}: shall I {about}? Please confirm.")'
        return wish.call(self.case.database)

    def _is_settled(self, number: int, wish: Wish) -> bool:
        """Returns whether a wish was settled, rightly or wrongly."""
        touched = self.database["orders"][wish.order] != self.case.database["orders"][wish.order]
        return (
            touched
            or wish.order in self.denied
            or self._answered_rightly(number)
            or wish.order in self.database["transferred"]
        )

    def _find(self, how: str, fits: Any) -> str:
        user = next((name for name, facts in self.database["users"].items() if fits(facts)), None)
        if user is None:
            raise ValueError(f"there is no such customer, check the {how}")
        self.current_customer = user
        self._record_look_up(f"found {user}" if user == self.case.user else "found somebody else")
        return user

    def _look(self, table: str, name: str) -> dict[str, Any]:
        if name not in self.database[table]:
            raise ValueError(f"there is no {name[:30]!r} among the {table}")
        self._record_look_up(name)
        return self.database[table][name]

    def _order(self, order_id: str) -> str:
        order = order_id.strip().upper()
        if order not in self.database["orders"]:
            raise ValueError(f"there is no order {order_id[:20]!r}, look the customer up for theirs")
        return order

    def _change(self, kind: str, order_id: str, item: str = "", detail: str = "") -> str:
        order = self._order(order_id)
        change(self.database, kind, order, item.strip().lower(), detail.strip())
        right = self.database["orders"][order] == self.case.gold["orders"][order]
        theirs = self.database["orders"][order]["user"] == self.current_customer
        allowed = theirs and order in self.confirmed and (kind != "cancel" or self._knows_why(order))
        self._record_act(order, right, f"changed {order}", allowed=allowed)
        return f"done, order {order}: {json.dumps(self.database['orders'][order])}"

    def _record_act(self, order: str, right: bool, goal: str, allowed: bool = True) -> None:
        """Records an act that counts: `allowed` by the rules once the customer was found and the order was looked
        up."""
        kept = allowed and self.current_customer == self.case.user and order in self.looked_up
        self.rules_broken += not kept
        before = len(self.subgoals_reached)
        if right and kept:
            self._reach(goal)
        self._tell(before, worked=right and kept)

    def _knows_why(self, order: str) -> bool:
        """Returns whether the customer has said why the order is to be cancelled; for a customer in a seat that is not
        known.
        """
        if not isinstance(self.user, Customer):
            return True
        return any(w.order == order and f"detail {n}" in self.user.told for n, w in enumerate(self.case.wishes))

    def _current(self) -> int:
        """Returns the wish under discussion: the one stated last; with one in a seat the first without an
        answer."""
        if isinstance(self.user, Customer):
            return self.user.stated - 1
        asked = [number for number, fact in enumerate(self.case.facts) if fact is not None]
        return next((number for number in asked if number not in self.answers), asked[-1] if asked else 0)

    def _note_consent(self, text: str, answer: str) -> None:
        """Notes which orders the customer, by an answer to a text, wants to have changed."""
        if re.search(r"\byes\b", answer.lower()):
            self.confirmed |= {order for order in re.findall(r"W\d{4}", text.upper()) if order in self._wished()}
            self._reach(*(f"confirmed {order}" for order in self.confirmed))

    def _answer(self, text: str, current: int) -> None:
        """Takes a sentence as the answer to a wish; a sentence from before the look-up answers nothing."""
        for number, wish in enumerate(self.case.wishes):
            answer = wish.told(text, current=number == current)
            if answer is not None and self.current_customer == self.case.user and wish.order in self.looked_up:
                self.answers[number] = answer
                if self._answered_rightly(number):
                    self._reach(f"told {number}")

    def _answered_rightly(self, number: int) -> bool:
        """Returns whether the last answer to a wish is right."""
        return number in self.answers and self.answers[number] == self.case.facts[number]

    def _record_look_up(self, name: str) -> None:
        before, again = len(self.subgoals_reached), name in self.looked_up
        self.looked_up |= {name}
        if name in (self.case.user, f"found {self.case.user}", *self._wished()):
            self._reach(f"seen {name}")
        self._tell(before, worked=not again)

    def _reach(self, *goals: str) -> None:
        self.subgoals_reached |= set(goals)

    def _tell(self, before: int, worked: bool | None) -> None:
        self.turns_taken += 1
        self.info = {"subgoal": float(len(self.subgoals_reached) > before)}
        if worked is not None:
            self.info |= {"tool_score": 1.0 if worked else -1.0, "verified": float(worked)}

    def _wished(self) -> Mapping[str, Wish]:
        return {wish.order: wish for wish in self.case.wishes}

    def _all_told(self) -> bool:
        return all(self._answered_rightly(number) for number, fact in enumerate(self.case.facts) if fact is not None)


def _require_sayable(text: str) -> None:
    if not 0 < len(text.strip()) <= LONGEST:
        raise ValueError(f"{len(text)} characters, but from 1 to {LONGEST} can be said at once")


@dataclass
class SeatDesk(Desk):
    """A desk whose customer sits in the seat `user`. Its tools are those of `Desk`."""

    def say(self, text: str) -> str:
        _require_sayable(text)
        assert isinstance(self.user, SeatUser)
        self.user = self.user.told(text)
        before = len(self.subgoals_reached)
        self._answer(text, self._current())
        self._tell(before, worked=None)
        return AWAITED

    def hear(self, text: str) -> str:
        assert isinstance(self.user, SeatUser)
        self._note_consent(self.user.waiting, text)
        self.user, self.done = self.user.answered(text), STOP in text
        return f"Customer: {text.replace(STOP, '').strip()}"

    def user_expert(self) -> str:
        """Returns what the scripted customer says, as one that has named all of its wishes."""
        assert isinstance(self.user, SeatUser)
        return Customer(self.case, stated=len(self.case.wishes)).reply(self.user.waiting)
