"""AutoGen's assistant agent."""

import asyncio

from autogen_agentchat.agents import AssistantAgent
from autogen_core.models import ModelFamily, ModelInfo
from autogen_ext.models.openai import OpenAIChatCompletionClient
from tools import BASE, KEY, PROMPTS, SYSTEM, TOOLS

info = ModelInfo(
    vision=False, function_calling=True, json_output=False, family=ModelFamily.UNKNOWN, structured_output=False
)
client = OpenAIChatCompletionClient(model="m", base_url=BASE, api_key=KEY, model_info=info)
agent = AssistantAgent(
    "files", client, tools=list(TOOLS.values()), system_message=SYSTEM, max_tool_iterations=4, reflect_on_tool_use=False
)


async def main() -> None:
    for prompt in PROMPTS:
        print((await agent.run(task=prompt)).messages[-1])


asyncio.run(main())
