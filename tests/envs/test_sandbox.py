"""The sandbox itself: what lasts, what is stopped, what cannot get out, and that nothing is left."""

import asyncio
import concurrent.futures.thread  # noqa: F401  (an ordinary user may not read where it lies)
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import sojourn
from sojourn.envs.sandbox import End, Entry, Limits, LostError, Sandbox
from sojourn.errors import ConfigError, InfrastructureError

pytestmark = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")


CLOCK = """
import threading, time
longest = 0.0
def go():
    global longest
    last = time.monotonic()
    while True:
        time.sleep(0.001)
        longest, last = max(longest, time.monotonic() - last), time.monotonic()
threading.Thread(target=go, daemon=True).start()
time.sleep(0.1)
"""


async def said(sandbox: Sandbox, command: str, timeout_s: float = 20.0) -> str:
    return (await sandbox.run(command, timeout_s)).output.strip()


def processes_of(marker: str) -> list[str]:
    found = []
    for path in Path("/proc").iterdir():
        try:
            if path.name.isdigit() and marker.encode() in (path / "cmdline").read_bytes():
                found.append(path.name)
        except OSError:
            continue
    return found


def wait_until(condition) -> None:
    for _ in range(3_000):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("it did not come true within 30 s")


async def test_files_go_in_and_come_out():
    async with Sandbox() as sandbox:
        failed = await sandbox.write(
            {"a/b.txt": Entry.file("hello\n"), "run.sh": Entry.file("echo hi", 0o755), "to": Entry("link", b"a/b.txt")}
        )
        assert failed == []
        assert await said(sandbox, "cat to; ./run.sh; stat -c %Y a/b.txt") == "hello\nhi\n1700000000"
        await sandbox.run("mkdir -p c && printf 'x\\0y' > c/d && chmod 600 c/d && ln -s /etc/passwd out && rm run.sh")
        tree = await sandbox.tree()
    assert tree.files() == ["a/b.txt", "c/d"]
    assert tree.data("c/d") == b"x\0y"
    assert tree.mode("c/d") == 0o600
    assert tree.link("out") == "/etc/passwd"
    assert tree.data("out") is None
    assert tree.text("/task/a/b.txt") == "hello"
    assert sorted(p for p in tree.entries if p.startswith("/task/")) == [
        "/task/a",
        "/task/a/b.txt",
        "/task/c",
        "/task/c/d",
        "/task/out",
        "/task/to",
    ]


async def test_variables_functions_and_folder_last():
    async with Sandbox() as sandbox:
        await sandbox.run("mkdir 'a b'; cd 'a b'; x=$'1\\n2'; export Y='y\"y'; f() { echo f \"$1\"; }; list=(p 'q r')")
        assert await said(sandbox, 'pwd; echo "$x"; env | grep ^Y; f 3; echo "${list[1]}"') == (
            '/task/a b\n1\n2\nY=y"y\nf 3\nq r'
        )
        assert sandbox.folder == "/task/a\\ b"
        twin = await sandbox.fork()
        assert await said(twin, 'pwd; f "$x$Y"') == '/task/a b\nf 1\n2y"y'
        await twin.run("x=other; touch only-here")
        assert await said(sandbox, 'echo "$x"; ls') == "1\n2"
        await twin.close()


@pytest.mark.parametrize(
    ("command", "code", "output"),
    [
        ("echo a; exit 3", 3, "a"),
        ("exec echo b", 0, "b"),
        ("echo c; kill -9 $$", 137, "c"),
        ("set -e; false; echo d", 1, ""),
        ("cat; echo e", 0, "e"),
        ('read x; echo "f$x"', 0, "f"),
        ("cat <<X\ng\nX", 0, "g"),
        ("printf 'h\\000\\377'", 0, "h��"),
        ("echo i; (sleep 1000 &) ; sleep 1000 & echo j", 0, "i\nj"),
        ("exec >&- 2>&-; sleep 0.1", 0, ""),
        ("exec 200>&- 201>&-; echo k", 0, "k"),
        ("echo l; kill -9 -1 2>&-", 1, "l"),
        ("trap '' TERM INT HUP; kill $$; echo m", 0, "m"),
    ],
)
async def test_a_shell_that_is_ended_ends_alone(command, code, output):
    async with Sandbox() as sandbox:
        await sandbox.run("mkdir d; cd d; kept=1")
        result = await sandbox.run(command, 20)
        assert (result.output.strip(), result.code, result.end) == (output, code, End.ENDED)
        assert await said(sandbox, "pwd; echo $kept; ps -e -o args= | grep -c [s]leep") == "/task/d\n1\n0"


