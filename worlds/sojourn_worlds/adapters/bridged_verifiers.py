"""Run by an interpreter that has `verifiers`: plays one episode of an Env, whose model answers through the bridge.

The environment, its harness and its scoring run as they are. The only thing given to them is an endpoint, on loopback
and with a key of its own, that speaks OpenAI's chat completions: each request becomes an event, each reply is awaited.
"""
# pyright: reportMissingImports=false

from __future__ import annotations

import asyncio
import hmac
import itertools
import json
import os
import queue
import secrets
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from verifiers.v1.clients import EvalClientConfig, ModelContext
from verifiers.v1.configs.agent import agent_config_fields
from verifiers.v1.utils.loaders import env_config_type, load_environment, resolve_env_config

KEY_VARIABLE = "SOJOURN_BRIDGE_KEY"
os.environ[KEY_VARIABLE] = secrets.token_hex(16)


class Refused(Exception):  # noqa: N818  (the bridge's own name for it)
    pass


class Play:
    def __init__(self):
        self.events: queue.Queue = queue.Queue()
        self.waiting: queue.Queue | None = None  # the queue of the request that is to be answered
        self.session = None
        self.shown: list = []
        self.server: ThreadingHTTPServer | None = None
        self.closed = False

    def tasks(self, config, max_tasks):
        """Returns the keys of the first tasks, in their order."""
        taskset = load_environment(complete(config)).taskset
        return [task.key for task in itertools.islice(taskset, max_tasks)]

    def start(self, config, index):
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), self._endpoint())
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        env = load_environment(complete(config))
        roles = [name for name, agent in agent_config_fields(env.config).items() if agent.client is None]
        if len(roles) != 1:
            raise ValueError(
                f"the agents {', '.join(roles)} would all be played by the policy: give each but one a client"
            )
        threading.Thread(target=self._play, args=(env, index), daemon=True).start()
        return self._event()

    def step(self, message):
        assert self.waiting is not None
        self.waiting.put(message)
        self.shown.append(None)  # the place of what was just said
        return self._event()

    def abort(self):
        """Gives an event to everyone who waits for one, and no more replies to the environment."""
        self.closed = True
        self.events.put({"failed": "closed"})
        if self.waiting is not None:
            self.waiting.put(None)

    def close(self):
        if self.server is not None:
            self.server.shutdown()
            self.server.server_close()

    def _play(self, env, index):
        try:
            episode = asyncio.run(self._episode(env, index))
        except BaseException as error:  # told to whoever waits
            self.events.put({"failed": f"{type(error).__name__}: {error}"})
            return
        errors = [f"{e.type}: {e.message}" for e in episode.errors]
        errors += [f"{e.type}: {e.message}" for trace in episode.traces for e in trace.errors]
        mine = episode.traces[-1] if len(episode.traces) == 1 else None
        mine = mine or next((t for t in episode.traces if t.id == self.session), None)
        self.events.put(
            {
                "done": True,
                "ok": bool(episode.ok),
                "errors": errors,
                "reward": mine.reward if mine is not None else None,
                "stop": mine.stop_condition if mine is not None else None,
                "metrics": {k: v for k, v in (mine.metrics if mine is not None else {}).items() if v is not None},
            }
        )

    async def _episode(self, env, index):
        assert self.server is not None
        task = next(itertools.islice(iter(env.taskset), index, None))
        url = f"http://127.0.0.1:{self.server.server_address[1]}/v1"
        context = ModelContext(model="sojourn", client=EvalClientConfig(base_url=url, api_key_var=KEY_VARIABLE))
        async with env.serving():
            return await env.run_episode(task, context)

    def _event(self):
        event = self.events.get()
        if "failed" in event:
            raise RuntimeError(event["failed"])
        if "done" in event:
            return event
        self.waiting = event.pop("reply")
        if self.session not in (None, event["session"]):
            raise RuntimeError("the environment opened a second conversation: it is not for one agent")
        self.session = event["session"]
        messages = event["messages"]
        kept = len(self.shown)
        for old, new in zip(self.shown, messages, strict=False):
            if old is not None and old != new:
                raise RuntimeError("the harness rewrote what it had said: that cannot be followed")
        if len(messages) < kept:
            raise RuntimeError("the harness took back what it had said: that cannot be followed")
        self.shown = list(messages)
        return {"messages": messages[kept:], "tools": event["tools"]}

    def _endpoint(self):
        play = self

        class Endpoint(BaseHTTPRequestHandler):
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers.get("content-length", 0))))
                authorization = self.headers.get("authorization", "").encode()
                if not hmac.compare_digest(authorization, ("Bearer " + os.environ[KEY_VARIABLE]).encode()):
                    self.send_error(401)
                    return
                if not self.path.endswith("/chat/completions"):
                    self.send_error(404, "this endpoint has chat completions alone")
                    return
                reply = queue.Queue()
                play.events.put(
                    {
                        "messages": body["messages"],
                        "tools": body.get("tools") or [],
                        "session": self.headers.get("x-session-id", ""),
                        "reply": reply,
                    }
                )
                message = None if play.closed else reply.get()
                if message is None:
                    self.send_error(410, "the play was closed")
                    return
                self.answer(body, message)

            def answer(self, body, message):
                streamed = bool(body.get("stream"))
                ended = "tool_calls" if message.get("tool_calls") else "stop"
                part = "delta" if streamed else "message"
                if streamed:
                    calls = message.get("tool_calls", [])
                    message = {**message, "tool_calls": [{**call, "index": i} for i, call in enumerate(calls)]}
                completion = {
                    "id": "chatcmpl-sojourn",
                    "object": "chat.completion.chunk" if streamed else "chat.completion",
                    "created": 0,
                    "model": body.get("model", ""),
                    "choices": [{"index": 0, "finish_reason": ended, part: message}],
                    "usage": {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0},
                }
                text = json.dumps(completion)
                data = (f"data: {text}\n\ndata: [DONE]\n\n" if streamed else text).encode()
                self.send_response(200)
                self.send_header("content-type", "text/event-stream" if streamed else "application/json")
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format, *arguments):
                pass

        return Endpoint


def complete(config):
    """Completes the config of an Env; where it does not say otherwise, its agents are subprocesses without tools of
    their own.
    """
    config = json.loads(json.dumps(config))
    kind = env_config_type(config.get("taskset", {}).get("id", ""), config.get("id", ""))
    for name in agent_config_fields(kind.model_construct()):
        agent = config.setdefault(name, {})
        agent.setdefault("runtime", {"type": "subprocess"})
        agent.setdefault("harness", {"id": "null"})
    return resolve_env_config(config)
