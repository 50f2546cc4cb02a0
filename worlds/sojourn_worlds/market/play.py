"""One episode: look at the shelf, learn what costs something to learn, buy one product."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from sojourn.errors import ActionError, InfrastructureError
from sojourn.types import Message, Observation, Role, Step
from sojourn_worlds.market.shelf import Product, Shelf

ACTION = re.compile(r"(inspect|buy|ask)\[([\w ]{1,30})\]|history", re.IGNORECASE)


class Rules(NamedTuple):
    """The fields of the family that shape an episode."""

    profile: str
    hidden: bool
    cost: float
    turns: int
    choices: bool


class State(NamedTuple):
    turns_taken: int = 0  # actions
    inspected: frozenset[int] = frozenset()  # by place, from 0
    asked: frozenset[str] = frozenset()
    recalled: bool = False


@dataclass
class Purchase:
    shelf: Shelf
    key: str  # tells the states of one task from those of another
    rules: Rules
    state: State = field(default_factory=State)
    done: bool = False

    async def start(self) -> Observation:
        return self._observe(self._drawn_shelf(), (Message(Role.SYSTEM, self._system_text()),))

    async def step(self, agent: str, action: Message) -> Step:
        if self.done:
            raise InfrastructureError("a market was given an action after the purchase: play each world once")
        verb, argument = self._parse(action.text)
        if verb == "buy":
            return self._bought(agent, int(argument) - 1)
        self.state, text = self._learnt(verb, argument)
        if self.state.turns_taken >= self.rules.turns:
            self.done = True
            return Step(None, {agent: -self.rules.cost}, done=True, success=False)
        return Step(self._observe(text), {agent: -self.rules.cost})

    async def close(self) -> None:
        pass

    async def fork(self) -> Purchase:
        return replace(self)  # all that changes is the frozen state and a flag

    def state_key(self) -> str:
        state = self.state
        return f"{self.key}/{state.turns_taken}/{sorted(state.inspected)}/{sorted(state.asked)}/{state.recalled}"

    def expert(self) -> str:
        """Learns the preferences, inspects the products that could still be the best, most promising first, and buys
        the best.

        It reads the weights off the history exactly, which a player can only guess at; and out of turns, it guesses.
        """
        shelf, state = self.shelf, self.state
        best = f"buy[{shelf.best + 1}]"
        if self.rules.turns - state.turns_taken <= 1:
            return best
        if self.rules.profile == "asked" and not state.asked >= shelf.weights.keys():
            return next(f"ask[{aspect}]" for aspect in shelf.aspects if aspect not in state.asked)
        if self.rules.profile == "past" and not state.recalled:
            return "history"
        most = {place: self._bound(place) for place in range(len(shelf.products))}
        hopeful = max(most, key=lambda place: (most[place], -place))
        return f"inspect[{hopeful + 1}]" if self._unknown(hopeful) else f"buy[{hopeful + 1}]"

    def _unknown(self, place: int) -> list[str]:
        """Returns the aspects that matter and that are not yet known of a product."""
        if not self.rules.hidden or place in self.state.inspected:
            return []
        return [aspect for aspect in self.shelf.weights if aspect in self.shelf.kind.features]

    def _bound(self, place: int) -> float:
        """Returns the most points that a product can have, given what is known of it."""
        shelf, unseen = self.shelf, self._unknown(place)
        return sum(
            weight * (1.0 if aspect in unseen else shelf.value(shelf.products[place], aspect))
            for aspect, weight in shelf.weights.items()
        )

    def _system_text(self) -> str:
        shelf, profile = self.shelf, self.rules.profile
        actions = ["inspect[number]"] if self.rules.hidden else []
        actions += {"told": [], "asked": [f"ask[{shelf.aspects[0]}]"], "past": ["history"]}[profile]
        some = f"{len(shelf.weights)} of {', '.join(shelf.aspects)}"
        texts = {
            "told": f"What matters to the user: {'; '.join(shelf.told(aspect) for aspect in shelf.weights)}.",
            "asked": f"Ask the user what matters: {some}.",
            "past": f"What the user took before says what matters: {some}.",
        }[profile]
        says = f"You buy one {shelf.kind.name} for a user. Say one action: {', '.join([*actions, 'buy[number]'])}."
        costs = f" Each but buy costs {self.rules.cost:g}." if actions else ""
        return f"{says}{costs}\n{texts}"

    def _drawn_shelf(self) -> str:
        """Returns the shelf as rows of cards."""
        lines = [f"Shelf of {self.shelf.kind.plural}"]
        for place, product in enumerate(self.shelf.products):
            if place % self.shelf.columns == 0:
                lines.append(f"Row {place // self.shelf.columns + 1}")
            badges = "".join(f" [{badge}]" for badge in product.badges)
            details = "" if self.rules.hidden else f", {_features(product)}"
            reviews = f"{product.reviews} review{'s' * (product.reviews > 1)}"
            summary = f"{product.brand}: ${product.price}, {product.rating:g} stars ({reviews})"
            lines.append(f"{place + 1} {summary}{details}{badges}")
        return "\n".join(lines)

    def _parse(self, text: str) -> tuple[str, str]:
        match = ACTION.fullmatch(text.strip()) if len(text) < 1000 else None
        verb, argument = ((match[1] or match[0]).lower(), (match[2] or "").strip().lower()) if match else ("", "")
        needs = {
            "inspect": self.rules.hidden,
            "ask": self.rules.profile == "asked",
            "history": self.rules.profile == "past",
        }
        possible = [name for name in ("inspect", "ask", "history") if needs[name]]
        if verb not in (*possible, "buy"):
            raise ActionError(f'"{text.strip()[:30]}" is no action, say {", ".join([*possible, "buy"])} as told.')
        count = len(self.shelf.products)
        if verb in ("inspect", "buy") and argument not in map(str, range(1, count + 1)):
            raise ActionError(f'There is no product "{argument}", say {verb}[number] with a number from 1 to {count}.')
        if verb == "ask" and argument not in self.shelf.aspects:
            raise ActionError(f'"{argument}" cannot be asked about, ask about {", ".join(self.shelf.aspects)}.')
        return verb, argument

    def _learnt(self, verb: str, argument: str) -> tuple[State, str]:
        """Returns the state after an action that is no purchase, and what it tells."""
        state = self.state._replace(turns_taken=self.state.turns_taken + 1)
        if verb == "ask":
            return state._replace(asked=state.asked | {argument}), f"The user says of {self.shelf.told(argument)}."
        if verb == "history":
            lines = [
                f"Took {_card(taken)}; left {' and '.join(_card(other) for other in others)}."
                for taken, *others in self.shelf.past
            ]
            return state._replace(recalled=True), "\n".join(lines)
        product = self.shelf.products[int(argument) - 1]
        return state._replace(
            inspected=state.inspected | {int(argument) - 1}
        ), f"{argument} {product.brand}: {_features(product)}"

    def _bought(self, agent: str, place: int) -> Step:
        self.done = True
        product, columns = self.shelf.products[place], self.shelf.columns
        info = {
            "market/worth": self.shelf.worth[place],
            "market/first_row": float(place < columns),
            "market/first_column": float(place % columns == 0),
            "market/sponsored": float(product.sponsored),
            "market/pick": float(product.pick),
            "market/scarce": float(product.left > 0),
        }
        right = place == self.shelf.best
        return Step(None, {agent: self.shelf.worth[place]}, done=True, success=right, info=info)

    def _observe(self, text: str, system: tuple[Message, ...] = ()) -> Observation:
        places = range(1, len(self.shelf.products) + 1)
        actions = [f"inspect[{place}]" for place in places] if self.rules.hidden else []
        actions += [f"ask[{aspect}]" for aspect in self.shelf.aspects] if self.rules.profile == "asked" else []
        actions += ["history"] if self.rules.profile == "past" else []
        choices = (*actions, *(f"buy[{place}]" for place in places)) if self.rules.choices else ()
        return Observation((Message(Role.USER, text),), system=system, choices=choices)


def _features(product: Product) -> str:
    return ", ".join(f"{feature} {value}" for feature, value in product.features.items())


def _card(product: Product) -> str:
    return f"${product.price}, {product.rating:g} stars, {_features(product)}"
