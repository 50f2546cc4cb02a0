"""CrewAI's agent, which is asked for each task alone."""

from crewai import LLM, Agent
from crewai.tools import tool
from tools import BASE, KEY, PROMPTS, TOOLS

llm = LLM(model="openai/m", base_url=BASE, api_key=KEY)
agent = Agent(
    role="clerk",
    goal="Work with files.",
    backstory="A careful one.",
    llm=llm,
    tools=[tool(made) for made in TOOLS.values()],
)
print(agent.kickoff(PROMPTS[0]))
