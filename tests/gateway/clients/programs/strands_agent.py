"""Strands."""

from strands import Agent, tool
from strands.models.openai import OpenAIModel
from tools import BASE, KEY, PROMPTS, SYSTEM, TOOLS

model = OpenAIModel(client_args={"base_url": BASE, "api_key": KEY}, model_id="m")
agent = Agent(model=model, tools=[tool(made) for made in TOOLS.values()], system_prompt=SYSTEM)
for prompt in PROMPTS:
    agent(prompt)
