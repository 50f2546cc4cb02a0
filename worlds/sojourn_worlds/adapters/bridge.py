"""Plays foreign environments in their own interpreter, for worlds of Sojourn at the other end of two pipes.

    PYTHON bridge.py KIND

KIND is a file beside this one, `bridged_KIND.py`, with a class `Play` (whose methods may be called) and an exception
`Refused` (the action does not fit, nothing has changed). A request is a line of JSON, {"id": its number, "play":
number, "do": method, "with": arguments}; its reply is {"id": number} with one of "result", "refused" and "failed".
Every episode has a thread of its own, and ends with the request "close"; a `Play` that may wait for ever has a method
`abort`, called at once from another thread. The bridge ends when its input does. It is run by the foreign interpreter:
the standard library alone, Python 3.9 or newer, and nothing of Sojourn.
"""

import importlib.util
import json
import os
import queue
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
GRACE_S = 4.0  # for all plays to close when we end


class Replies:
    """Writes replies, one line at a time."""

    def __init__(self, file):
        self.file, self.lock = file, threading.Lock()

    def say(self, value):
        with self.lock:
            self.file.write(json.dumps(value) + "\n")
            self.file.flush()


class Player(threading.Thread):
    """The thread of one episode."""

    def __init__(self, module, replies):
        super().__init__(daemon=True)
        self.module, self.replies = module, replies
        self.requests = queue.Queue()
        self.play = module.Play()

    def ask(self, request):
        if request["do"] == "close" and hasattr(self.play, "abort"):
            self.play.abort()
        self.requests.put(request)

    def run(self):
        while True:
            request = self.requests.get()
            self.replies.say({"id": request["id"], **self.answer(request["do"], request["with"])})
            if request["do"] == "close":
                return

    def answer(self, method, arguments):
        try:
            return {"result": getattr(self.play, method)(**arguments)}
        except self.module.Refused as error:
            return {"refused": str(error)}
        except Exception as error:  # the boundary: whatever the foreign code raises is a reply
            return {"failed": f"{type(error).__name__}: {error}"[:2000]}


def main(kind):
    sys.path[:] = [path for path in sys.path if os.path.abspath(path or ".") != HERE]  # its files hide real packages
    requests, replies = os.fdopen(os.dup(0), encoding="utf-8"), Replies(os.fdopen(os.dup(1), "w", encoding="utf-8"))
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)  # what libraries print is no reply
    try:
        spec = importlib.util.spec_from_file_location("bridged_" + kind, os.path.join(HERE, f"bridged_{kind}.py"))
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    except ImportError as error:
        replies.say({"id": -1, "missing": str(error)})
        return
    replies.say({"id": -1, "result": "ready"})
    players, ending = {}, []
    for line in requests:
        request = json.loads(line)
        number = request["play"]
        if number not in players:
            players[number] = Player(module, replies)
            players[number].start()
        players[number].ask(request)
        if request["do"] == "close":
            ending = [player for player in ending if player.is_alive()] + [players.pop(number)]
    for player in players.values():
        player.ask({"id": -1, "do": "close", "with": {}})
    until = time.monotonic() + GRACE_S
    for player in [*ending, *players.values()]:
        player.join(max(0.0, until - time.monotonic()))


if __name__ == "__main__":
    main(sys.argv[1])
    sys.stderr.flush()
    os._exit(0)  # a thread of the foreign package that never ends must not keep us
