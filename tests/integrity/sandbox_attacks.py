# ruff: noqa: E501
"""Attacks on a sandbox itself: what holds memory, what wakes the stopped, which calls are refused, and which must not be."""

from sojourn.envs.sandbox import End

C = """
import ctypes, os, signal, struct, sys, time
c = ctypes.CDLL(None, use_errno=True)
c.mmap.restype = ctypes.c_void_p
c.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
c.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
c.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
def call(*arguments):
    return c.syscall(*map(ctypes.c_long, arguments)), ctypes.get_errno()
arm = os.uname().machine == "aarch64"
"""

FULL = """
import os, time
kept = []
for _ in range(120):
    kept.append(os.pipe())
    os.set_blocking(kept[-1][1], False)
    try:
        while True:
            os.write(kept[-1][1], b"x" * 4096)
    except BlockingIOError:
        pass
print("full", flush=True)
time.sleep(60)
"""

WRITE = """
def write_on():
    count = 0
    while True:
        count += 1
        with open("/task/count", "w") as file: file.write(str(count))
"""
WAKERS = {
    "a timer": """
event = ctypes.create_string_buffer(struct.pack("QiiQQQQQQ", 0, signal.SIGCONT, 0, 0, 0, 0, 0, 0, 0))
timer = ctypes.c_int()
c.syscall(107 if arm else 222, 1, event, ctypes.byref(timer))
c.syscall(110 if arm else 223, timer, 0, ctypes.create_string_buffer(struct.pack("qqqq", 0, 10**7, 0, 10**7)), 0)
import threading
threading.Thread(target=write_on, daemon=True).start()
""",
    "its parent's end": """
if os.fork() == 0:
    if os.fork() == 0:
        c.prctl(1, signal.SIGCONT, 0, 0, 0)
        write_on()
    held = b"x" * (150 << 20)  # its end takes a while
    os._exit(0)
time.sleep(0.15)
""",
    "a group without a parent": """
if os.fork() == 0:
    if os.fork() == 0:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        os.setpgid(0, 0)
        write_on()
    held = b"x" * (150 << 20)
    os._exit(0)
time.sleep(0.15)
""",
    "its child's end": """
if call(220 if arm else 56, int(signal.SIGCONT), 0, 0, 0, 0)[0] == 0:
    held = b"x" * (150 << 20)
    os._exit(0)
import threading
threading.Thread(target=write_on, daemon=True).start()
time.sleep(0.15)
""",
    "a pipe": """
import fcntl, threading
read, write = os.pipe()
try:
    fcntl.fcntl(read, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(read, 10, signal.SIGCONT)
    fcntl.fcntl(read, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
except OSError: pass
if os.fork() == 0:
    held = b"x" * (150 << 20)
    os._exit(0)
threading.Thread(target=write_on, daemon=True).start()
time.sleep(0.15)
""",
    "another that goes on": """
import threading
for _ in range(20):
    if os.fork() == 0:
        while True:
            os.kill(-1, signal.SIGCONT)
threading.Thread(target=write_on, daemon=True).start()
""",
}

CHANGING = """
import shutil
for _ in range(3):
    if os.fork() == 0:
        while True:
            try:
                os.makedirs("/task/d/e/f")
                shutil.rmtree("/task/d")
            except OSError:
                pass
"""
HOLDERS = {
    "sockets": (
        "import socket\nkept = []\nfor _ in range(110):\n    kept += socket.socketpair()\nimport time; time.sleep(60)",
        End.MEMORY,
    ),
    "sockets on their way": (
        "import array, socket, time\na, b = socket.socketpair()\nfor _ in range(110):\n    c, d = socket.socketpair()\n"
        "    a.sendmsg([b'x'], [(1, 1, array.array('i', [c.fileno(), d.fileno()]))])\n    c.close(); d.close()\n"
        "time.sleep(60)",
        End.MEMORY,
    ),
    "page tables": (
        C + "for place in range(30_000):\n    at = c.mmap(0x100000000000 + (place << 30), 4096, 1, 0x100022, -1, 0)\n"
        "    ctypes.string_at(at, 1)\ntime.sleep(60)",
        End.MEMORY,
    ),
    "locks": (
        "import fcntl, os\nfor i in range(100):\n    f = os.open(f'l{i}', os.O_RDWR | os.O_CREAT)\n    for k in range(2000): fcntl.lockf(f, fcntl.LOCK_EX, 1, 2 * k)",
        End.MEMORY,
    ),
    "descriptors that are hidden": (
        "import ctypes, os, time\nctypes.CDLL(None).prctl(4, 0, 0, 0, 0)\nfor _ in range(9):\n    if os.fork() == 0: break\ntime.sleep(60)",
        End.DESCRIPTORS,
    ),
    "descriptors": (
        "import os, time\nfor _ in range(9):\n    if os.fork() == 0: break\nfor _ in range(240): os.dup(0)\ntime.sleep(60)",
        End.DESCRIPTORS,
    ),
}

