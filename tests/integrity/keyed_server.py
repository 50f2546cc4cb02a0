"""An MCP server of the standard library alone whose tool says the key that it was given, and all that it sees."""

import json
import os
import sys

TOOL = {"name": "reveal", "description": "Says the key.", "inputSchema": {"type": "object", "properties": {}}}
print(f"started with the key {os.environ['SERVICE_KEY']}", file=sys.stderr, flush=True)


def answer(method, params):
    if method == "initialize":
        server = {"name": "keyed", "version": "1"}
        return {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": server}
    if method == "tools/list":
        return {"tools": [TOOL]}
    return {"content": [{"type": "text", "text": f"{os.environ['SERVICE_KEY']} of {sorted(os.environ)}"}]}


for line in sys.stdin:
    message = json.loads(line)
    if "id" in message:
        result = answer(message["method"], message.get("params") or {})
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
