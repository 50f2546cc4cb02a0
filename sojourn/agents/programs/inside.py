"""The first process in the sandbox of a program: it brings the gateway, and the browser of a world, to 127.0.0.1,
starts the program, and ends with it.

It runs under the system's own Python, with nothing but the standard library, as process 1 of its own process namespace,
so that everything inside ends with it. Its only argument is JSON: `command`, `variables`, `files` (texts by their
paths), `sockets` (Unix sockets by the ports of 127.0.0.1 that lead to them), and the limits `memory_bytes` and
`processes`.
"""

import contextlib
import json
import os
import resource
import socket
import sys
import threading
import time

PAUSE_S = 0.02  # between looks at the program
MEMORY_PAUSE_S = 0.2  # between counts of memory
PAGE = os.sysconf("SC_PAGE_SIZE")
OUT_OF_MEMORY = 137


def forward(port, path):
    """Serves a port of 127.0.0.1, and forwards each connection to a Unix socket."""
    server = socket.create_server(("127.0.0.1", port), backlog=512)

    def accept():
        while True:
            client, _ = server.accept()
            gateway = socket.socket(socket.AF_UNIX)
            gateway.connect(path)
            for source, target in ((client, gateway), (gateway, client)):
                threading.Thread(target=pump, args=(source, target), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()


def pump(source, target):
    """Copies what one socket reads to the other until it ends."""
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)


def memory_bytes():
    """Returns the memory that all processes inside hold, without this one."""
    total = 0
    for name in os.listdir("/proc"):
        if name.isdigit() and name != "1":
            try:
                with open(f"/proc/{name}/statm") as file:
                    resident, shared = file.read().split()[1:3]
            except (OSError, ValueError):
                continue
            total += (int(resident) - int(shared)) * PAGE
    return total


def start(command, variables, processes):
    """Starts the program and returns its process id."""
    child = os.fork()
    if child:
        return child
    try:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_NPROC, (processes, processes))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.execvpe(command[0], command, {**os.environ, **variables})
    except OSError as error:
        os.write(2, f"{command[0]!r} cannot be started: {error}\n".encode())
    os._exit(127)


def watch(child, limit):
    """Waits for the program, reaps what it leaves, and returns its exit code."""
    counted = time.monotonic()
    while True:
        try:
            ended, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return 0
        if ended == child:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code
        if not ended:
            time.sleep(PAUSE_S)
        if time.monotonic() - counted > MEMORY_PAUSE_S:
            counted = time.monotonic()
            if memory_bytes() > limit:
                os.write(2, f"the program passed its memory of {limit} bytes\n".encode())
                return OUT_OF_MEMORY


def main(given):
    for path, text in given["files"].items():
        os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
        with open(path, "w") as file:
            file.write(text)
    for port, path in given["sockets"].items():
        forward(int(port), path)
    code = watch(start(given["command"], given["variables"], given["processes"]), given["memory_bytes"])
    sys.stdout.flush()
    os._exit(code)


main(json.loads(sys.argv[1]))
