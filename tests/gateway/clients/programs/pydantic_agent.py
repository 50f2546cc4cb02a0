"""Pydantic AI."""

from pydantic_ai import Agent
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider
from tools import API, BASE, KEY, PROMPTS, SYSTEM, TOOLS

model = {
    "chat": lambda: OpenAIChatModel("m", provider=OpenAIProvider(base_url=BASE, api_key=KEY)),
    "responses": lambda: OpenAIResponsesModel("m", provider=OpenAIProvider(base_url=BASE, api_key=KEY)),
    "messages": lambda: AnthropicModel("m", provider=AnthropicProvider(base_url=BASE, api_key=KEY)),
}[API]()
agent = Agent(model, system_prompt=SYSTEM, tools=list(TOOLS.values()))
history = []
for prompt in PROMPTS:
    result = agent.run_sync(prompt, message_history=history)
    history = result.all_messages()
    print(result.output)
