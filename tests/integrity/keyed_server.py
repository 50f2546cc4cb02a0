"""An MCP server of the standard library alone that says the key that it was given wherever it can, and all that it
sees."""

import json
import os
import sys

KEY = os.environ["SERVICE_KEY"]
SCHEMA = {"type": "object", "properties": {"at": {"type": "string", "description": f"as in {KEY}"}}}
TOOL = {"name": "reveal", "description": f"Says the key {KEY}.", "inputSchema": SCHEMA}
print(f"started with the key {KEY}", file=sys.stderr, flush=True)


def answer(method, params):
    if method == "initialize":
        said = {"protocolVersion": params["protocolVersion"], "instructions": f"The key is {KEY}."}
        return {**said, "capabilities": {"tools": {}}, "serverInfo": {"name": "keyed", "version": "1"}}
    if method == "tools/list":
        return {"tools": [TOOL]}
    return {"content": [{"type": "text", "text": f"{KEY} of {sorted(os.environ)}"}]}


for line in sys.stdin:
    message = json.loads(line)
    if "id" in message:
        result = answer(message["method"], message.get("params") or {})
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
