"""Requests that leave something open: the agent asks about what matters and is not known, then orders.

A task is a user's wish, of which a part is hidden. An action asks about an attribute or orders; an observation is the
user's answer. The reward comes with the order, which ends the episode: the order's value less the questions' costs, on
a scale where the best possible play earns 1; after `turns` questions the episode ends, less their costs alone.

Ours, in the spirit of asking before acting (CollabLLM: Wu et al. 2025, arXiv:2502.00640; clarification as a decision
with a price: Zhang and Choi 2023, arXiv:2311.09469), and of users whose wishes are underspecified, come out step by
step and are told indirectly (UserBench: Qian et al. 2025, arXiv:2507.22034, whose abstract and accounts were read).
There a language model plays the user; here the user is scripted and answers each question truly, or is a seat that any
model takes, and indirect is what leaves an option out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from sojourn.config.fields import Range
from sojourn.envs.about import About
from sojourn.envs.fields import SIZES, require_one_of, require_within
from sojourn.envs.user_seat import AGENT, SEATS
from sojourn.tasks.splits import make_tasks_from_data
from sojourn.types import Task
from sojourn_worlds.clarify.order import Order
from sojourn_worlds.clarify.talk import SeatTalk, Talk
from sojourn_worlds.clarify.wish import MOST, draw
from sojourn_worlds.tool_env_info import ToolsEnvWithInfo, UserSeatEnvWithInfo, cached_interface

DIFFICULTY = ("attributes", "given", "indifferent", "dependent", "cost", "wrong", "turns", "choices")


@dataclass(frozen=True, kw_only=True)
class Clarify:
    """Orders with hidden preferences: asking costs a little, a wrong guess much, and only what matters is worth asking.

    A thing has `attributes`; of each the user says beforehand what it wants (with probability `given`), says that it
    does not mind (`indifferent`), or says nothing. With `dependent`, one more matters only if another has a certain
    value. The return is 1 - `wrong` for each wrong attribute - `cost` for each question, divided by its value when
    exactly the necessary questions are asked, and within -1 and 1: the best play earns 1. After `turns` questions the
    episode ends, and the return is minus their cost, on that scale.

    With probability `indirect` the user, asked about an attribute, names an option that it does not want, and with each
    further question another one, until one is left.

    `user` "script" is a scripted user, who answers truly when it is asked about an attribute. "seat" leaves the user to
    the seat `user`, which `[seats]` gives to a model: then questions and answers are in free text. The seat is told the
    whole wish, and gets the agent's reward.

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
    indirect: Annotated[float, Range(0, 1)] = 0.0
    user: Literal["script", "seat"] = "script"
    form: Literal["both", "text", "native"] = "both"
    train: Annotated[int, Range(1)] = 100_000
    test: Annotated[int, Range(1)] = 1_000

    about: ClassVar[About] = About(
        source="Ours, in the spirit of CollabLLM (Wu et al. 2025, arXiv:2502.00640)",
        licence="Apache-2.0",
        seats="1-2",
        smallest={"attributes": 2, "given": 0.0, "indifferent": 0.0, "dependent": False, "choices": True},
    )

    def __post_init__(self) -> None:
        limits = {"attributes": (1, MOST), "given": (0, 1), "indifferent": (0, 1 - self.given), "cost": (0, 0.1)}
        least = 2 * self.attributes + 4 if self.indirect else self.attributes + 2
        limits |= {"indirect": (0, 1), "cost": (0, 0.05 if self.indirect else 0.1)}
        sizes = {"wrong": (0.5, 2), "turns": (least, 10**6), **SIZES}
        require_within("clarify", self, {**limits, **sizes})
        require_one_of("clarify", self, {"user": ("script", "seat"), "form": ("both", "text", "native")})

    @property
    def seats(self) -> tuple[str, ...]:
        return SEATS if self.user == "seat" else (AGENT,)

    def tasks(self, split: str) -> Sequence[Task]:
        data = {name: getattr(self, name) for name in DIFFICULTY}
        data |= {"indirect": self.indirect} if self.indirect else {}
        return make_tasks_from_data("clarify", self, split, lambda seed: {**data, "answer": draw(seed, data).order()})

    def make(self, task: Task) -> ToolsEnvWithInfo:
        wish = draw(task.seed, task.data)
        if self.user == "seat":
            return UserSeatEnvWithInfo(cached_interface(Talk, "clarify", self.form), SeatTalk.of(wish, task.data))
        return ToolsEnvWithInfo(cached_interface(Order, "clarify", self.form), Order(wish, task.data))
