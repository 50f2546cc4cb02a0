"""Requests that leave something open: the agent asks about what matters and is not known, then orders.

A task is a user's wish, of which a part is hidden. An action asks about an attribute or orders; an observation is the
user's answer. The reward comes with the order, which ends the episode: the order's value less the questions' costs, on
a scale where the best possible play earns 1; after `turns` actions the episode ends without reward.

Ours, in the spirit of asking before acting (CollabLLM: Wu et al. 2025, arXiv:2502.00640; clarification as a decision
with a price: Zhang and Choi 2023, arXiv:2311.09469). Here the user is scripted: it answers each question truly.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from sojourn.config.fields import Range
from sojourn.envs.about import About
from sojourn.envs.fields import SIZES, require_one_of, require_within
from sojourn.tasks.splits import make_tasks_from_data
from sojourn.types import Task
from sojourn_worlds.tool_env_info import ToolsEnvWithInfo, cached_interface


class Attribute(NamedTuple):
    name: str
    options: tuple[str, ...]
    when: str = ""  # the option of another attribute that it depends on; it always applies where empty


def _attributes(text: str) -> tuple[Attribute, ...]:
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
DIFFICULTY = ("attributes", "given", "indifferent", "dependent", "cost", "wrong", "turns", "choices")


@dataclass(frozen=True, kw_only=True)
class Clarify:
    """Orders with hidden preferences: asking costs a little, a wrong guess much, and only what matters is worth asking.

    A thing has `attributes`; of each the user says beforehand what it wants (with probability `given`), says that it
    does not mind (`indifferent`), or says nothing. With `dependent`, one more matters only if another has a certain
    value. The return is 1 - `wrong` for each wrong attribute - `cost` for each question, divided by its value when
    exactly the necessary questions are asked, and within -1 and 1: the best play earns 1. After `turns` actions the
    episode ends, without reward.

    `Task.data["answer"]` is the right order (`information_gain.before = 'order("'`, `after = '")'`). In the info of a
    question `subgoal` is 1 and `verified` 1 where it had to be asked, else 0; `tool_score` is then 1 or -1.
    """

    attributes: Annotated[int, Range(1, MOST)] = 4
    given: Annotated[float, Range(0, 1)] = 0.3
    indifferent: Annotated[float, Range(0, 1)] = 0.2
    dependent: bool = True
    cost: Annotated[float, Range(0, 0.1)] = 0.05
    wrong: Annotated[float, Range(0.5, 2)] = 1.0
    turns: Annotated[int, Range(2)] = 10
    choices: bool = False
    form: Literal["both", "text", "native"] = "both"
    train: Annotated[int, Range(1)] = 100_000
    test: Annotated[int, Range(1)] = 1_000

    about: ClassVar[About] = About(
        source="Ours, in the spirit of CollabLLM (Wu et al. 2025, arXiv:2502.00640)",
        licence="Apache-2.0",
        smallest={"attributes": 2, "given": 0.0, "indifferent": 0.0, "dependent": False, "choices": True},
    )

    def __post_init__(self) -> None:
        limits = {"attributes": (1, MOST), "given": (0, 1), "indifferent": (0, 1 - self.given), "cost": (0, 0.1)}
        sizes = {"wrong": (0.5, 2), "turns": (self.attributes + 2, 10**6), **SIZES}
        require_within("clarify", self, {**limits, **sizes})
        require_one_of("clarify", self, {"form": ("both", "text", "native")})

    def tasks(self, split: str) -> Sequence[Task]:
        data = {name: getattr(self, name) for name in DIFFICULTY}
        return make_tasks_from_data("clarify", self, split, lambda seed: {**data, "answer": draw(seed, data).order()})

    def make(self, task: Task) -> ToolsEnvWithInfo:
        return ToolsEnvWithInfo(
            cached_interface(Order, "clarify", self.form), Order(draw(task.seed, task.data), task.data)
        )


@dataclass(frozen=True)
class Wish:
    """A user's wish: its attributes in order, the value of each, and which of them the user said or does not mind."""

    thing: str
    attributes: tuple[Attribute, ...]
    values: Mapping[str, str]  # of all attributes, also those that do not apply or do not matter
    given: frozenset[str]
    indifferent: frozenset[str]

    def applying(self, values: Mapping[str, str]) -> list[Attribute]:
        """Returns the attributes that apply to an order, or to a part of one."""
        return [a for a in self.attributes if not a.when or a.when in values.values()]

    @property
    def hidden(self) -> list[str]:
        """Returns what has to be asked, in order."""
        return [a.name for a in self.applying(self.values) if a.name not in self.given | self.indifferent]

    def order(self) -> str:
        return ", ".join(self.values[a.name] for a in self.applying(self.values))


def draw(seed: int, size: Mapping[str, Any]) -> Wish:
    rng = random.Random(f"clarify {seed}")
    thing = rng.choice(sorted(THINGS))
    *free, depending = _attributes(THINGS[thing])
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
    return Wish(thing, tuple(attributes), values, frozenset(given), frozenset(indifferent))


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
        known_wishes = [f"{name} {self.wish.values[name]}" for name in self._named(self.wish.given)]
        minds = [f"Any {name} will do." for name in self._named(self.wish.indifferent)]
        wanted = f"A {self.wish.thing}, please{': ' if known_wishes else ''}{', '.join(known_wishes)}."
        return "\n".join([*lines, f"User: {' '.join([wanted, *minds])}"])

    def ask(self, attribute: str) -> str:
        """Ask the user about an attribute."""
        names = [a.name for a in self.wish.attributes]
        name = attribute.strip().lower()
        if name not in names:
            raise ValueError(f"there is no attribute {attribute[:30]!r}, use one of {', '.join(names)}")
        useful = name in self.wish.hidden and name not in self.asked
        self.asked += (name,)
        self.info = {"subgoal": float(useful), "verified": float(useful), "tool_score": 1.0 if useful else -1.0}
        if name in self.wish.indifferent:
            return f"User: I do not mind the {name}."
        if name not in [a.name for a in self.wish.applying(self.wish.values)]:
            return f"User: I need no {name}."
        return f"User: {self.wish.values[name]}, please."

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
        best = 1 - cost * len(self.wish.hidden)
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
        questions = [f'ask("{a.name}")' for a in self.wish.attributes if a.name not in self.asked]
        open_ = [a for a in self.wish.attributes if a.name not in known]
        orders: dict[str, None] = {}
        for values in product(*(a.options for a in open_)):
            chosen = {**known, **dict(zip((a.name for a in open_), values, strict=True))}
            free = {a.name: chosen[a.name] for a in self.wish.attributes if not a.when}
            orders[f'order("{", ".join(chosen[a.name] for a in self.wish.applying(free))}")'] = None
        return [*questions, *orders]

    def state_key(self) -> str:
        return json.dumps([self.wish.thing, self.wish.order(), self.goal(), self.asked, self.ordered])

    def _known(self) -> dict[str, str]:
        """Returns the values that need no question, or were answered."""
        applying = {a.name for a in self.wish.applying(self.wish.values)}
        known = self.wish.given | self.wish.indifferent | (set(self.asked) & applying)
        return {name: self.wish.values[name] for name in self._named(known)}

    def _wrong(self) -> int:
        chosen = self.ordered or {}
        mattering = [*self._named(self.wish.given), *self.wish.hidden]
        return sum(chosen.get(name) != self.wish.values[name] for name in mattering)

    def _named(self, names: frozenset[str] | set[str]) -> list[str]:
        return [a.name for a in self.wish.attributes if a.name in names]
