"""The ledger once more, as an MCP server of the standard library alone: it starts at once."""

import json
import sys

accounts = {"ada": 100, "bob": 50, "eve": 0}
TEXT, NUMBER = {"type": "string"}, {"type": "integer"}
TOOLS = {
    "balance": ("How much an account holds.", {"name": TEXT}),
    "transfer": ("Moves money.", {"source": TEXT, "target": TEXT, "amount": NUMBER}),
    "dump": ("All accounts.", {}),
}


def call(name, arguments):
    if name == "balance":
        return str(accounts[arguments["name"]])
    if name == "dump":
        return json.dumps(accounts)
    if accounts[arguments["source"]] < arguments["amount"]:
        raise ValueError("too much")
    accounts[arguments["source"]] -= arguments["amount"]
    accounts[arguments["target"]] += arguments["amount"]
    return "done"


def answer(method, params):
    if method == "initialize":
        server = {"name": "plain", "version": "1"}
        return {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": server}
    if method == "tools/list":  # a page for each
        names = list(TOOLS)
        at = int(params.get("cursor") or 0)
        said, properties = TOOLS[names[at]]
        schema = {"type": "object", "properties": properties, "required": list(properties)}
        page = {"tools": [{"name": names[at], "description": said, "inputSchema": schema}]}
        return page | ({"nextCursor": str(at + 1)} if at + 1 < len(names) else {})
    try:
        text, error = call(params["name"], params.get("arguments", {})), False
    except (KeyError, ValueError) as wrong:
        text, error = str(wrong), True
    return {"content": [{"type": "text", "text": text}], "isError": error}


for line in sys.stdin:
    message = json.loads(line)
    if "id" in message:
        result = answer(message["method"], message.get("params") or {})
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