@pytest.mark.parametrize("command", ['echo "', "((" * 3000, "if", "\0", "$(", "<<", "x" * 100_000])
async def test_what_bash_cannot_read_is_an_error_of_that_command(command):
    async with Sandbox() as sandbox:
        result = await sandbox.run(command, 20)
        assert result.end is End.ENDED
        assert await said(sandbox, "echo fine") == "fine"


@pytest.mark.parametrize(
    ("command", "end"),
    [
        ("sleep 1000", End.TIMEOUT),
        ("trap '' TERM; while :; do :; done", End.TIMEOUT),
        ("yes", End.OUTPUT),
        ("head -c 100000000 /dev/zero", End.OUTPUT),
        ("for i in {1..100000}; do : > $i; done", End.FILES),
        ("python3 -c \"x = b'x' * 10**8; y = x * 2; import time; time.sleep(60)\"", End.MEMORY),
    ],
)
async def test_limits_stop_a_command_and_say_so(command, end):
    limits = Limits(memory_bytes=2**28, flood_bytes=2**20, files=1_000)
    async with Sandbox(limits) as sandbox:
        result = await sandbox.run(command, 1 if end is End.TIMEOUT else 60)
        assert result.end is end
        assert result.note.startswith("stopped: ")
        assert len(result.output) <= limits.output_bytes + 100
        assert await said(sandbox, "cd /; rm -rf /task/*; echo fine") == "fine"


async def test_disk_files_processes_and_memory_are_bounded():
    async with Sandbox(Limits(disk_bytes=2**20, file_bytes=2**19, processes=20)) as sandbox:
        await sandbox.run("for i in 1 2 3 4; do head -c 10000000 /dev/zero > $i; done; cat /dev/zero > /tmp/x")
        assert int(await said(sandbox, "du -sb --apparent-size /task | cut -f1")) < 2**20 + 2**13
        assert int(await said(sandbox, "stat -c %s 1 /tmp/x | sort -n | tail -1")) == 2**19
        for place in ("/", "/dev", "/dev/shm", "/usr/bin", "/etc", "/proc", "/home"):
            assert (await sandbox.run(f"echo > {place}/x")).code == 1
        result = await sandbox.run("rm -f *; for i in {1..50}; do sleep 1 & done; wait")
        assert "Resource temporarily unavailable" in result.output
        result = await sandbox.run("bomb() { bomb | bomb & }; bomb", 2)
        assert await said(sandbox, "unset -f bomb; echo fine") == "fine"
        assert "MemoryError" in await said(sandbox, "python3 -c 'bytearray(2**40)'")
        assert "not permitted" in await said(sandbox, "python3 -c 'import os; os.memfd_create(\"x\")'")


@pytest.fixture
def secret():
    """A file that everybody on this machine may read."""
    with tempfile.NamedTemporaryFile("w", prefix="secret", dir="/tmp") as file:
        file.write("secret")
        file.flush()
        os.chmod(file.name, 0o644)
        yield file.name


async def test_there_is_no_way_out(secret):
    async with Sandbox() as sandbox:
        outside = f"cat {secret} 2>/dev/null; ls /root /home /work {os.path.dirname(__file__)} 2>/dev/null"
        assert await said(sandbox, outside) == ""
        assert int(await said(sandbox, "ls /proc | grep -cE '^[0-9]+$'")) < 6
        assert await said(sandbox, "(ls /proc/1/fd/ /proc/1/root/; cat /proc/1/environ) 2>/dev/null") == ""
        await sandbox.run("kill -9 1; kill -INT 1; kill -STOP 1; kill -TERM 1")
        assert await said(sandbox, "python3 -c 'import os; os.kill(1, 9)'; echo fine") == "fine"
        connect = "python3 -c \"import socket; socket.create_connection(('{}', {}), 1)\""
        assert "refused" in await said(sandbox, connect.format("127.0.0.1", 1))  # its own loopback, nobody is there
        assert "unreachable" in await said(sandbox, connect.format("1.1.1.1", 53))
        assert (await sandbox.run("unshare -U true || unshare -r true")).code != 0
        for command in ("chroot / true", "mount -t tmpfs x /tmp", "mknod x c 1 3", "su -c true", "chown 0 /task"):
            assert (await sandbox.run(command)).code != 0
        assert await said(sandbox, "grep -E 'CapEff|NoNewPrivs|Seccomp:' /proc/self/status | tr -d '\\n\\t '") in (
            "CapEff:0000000000000000NoNewPrivs:1Seccomp:2",
            "CapEff:0000000000000000NoNewPrivs:1Seccomp:0",  # an architecture without a filter
        )
        assert await said(sandbox, "id -u; hostname; env | wc -l") == "1000\nsandbox\n11"


