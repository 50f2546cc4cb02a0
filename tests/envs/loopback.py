"""Tiny servers on the loopback interface: of anything, and of chat completions whose model is a Python function."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple


class Raw(NamedTuple):
    """A response as the server sends it, which need be no chat completion."""

    status: int
    text: str = ""
    headers: Mapping[str, str] = {}


@contextmanager
def served(
    model: Callable[[list[dict[str, Any]]], str | dict[str, Any] | Raw | None],
) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yields the base URL of a server and the list of the requests that it has had.

    The model returns the text of a reply, its whole message as a mapping, or a raw response; None is a status of 500.
    """

    def complete(path: str, body: dict[str, Any]) -> Raw:
        reply = model(body["messages"])
        if isinstance(reply, Raw):
            return reply
        message = reply if isinstance(reply, dict) else {"role": "assistant", "content": reply}
        completion = {"choices": [{"message": message}], "usage": {"completion_tokens": 7, "prompt_tokens": 11}}
        return Raw(500, "{}") if reply is None else Raw(200, json.dumps(completion))

    with answered(complete) as found:
        yield found


@contextmanager
def answered(answer: Callable[[str, dict[str, Any]], Raw]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yields the base URL of a server and the list of the requests that it has had; `answer` is given the path and the
    body of each, in a thread of its own."""
    asked: list[dict[str, Any]] = []

    class Answers(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            asked.append({**body, "path": self.path, "authorization": self.headers.get("Authorization")})
            reply = answer(self.path, body)
            data = reply.text.encode()
            self.send_response(reply.status)
            for name, value in {**reply.headers, "Content-Length": str(len(data))}.items():
                self.send_header(name, value)
            self.end_headers()
            with suppress(OSError):  # the client may have left
                self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/v1", asked
        finally:
            server.shutdown()
            thread.join()
