"""An agent that another agent calls: its config, and one call of it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

from sojourn.abilities import asked_for_text, with_base_agents
from sojourn.agents.plain import Plain
from sojourn.agents.told import ended, require_base
from sojourn.call_text import begins_with, written_call
from sojourn.config.fields import NONBLANK, Kind, Range
from sojourn.errors import ActionError
from sojourn.protocols import Agent, AgentContext, Seat
from sojourn.types import Ending, Message, Observation, Role, Tool, ToolCall, Trajectory

REPORT = "report"  # the tool by which an agent that acts returns its result
READS = "reads"  # the argument of a call that names the earlier calls whose results it is shown


@dataclass(frozen=True, kw_only=True)
class SubAgent:
    """Configures an agent that the main agent may call by a tool of its name, with a task in words.

    Each call begins a context of its own: `instruction` as the system message, then the task, and nothing of what the
    main agent was shown or said. With `world = "answers"` its reply is the result. With `world = "acts"` it acts in the
    world of the episode, and returns a result by the tool `report`, or, where actions are tool calls, by a message
    without any. It then also sees the system messages of the world, and what the world shows at present, but for
    answers to calls of others; not so with `sees = false`. `tools` names those of the world's tools that it may call;
    all, if left out.

    `model` is "policy" or a name of `[models]`, and the model of the seat that calls if left out. A call takes at most
    `turns` turns, malformed ones included, and then what it said last is its result; an episode has at most `calls`
    calls. `description` tells the main agent what it is for; if left out, the instruction does. `tasks` and `results`
    list all that may be said, if there are few; an agent that samples among listed actions needs them. `base` is the
    agent that acts.
    """

    instruction: Annotated[str, NONBLANK]
    description: str = ""
    model: str = ""
    world: Literal["answers", "acts"] = "answers"
    sees: bool = True
    tools: tuple[Annotated[str, NONBLANK], ...] = ()
    turns: Annotated[int, Range(1)] = 4
    calls: Annotated[int, Range(1)] = 8
    tasks: tuple[Annotated[str, NONBLANK], ...] = ()
    results: tuple[Annotated[str, NONBLANK], ...] = ()
    base: Annotated[Agent, Kind("agent")] = field(default_factory=Plain)

    def __post_init__(self) -> None:
        require_base_of_other(self.base)
        if self.tools and self.world == "answers":
            raise ValueError(f"tools = {list(self.tools)}, but it answers without acting: set world = 'acts', or leave "
                             "them out")  # fmt: skip
        if isinstance(self.base, Plain) and self.base.choices and self.world == "answers" and not self.results:
            raise ValueError("base.choices = true restricts it to listed results, but it has none: list its `results`")

    def tool(self, name: str, *, reads: bool = False) -> Tool:
        """Returns the tool by which the main agent calls it, with `reads` where a call may name earlier results."""
        schema = _schema("task", self.tasks)
        if reads:
            schema["properties"][READS] = {
                "type": "array",
                "items": {"type": "integer"},
                "description": "Numbers of earlier results to show it.",
            }
        return Tool(name, self.description or self.instruction, schema)

    @property
    def report(self) -> Tool:
        return Tool(REPORT, "Return your result, which ends your task.", _schema("result", self.results))


@dataclass(frozen=True)
class Call:
    """A call of a sub-agent; `structured` is the tool call that it was, None where it was written as a text. `reads`
    are the numbers of the earlier calls whose results it is shown."""

    name: str
    task: str
    structured: ToolCall | None
    reads: tuple[int, ...] = ()


@dataclass
class Called:
    """One call of a sub-agent: its seat, and how far it has come. It is given the task as the text `given`. `shown` is
    what it was shown last, which was no refusal, `said` its last message, and `returned` its result."""

    config: SubAgent
    call: Call
    seat: Seat
    given: str
    taken: int = 0  # turns
    shown: Observation | None = None
    said: str = ""
    returned: str = ""
    ending: Ending | None = None  # None: it has not returned

    def sees(self, world: Observation, system: tuple[Message, ...], tools: Sequence[Tool]) -> Observation:
        """Returns what it is shown where the world shows `world`, whose present system messages and tools are these."""
        acts, first = self.config.world == "acts", self.shown is None
        messages = world.messages if acts else ()
        if first:
            kept = [m for m in messages if m.role is not Role.TOOL] if self.config.sees else []
            messages = _opened(self.given, kept)
        system = system if acts and self.config.sees else ()
        offered = (*self._allowed(tools), self.config.report) if acts else ()
        choices = self.config.results
        if acts:  # where the world lists nothing, anything may be said
            choices = (*world.choices, *_written(REPORT, self.config.results)) if world.choices else ()
        self.shown = Observation(
            tuple(messages), ended(system, Role.SYSTEM, self.config.instruction), offered, tuple(choices), world.agent
        )
        return self.shown

    def result(self, message: Message, tools: Sequence[Tool]) -> str | None:
        """Returns the result where a message returns one; raises `ActionError` for a message that it may not say."""
        self.said = message.text or self.said
        if self.config.world == "answers":
            if message.calls:
                raise ActionError("You have no tools: answer in words.")
            return self._known(message.text)
        report = next((call for call in message.calls if call.name == REPORT), None)
        if report is None and begins_with(message.text) == REPORT and not message.calls:
            report = written_call(message.text, [self.config.report]) or ToolCall(REPORT, {})
        if report is not None:
            result = argument(report, "result")
            if len(message.calls) > 1:
                raise ActionError(f"You call {REPORT} beside other tools: call it alone.")
            return self._known(result)
        allowed = {tool.name for tool in self._allowed(tools)}
        for call in message.calls:
            if call.name not in allowed and any(call.name == tool.name for tool in tools):
                raise ActionError(f"You may not call {call.name}: you have {', '.join(sorted({*allowed, REPORT}))}.")
        return self._known(message.text) if tools and not message.calls else None

    def _allowed(self, tools: Sequence[Tool]) -> list[Tool]:
        return [tool for tool in tools if not self.config.tools or tool.name in self.config.tools]

    def _known(self, result: str) -> str:
        if self.config.results and result not in self.config.results:
            raise ActionError(f"Your result is {result[:60]!r}: give one of {', '.join(self.config.results)}.")
        return result


def context_of(model: str, name: str, number: int, context: AgentContext) -> AgentContext:
    """Returns the context of the `number`-th agent beside a seat with this context, which has a model ("": that of the
    seat) and samples with a seed of its own."""
    digest = hashlib.blake2b(f"{context.params.seed}/{name}/{number}".encode(), digest_size=8).digest()
    seed = int.from_bytes(digest, "big") >> 1
    params = replace(context.params, seed=seed, model=model or context.params.model)
    trainable = model in context.trained if model else context.trainable
    return replace(context, name=name, params=params, trainable=trainable)


def require_base_of_other(base: Agent) -> None:
    """Raises `ValueError` for an agent that cannot act for another one than the run's own, as one that asks models."""
    require_base(base)
    if asking := [type(one).__name__ for one in with_base_agents(base) if asked_for_text(one)]:
        raise ValueError(f"base = {asking[0]} asks other models, which the main agent alone can: choose another base")


