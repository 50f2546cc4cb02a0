"""The first process of a sandbox: it serves one request at a time, and kills what a request leaves running.

It runs inside, under the system's own Python, with nothing but the standard library, as process 1 of its own process
namespace: no signal from inside reaches it, nothing inside can inspect it, and everything ends with it. It reads
requests from its standard input and answers on its standard output, which no other process inside has. A message is two
lengths of four bytes, a JSON header, and bytes.

Nothing here waits for an agent's program: its input and output go through pipes that never block, and every wait has a
limit.

Every shell command has its own bash, so that `exit`, `exec` and unbalanced quotes end only that command. Variables,
functions and the working directory pass from one command to the next as text, which the caller keeps.
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

from sojourn.envs.sandbox.pipes import Output, PipeWriter, drain, read_available
from sojourn.envs.sandbox.usage import (
    MAX_DESCRIPTORS,
    MAX_LOCKS,
    all_stopped,
    file_locks,
    memory_bytes,
    open_files,
    used_inodes,
)

STATE_IN, STATE_OUT, CELL_IN, CELL_OUT = 200, 201, 202, 203  # file descriptors of a shell or session
STATE_BYTES = 60_000  # a longer state is dropped
PAUSE_S = 0.05  # between checks of memory, files and the clock
LOCKS_S = 1.0  # between checks of file locks, which take longer
SPIN_S = 0.002  # a session usually stops within this time, in which the wait does not sleep
STOP_S = 5.0  # the time in which all processes of a session must stop, on a busy machine
IDLE_S = 0.25  # between checks of a stopped session
SIGNALS = 256  # the most signals that may be pending, for all processes together
DATES = -(2**31), 2**40  # seconds: the range of a file's date
# A shell reads this first, after the state of the last one; it writes its own state when it exits.
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
# A session reads a length and code, runs the code as a notebook would, and answers with one byte. A process that the
# code forked ends with its cell, as it would read the session's next input.
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
    """Process 1: it reads requests and answers them, one at a time."""

    def __init__(self) -> None:
        with open("/proc/self/oom_score_adj", "wb") as file:
            file.write(b"1000")  # this sandbox is the first to be killed where the machine runs out of memory
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE: no process inside may read /proc/1
        libc.prctl(41, 1, 0, 0, 0)  # PR_SET_THP_DISABLE: a huge page is kept while a part of it is mapped
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # else Python would handle it
        header, _ = self.receive()
        self.limits = header
        self.session = None
        self.checked = self.locks_checked = 0.0
        self.answer({"ready": True})

    def receive(self):
        """Reads one request: its header and its bytes; ends the process where the caller is gone."""
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
            header, payload = self.receive()
            self.answer(*getattr(self, header.pop("do"))(payload, **header))

    def wait(self):
        """Waits for a request; ends a session that is no longer stopped meanwhile."""
        asked = select.poll()
        asked.register(0, select.POLLIN)
        while not asked.poll(IDLE_S * 1000 if self.session else None):
            if not all_stopped():
                self.clear()

    def write(self, payload, entries):
        """Writes files, folders and links in the given order; answers with those that could not be written."""
        failed, placed, offset = [], [], 0
        for path, kind, mode, size, mtime in entries:
            data, offset = payload[offset : offset + size], offset + size
            try:
                self.write_one(path, kind, data, mtime)
                placed.append((path, kind, mode, mtime))
            except OSError as error:
                failed.append(f"{path}: {error.strerror}")
        for path, kind, mode, mtime in reversed(placed):  # innermost first: a folder may be read-only
            if kind != "link":
                os.chmod(path, mode)
                date = min(max(mtime, DATES[0]), DATES[1])
                os.utime(path, (date, date))
        return {"failed": failed}, b""

    def write_one(self, path, kind, data, mtime):
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
        """Runs one command after restoring the last shell's state; answers with the new state, then the output."""
        command, state = payload[:command_bytes], payload[command_bytes:]
        state_in, state_out, out = os.pipe(), os.pipe(), os.pipe()
        argv = ["bash", "--noprofile", "--norc", "-c", os.fsdecode(command)]
        extra = {"BASH_ENV": f"/dev/fd/{STATE_IN}"}
        child = self.start(
            "/bin/bash", argv, {1: out[1], 2: out[1], STATE_IN: state_in[0], STATE_OUT: state_out[1]}, extra
        )
        for fd in (state_in[0], state_out[1], out[1]):
            os.close(fd)
        for fd in (out[0], state_out[0]):
            os.set_blocking(fd, False)
        feed = PipeWriter(state_in[1], state + PROLOGUE.encode(), last=True)
        end, code, output, left = self.watch(child, out[0], state_out[0], feed, timeout_s)
        self.clear()
        feed.close_last()
        output += drain(out[0])
        left += drain(state_out[0])
        for fd in (out[0], state_out[0]):
            os.close(fd)
        kept = parse_state(bytes(left))
        header = {"end": end, "code": code, "cut": output.cut, "state_bytes": None if kept is None else len(kept)}
        return header, (kept or b"") + output.text()

    def cell(self, payload, timeout_s):
        """Runs one cell in the session, which is started where there is none and is stopped between cells."""
        fresh = self.session is None
        self.session = self.session or self.begin()
        child, out, send, answer_pipe = self.session
        signal_all(signal.SIGCONT)
        for fd in (out, answer_pipe):
            drain(fd)  # what threads wrote after the last cell had ended
        feed = PipeWriter(send, struct.pack("!I", len(payload)) + payload)
        end, code, output, _ = self.watch(child, out, answer_pipe, feed, timeout_s, session=True)
        output += drain(out)
        if end == "answered":
            end = self.stop(output, feed)
        if end != "answered":
            self.kill()
            output += drain(out)
            self.clear()
        return {"end": end, "code": code, "cut": output.cut, "fresh": fresh}, output.text()

    def stop(self, output, feed):
        """Stops all processes of a session that has answered; returns how its cell ended, now that usage is constant.

        A task that ran within the kernel when the others stopped may end there and so wake some of them, so all get the
        signal again until they were found stopped twice.
        """
        began, clean = time.monotonic(), 0
        while clean < 2:
            signal_all(signal.SIGSTOP)
            clean = clean + 1 if all_stopped() else 0
            if not clean:
                took = time.monotonic() - began
                if took > STOP_S:
                    return "timeout"
                if took < SPIN_S:
                    os.sched_yield()
                else:
                    time.sleep(0.001)
        if feed.data:
            return "ended"  # it answered before it had read the whole cell
        return self.exceeded(output, at_once=True) or "answered"

    def begin(self):
        code_pipe, answer_pipe, out = os.pipe(), os.pipe(), os.pipe()
        argv = ["python3", "-I", "-S", "-c", SESSION]
        child = self.start(
            self.limits["python"], argv, {1: out[1], 2: out[1], CELL_IN: code_pipe[0], CELL_OUT: answer_pipe[1]}, {}
        )
        for fd in (code_pipe[0], answer_pipe[1], out[1]):
            os.close(fd)
        for fd in (out[0], code_pipe[1], answer_pipe[0]):
            os.set_blocking(fd, False)
        return child, out[0], code_pipe[1], answer_pipe[0]

    def start(self, path, argv, files, environment):
        """Forks a child with only these file descriptors and the limits of an agent's program; returns its id."""
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
                (resource.RLIMIT_AS, limits["memory_bytes"] * 2),  # of reserved memory; used memory is watched
                (resource.RLIMIT_CPU, limits["cpu_s"]),
                (resource.RLIMIT_FSIZE, limits["file_bytes"]),
                (resource.RLIMIT_NPROC, limits["processes"]),
                (resource.RLIMIT_NOFILE, MAX_DESCRIPTORS),
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
        """Waits until the child ends, a session answers, or a limit is passed; returns how, the exit code, the output,
        and what came from `side`."""
        self.deadline = time.monotonic() + timeout_s
        self.allowed = max(self.limits["files"], self.count())  # with too many already, it may still remove some
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
                        os._exit(0)  # no request comes while one is served: the caller is gone
                    if fd == ended:
                        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
                        return "ended", code if code >= 0 else 128 - code, output, left
                    if fd == feed.fd:
                        if feed.write_some():
                            poll.unregister(fd)
                            feed.close_last()
                        continue
                    data = read_available(fd) if event & select.POLLIN else b""
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
        """Returns the limit that is passed, if any. Costly limits are checked only now and then, or where `at_once`."""
        limits, now = self.limits, time.monotonic()
        if now > self.deadline and not at_once:
            return "timeout"
        if output.total > limits["flood_bytes"]:
            return "output"
        if at_once or now > self.checked + PAUSE_S:
            self.checked = now
            if self.count() > self.allowed:
                return "files"
            if open_files() > limits["descriptors"]:
                return "descriptors"
            if memory_bytes() > limits["memory_bytes"]:
                return "memory"
            if now > self.locks_checked + LOCKS_S or at_once:
                self.locks_checked = now
                if file_locks() > MAX_LOCKS:
                    return "memory"
        return None

    def count(self):
        return sum(used_inodes(path) for path in self.limits["places"])

    def restart(self, payload):
        self.clear()
        return {}, b""

    def clear(self):
        """Kills all other processes, a session included."""
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


def parse_state(data):
    """Returns the state that a shell left; None where it left none, empty where its restored state made it exit."""
    if not data.startswith(READY):
        return b""
    last = data[data.rstrip(b"\n").rfind(b"\n") + 1 :]
    return data[len(READY) :] if len(data) <= STATE_BYTES and last.startswith(b"cd -- ") else None


def signal_all(number):
    with contextlib.suppress(ProcessLookupError):
        os.kill(-1, number)


if __name__ == "__main__":
    Sandbox().serve()
