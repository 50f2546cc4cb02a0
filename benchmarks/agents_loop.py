"""The same tools in OpenAI's Agents SDK, a framework that runs the loop itself: `programs.py` trains through it.

The framework need not be in the environment that trains: where `SOJOURN_AGENTS_SDK` names another environment's folder
of packages, they are looked up there after all others.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

if place := os.environ.get("SOJOURN_AGENTS_SDK"):
    sys.path.append(place)

from agents import (  # pyright: ignore[reportMissingImports]
    Agent,
    FunctionTool,
    OpenAIChatCompletionsModel,
    Runner,
    set_tracing_disabled,
)
from openai import AsyncOpenAI

from sojourn.agents.python import Client
from sojourn.types import Tool

set_tracing_disabled(True)


async def agent(client: Client) -> None:
    seen = client.observation
    async with AsyncOpenAI(base_url=client.base_url, api_key=client.key) as model:
        one: Any = Agent(
            name="agent",
            instructions="\n\n".join(message.text for message in seen.system) or None,
            model=OpenAIChatCompletionsModel(model=client.model, openai_client=model),
            tools=[_function(client, tool) for tool in seen.tools],
        )
        items: list[Any] = [{"role": str(message.role), "content": message.text} for message in seen.messages]
        while not client.over:
            result = await Runner.run(one, items, max_turns=None)
            shown = await client.act(result.final_output)  # the model said something without a call
            items = [*result.to_input_list(), {"role": "user", "content": shown.text}]


def _function(client: Client, tool: Tool) -> Any:
    async def call(context: Any, arguments: str) -> str:
        return (await client.call(tool.name, json.loads(arguments), call_id=context.tool_call_id)).text

    return FunctionTool(
        name=tool.name,
        description=tool.description,
        params_json_schema=dict(tool.parameters),
        on_invoke_tool=call,
        strict_json_schema=False,
    )
