"""The first process of a sandbox: runs what it is told, one thing at a time, and kills what is left of it.

It runs inside, under the system's own Python, with nothing but the standard library, as process 1 of its own process
namespace: no signal from inside reaches it, nobody inside can look into it, and when it ends, all ends. It hears
requests on its standard input and answers on its standard output, which no other process in here has: each is two
lengths of four bytes, a JSON header, and bytes.

Nothing here waits for an agent's program: what it is given and what it says goes through pipes that never block, and
every wait has a limit.

Every shell command has its own bash, so that `exit`, `exec` and unbalanced quotes end that command alone; variables,
functions and the working directory go from one to the next as text, which the caller keeps.
"""

import contextlib
import ctypes
import json
import os
import resource
import select
import signal
import struct
import time

from sojourn.envs.sandbox.pipes import Feed, Output, drained, taken
from sojourn.envs.sandbox.usage import MOST_DESCRIPTORS, MOST_LOCKS, descriptors, held, inodes, locks, standing

STATE_IN, STATE_OUT, CELL_IN, CELL_OUT = 200, 201, 202, 203  # file descriptors that a shell or session is given
STATE_BYTES = 60_000  # a longer one does not last
PAUSE_S = 0.05  # between looks at memory, files and the clock
LOCKS_S = 1.0  # between looks at locks of files, which take longer
SOON_S = 0.002  # in which a session stands still, mostly: it is not slept through
STOP_S = 5.0  # until all of a session stands still, on a machine that is busy
IDLE_S = 0.25  # between looks at a session that stands still
SIGNALS = 256  # that may wait for processes, in all
DATES = -(2**31), 2**40  # seconds that a file's date is kept within
# A shell reads this first: what the last one left, then how to leave the same.
PROLOGUE = r"""
builtin exec 200<&-; builtin unset BASH_ENV
__leave() {
  builtin local __name __names IFS=$' \t\n'
  __names=$(builtin compgen -v) || return
  for __name in $__names; do
    case $__name in
      BASH*|COMP_*|EPOCH*|HOST*|OPT*|__*|_|DIRSTACK|EUID|FUNCNAME|GROUPS|HISTCMD|LINENO|MACHTYPE|OSTYPE|PIPESTATUS) ;;
      PPID|PWD|OLDPWD|RANDOM|SECONDS|SHELLOPTS|SHLVL|SRANDOM|UID) ;;
      *) builtin declare -p "$__name" ;;
    esac
  done
  __names=$(builtin compgen -A function) || return
  for __name in $__names; do
    case $__name in __*) ;; *) builtin declare -f "$__name" ;; esac
  done
  builtin printf 'cd -- %q\n' "$PWD"
}
builtin trap '__leave 2>/dev/null >&201' EXIT
builtin echo ready >&201
"""
READY = b"ready\n"
# A session reads a length and code, runs it as a notebook would, and answers with one byte. A copy of it, which code
# forked, ends with its cell: it would hear what the session is told next.
SESSION = r"""
import ast, linecache, os, struct, sys, traceback
def serve(count=0):
    sys.path.insert(0, os.getcwd())
    names, own = {"__name__": "__main__", "__builtins__": __builtins__}, os.getpid()
    read, write = os.fdopen(202, "rb"), 203
    while head := read.read(4):
        text, count = read.read(struct.unpack("!I", head)[0]).decode(errors="replace"), count + 1
        name = f"<cell {count}>"
        linecache.cache[name] = (len(text), None, text.splitlines(True), name)
        try:
            tree, last = ast.parse(text, name), None
            if tree.body and isinstance(tree.body[-1], ast.Expr):
                last = ast.Expression(tree.body.pop().value)
            exec(compile(tree, name, "exec"), names)
            value = eval(compile(last, name, "eval"), names) if last else None
            if value is not None:
                print(repr(value))
        except BaseException as error:
            trace = error.__traceback__
            while trace and not trace.tb_frame.f_code.co_filename.startswith("<cell"):
                trace = trace.tb_next
            sys.stdout.flush()
            print("".join(traceback.format_exception(type(error), error, trace)), file=sys.stderr, end="")
            del error, trace
        sys.stdout.flush(), sys.stderr.flush()
        if os.getpid() != own:
            os._exit(0)
        os.write(write, b".")
serve()
"""


