"""Customer service by a policy: the agent looks things up, talks to the customer, changes the database or refuses.

A task is a database and a customer with requests. An action is a call on the database, a sentence to the customer, or
finish(), which ends the episode; an observation is the result or the customer's answer. The reward is 1 if the database
and all that the customer was told are right and no rule was broken, else 0.

After tau-bench (Yao et al. 2024, arXiv:2406.12045): the final state of the database decides, beside what the customer
had to be told. There the data are two fixed databases and the customer is a language model; here databases and requests
are generated from a seed, and the customer is scripted, or a seat that any model takes. A refusal is a call with a
reason, so that it can be judged without a model. The published tasks are the world `tau`.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, ClassVar, Literal

from sojourn.config.fields import Range
from sojourn.envs.about import About
from sojourn.envs.fields import SIZES, require_one_of, require_within
from sojourn.envs.user_seat import AGENT, SEATS, SeatUser
from sojourn.tasks.splits import make_tasks_from_data
from sojourn.types import Task
from sojourn_worlds.service.customer import Customer, instructions
from sojourn_worlds.service.desk import Desk, SeatDesk
from sojourn_worlds.service.shop import FIRST, LAST, Case, draw_case
from sojourn_worlds.tool_env_info import ToolsEnvWithInfo, UserSeatEnvWithInfo, cached_interface

MOST = min(len(FIRST), len(LAST))
DIFFICULTY = ("users", "requests", "denied", "turns")


@dataclass(frozen=True, kw_only=True)
class Service:
    """A shop's customer service: find out what a customer wants, and do it or deny it as the policy demands.

    Of `users` customers one calls with `requests`, each with probability `denied` one that the policy forbids. The
    customer names one wish at a time, says more when asked, and confirms what it wants. The reward is 1 where in the
    end the database is what it should be, every question is answered, exactly the forbidden is denied for the right
    reason, and no rule was broken; 0 otherwise, and after `turns` actions. An answer is one number or one status, of an
    order that was looked up; of several sentences with one the last counts.

    `user` "script" is a scripted customer; "seat" leaves it to the seat `user`, which `[seats]` gives to a model. It is
    told its wishes, the first of which the world says, and gets the agent's reward.

    `Task.data["answer"]` is the call that settles the first request. In the info of a turn `subgoal` is 1 where a step
    towards it was taken for the first time; of a call `tool_score` is 1 or -1 and `verified` 1 or 0, as it was right.
    """

    users: Annotated[int, Range(2, MOST)] = 4
    requests: Annotated[int, Range(1, 3)] = 1
    denied: Annotated[float, Range(0, 1)] = 0.3
    turns: Annotated[int, Range(1)] = 24
    user: Literal["script", "seat"] = "script"
    form: Literal["both", "text", "native"] = "both"
    train: Annotated[int, Range(1)] = 100_000
    test: Annotated[int, Range(1)] = 1_000

    about: ClassVar[About] = About(
        source="Ours, after tau-bench (Yao et al. 2024, arXiv:2406.12045)",
        licence="Apache-2.0",
        seats="1-2",
        smallest={"users": 2, "denied": 0.0},
    )

    def __post_init__(self) -> None:
        limits = {"users": (2, MOST), "requests": (1, 3), "denied": (0, 1), "turns": (4 + 7 * self.requests, 10**6)}
        require_within("service", self, {**limits, **SIZES})
        require_one_of("service", self, {"user": ("script", "seat"), "form": ("both", "text", "native")})

    @property
    def seats(self) -> tuple[str, ...]:
        return SEATS if self.user == "seat" else (AGENT,)

    def tasks(self, split: str) -> Sequence[Task]:
        data = {name: getattr(self, name) for name in DIFFICULTY}

        def answered(seed: int) -> Mapping[str, Any]:
            case = draw(seed, self.users, self.requests, self.denied)
            return {**data, "answer": case.wishes[0].call(case.database)}

        return make_tasks_from_data("service", self, split, answered)

    def make(self, task: Task) -> ToolsEnvWithInfo:
        case = draw(task.seed, task.data["users"], task.data["requests"], task.data["denied"])
        interface = cached_interface(Desk, "service", self.form)
        turns, database = task.data["turns"], copy.deepcopy(case.database)
        if self.user == "seat":
            user = SeatUser(instructions(case), case.wishes[0].said)
            return UserSeatEnvWithInfo(interface, SeatDesk(case, user, turns, database))
        return ToolsEnvWithInfo(interface, Desk(case, Customer(case), turns, database))


@lru_cache(256)
def draw(seed: int, users: int, requests: int, denied: float) -> Case:
    return draw_case(random.Random(f"service {seed}"), users, requests, denied)
