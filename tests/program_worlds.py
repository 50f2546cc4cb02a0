"""A world for programs, and a program: a loop of tool calls that uses nothing but Python's standard library."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import httpx

from sojourn.agents.program import Program
from sojourn.errors import ActionError
from sojourn.rollout.limits import Limits
from sojourn.rollout.runner import Rollout, Runner
from sojourn.types import Message, Observation, Role, SamplingParams, Step, Task, Tool, ToolCall
from tests.gateway_sessions import LOOK, OddSampler, renderer, user

PYTHON = "/usr/bin/python3"
DOOR = ToolCall("look", {"at": "door"})
LOOP = """
import json, os, sys, urllib.request

def asked(url, body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)

def mcp(method, **parameters):
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": parameters}
    return asked(os.environ["SOJOURN_MCP_URL"], body)["result"]

def run():
    tools = [{"type": "function", "function": {"name": one["name"], "description": one["description"],
              "parameters": one["inputSchema"]}} for one in mcp("tools/list")["tools"] if one["name"] != "say"]
    messages = [{"role": "user", "content": open("task.txt").read()}]
    while True:
        body = {"model": os.environ["SOJOURN_MODEL"], "messages": messages, "tools": tools}
        reply = asked(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body)["choices"][0]["message"]
        messages.append(reply)
        for call in reply.get("tool_calls") or []:
            arguments = json.loads(call["function"]["arguments"])
            result = mcp("tools/call", name=call["function"]["name"], arguments=arguments, _meta={"callId": call["id"]})
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": result["content"][0]["text"]})
        if not reply.get("tool_calls"):
            print(reply["content"])
            return
"""


@dataclass
class Hall:
    """Pays 0.5 for each look at the door, and 1 with success for the text "done", which ends it."""

    actions: list[Message] = field(default_factory=list)
    closed: int = 0

    async def start(self) -> Observation:
        return Observation((user("You are in a hall."),), (Message(Role.SYSTEM, "Look at the door."),), (LOOK,))

    async def step(self, agent: str, action: Message) -> Step:
        self.actions.append(action)
        if action.text.strip() == "done":
            return Step(None, {agent: 1.0}, done=True, success=True)
        if not action.calls or action.calls[0].arguments != DOOR.arguments:
            raise ActionError("there is nothing to see")
        seen = Message(Role.TOOL, f"The door, {len(self.actions)}.", answers="look")
        return Step(Observation((seen,)), {agent: 0.5}, info={"looked": float(len(self.actions))})

    async def close(self) -> None:
        self.closed += 1


@dataclass
class Halls:
    made: list[Hall] = field(default_factory=list)

    def tasks(self, split: str) -> list[Task]:
        return [Task("halls", {}, 0, split)]

    def make(self, task: Task) -> Hall:
        self.made.append(Hall())
        return self.made[-1]


SAY = Tool("say", "Says a text.", {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]})


async def chooses(client):
    """Chooses among what the world lists, by a response format that allows nothing else."""
    messages = [{"role": "user", "content": client.task}]
    async with httpx.AsyncClient(timeout=60) as http:
        while True:
            schema = {"type": "string", "enum": list(client.observation.choices)}
            form = {"type": "json_schema", "json_schema": {"name": "action", "schema": schema}}
            body = {"model": client.model, "messages": messages, "response_format": form}
            answer = await http.post(f"{client.base_url}/chat/completions", json=body)
            text = answer.json()["choices"][0]["message"]["content"]
            shown = await client.act(json.loads(text))
            if shown.done:
                return
            messages += [{"role": "assistant", "content": text}, {"role": "user", "content": shown.text}]


async def played(script, family=None, *, turns=16, retries=0, max_context=4096, **config):
    """Plays one episode of the halls by a program, the loop of tool calls unless `code` is another."""
    code = config.pop("code", LOOP + "run()")
    given = {"command": (PYTHON, "agent.py"), "files": {"agent.py": code}, "seconds": 60.0, **config}
    sampler, family = OddSampler(renderer(thinking=True), script), family or Halls()
    rollout = Rollout(limits=Limits(turns=turns), retries=retries)
    runner = Runner(rollout, family, Program(**given), sampler.format, sampler, max_context, 0)
    episode = await runner.play_episode(family.tasks("train")[0], SamplingParams(512, seed=3), "t")
    return episode, sampler, family