REFUSED = {
    "memory that is shared and has no name": ("c.mmap(None, 4096, 3, 0x21, -1, 0)", str(2**64 - 1)),
    "memory of /dev/zero": ("c.mmap(None, 4096, 3, 1, os.open('/dev/zero', 2), 0)", str(2**64 - 1)),
    "huge pages": ("c.mmap(None, 1 << 21, 3, 0x44022, -1, 0)", str(2**64 - 1)),  # also where none are reserved
    "transparent huge pages again": ("c.prctl(41, 0, 0, 0, 0), c.prctl(42, 0, 0, 0, 0)", "(-1, 1)"),
    "longer pipes": ("c.fcntl(os.pipe()[0], 1031, 1 << 20)", "-1"),
    "leases": ("c.fcntl(os.open('/task/x', os.O_CREAT), 1024, 0)", "-1"),
    "news of folders": ("c.fcntl(os.open('/task', 0), 1026, 2)", "-1"),
    "other signals for files": ("c.fcntl(os.pipe()[0], 10, 18)", "-1"),
    "signals at a parent's end": ("c.prctl(1, 18, 0, 0, 0)", "-1"),
    "filters of its own": ("c.prctl(22, 1, 0, 0, 0), call(277 if arm else 317, 1, 0, 0)", "(-1, (-1, 22))"),
    "timers with signals": ("call(107 if arm else 222, 1, 0, 0)", "(-1, 38)"),
    "processes that say how they end": ("call(220 if arm else 56, 18, 0, 0, 0, 0)", "(-1, 1)"),
    "other user namespaces": ("call(220 if arm else 56, 0x10000011, 0, 0, 0, 0)", "(-1, 1)"),
    "threads with files of their own": ("call(220 if arm else 56, 0x10000, 0, 0, 0, 0)", "(-1, 1)"),
    "clone3": ("call(435, 0, 0)", "(-1, 38)"),
    "inotify": ("call(26 if arm else 294, 0)", "(-1, 38)"),
    "fanotify": ("call(262 if arm else 300, 0, 0)", "(-1, 38)"),
    "epoll": ("call(20 if arm else 291, 0)", "(-1, 38)"),
    "asynchronous files": ("call(0 if arm else 206, 8, 0)", "(-1, 38)"),
    "pages lent to a pipe": ("call(75 if arm else 278, 0, 0, 0, 0)", "(-1, 1)"),
    "calls that are newer": ("{call(n, 0, 0, 0)[1] for n in range(453, 600)}", "{38}"),
    "sockets of other kinds": (
        "{n for n in range(64) if call(198 if arm else 41, n, 2, 0)[0] >= 0 or call(198 if arm else 41, n, 1, 0)[0] >= 0}",
        "{1, 2, 10}",
    ),
    "sockets of other types": (
        "{(n, t) for n in (1, 2, 10) for t in range(16) for p in range(263) if call(198 if arm else 41, n, t, p)[0] >= 0} "
        "<= {(n, t) for n in (1, 2, 10) for t in (1, 2)}",
        "True",
    ),
    "larger buffers": (
        "s.setsockopt(1, 7, 1 << 22), s.setsockopt(1, 8, 1 << 22), max(s.getsockopt(1, n) for n in (7, 8)) < 1 << 20",
        "(None, None, True)",
    ),
}

ALLOWED = {
    "timeout 0.2 sleep 9; echo $?": "124",
    "echo a > x; timeout 1 tail -n 1 -f x 2>/dev/null": "a",
    "head -c 5 /dev/zero | od -An -tx1 | tr -d ' '": "0000000000",
    "sqlite3 d.db 'create table t (a); insert into t values (5); select * from t' || echo 5": "5",
    "tar -cf - /etc/passwd 2>/dev/null | tar -tf - | sort | uniq -c | wc -l": "1",
    "for i in {1..30}; do echo $i | cat | cat & done | sort -n | tail -1; wait": "30",
}
PROGRAMS = {
    "asyncio": "import asyncio\nasync def main():\n    p = await asyncio.create_subprocess_exec('printf', 'hi', stdout=-1)\n"
    "    return (await p.communicate())[0]\nprint(asyncio.run(main()))",
    "a server": "import http.server, threading, urllib.request\n"
    "class H(http.server.BaseHTTPRequestHandler):\n    def do_GET(self):\n        self.send_response(200); self.end_headers()\n"
    "        self.wfile.write(b'hi')\n    def log_message(self, *a): pass\n"
    "s = http.server.ThreadingHTTPServer(('127.0.0.1', 0), H)\nthreading.Thread(target=s.serve_forever, daemon=True).start()\n"
    "print([urllib.request.urlopen(f'http://127.0.0.1:{s.server_port}').read() for _ in range(20)][-1])",
    "threads": "import concurrent.futures as f\nwith f.ThreadPoolExecutor(8) as p:\n    list(p.map(str, range(99)))\nprint(b'hi')",
    "programs": "import subprocess\nfor _ in range(5):\n    out = subprocess.run(['echo', '-n', 'hi'], stdout=-1, close_fds=False).stdout\nprint(out)",
    "posix_spawn": "import os\npid = os.posix_spawn('/bin/true', ['true'], {})\nos.waitpid(pid, 0)\nprint(b'hi')",
    "a file in memory": "import mmap\nwith open('/task/m', 'wb+') as f:\n    f.write(b'ho')\n    f.flush()\n    m = mmap.mmap(f.fileno(), 0)\n"
    "    m[1:2] = b'i'\n    m[0:1] = b'h'\n    print(m[:])",
    "an alarm": "import signal\nsaid = []\nsignal.signal(14, lambda *a: said.append(b'hi'))\nsignal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)\n"
    "signal.pause()\nprint(said[0])",
}
