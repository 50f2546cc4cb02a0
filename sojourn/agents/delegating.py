"""An agent that calls further agents, its sub-agents, by tools."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

from sojourn.agents.plain import Plain
from sojourn.agents.sub_agent import (
    READS,
    REPORT,
    Call,
    Called,
    SubAgent,
    argument,
    context_of,
    numbers_read,
    with_success_of,
    written_tasks,
)
from sojourn.agents.told import require_base
from sojourn.call_text import answer, begins_with, written_call
from sojourn.config.fields import Kind
from sojourn.errors import ActionError, BudgetError, ConfigError, NoActionError
from sojourn.protocols import Agent, AgentContext, Seat
from sojourn.types import Ending, Message, Observation, Role, Tool, ToolCall, Trajectory

NO_RESULT = "(no result)"  # what the main agent sees of a call that said nothing
NAME = re.compile(r"[A-Za-z_]\w{0,63}", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class Delegating:
    """Has the agent `base` act as the main agent, which may call `sub_agents` as tools, and sees what each returns as
    the result of its call (as the main agent of M-GRPO: Hong et al. 2025, arXiv:2511.13288).

    Every call is a trajectory of its own in the episode, whose `agent` is the sub-agent's name. `limits.turns` counts
    the turns of all. Several calls in one message are carried out one after another. `rewards` says who gets the
    world's rewards for what a sub-agent does: "actor", that call of it; "main", the main agent, as for its call; or
    "both" of them. With "actor", a main agent gets nothing for what it has others do, and may learn to call nobody. The
    success of the episode is that of all its trajectories. A sub-agent calls no others.

    With `graph` the main agent grows a graph of agents, call by call: results are numbered, and a call names by `reads`
    the earlier ones that are shown to the called agent before its task (after MasHost: Yang et al. 2025,
    arXiv:2506.08507, read as accounts of it, whose policy also takes agents out again, and is rewarded for each step
    of the construction besides). An agent that samples among listed actions is offered each call without reading, with
    each earlier result alone, and with all of them.
    """

    sub_agents: Mapping[str, SubAgent]
    base: Annotated[Agent, Kind("agent")] = field(default_factory=Plain)
    rewards: Literal["actor", "main", "both"] = "actor"
    graph: bool = False

    def __post_init__(self) -> None:
        require_base(self.base)
        if not self.sub_agents:
            raise ValueError("sub_agents = {}: expected at least one: describe one, or choose its base as the agent")
        for name, config in self.sub_agents.items():
            if not NAME.fullmatch(name) or name == REPORT:
                raise ValueError(
                    f"sub_agents.{name}: a tool has this name: expected up to 64 letters, digits and _, the first no "
                    f"digit, and not '{REPORT}': rename it"
                )
            if isinstance(self.base, Plain) and self.base.choices and not config.tasks:
                raise ValueError(
                    f"base.choices = true restricts the main agent to listed actions, but sub_agents.{name} has no "
                    "`tasks`: list them, or leave choices out"
                )

    @property
    def sub_agent_models(self) -> Mapping[str, str]:
        return {name: config.model for name, config in self.sub_agents.items()}

    def seat(self, context: AgentContext) -> DelegatingSeat:
        return DelegatingSeat(self, context, self.base.seat(context))


@dataclass
class DelegatingSeat:
    """A participant of one episode, for whom the main agent acts, or the sub-agent that it called."""

    config: Delegating
    context: AgentContext
    main: Seat
    made: list[Called] = field(default_factory=list[Called])
    active: Called | None = None
    waiting: list[Call] = field(default_factory=list[Call])  # to be made after the active one
    actor: Seat | None = None  # that took the last turn
    acted: bool = True  # whether the world is to show something new
    world: Observation | None = None  # what it showed last
    system: tuple[Message, ...] = ()
    tools: tuple[Tool, ...] = ()
    news: tuple[Message, ...] = ()  # that the main agent has not seen of the world
    results: list[Message] = field(default_factory=list[Message])  # that it has not seen of its calls
    shown: Observation | None = None  # to the main agent, last, which was no refusal
    refusal: Observation | None = None  # of the last action

    @property
    def ends_when_malformed(self) -> bool:
        return self.active is None and self.main.ends_when_malformed

    async def act(self, observation: Observation, state: str | None = None) -> Message:
        """Returns the next action in the world, of whichever agent acts; a turn that is no such action raises
        `NoActionError`."""
        if self.acted:
            self._observe(observation)
        if self.active is not None:
            try:
                message = await self._act_called(self.active, state)
            except BudgetError:  # nothing was sampled, so the main agent takes this turn
                self._return(Ending.TOKENS, self.active.said)
                return await self.act(observation, state)
        else:
            message = await self._act_main(state)
        self.acted = True
        return message

    def add_reward(self, reward: float, info: Mapping[str, float]) -> None:
        """Adds to the turn that was taken last. Its success is the main agent's as well."""
        actor, shared = self.actor or self.main, self.config.rewards
        if actor is self.main:
            self.main.add_reward(reward, info)
            return
        of_main = {name: value for name, value in info.items() if name == "success"}
        self.main.add_reward(0.0 if shared == "actor" else reward, of_main)
        actor.add_reward(0.0 if shared == "main" else reward, info)

    def refuse(self, error: ActionError, observation: Observation) -> Observation:
        self.acted, called = False, self.active
        seat, shown = (self.main, self.shown) if called is None else (called.seat, called.shown)
        self.refusal = seat.refuse(error, shown or observation)
        if called is not None and seat.ends_when_malformed:
            self._return(Ending.MALFORMED, called.said)
        elif called is not None:
            self._return_if_spent(called)
        return observation

    def finish(self, ending: Ending) -> Trajectory:
        return self.main.finish(ending)

    def called(self, ending: Ending) -> tuple[Trajectory, ...]:
        """Returns the trajectories of the calls that took a turn, whose success is the main agent's."""
        return with_success_of(self.finish(ending), (one.seat.finish(one.ending or ending) for one in self.made))

    def _observe(self, observation: Observation) -> None:
        """Takes in what the world shows after an action, or first."""
        self.world, self.acted, self.refusal = observation, False, None
        self.system, self.tools = observation.system or self.system, observation.tools or self.tools
        for tool in self.tools:
            if tool.name in self.config.sub_agents or tool.name == REPORT:
                raise ConfigError(
                    f"agent.sub_agents: the world has a tool '{tool.name}', too: expected a name that is free (and "
                    f"'{REPORT}' is the sub-agents' own): rename it"
                )
        answered = self.actor is None or self.actor is self.main
        self.news = tuple(m for m in observation.messages if answered or m.role is not Role.TOOL)
        if self.active is not None:
            self._return_if_spent(self.active)

    async def _act_main(self, state: str | None) -> Message:
        shown = self.refusal or self._shown_to_main()
        before, self.actor = self.actor, self.main
        try:
            message = await self.main.act(shown, state)
        except BudgetError:
            self.actor = before
            raise
        finally:
            self.results, self.news, self.refusal = [], (), None
        self.waiting = self._calls(message)
        if self.waiting:
            self._begin()
            raise NoActionError("the turn was a call of another agent")
        return message

    async def _act_called(self, called: Called, state: str | None) -> Message:
        assert self.world is not None, "an agent is called once the world has shown something"
        shown = self.refusal or called.sees(self.world, self.system, self.tools)
        before, self.actor = self.actor, called.seat
        called.taken += 1
        try:
            message = await called.seat.act(shown, state)
        except BudgetError:
            self.actor = before
            raise
        finally:
            self.refusal = None
        result = called.result(message, self.tools)
        if result is None:
            return message
        self._return(Ending.DONE, result)
        raise NoActionError("the turn returned a result to another agent")

    def _shown_to_main(self) -> Observation:
        assert self.world is not None, "the world shows something first"
        known, listed = self.config.sub_agents, self.world.choices
        reads = self._lists_to_read()
        written = [one for name, config in known.items() for one in written_tasks(name, config, reads) if listed]
        offered = (config.tool(name, reads=self.config.graph) for name, config in known.items())
        messages = (*self.results, *self.news)
        self.shown = Observation(messages, self.system, (*self.tools, *offered), (*listed, *written), self.world.agent)
        return self.shown

    def _calls(self, message: Message) -> list[Call]:
        """Returns the calls of sub-agents that a message makes; raises `ActionError` where they cannot be made."""
        known = self.config.sub_agents
        own = [call for call in message.calls if call.name in known]
        if own and len(own) < len(message.calls):
            raise ActionError(f"You call {own[0].name} beside other tools: call agents alone.")
        calls = [self._call(call, number, call) for number, call in enumerate(own)]
        name = None if message.calls else begins_with(message.text)
        if name is not None and name in known:
            tool = known[name].tool(name, reads=self.config.graph)
            calls = [self._call(written_call(message.text, [tool]) or ToolCall(name, {}), 0, None)]
        for number, call in enumerate(calls):
            self._check(call, calls[:number])
        return calls

    def _call(self, call: ToolCall, before: int, structured: ToolCall | None) -> Call:
        """Returns a call that `before` others of its message precede."""
        if not self.config.graph:
            return Call(call.name, argument(call, "task"), structured)
        task = argument(call, "task", READS)
        return Call(call.name, task, structured, numbers_read(call, len(self.made) + before))

    def _lists_to_read(self) -> list[list[int]]:
        """Returns the lists of earlier results with which calls are listed."""
        numbers = list(range(1, len(self.made) + 1)) if self.config.graph else []
        return [[], *([number] for number in numbers), *([numbers] if len(numbers) > 1 else [])]

    def _check(self, call: Call, before: Sequence[Call]) -> None:
        """Raises `ActionError` for a call too many, or with a task that is not among those that are listed."""
        config = self.config.sub_agents[call.name]
        if config.tasks and call.task not in config.tasks:
            raise ActionError(f"{call.name} has no task {call.task[:60]!r}: give it one of {', '.join(config.tasks)}.")
        made = [*(one.call for one in self.made), *before]
        if sum(one.name == call.name for one in made) >= config.calls:
            raise ActionError(f"You have called {call.name} {config.calls} times, which is the most: go on without it.")

    def _begin(self) -> None:
        """Begins the next of the calls that wait."""
        call = self.waiting.pop(0)
        config = self.config.sub_agents[call.name]
        seat = config.base.seat(context_of(config.model, call.name, len(self.made), self.context))
        read = [f"{self.made[number - 1].returned}\n\n" for number in call.reads]
        self.active = Called(config, call, seat, "".join((*read, call.task)))
        self.made.append(self.active)

    def _return(self, ending: Ending, result: str) -> None:
        """Ends the active call, whose result the main agent sees once no further call waits."""
        assert self.active is not None, "a call returns once"
        self.active.ending, self.active.returned = ending, result or NO_RESULT
        if self.config.graph:
            self.active.returned = f"Result {len(self.made)}, of {self.active.call.name}: {self.active.returned}"
        self.results.append(answer(self.active.call.structured, self.active.returned))
        self.active = self.refusal = None
        if self.waiting:
            self._begin()

    def _return_if_spent(self, called: Called) -> None:
        if called.taken >= called.config.turns:
            self._return(Ending.TURNS, called.said)
