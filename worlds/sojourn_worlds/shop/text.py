"""One episode of the shop, its pages as text: WebShop's "simple" observations, in few tokens."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sojourn.errors import InfrastructureError
from sojourn.types import Message, Observation, Role, Step
from sojourn_worlds.shop.expert import advise
from sojourn_worlds.shop.reward import Goal, Judgement, judge
from sojourn_worlds.shop.store import SEARCH_PAGE, State, Store, address, parse

SYSTEM_PROMPT = "You shop online. Say one action: search[words] or click[name]. Buy what this asks for: "


def instructions(goal: Goal) -> tuple[Message, ...]:
    return (Message(Role.SYSTEM, SYSTEM_PROMPT + goal.instruction),)


def bought(agent: str, judgement: Judgement) -> Step:
    """Returns the last step of an episode, with the reward and its parts."""
    info = {f"shop/{name}": float(value) for name, value in judgement._asdict().items() if name != "reward"}
    reward = judgement.reward
    return Step(None, {agent: reward}, done=True, success=reward == 1.0, info=info)


@dataclass
class TextPlay:
    """The environment of the text surface. `key` tells the states of one task from those of another."""

    store: Store
    goal: Goal
    key: str
    choices: bool = False
    state: State = SEARCH_PAGE
    done: bool = False

    async def start(self) -> Observation:
        return self._observe(instructions(self.goal))

    async def step(self, agent: str, action: Message) -> Step:
        if self.done:
            raise InfrastructureError("a shop was given an action after the purchase: play each task's world once")
        after = self.store.apply(self.state, parse(action.text))
        if after is not None:
            self.state = after
            return Step(self._observe())
        self.done = True
        product = self.store.catalogue.by_id[self.state.product]
        return bought(agent, judge(product, dict(self.state.chosen), self.goal))

    async def close(self) -> None:
        pass

    async def fork(self) -> TextPlay:
        return replace(self)  # all that changes is the frozen state and a flag

    def state_key(self) -> str:
        return f"{self.key}/{address(self.state)}"

    def expert(self) -> str:
        return advise(self.store, self.goal, self.state)

    def _observe(self, system: tuple[Message, ...] = ()) -> Observation:
        choices = tuple(f"click[{link.label}]" for link in self.store.links(self.state)) if self.choices else ()
        return Observation((Message(Role.USER, self.store.text(self.state)),), system=system, choices=choices)
