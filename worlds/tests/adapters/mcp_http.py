"""The ledger over streamable HTTP, on the given port of loopback."""

import sys

import uvicorn

port = int(sys.argv.pop())

from mcp_ledger import server  # noqa: E402  (reads the arguments)

uvicorn.run(server.streamable_http_app(), host="127.0.0.1", port=port, log_level="error")
