"""Google's Agent Development Kit, with LiteLLM."""

import asyncio

from google.adk.agents import LlmAgent
from google.adk.models.lite_llm import LiteLlm
from google.adk.runners import InMemoryRunner
from google.genai import types
from tools import BASE, KEY, PROMPTS, SYSTEM, TOOLS

model = LiteLlm(model="openai/m", api_base=BASE, api_key=KEY)
agent = LlmAgent(name="files", model=model, instruction=SYSTEM, tools=list(TOOLS.values()))


async def main() -> None:
    runner = InMemoryRunner(agent, app_name="files")
    session = await runner.session_service.create_session(app_name="files", user_id="user")
    for prompt in PROMPTS:
        message = types.Content(role="user", parts=[types.Part(text=prompt)])
        async for event in runner.run_async(user_id="user", session_id=session.id, new_message=message):
            print(event.content)


asyncio.run(main())
