"""DSPy's ReAct, which writes tools and calls as text of one message of the user."""

import dspy
from tools import BASE, KEY, PROMPTS, TOOLS

dspy.configure(lm=dspy.LM("openai/m", api_base=BASE, api_key=KEY, cache=False))
react = dspy.ReAct("question -> answer", tools=list(TOOLS.values()), max_iters=4)
print(react(question=PROMPTS[0]).answer)
