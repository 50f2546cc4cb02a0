"""LangChain's agent, which LangGraph runs."""

from langchain.agents import create_agent
from langchain_anthropic import ChatAnthropic
from langchain_openai import ChatOpenAI
from tools import API, BASE, KEY, PROMPTS, SYSTEM, TOOLS

model = {
    "chat": lambda: ChatOpenAI(model="m", base_url=BASE, api_key=KEY),
    "responses": lambda: ChatOpenAI(model="m", base_url=BASE, api_key=KEY, use_responses_api=True, store=False),
    "messages": lambda: ChatAnthropic(model_name="m", base_url=BASE, api_key=KEY),
}[API]()
agent = create_agent(model, tools=list(TOOLS.values()), system_prompt=SYSTEM)
messages = []
for prompt in PROMPTS:
    messages = agent.invoke({"messages": [*messages, {"role": "user", "content": prompt}]})["messages"]
    print(messages[-1].content)