def with_success_of(main: Trajectory, others: Iterable[Trajectory]) -> tuple[Trajectory, ...]:
    """Returns those of other trajectories that have turns, with the success of the main agent, where that is known."""
    known = any("success" in turn.info for turn in main.turns)
    return tuple(_with_success(one, main.success) if known else one for one in others if one.turns)


def _with_success(trajectory: Trajectory, success: bool) -> Trajectory:
    last = trajectory.turns[-1]
    last = replace(last, info={**last.info, "success": float(success)})
    return replace(trajectory, turns=(*trajectory.turns[:-1], last))


def argument(call: ToolCall, key: str, *others: str) -> str:
    """Returns the text that a call gives under its key; raises `ActionError` where it gives anything else, beside the
    keys that it may have besides."""
    text = call.arguments.get(key)
    if set(call.arguments) - {key, *others} or not isinstance(text, str) or not text.strip():
        raise ActionError(f'{call.name} takes one text, which is not empty: call {call.name}({key}="...").')
    return text


def numbers_read(call: ToolCall, earlier: int) -> tuple[int, ...]:
    """Returns the numbers of earlier calls that a call reads; raises `ActionError` where they are not some of the
    `earlier` ones."""
    numbers = call.arguments.get(READS, [])
    known = isinstance(numbers, list | tuple) and all(type(one) is int and 1 <= one <= earlier for one in numbers)
    if not known or len(set(numbers)) < len(numbers):
        there = f"a list of numbers from 1 to {earlier}, each once" if earlier else "none, as there are no results yet"
        raise ActionError(f"{call.name} reads {repr(numbers)[:60]}: expected {there}.")
    return tuple(numbers)


def written_tasks(name: str, config: SubAgent, reads: Sequence[Sequence[int]] = ((),)) -> tuple[str, ...]:
    """Returns the calls of a sub-agent with its listed tasks, as a text would write them, each with each of the lists
    of earlier results."""
    ends = [f", {list(numbers)}" if numbers else "" for numbers in reads]
    return tuple(f"{name}({task!r}{end})" for task in config.tasks for end in ends)


def _written(name: str, texts: Sequence[str]) -> tuple[str, ...]:
    return tuple(f"{name}({text!r})" for text in texts)


def _schema(key: str, texts: Sequence[str]) -> dict[str, Any]:
    kind = {"type": "string"} | ({"enum": list(texts)} if texts else {})
    return {"type": "object", "properties": {key: kind}, "required": [key]}


def _opened(task: str, shown: Sequence[Message]) -> tuple[Message, ...]:
    """Returns the first messages of a context: the task, and after it, in the same message of the user if that can be,
    what the world shows."""
    if shown and shown[0].role is Role.USER:
        first = replace(shown[0], text=f"{task}\n\n{shown[0].text}")
        return (first, *shown[1:])
    return (Message(Role.USER, task), *shown)