class Sandbox:
    def __init__(self) -> None:
        with open("/proc/self/oom_score_adj", "wb") as file:
            file.write(b"1000")  # should the machine run out of memory, then us first
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE: /proc/1 is nobody's in here
        libc.prctl(41, 1, 0, 0, 0)  # PR_SET_THP_DISABLE: a huge page stays while a part of it is mapped
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # which process 1 does not get
        header, _ = self.hear()
        self.limits = header
        self.session = None
        self.looked = self.locks_seen = 0.0
        self.answer({"ready": True})

    def hear(self):
        lengths = os.read(0, 8)
        if not lengths:
            os._exit(0)
        while len(lengths) < 8:
            lengths += os.read(0, 8 - len(lengths)) or os._exit(0)
        sizes = struct.unpack("!II", lengths)
        parts = []
        for size in sizes:
            part = bytearray()
            while len(part) < size:
                part += os.read(0, min(size - len(part), 1 << 20)) or os._exit(0)
            parts.append(bytes(part))
        return json.loads(parts[0]), parts[1]

    def answer(self, header, payload=b""):
        head = json.dumps(header).encode()
        data = memoryview(struct.pack("!II", len(head), len(payload)) + head + payload)
        while data:
            data = data[os.write(1, data) :]

    def serve(self):
        while True:
            self.wait()
            header, payload = self.hear()
            self.answer(*getattr(self, header.pop("do"))(payload, **header))

    def wait(self):
        """Waits until something is asked; a session that no longer stands still meanwhile has ended."""
        asked = select.poll()
        asked.register(0, select.POLLIN)
        while not asked.poll(IDLE_S * 1000 if self.session else None):
            if not standing():
                self.clear()

    def write(self, payload, entries):
        """Files, folders and links, in the order given; says which could not be written."""
        failed, placed, offset = [], [], 0
        for path, kind, mode, size, mtime in entries:
            data, offset = payload[offset : offset + size], offset + size
            try:
                self.place(path, kind, data, mtime)
                placed.append((path, kind, mode, mtime))
            except OSError as error:
                failed.append(f"{path}: {error.strerror}")
        for path, kind, mode, mtime in reversed(placed):  # innermost first: a folder may be read-only
            if kind != "link":
                os.chmod(path, mode)
                date = min(max(mtime, DATES[0]), DATES[1])
                os.utime(path, (date, date))
        return {"failed": failed}, b""

    def place(self, path, kind, data, mtime):
        if kind == "folder":
            os.makedirs(path, exist_ok=True)
            return
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if os.path.lexists(path) and (kind == "link" or os.path.islink(path) or not os.path.isdir(path)):
            os.unlink(path)
        if kind == "link":
            os.symlink(os.fsdecode(data), path)
            os.utime(path, (mtime, mtime), follow_symlinks=False)
            return
        with open(path, "wb") as file:
            file.write(data)

    def shell(self, payload, command_bytes, timeout_s):
        """One command, after the state of the last shell; answers with the state it leaves, then its output."""
        command, state = payload[:command_bytes], payload[command_bytes:]
        give, take, out = os.pipe(), os.pipe(), os.pipe()
        argv = ["bash", "--noprofile", "--norc", "-c", os.fsdecode(command)]
        extra = {"BASH_ENV": f"/dev/fd/{STATE_IN}"}
        child = self.start("/bin/bash", argv, {1: out[1], 2: out[1], STATE_IN: give[0], STATE_OUT: take[1]}, extra)
        for fd in (give[0], take[1], out[1]):
            os.close(fd)
        for fd in (out[0], take[0]):
            os.set_blocking(fd, False)
        feed = Feed(give[1], state + PROLOGUE.encode(), last=True)
        end, code, output, left = self.watch(child, out[0], take[0], feed, timeout_s)
        self.clear()
        feed.end()
        output += drained(out[0])
        left += drained(take[0])
        for fd in (out[0], take[0]):
            os.close(fd)
        kept = left_of(bytes(left))
        header = {"end": end, "code": code, "cut": output.cut, "state_bytes": None if kept is None else len(kept)}
        return header, (kept or b"") + output.text()

    def cell(self, payload, timeout_s):
        """One cell in the session that keeps its variables, begun when there is none; else it stands still."""
        fresh = self.session is None
        self.session = self.session or self.begin()
        child, out, send, take = self.session
        signal_all(signal.SIGCONT)
        for fd in (out, take):
            drained(fd)  # what threads said after the last cell was over
        feed = Feed(send, struct.pack("!I", len(payload)) + payload)
        end, code, output, _ = self.watch(child, out, take, feed, timeout_s, session=True)
        output += drained(out)
        if end == "answered":
            end = self.stop(output, feed)
        if end != "answered":
            self.kill()
            output += drained(out)
            self.clear()
        return {"end": end, "code": code, "cut": output.cut, "fresh": fresh}, output.text()

    def stop(self, output, feed):
        """Stops all of a session that has answered; how its cell ended, now that nothing grows any more.

        What was running within the kernel when the others stopped may still end there, and so wake some of them: so all
        are told again until they have stood still twice.
        """
        began, clean = time.monotonic(), 0
        while clean < 2:
            signal_all(signal.SIGSTOP)
            clean = clean + 1 if standing() else 0
            if not clean:
                took = time.monotonic() - began
                if took > STOP_S:
                    return "timeout"
                if took < SOON_S:
                    os.sched_yield()
                else:
                    time.sleep(0.001)
        if feed.data:
            return "ended"  # it has answered what it has not read
        return self.exceeded(output, at_once=True) or "answered"

    def begin(self):
        ask, take, out = os.pipe(), os.pipe(), os.pipe()
        argv = ["python3", "-I", "-S", "-c", SESSION]
        child = self.start(self.limits["python"], argv, {1: out[1], 2: out[1], CELL_IN: ask[0], CELL_OUT: take[1]}, {})
        for fd in (ask[0], take[1], out[1]):
            os.close(fd)
        for fd in (out[0], ask[1], take[0]):
            os.set_blocking(fd, False)
        return child, out[0], ask[1], take[0]

    def start(self, path, argv, files, environment):
        """A child with these file descriptors alone and the limits of an agent's program."""
        pid = os.fork()
        if pid:
            return pid
        try:
            os.setsid()
            limits = self.limits
            null = os.open("/dev/null", os.O_RDWR)
            kept = {number: os.dup2(fd, 300 + number) for number, fd in {0: null, **files}.items()}
            for number, fd in kept.items():
                os.dup2(fd, number)
            last = 0
            for number in sorted(files):
                os.closerange(last + 1, number)
                last = number
            os.closerange(last + 1, 4096)
            for name, value in (
                (resource.RLIMIT_AS, limits["memory_bytes"] * 2),  # what is reserved; what is used is watched
                (resource.RLIMIT_CPU, limits["cpu_s"]),
                (resource.RLIMIT_FSIZE, limits["file_bytes"]),
                (resource.RLIMIT_NPROC, limits["processes"]),
                (resource.RLIMIT_NOFILE, MOST_DESCRIPTORS),
                (resource.RLIMIT_SIGPENDING, SIGNALS),
                (resource.RLIMIT_CORE, 0),
                (resource.RLIMIT_MEMLOCK, 0),
            ):
                resource.setrlimit(name, (value, value))
            signal.signal(signal.SIGPIPE, signal.SIG_DFL)
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
            os.execve(path, argv, {**os.environ, **environment})
        finally:
            os._exit(127)

    def watch(self, child, out, side, feed, timeout_s, session=False):
        """Waits until the child ends, a session answers, or a limit is passed: how it ended, its code, what it said."""
        self.deadline = time.monotonic() + timeout_s
        self.allowed = max(self.limits["files"], self.count())  # who has too many may still remove some
        output, left = Output(self.limits["output_bytes"]), bytearray()
        ended = os.pidfd_open(child)
        poll = select.poll()
        for fd in (0, out, side, ended):
            poll.register(fd, select.POLLIN)
        poll.register(feed.fd, select.POLLOUT)
        try:
            while True:
                for fd, event in poll.poll(PAUSE_S * 1000):
                    if fd == 0:
                        os._exit(0)  # nothing is asked while we work: the caller has gone
                    if fd == ended:
                        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
                        return "ended", code if code >= 0 else 128 - code, output, left
                    if fd == feed.fd:
                        if feed.done():
                            poll.unregister(fd)
                            feed.end()
                        continue
                    data = taken(fd) if event & select.POLLIN else b""
                    if data == b"":
                        poll.unregister(fd)
                    elif data is None:
                        pass
                    elif fd == out:
                        output += data
                    elif session:
                        return "answered", 0, output, left
                    elif len(left) <= STATE_BYTES:
                        left += data
                if why := self.exceeded(output):
                    return why, 124, output, left
        finally:
            os.close(ended)

    def exceeded(self, output, at_once=False):
        """Returns which limit is passed; those that are costly to look at are looked at now and then, or `at_once`."""
        limits, now = self.limits, time.monotonic()
        if now > self.deadline and not at_once:
            return "timeout"
        if output.total > limits["flood_bytes"]:
            return "output"
        if at_once or now > self.looked + PAUSE_S:
            self.looked = now
            if self.count() > self.allowed:
                return "files"
            if descriptors() > limits["descriptors"]:
                return "descriptors"
            if held() > limits["memory_bytes"]:
                return "memory"
            if now > self.locks_seen + LOCKS_S or at_once:
                self.locks_seen = now
                if locks() > MOST_LOCKS:
                    return "memory"
        return None

    def count(self):
        return sum(inodes(path) for path in self.limits["places"])

    def restart(self, payload):
        self.clear()
        return {}, b""

    def clear(self):
        """Kills everything else in here, a session included."""
        self.kill()
        if self.session:
            for fd in self.session[1:]:
                os.close(fd)
        self.session = None

    def kill(self):
        while True:
            signal_all(signal.SIGKILL)
            try:
                os.waitpid(-1, 0)
            except ChildProcessError:
                return


def left_of(said):
    """The state that a shell left; None where it left none, and nothing where what it began with had ended it."""
    if not said.startswith(READY):
        return b""
    last = said[said.rstrip(b"\n").rfind(b"\n") + 1 :]
    return said[len(READY) :] if len(said) <= STATE_BYTES and last.startswith(b"cd -- ") else None


def signal_all(number):
    with contextlib.suppress(ProcessLookupError):
        os.kill(-1, number)


if __name__ == "__main__":
    Sandbox().serve()
