"""The state of one play: what was asked, what was ordered, and what that is worth."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from sojourn_worlds.clarify.wish import Wish


@dataclass
class Order:
    """Order what the user wants. A question costs a little, a wrong order much: ask only about what you have to know.

    Order with a value for every attribute that applies, such as order("small, blue").
    """

    wish: Wish
    data: Mapping[str, Any]
    asked: tuple[str, ...] = ()
    ordered: dict[str, str] | None = None
    info: dict[str, float] = field(default_factory=dict)

    def goal(self) -> str:
        lines = [f"A {self.wish.thing} has:"]
        for name, options, when in self.wish.attributes:
            lines.append(f"{name}: {', '.join(options)}{f' (only if {when})' if when else ''}")
        return "\n".join([*lines, f"User: {self._request()}"])

    def ask(self, attribute: str) -> str:
        """Ask the user about an attribute."""
        names = [a.name for a in self.wish.attributes]
        name = attribute.strip().lower()
        if name not in names:
            raise ValueError(f"there is no attribute {attribute[:30]!r}, use one of {', '.join(names)}")
        useful = name in self.wish.hidden and self._times(name) < self.wish.questions(name)
        self.asked += (name,)
        self.info = {"subgoal": float(useful), "verified": float(useful), "tool_score": 1.0 if useful else -1.0}
        return f"User: {self._answer(name)}"

    def order(self, values: str) -> None:
        """Order it, with one value for every attribute that applies: this ends the play."""
        chosen: dict[str, str] = {}
        for value in filter(None, (part.strip().lower() for part in values.split(","))):
            name = next((a.name for a in self.wish.attributes if value in a.options), None)
            if name is None:
                raise ValueError(f"{value[:30]!r} is no value of a {self.wish.thing}, write values with commas between")
            if name in chosen:
                raise ValueError(f"{name} can be {chosen[name]} or {value}, not both")
            chosen[name] = value
        applying = [a.name for a in self.wish.applying(chosen)]
        if missing := [name for name in applying if name not in chosen]:
            raise ValueError(f"a value is missing for {', '.join(missing)}")
        if extra := [name for name in chosen if name not in applying]:
            raise ValueError(f"{extra[0]} does not apply to this order, leave out {chosen[extra[0]]}")
        self.ordered = chosen
        self.info = {"wrong": float(self._wrong()), "questions": float(len(self.asked))}

    def reward(self) -> float | None:
        cost = self.data["cost"]
        best = 1 - cost * self.wish.needed
        if self.ordered is None:
            return None if len(self.asked) < self.data["turns"] else max(-1.0, -cost * len(self.asked) / best)
        worth = 1 - self.data["wrong"] * self._wrong() - cost * len(self.asked)
        return max(-1.0, min(1.0, worth / best))

    def success(self) -> bool:
        return self.ordered is not None and self._wrong() == 0

    def expert(self) -> str:
        """Returns the best action given what the player knows: what was said and what was answered."""
        known = self._known()
        for attribute in self.wish.applying(known):
            if attribute.name not in known:
                return f'ask("{attribute.name}")'
        return f'order("{", ".join(known[a.name] for a in self.wish.applying(known))}")'

    def choices(self) -> list[str]:
        """Returns all questions, and the orders that agree with what is known; only with `choices` in the config."""
        if not self.data["choices"]:
            return []
        known = self._known()
        questions = [
            f'ask("{a.name}")' for a in self.wish.attributes if self._times(a.name) < self.wish.questions(a.name)
        ]
        open_ = [a for a in self.wish.attributes if a.name not in known]
        orders: dict[str, None] = {}
        for values in product(*(self._left(a.name) for a in open_)):
            chosen = {**known, **dict(zip((a.name for a in open_), values, strict=True))}
            free = {a.name: chosen[a.name] for a in self.wish.attributes if not a.when}
            orders[f'order("{", ".join(chosen[a.name] for a in self.wish.applying(free))}")'] = None
        return [*questions, *orders]

    def state_key(self) -> str:
        return json.dumps([self.wish.thing, self.wish.order(), self.goal(), self.asked, self.ordered])

    def _request(self) -> str:
        known_wishes = [f"{name} {self.wish.values[name]}" for name in self._named(self.wish.given)]
        minds = [f"Any {name} will do." for name in self._named(self.wish.indifferent)]
        wanted = f"A {self.wish.thing}, please{': ' if known_wishes else ''}{', '.join(known_wishes)}."
        return " ".join([wanted, *minds])

    def _times(self, name: str) -> int:
        """Returns how often the user was asked about an attribute."""
        return self.asked.count(name)

    def _unwanted(self, name: str) -> list[str]:
        return [option for option in self.wish.options(name) if option != self.wish.values[name]]

    def _answer(self, name: str) -> str:
        """Returns what the user says about an attribute, after the question about it was counted."""
        if name in self.wish.indifferent:
            return f"I do not mind the {name}."
        if name not in [a.name for a in self.wish.applying(self.wish.values)]:
            return f"I need no {name}."
        times = self._times(name)
        if name in self.wish.indirect and times <= self.wish.questions(name):
            return f"Not {self._unwanted(name)[times - 1]}."
        return f"{self.wish.values[name]}, please."

    def _left(self, name: str) -> list[str]:
        """Returns the options of an attribute that the user's answers left possible."""
        ruled_out = self._unwanted(name)[: self._times(name)] if name in self.wish.indirect else []
        return [option for option in self.wish.options(name) if option not in ruled_out]

    def _known(self) -> dict[str, str]:
        """Returns the values that need no question, or follow from the answers."""
        applying = {a.name for a in self.wish.applying(self.wish.values)}
        answered = {name for name in applying if self._times(name) >= self.wish.questions(name)}
        known = self.wish.given | self.wish.indifferent | answered
        return {name: self.wish.values[name] for name in self._named(known)}

    def _wrong(self) -> int:
        chosen = self.ordered or {}
        mattering = [*self._named(self.wish.given), *self.wish.hidden]
        return sum(chosen.get(name) != self.wish.values[name] for name in mattering)

    def _named(self, names: frozenset[str] | set[str]) -> list[str]:
        return [a.name for a in self.wish.attributes if a.name in names]
