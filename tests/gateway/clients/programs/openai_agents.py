"""OpenAI's Agents SDK."""

from agents import (
    Agent,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI
from tools import API, BASE, KEY, PROMPTS, SYSTEM, TOOLS

set_tracing_disabled(True)
kind = {"chat": OpenAIChatCompletionsModel, "responses": OpenAIResponsesModel}[API]
model = kind(model="m", openai_client=AsyncOpenAI(base_url=BASE, api_key=KEY))
agent = Agent(name="files", instructions=SYSTEM, model=model, tools=[function_tool(tool) for tool in TOOLS.values()])
items = []
for prompt in PROMPTS:
    result = Runner.run_sync(agent, [*items, {"role": "user", "content": prompt}])
    items = result.to_input_list()
    print(result.final_output)
