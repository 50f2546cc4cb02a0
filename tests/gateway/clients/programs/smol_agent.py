"""Smolagents' agent that calls tools."""

from smolagents import OpenAIServerModel, ToolCallingAgent, tool
from tools import BASE, KEY, PROMPTS, TOOLS

model = OpenAIServerModel(model_id="m", api_base=BASE, api_key=KEY)
for made in TOOLS.values():
    made.__module__ = "__main__"
agent = ToolCallingAgent(tools=[tool(made) for made in TOOLS.values()], model=model, max_steps=6)
for number, prompt in enumerate(PROMPTS):
    print(agent.run(prompt, reset=number == 0))
