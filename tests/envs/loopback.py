"""A tiny server of chat completions on the loopback interface, whose model is a Python function."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@contextmanager
def served(
    model: Callable[[list[dict[str, Any]]], str | dict[str, Any] | None],
) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """The base URL of a server, and the requests it has had; where the model says None it answers 500, and a
    mapping is the whole message."""
    asked: list[dict[str, Any]] = []

    class Completions(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            asked.append({**body, "path": self.path, "authorization": self.headers.get("Authorization")})
            said = model(body["messages"])
            message = said if isinstance(said, dict) else {"role": "assistant", "content": said}
            usage = {"completion_tokens": 7}
            answer = {"choices": [{"message": message}], "usage": usage} if said is not None else {}
            text = json.dumps(answer).encode()
            self.send_response(200 if said is not None else 500)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Completions) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/v1", asked
        finally:
            server.shutdown()
            thread.join()
