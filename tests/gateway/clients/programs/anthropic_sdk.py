"""Anthropic's own client, whose blocks are sent back as it returned them; every second reply is streamed."""

from anthropic import Anthropic
from tools import BASE, KEY, PROMPTS, SCHEMAS, SYSTEM, TOOLS

client = Anthropic(base_url=BASE, api_key=KEY)
tools = [{"name": name, "description": name, "input_schema": SCHEMAS[name]} for name in TOOLS]
messages = []
for prompt in PROMPTS:
    messages.append({"role": "user", "content": prompt})
    while True:
        asked = {"model": "m", "max_tokens": 900, "system": SYSTEM, "messages": messages, "tools": tools}
        if len(messages) % 4 == 1:
            with client.messages.stream(**asked) as stream:
                message = stream.get_final_message()
        else:
            message = client.messages.create(**asked)
        messages.append({"role": "assistant", "content": message.content})
        calls = [block for block in message.content if block.type == "tool_use"]
        if not calls:
            print("".join(block.text for block in message.content if block.type == "text"))
            break
        told = [(call.id, TOOLS[call.name](**call.input)) for call in calls]
        results = [{"type": "tool_result", "tool_use_id": name, "content": text} for name, text in told]
        messages.append({"role": "user", "content": results})
