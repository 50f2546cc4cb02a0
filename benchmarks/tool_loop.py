"""A loop of tool calls on OpenAI's SDK: what anybody writes who has a model behind an API, and tools."""

from __future__ import annotations

import json
from typing import Any

from openai import AsyncOpenAI

from sojourn.agents.python import Client


async def agent(client: Client) -> None:
    seen = client.observation
    messages: list[Any] = [{"role": str(one.role), "content": one.text} for one in (*seen.system, *seen.messages)]
    tools: list[Any] = [
        {"type": "function", "function": {"name": tool.name, "description": tool.description,
                                          "parameters": dict(tool.parameters)}}
        for tool in seen.tools
    ]  # fmt: skip
    async with AsyncOpenAI(base_url=client.base_url, api_key=client.key) as model:
        while True:
            answer = await model.chat.completions.create(model=client.model, messages=messages, tools=tools)
            reply = answer.choices[0].message.model_dump(exclude_none=True)
            messages.append(reply)
            calls = reply.get("tool_calls") or []
            if not calls:
                shown = await client.act(reply.get("content", ""))
                messages.append({"role": "user", "content": shown.text})
            for call in calls:
                name, arguments = call["function"]["name"], json.loads(call["function"]["arguments"])
                shown = await client.call(name, arguments, call_id=call["id"])
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": shown.text})
            if client.over:
                return
