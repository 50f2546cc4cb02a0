"""A loop of tool calls that uses nothing but Python's standard library, as a program in a sandbox: `programs.py` runs
it there."""

import json
import os
import urllib.request


def asked(url, body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=600) as answer:
        return json.load(answer)


def main():
    url = os.environ["SOJOURN_URL"]
    seen = asked(f"{url}/observation")
    messages = seen["system"] + seen["messages"]
    tools = [{"type": "function", "function": tool} for tool in seen["tools"]]
    done = False
    while not done:
        body = {"model": os.environ["SOJOURN_MODEL"], "messages": messages, "tools": tools}
        reply = asked(f"{os.environ['OPENAI_BASE_URL']}/chat/completions", body)["choices"][0]["message"]
        messages.append(reply)
        if not reply.get("tool_calls"):
            shown = asked(f"{url}/act", {"text": reply["content"] or ""})
            messages.append({"role": "user", "content": told(shown)})
            done = shown["done"]
        for call in reply.get("tool_calls") or ():
            name, arguments = call["function"]["name"], json.loads(call["function"]["arguments"])
            shown = asked(f"{url}/act", {"name": name, "arguments": arguments, "call_id": call["id"]})
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": told(shown)})
            done = done or shown["done"]


def told(shown):
    return shown["refusal"] or "\n\n".join(one["content"] for one in shown["messages"])


main()
