"""A small real MCP server, for SDK 1.x and 2.x: a ledger of three accounts, kept in a file where one is given."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

try:
    from mcp.server import MCPServer
except ImportError:  # SDK 1.x
    from mcp.server.fastmcp import FastMCP as MCPServer

server = MCPServer("ledger", instructions="Amounts are whole euros.")
accounts = {"ada": 100, "bob": 50, "eve": 0}
if len(sys.argv) > 1:
    print("the ledger opens", file=sys.stderr)


@server.tool()
def balance(name: str) -> int:
    """How much an account holds."""
    if name not in accounts:
        raise ValueError(f"there is no account {name}")
    return accounts[name]


@server.tool()
def transfer(source: str, target: str, amount: int) -> str:
    """Moves money.

    More about it that does not belong in a summary.
    """
    if accounts[source] < amount or amount <= 0:
        raise ValueError(f"{source} cannot pay {amount}")
    accounts[source] -= amount
    accounts[target] += amount
    if len(sys.argv) > 1:
        (Path(sys.argv[1]) / "ledger.json").write_text(json.dumps(accounts))
    return f"{source} has {accounts[source]}, {target} has {accounts[target]}"


@server.tool()
def dump() -> str:
    """All accounts; for the checker alone."""
    return json.dumps(accounts)


@server.tool()
def crash() -> str:
    """Ends the server in the midst of things."""
    os._exit(3)


@server.tool()
def sleep(seconds: float) -> str:
    """Does nothing for a while."""
    time.sleep(seconds)
    return "awake"


if __name__ == "__main__":
    server.run()