async def test_reading_from_outside_follows_no_link_and_stops_at_limits():
    async with Sandbox(Limits(files=50)) as sandbox:
        await sandbox.run("ln -s / root; ln -s /proc/self self; ln -s /etc/hostname name; mkfifo pipe; echo x > plain")
        tree = await sandbox.tree()
        assert tree.files() == ["plain"]
        assert [tree.link(name) for name in ("root", "self", "name")] == ["/", "/proc/self", "/etc/hostname"]
        await sandbox.run("python3 -c \"import os; [open(f'{i}', 'w') for i in range(60)]\"")
        with pytest.raises(LostError, match="more than 50 files"):
            await sandbox.tree()
    async with Sandbox(Limits(disk_bytes=2**16, file_bytes=2**30)) as sandbox:
        await sandbox.run("truncate -s 1G sparse")
        with pytest.raises(LostError, match="longer than 131072 bytes"):
            await sandbox.tree()
        await sandbox.run("rm sparse; for i in {1..70}; do mkdir d; cd d; done")
        with pytest.raises(LostError, match="64 deep"):
            await sandbox.tree()


async def test_a_session_keeps_its_variables_and_stands_still():
    async with Sandbox() as sandbox:
        assert (await sandbox.cell("x = 3\nx + 1")).output == "4\n"
        assert (await sandbox.cell(CLOCK)).end is End.ANSWERED
        await asyncio.sleep(0.5)
        assert float((await sandbox.cell("time.sleep(0.1); longest")).output) >= 0.5
        wrong = await sandbox.cell("print('before')\n1 / 0")
        assert wrong.output.startswith("before\nTraceback")
        assert wrong.output.endswith("ZeroDivisionError: division by zero\n")
        assert "SystemExit" in (await sandbox.cell("raise SystemExit")).output
        assert (await sandbox.cell("x")).output == "3\n"


async def test_what_a_session_forked_hears_none_of_its_cells():
    async with Sandbox() as sandbox:
        first = (await sandbox.cell("import os, time\nx = 0\nos.getpid()")).output
        for _ in range(8):
            await sandbox.cell("_ = os.fork()")
        await sandbox.cell("time.sleep(0.1)")  # until each has read what it would
        for count in range(1, 9):
            assert (await sandbox.cell("x += 1; print(x)")).output == f"{count}\n"
        assert (await sandbox.cell("os.getpid()")).output == first


@pytest.mark.parametrize(
    "code",
    [
        "import os; os._exit(0)",
        "import os, signal; os.kill(os.getpid(), 9)",
        "import time; time.sleep(100)",
        "import os; os.closerange(3, 1000); x = 1",
        "while True: print('x' * 1000)",
        "import ctypes; ctypes.string_at(0)",
        "import sys; sys.setrecursionlimit(10**9)\ndef f(): f()\nf()",
    ],
)
async def test_a_session_that_ends_is_begun_anew(code):
    async with Sandbox(Limits(flood_bytes=2**20)) as sandbox:
        assert (await sandbox.cell("y = 1")).fresh
        result = await sandbox.cell(code, 1)
        assert result.end is not End.ANSWERED
        after = await sandbox.cell("y")
        assert after.fresh
        assert "NameError" in after.output


def test_killing_this_process_leaves_nothing():
    marker = f"7{os.getpid()}.25"
    script = f"""
import asyncio
from sojourn.envs.sandbox import Sandbox
async def main():
    sandbox = await Sandbox().open()
    print("open", flush=True)
    await sandbox.run("setsid sleep {marker} & sleep {marker}", 100)
asyncio.run(main())
"""
    environment = {**os.environ, "PYTHONPATH": str(Path(sojourn.__file__).parent.parent)}
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, env=environment, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "open\n"
        wait_until(lambda: len(processes_of(marker)) >= 3)  # bash, and two of sleep
        child.send_signal(signal.SIGKILL)
    wait_until(lambda: not processes_of(marker))


