"""A scripted world and model in which a main agent calls sub-agents."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from made import chatml as renderer

from sojourn.agents.delegating import Delegating
from sojourn.errors import ActionError
from sojourn.protocols import Agent, AgentContext
from sojourn.rollout.limits import Limits
from sojourn.rollout.play import play
from sojourn.timeline import Timeline
from sojourn.types import (
    Episode,
    Message,
    Observation,
    Prompt,
    Role,
    Sample,
    SamplingParams,
    Step,
    Stop,
    Task,
    Tool,
    ToolCall,
    Trajectory,
    Versions,
)

GO = Tool("go", "Go on.", {"type": "object", "properties": {}})
TASK = Task("errand", {}, 0, "train")


@dataclass
class Errand:
    """Pays 0.5 for each action, and 1 for "end", which ends it with success; "jump" is refused. With `tools`, the
    action is a call of `go`, and it answers that."""

    tools: bool = False
    count: int = 0
    choices: tuple[str, ...] = ()

    async def start(self) -> Observation:
        tools = (GO,) if self.tools else ()
        system = (Message(Role.SYSTEM, "RULES"),)
        return Observation((Message(Role.USER, "place 0"),), system, tools, self.choices)

    async def step(self, agent: str, action: Message) -> Step:
        if "jump" in action.text:
            raise ActionError("nobody can jump")
        self.count += 1
        if "end" in action.text:
            return Step(None, {agent: 1.0}, done=True, success=True)
        role, answers = (Role.TOOL, "go") if self.tools else (Role.USER, None)
        shown = (Message(role, f"place {self.count}", answers=answers),)
        return Step(Observation(shown, choices=self.choices), {agent: 0.5})

    async def close(self) -> None: ...


def call(name: str, text: str, key: str = "task") -> Message:
    return Message(Role.ASSISTANT, calls=(ToolCall(name, {key: text}),))


def report(text: str) -> Message:
    return call("report", text, "result")


@dataclass
class Says:
    """Says what it is given, one message after another, a text as it is; text of several tokens is spelled by letter,
    so that what is encoded again is found out. It notes what it was asked."""

    script: list[Message | str]
    prompts: list[str] = field(default_factory=list)
    asked: list[SamplingParams] = field(default_factory=list)
    given: list[Sample] = field(default_factory=list)
    tokens: list[list[int]] = field(default_factory=list)

    async def sample(self, prompt: Prompt, params: SamplingParams) -> Sample:
        one = self.script[len(self.asked)]
        chat = renderer()
        if isinstance(one, str):
            encoded = [token for letter in one for token in chat.codec.control(letter)] + list(chat.stops[:1])
        else:
            encoded = list(chat.encode_reply(one))
        self.prompts.append(chat.codec.tokenizer.decode(prompt.tokens))
        self.tokens.append(prompt.tokens.tolist())
        self.asked.append(params)
        logprobs = -np.arange(1.0, 1 + len(encoded), dtype=np.float32)
        self.given.append(Sample(np.array(encoded), logprobs, Versions(0, 0), Stop.END))
        return self.given[-1]

    async def score(self, prompt: Prompt) -> Any: ...

    async def close(self) -> None: ...


def agent_of(sub_agents: Mapping[str, Any], **fields: Any) -> Delegating:
    return Delegating(sub_agents=sub_agents, **fields)


async def played(
    agent: Agent, *script: Message | str, turns: int = 20, env: Any = None, max_context: int = 4096, **context: Any
) -> tuple[tuple[Trajectory, ...], Says]:
    """Plays the world once, in which the agent's models say this script together."""
    sampler = Says(list(script))
    params = SamplingParams(max_tokens=64, seed=7)
    seat = agent.seat(
        AgentContext(
            name="agent", renderer=renderer(), sampler=sampler, params=params, max_context=max_context, **context
        )
    )
    trajectories = await play(env or Errand(), {"agent": seat}, Limits(turns=turns), Timeline())
    return trajectories, sampler


def episode_of(trajectories: tuple[Trajectory, ...], id: str = "e") -> Episode:
    return Episode(id, TASK, trajectories)
