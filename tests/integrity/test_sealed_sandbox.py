"""What an agent may try against its sandbox itself, as root's sandboxes and as an ordinary user's."""

import asyncio
import os
import shutil
import signal

import psutil
import pytest
from attacks import TERMINAL
from ordinary import USERS, run_as
from sandbox_attacks import ALLOWED, CHANGING, FULL, HOLDERS, PROGRAMS, REFUSED, WAKERS, WRITE, C

from sojourn.envs.sandbox import End, Entry, Limits, LostError, Sandbox
from sojourn.envs.sandbox.tree import Reader
from sojourn.types import Message, Role
from sojourn_worlds.python import Python
from sojourn_worlds.terminal import Terminal

pytestmark = [
    pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed"),
    pytest.mark.parametrize("user", USERS),
]


def say(text: str) -> Message:
    return Message(Role.ASSISTANT, text)


def test_pipes_that_have_no_room_stop_nobody(user):
    """A user may have so many pages in pipes; who has more gets pipes of one or two pages."""

    async def attack():
        limits = Limits(descriptors=10**5)
        async with Sandbox(limits) as holder, Sandbox(limits) as sandbox:
            await holder.write({"/tmp/full.py": Entry.file(FULL)})
            holding = asyncio.ensure_future(holder.run("for i in {1..12}; do python3 /tmp/full.py & done; wait", 40))
            await asyncio.sleep(3)
            state = "x" * 20_000
            assert (await sandbox.run(f"y={state}")).code == 0
            async with Sandbox() as third:
                assert (await third.run(f"echo {state}")).output.strip() == state
                assert (await third.cell(f"print(len('{state}'))")).output == "20000\n"
            assert (await sandbox.run("echo ${#y}")).output.strip() == "20000"
            holding.cancel()
            await asyncio.wait({holding})

    run_as(user, attack)


def test_a_cell_that_is_never_read_takes_no_longer_than_it_may(user):
    """The session has answered early, with what it is told next still to be read, which does not fit into a pipe."""
    shrink = "import fcntl\ntry:\n    fcntl.fcntl(202, 1031, 4096)\nexcept OSError: pass\n"

    async def attack():
        async with Sandbox() as sandbox:
            first = await sandbox.cell(f"import os, time\n{shrink}os.write(203, b'.')\ntime.sleep(1000)")
            assert first.end is End.ANSWERED
            second = await sandbox.cell("#" + "x" * 500_000, 1.0)
            assert second.end is End.TIMEOUT
            assert (await sandbox.cell("1 + 1")).output == "2\n"

    run_as(user, attack)


@pytest.mark.parametrize("waker", WAKERS)
def test_nothing_runs_between_cells(user, waker):
    """Some wake the others while they end, which takes a while: so they are stopped after more or less of it."""

    async def woken_after(pause: str):
        async with Sandbox() as sandbox:
            await sandbox.cell(C + WRITE + WAKERS[waker].replace("0.15", pause), 20)
            first = await sandbox.tree()
            await asyncio.sleep(0.6)
            second = await sandbox.tree()
            assert second.entries == first.entries

    async def attack():
        await asyncio.gather(*map(woken_after, ("0.01", "0.02", "0.03", "0.15")))

    run_as(user, attack)


def test_a_session_that_is_woken_between_cells_has_ended(user):
    """By whatever it may be: here by a signal from outside."""

    async def attack():
        async with Sandbox() as sandbox:
            assert (await sandbox.cell("1")).fresh
            assert not (await sandbox.cell("1")).fresh
            below = psutil.Process(sandbox.pid).children(recursive=True)
            session = [process for process in below if process.status() == psutil.STATUS_STOPPED]
            assert session
            for process in below:
                process.send_signal(signal.SIGCONT)
            _, left = psutil.wait_procs(session, 100)
            assert not left
            assert (await sandbox.cell("1")).fresh

    run_as(user, attack)


def test_a_cell_that_answers_what_it_has_not_read_ends_its_session(user):
    say = "import os, threading, time\ndef say():\n    while True: time.sleep(0.001), os.write(203, b'.')\n"

    async def attack():
        async with Sandbox() as sandbox:
            first = await sandbox.cell(f"{say}threading.Thread(target=say, daemon=True).start()\ntime.sleep(1000)")
            assert first.end is End.ANSWERED
            assert (await sandbox.cell("#" + "x" * 500_000)).end is End.ENDED
            assert (await sandbox.cell("1")).fresh

    run_as(user, attack)


def test_memory_that_a_cell_takes_at_its_end_is_seen(user):
    async def attack():
        async with Sandbox(Limits(memory_bytes=2**26)) as sandbox:
            await sandbox.cell("import os")
            result = await sandbox.cell("b = b'x' * (70 << 20)\nos.write(203, b'.')", 20)
            assert result.end is End.MEMORY
            assert (await sandbox.cell("1")).fresh

    run_as(user, attack)