async def test_closing_waits_until_all_is_gone_and_a_killed_sandbox_is_lost():
    marker = f"8{os.getpid()}.25"
    sandbox = await Sandbox().open()
    running = asyncio.ensure_future(sandbox.run(f"setsid sleep {marker}", 100))
    await asyncio.to_thread(wait_until, lambda: processes_of(marker))
    os.kill(sandbox.pid, signal.SIGKILL)  # as if the machine had run out of memory
    with pytest.raises(LostError, match="process 1 has ended"):
        await running
    await sandbox.close()
    await sandbox.close()
    assert processes_of(marker) == []
    with pytest.raises(LostError, match="process 1"):
        await sandbox.run("true")
    with pytest.raises(InfrastructureError, match="not open"):
        await sandbox.tree()


async def test_cancelling_a_command_spoils_the_sandbox_until_it_is_closed():
    async with Sandbox() as sandbox:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(sandbox.run("sleep 100", 200), 0.2)
        with pytest.raises(InfrastructureError, match="busy"):
            await sandbox.run("true")


async def test_no_cancellation_is_lost_whenever_it_comes():
    rng, sandbox = random.Random(0), await Sandbox().open()
    for _ in range(40):
        running = asyncio.ensure_future(sandbox.run("true"))
        await asyncio.sleep(rng.random() * 0.03)
        finished = running.done()
        running.cancel()
        await asyncio.wait({running})
        assert finished or running.cancelled()
        if not finished:
            await sandbox.close()
            sandbox = await Sandbox().open()
    await sandbox.close()


async def test_many_at_once_do_not_touch_each_other():
    async def one(number: int) -> str:
        async with Sandbox(Limits(processes=10)) as sandbox:
            await sandbox.run(f"echo {number} > x; for i in 1 2 3 4 5; do sleep 0.05 & done; wait")
            return await said(sandbox, "cat x; ls /task /tmp | wc -l")

    assert await asyncio.gather(*map(one, range(12))) == [f"{number}\n4" for number in range(12)]


async def test_a_machine_without_bubblewrap_is_told_so(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match=r"needs the program '(bwrap|setpriv)'.*apt-get install"):
        await Sandbox().open()


async def test_a_sandbox_that_cannot_start_is_the_infrastructures_failure(monkeypatch, tmp_path):
    (tmp_path / "bwrap").write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    (tmp_path / "bwrap").chmod(0o755)
    tmp_path.chmod(0o755)
    monkeypatch.setattr("sojourn.envs.sandbox.command.UNPRIVILEGED", os.geteuid())
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(InfrastructureError, match=r"did not start \(bwrap: No permissions.*must be allowed"):
        await Sandbox().open()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become someone else")
def test_an_ordinary_user_can_have_one_too():
    """In a child that has given up its rights: what was imported before needs no right to be read."""

    async def main() -> str:
        async with Sandbox() as sandbox:
            await sandbox.write({"a": Entry.file("hello")})
            await sandbox.run("cat a > b; chmod 400 b; export Q=2; mkdir c d; touch c/x d/x; chmod 600 c; chmod 0 d")
            await sandbox.run("bomb() { bomb | bomb & }; bomb", 2)
            twin = await sandbox.fork()
            text = (await sandbox.tree()).text("b") or ""
            text += await said(twin, "unset -f bomb; cat b; echo $Q; id -u")
            await twin.close()
            return text

    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setresgid(20002, 20002, 20002)
            os.setresuid(20002, 20002, 20002)
            os.write(write, asyncio.new_event_loop().run_until_complete(main()).encode())
        except BaseException as error:
            os.write(write, repr(error)[:1000].encode())
        finally:
            os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    with os.fdopen(read) as file:
        assert file.read() == "hellohello2\n1000"


async def test_files_asked_for_and_given_up_leave_nothing_open():
    """Also while every thread is busy, so that the reading has not begun when it is cancelled."""
    loop, go = asyncio.get_running_loop(), threading.Event()
    loop.set_default_executor(ThreadPoolExecutor(1))
    box = await Sandbox().open()
    before = set(os.listdir("/proc/self/fd"))
    busy = loop.run_in_executor(None, go.wait)
    asked = asyncio.ensure_future(box.tree())
    await asyncio.sleep(0)
    asked.cancel()
    await asyncio.wait({asked})
    go.set()
    await busy
    await loop.run_in_executor(None, int)  # behind the reading
    assert set(os.listdir("/proc/self/fd")) <= before
    await box.close()
