"""The first process in the sandbox of a browser: it brings the pages of a world to 127.0.0.1, starts the browser,
forwards clients of the Chrome DevTools Protocol to it, and ends with it.

It runs under the system's own Python, with nothing but the standard library, as process 1 of its own process namespace,
so that everything inside ends with it. Its only argument is JSON: `command`, `variables`, the socket of the pages
(`site`) and its port here (`site_port`), the descriptor of a socket where clients connect (`clients`), the port where
the browser answers them (`cdp_port`), and the limits `memory_bytes` and `processes`.

Clients may use the whole protocol. What they send is read on its way for one reason alone: where the browser ends by a
crash, the exit code tells whether a client had asked for it.
"""

import contextlib
import json
import os
import re
import resource
import socket
import sys
import threading
import time

PAUSE_S = 0.05  # between looks at the browser
PAGE = os.sysconf("SC_PAGE_SIZE")
OUT_OF_MEMORY, CRASHED, CRASH_ASKED = 137, 71, 70  # exit codes; 0: the browser was closed
LONGEST_HEAD, LONGEST_MESSAGE = 1 << 14, 1 << 26  # bytes
HEADERS = ("host", "sec-websocket-key", "sec-websocket-version")  # of a request, that are forwarded
HEADER = re.compile(r"([A-Za-z-]+):[ \t]*([!-~]([ -~]*[!-~])?)[ \t]*")
REQUEST = re.compile(r"(GET|PUT) (/[!-~]*) HTTP/1\.1")
UPGRADE = "Connection: Upgrade\r\nUpgrade: websocket\r\n"
crash_asked = threading.Event()


class BadRequestError(Exception):
    """A client sent what it may not send: its connection is closed."""


def in_thread(function, *arguments):
    threading.Thread(target=function, args=arguments, daemon=True).start()


def forward_pages(port, path):
    """Serves a port of 127.0.0.1, and forwards each connection to a Unix socket."""
    server = socket.create_server(("127.0.0.1", port), backlog=512)

    def accept():
        while True:
            client, _ = server.accept()
            site = socket.socket(socket.AF_UNIX)
            try:
                site.connect(path)
            except OSError:
                client.close()
                continue
            in_thread(pump, client, site)
            in_thread(pump, site, client)

    in_thread(accept)


def pump(source, target):
    """Copies what one socket reads to the other until it ends."""
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)


def forward_clients(server, port):
    """Forwards each client that connects to a socket to the browser's port."""
    while True:
        client, _ = server.accept()
        in_thread(serve, client, port)


def serve(client, port):
    """Serves the connection of one client: plain requests, one after another, or a WebSocket."""
    address = "127.0.0.1", port
    with contextlib.suppress(OSError, BadRequestError), client, socket.create_connection(address) as browser:
        exchange(client, browser)


def exchange(client, browser):
    reader, answers = client.makefile("rb"), browser.makefile("rb")
    while head := read_head(reader):
        upgrade, request = forwarded(head)
        browser.sendall(request)
        answer = read_head(answers)
        client.sendall(answer)
        if upgrade and answer.startswith(b"HTTP/1.1 101"):
            in_thread(talk, client, browser, answers)
            return read_frames(reader, browser)
        length = re.search(rb"(?i)content-length:\s*(\d+)", answer)
        client.sendall(answers.read(int(length[1])) if length else b"")
    return None


def talk(client, browser, answers):
    """Copies what the browser says to its client."""
    with contextlib.suppress(OSError):
        while data := answers.read1(1 << 16):
            client.sendall(data)
    for one in (client, browser):
        with contextlib.suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)


def read_head(reader):
    """Reads the lines before a body, with the empty one; nothing at the end."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        line = reader.readline(LONGEST_HEAD)
        if not line:
            return b""
        head += line
        if len(head) > LONGEST_HEAD:
            raise BadRequestError
    return head


def forwarded(head):
    """Returns whether a request asks for a WebSocket, and the request as it is forwarded: without extensions, as
    compressed frames could not be read, and without an origin. So the browser can refuse whoever has one: a page, which
    would get around what is read here."""
    request, *lines = head.decode("latin-1")[:-4].split("\r\n")
    fields = list(map(HEADER.fullmatch, lines))
    if REQUEST.fullmatch(request) is None or not all(fields):
        raise BadRequestError
    named = {field[1].lower(): field[2] for field in fields if field}
    if int(named.get("content-length", "0")) or "transfer-encoding" in named:
        raise BadRequestError
    upgrade = named.get("upgrade", "").lower() == "websocket"
    kept = "".join(f"{name}: {named[name]}\r\n" for name in HEADERS if name in named)
    return upgrade, f"{request}\r\n{kept}{UPGRADE if upgrade else ''}\r\n".encode("latin-1")


def read_frames(reader, browser):
    """Forwards the frames of a WebSocket, and notes messages that ask for a crash before the browser has them."""
    message = b""
    while len(start := reader.read(2)) == 2:
        last, kind, masked, length = start[0] & 0x80, start[0] & 0x0F, start[1] & 0x80, start[1] & 0x7F
        more = reader.read({126: 2, 127: 8}.get(length, 0))
        length = int.from_bytes(more, "big") if more else length
        if start[0] & 0x70 or not masked or len(message) + length > LONGEST_MESSAGE:
            raise BadRequestError
        mask, data = reader.read(4), reader.read(length)
        if len(data) < length:
            return
        if kind < 3:  # a text or bytes, or more of them
            message += unmasked(data, mask)
        if kind < 3 and last:
            if asks_for_crash(message.decode(errors="replace")):
                crash_asked.set()
            message = b""
        browser.sendall(start + more + mask + data)


def unmasked(data, mask):
    long = (mask * (len(data) // 4 + 1))[: len(data)]
    return (int.from_bytes(data, "big") ^ int.from_bytes(long, "big")).to_bytes(len(data), "big")


def asks_for_crash(text):
    """Returns whether a message may ask the browser to crash, by a command or by an address; also within another."""
    try:
        left = [json.loads(text)]
    except (ValueError, RecursionError):
        return True
    while left:
        value = left.pop()
        if isinstance(value, dict):
            left += value.values()
        elif isinstance(value, list):
            left += value
        elif isinstance(value, str):
            word = value.strip().lower()
            if "crash" in word or word.startswith(("chrome", "devtools:", "view-source:")):
                return True
            if word.startswith("{") and '"method"' in word and asks_for_crash(value):
                return True
    return False


def memory_bytes():
    """Returns the memory that all processes inside hold, without this one."""
    total = 0
    for name in os.listdir("/proc"):
        if name.isdigit() and name != "1":
            with contextlib.suppress(OSError, ValueError), open(f"/proc/{name}/statm") as file:
                resident, shared = file.read().split()[1:3]
                total += (int(resident) - int(shared)) * PAGE
    return total


def start(command, variables, processes):
    """Starts the browser and returns its process id."""
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
    """Waits for the browser, reaps what it leaves, and returns the exit code."""
    while True:
        ended, status = os.waitpid(-1, os.WNOHANG)
        if ended == child:
            if status == 0:
                return 0
            return CRASH_ASKED if crash_asked.is_set() else CRASHED
        if not ended:
            time.sleep(PAUSE_S)
            if memory_bytes() > limit:
                return OUT_OF_MEMORY


def main(given):
    forward_pages(given["site_port"], given["site"])
    in_thread(forward_clients, socket.socket(fileno=given["clients"]), given["cdp_port"])
    os._exit(watch(start(given["command"], given["variables"], given["processes"]), given["memory_bytes"]))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
