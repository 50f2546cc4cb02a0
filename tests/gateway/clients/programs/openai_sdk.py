"""OpenAI's own client, whose messages are sent back as it returned them; every second reply is streamed."""

import json

from openai import OpenAI
from tools import API, BASE, KEY, PROMPTS, SCHEMAS, SYSTEM, TOOLS

client = OpenAI(base_url=BASE, api_key=KEY)


def called(name: str, arguments: str) -> str:
    return TOOLS[name](**json.loads(arguments))


def chat() -> None:
    tools = [{"type": "function", "function": {"name": name, "parameters": SCHEMAS[name]}} for name in TOOLS]
    messages = [{"role": "system", "content": SYSTEM}]
    for prompt in PROMPTS:
        messages.append({"role": "user", "content": prompt})
        while True:
            asked = {"model": "m", "messages": messages, "tools": tools}
            if len(messages) % 2:
                with client.chat.completions.stream(**asked) as stream:
                    message = stream.get_final_completion().choices[0].message
            else:
                message = client.chat.completions.create(**asked).choices[0].message
            messages.append(message)
            if not message.tool_calls:
                print(message.content)
                break
            for call in message.tool_calls:
                told = called(call.function.name, call.function.arguments)
                messages.append({"role": "tool", "tool_call_id": call.id, "content": told})


def responses() -> None:
    tools = [{"type": "function", "name": name, "parameters": SCHEMAS[name], "strict": False} for name in TOOLS]
    items = []
    for prompt in PROMPTS:
        items.append({"role": "user", "content": prompt})
        while True:
            asked = {"model": "m", "input": items, "instructions": SYSTEM, "tools": tools, "store": False}
            if len(items) % 2:
                with client.responses.stream(**asked) as stream:
                    response = stream.get_final_response()
            else:
                response = client.responses.create(**asked)
            items += response.output
            calls = [item for item in response.output if item.type == "function_call"]
            if not calls:
                print(response.output_text)
                break
            for call in calls:
                told = called(call.name, call.arguments)
                items.append({"type": "function_call_output", "call_id": call.call_id, "output": told})


{"chat": chat, "responses": responses}[API]()