def test_files_that_change_while_they_are_read_are_a_lost_play(user):
    """The folder of this process's own descriptors lists the one that it is read by, which is closed then."""

    async def attack():
        fd = os.open("/proc/self/fd", os.O_RDONLY)
        with pytest.raises(LostError, match="changed while they were read"):
            Reader(100_000, 100_000).all({"/x": fd})
        os.close(fd)

    run_as(user, attack)


@pytest.mark.parametrize("holder", HOLDERS)
def test_what_holds_memory_is_counted(user, holder):
    code, end = HOLDERS[holder]

    async def attack():
        memory = 2**26 if end is End.MEMORY else 2**29  # the limit that is meant is met first on a slow machine, too
        async with Sandbox(Limits(memory_bytes=memory)) as sandbox:
            await sandbox.write({"hold.py": Entry.file(code)})
            assert (await sandbox.run("python3 hold.py", 55)).end is end
            assert (await sandbox.run("echo fine")).output == "fine\n"

    run_as(user, attack)


@pytest.mark.parametrize("call", REFUSED)
def test_calls_that_are_refused(user, call):
    code, answer = REFUSED[call]

    async def attack():
        async with Sandbox() as sandbox:
            result = await sandbox.cell(f"{C}\nimport socket\ns = socket.socket()\nprint(({code}))", 20)
            assert result.output.strip() == answer

    run_as(user, attack)


def test_what_honest_programs_use_still_works(user):
    async def play():
        async with Sandbox() as sandbox:
            for command, answer in ALLOWED.items():
                assert (await sandbox.run(command, 30)).output.strip() == answer, command
            for name, code in PROGRAMS.items():
                assert (await sandbox.cell(code, 30)).output == "b'hi'\n", name
                await sandbox.write({"p.py": Entry.file(code)})
                assert (await sandbox.run("python3 p.py", 30)).output == "b'hi'\n", name

    run_as(user, play)


HIDDEN = {
    "old_files": lambda solution: solution.replace("-delete", "-exec chmod 000 {} +"),
    "duplicates": lambda solution: solution.replace("xargs -r rm", "xargs -r chmod 000"),
    "tidy": lambda solution: solution.replace("mv ", "cp ") + "; chmod 000 inbox/*",
}


@pytest.mark.parametrize("kind", HIDDEN)
def test_a_file_without_rights_is_still_there(user, kind):
    """Terminal's kinds whose task is to remove files: who takes away the right to read them has not."""

    async def attack():
        family = Terminal(kinds=(kind,))
        env = family.make(family.tasks("test")[0])
        await env.start()
        for command in env.job.solution:
            await env.step("agent", say(HIDDEN[kind](command)))
        twin = await env.fork()
        assert twin.tree.digest == env.tree.digest == (await twin.sandbox.tree()).digest
        for play in (env, twin):
            step = await play.step("agent", say("done"))
            assert (step.done, step.success, step.rewards) == (True, False, {"agent": 0.0})
            await play.close()

    run_as(user, attack)


def test_folders_without_rights_are_read_and_stay_without(user):
    async def attack():
        async with Sandbox() as sandbox:
            hide = "chmod 0 a/b/c p; chmod 600 a/b; chmod 0 a; chmod 0 /task /tmp"
            await sandbox.run(f"mkdir -p a/b; echo hi > a/b/c; mkfifo p; ln -s a x; {hide}")
            tree = await sandbox.tree()
            assert tree.text("a/b/c") == "hi"
            assert [tree.mode(path) for path in ("a", "a/b", "a/b/c")] == [0, 0o600, 0]
            said = await sandbox.run(
                "stat -c %a /task /tmp; chmod 700 /task; stat -c %a a; chmod 700 a; stat -c %a a/b"
            )
            assert said.output.split()[-4:] == ["0", "0", "0", "600"]
            twin = await sandbox.fork()
            assert (await twin.tree()).digest == (await sandbox.tree()).digest
            await twin.close()

    run_as(user, attack)


AS_BEFORE = (
    "rights",
    "killing",
    "memory",
    "left in the background",
    "all is removed",
    "links to folders",
    "a full disk",
)


@pytest.mark.parametrize("attack", AS_BEFORE)
def test_attacks_on_terminal_end_as_plays(user, attack):
    kind, actions = TERMINAL[attack]

    async def play():
        family = Terminal(kinds=(kind,), turns=40, timeout_s=1.5)
        env = family.make(family.tasks("test")[len(attack)])
        await env.start()
        step = await env.step("agent", say("true"))
        for action in [*(action for action in actions if " " in action), "done"]:
            if not step.done:
                step = await env.step("agent", say(action))
                assert step.rewards == {"agent": 0.0}
        assert (step.done, step.success) == (True, False)
        await env.close()

    run_as(user, play)


def test_waking_sessions_ends_no_play_of_python_as_infrastructure(user):
    async def play():
        family = Python(kinds=("digit_sum",), turns=6, timeout_s=2)
        env = family.make(family.tasks("test")[0])
        await env.start()
        step = await env.step("agent", say(C + WRITE + WAKERS["a timer"] + CHANGING))
        while not step.done:
            step = await env.step("agent", say("1 + 1"))
            assert step.rewards == {"agent": 0.0}
        await env.close()

    run_as(user, play)
