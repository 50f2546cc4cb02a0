"""The desktop: real programs on a screen of their own, and what becomes of them."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

pytest.importorskip("Xlib", reason="the screen is driven by python-xlib")
pytest.importorskip("_tkinter", reason="our own applications are made with Tk")

from sojourn.checks.env import check_env
from sojourn.errors import ActionError, ConfigError, InfrastructureError
from sojourn.types import Message, Role, Step, Task, ToolCall
from sojourn_worlds.desktop import Desktop, DesktopEnv, _read
from sojourn_worlds.desktop.panel import work_out
from sojourn_worlds.desktop.sandbox import PROGRAMS
from sojourn_worlds.desktop.tasks import KINDS, NOTES, draw

if missing := [program for program in PROGRAMS if shutil.which(program) is None]:
    pytest.skip(f"the desktop needs {', '.join(missing)}", allow_module_level=True)


def say(text: str) -> Message:
    return Message(Role.ASSISTANT, text)


def task(kind: str, seed: int = 1) -> Task:
    return Task("desktop", {"kind": kind}, seed, "train")


@asynccontextmanager
async def playing(kind: str, seed: int = 1, **config: object) -> AsyncIterator[tuple[DesktopEnv, str]]:
    env = Desktop(**config).make(task(kind, seed))  # type: ignore[arg-type]
    try:
        yield env, (await env.start()).messages[0].text
    finally:
        await env.close()


async def finish(env: DesktopEnv) -> Step:
    while True:
        step = await env.step("agent", say(env.expert()))
        if step.done:
            return step


async def test_it_keeps_what_worlds_promise() -> None:
    report = await check_env(Desktop(kinds=("calculator",)), episodes=1, timeout_s=600.0)
    assert report.passed, report.failed


@pytest.mark.parametrize("kind", KINDS)
async def test_the_expert_earns_everything(kind: str) -> None:
    async def one(seed: int) -> float:
        async with playing(kind, seed) as (env, _):
            return (await finish(env)).rewards["agent"]

    assert await asyncio.gather(*[one(seed) for seed in (2, 10**9)]) == [1.0] * 2


async def test_random_hands_earn_nothing() -> None:
    rng, earned = random.Random(0), 0.0
    for kind in ("form", "board"):
        async with playing(kind, 5, turns=10) as (env, _):
            step = None
            while step is None or not step.done:
                x, y = rng.randrange(800), rng.randrange(600)
                said = rng.choice((f"click({x}, {y})", f"drag({x}, {y}, 400, 300)", 'type("a")', 'key("Tab")'))
                step = await env.step("agent", say(said))
            earned += step.rewards["agent"]
    assert earned == 0.0


async def test_the_editor_saves_what_was_typed() -> None:
    async with playing("edit", 3) as (env, text):
        assert text == "window ~/notes.txt - Mousepad 400,300 800x600: active"
        step = await env.step("agent", say('type("x~A\\n")'))
        assert step.observation is not None
        assert "window *~/notes.txt" in step.observation.messages[0].text
        await env.step("agent", say('key("ctrl+s")'))
        assert env._shown is not None
        assert env._shown["files"][NOTES].startswith("x~A\n")
        step = await env.step("agent", say("click(20, 10)"))
        assert step.observation is not None
        assert "\nmenu " in step.observation.messages[0].text
        assert (await finish(env)).success  # closes the menu, and mends the file


async def test_done_ends_without_reward_where_nothing_is_right() -> None:
    async with playing("calculator") as (env, _):
        step = await env.step("agent", say("done()"))
        assert (step.done, step.rewards, step.success) == (True, {"agent": 0.0}, False)
        with pytest.raises(InfrastructureError, match="end"):
            await env.step("agent", say("done()"))


async def test_an_expert_goes_on_from_wherever_one_is() -> None:
    detours = {
        "form": ["click(400, 104)", 'type("zz")', "click(400, 48)", "scroll(400, 300, 'down')"],
        "calculator": ["click(74, 127)", "click(305, 313)", "click(110, 388)"],
        "board": ["drag(211, 91, 300, 480)", "double_click(400, 200)", "drag(101, 91, 600, 300)"],
    }
    for kind, detour in detours.items():
        async with playing(kind, 1) as (env, _):
            for said in detour:
                assert not (await env.step("agent", say(said))).done
            assert (await finish(env)).rewards == {"agent": 1.0}, kind


async def test_screenshots_are_blobs_and_text_may_be_left_out() -> None:
    async with playing("board", observation="screenshot") as (env, text):
        assert text == ""
        step = await env.step("agent", say("wait()"))
        assert step.observation is not None
        (digest,) = step.observation.messages[0].images
        assert env.blobs[digest].startswith(b"\x89PNG")
        pixels = pytest.importorskip("PIL.Image").open(__import__("io").BytesIO(env.blobs[digest]))
        assert pixels.size == (800, 600)
        colours = {colour for _, colour in pixels.getcolors(100_000)}
        shapes = env._job.spec["shapes"]  # type: ignore[index]
        assert {(208, 48, 48)} & colours or all(shape["colour"] != "red" for shape in shapes)


@pytest.mark.parametrize(
    "said",
    [
        "click(800, 10)",
        "click(-1, 10)",
        "click(1.5, 2)",
        'click(1, 2, "middle")',
        'type("")',
        'type("é")',
        f'type("{"x" * 1001}")',
        'key("ctrl+")',
        'key("super+a")',
        'key("ctrl+ctrl+a")',
        "press(1)",
        "click(1, 2); done()",
        "open('x')",
    ],
)
def test_what_cannot_be_done_is_refused(said: str) -> None:
    with pytest.raises(ActionError):
        _read(say(said))


def test_calls_are_read_in_any_form() -> None:
    native = Message(Role.ASSISTANT, calls=(ToolCall("click", {"y": 2, "x": 1, "button": "left"}),))
    assert _read(native)[2] == _read(say("click(y=2, x=1)"))[2] == "click(1, 2)"
    assert _read(say("click(1, 2, 'right')"))[2] == 'click(1, 2, "right")'
    assert _read(say("type('a\\nb')"))[2] == 'type("a\\nb")'


def test_tasks_are_made_of_their_seed_and_can_be_solved() -> None:
    family = Desktop(kinds=("form", "edit"), train=10, test=4)
    train, test = family.tasks("train"), family.tasks("test")
    assert (len(train), len(test)) == (10, 4)
    assert [one.tags for one in train[:2]] == [("form",), ("edit",)]
    assert not {one.id for one in train} & {one.id for one in test}
    for seed in range(200):
        job = draw("edit", seed)
        assert job == draw("edit", seed)
        assert job.wanted != job.files[NOTES], job.goal
        assert not job.right({"files": {NOTES: job.files[NOTES]}})
        assert job.right({"files": {NOTES: job.wanted.rstrip("\n")}})
        assert not job.right({"files": {NOTES: None}})
        form = draw("form", seed)
        fields = {field["name"]: field["value"] for field in form.spec["fields"]}  # type: ignore[index]
        assert fields.keys() == form.wanted.keys()
        assert fields != form.wanted
        board = draw("board", seed)
        assert any(board.wanted.values())


def test_the_calculator_works_from_left_to_right() -> None:
    said = ("12+3*2", "7-9", "-2*3", "9/2", "9/0", "5+", "", "-")
    assert [work_out(one) for one in said] == ["30", "-2", "-6", "4", "E", "E", "E", "E"]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"kinds": ("paint",)}, "paint"),
        ({"kinds": ()}, "calculator"),
        ({"observation": "sound"}, "screenshot"),
        ({"turns": 0}, "turns"),
        ({"train": 2 * 10**9}, "train"),
    ],
)
def test_configs_that_cannot_work_are_refused(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Desktop(**wrong)  # type: ignore[arg-type]


async def test_a_missing_program_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ConfigError, match=r"bwrap.*apt-get install bubblewrap"):
        await Desktop().open()


def test_nothing_of_the_machine_can_be_seen_or_reached(tmp_path: Path) -> None:
    """The sandbox's own view, through the program that runs in it."""
    from sojourn_worlds.desktop.sandbox import command

    script = "import os, socket; print(sorted(os.listdir('/')), os.listdir('/home/user'), socket.if_nameindex())"
    words = [*command(), str(Path(sys.executable).resolve()), "-S", "-c", script]
    secret = tmp_path / "secret"
    secret.write_text("x")
    words[-1] += f"; print(os.path.exists({str(secret)!r}), os.access('/usr', os.W_OK), os.path.exists('/etc/shadow'))"
    said = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert said.splitlines()[1] == "False False False"
    assert "'lo'" in said
    assert "eth" not in said


ORPHANS = """
import asyncio, os
from sojourn_worlds.desktop import Desktop
from sojourn.types import Task

async def main():
    env = Desktop().make(Task("desktop", {"kind": "edit"}, 1, "train"))
    await env.start()
    print("up", flush=True)
    await asyncio.sleep(300)

asyncio.run(main())
"""


def below(parent: int) -> list[int]:
    """The processes that descend from one."""
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rsplit(")", 1)[1].split()[1])
        except OSError:
            continue
    found, new = [], [parent]
    while new:
        new = [pid for pid, up in parents.items() if up in new]
        found += new
    return found


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


def left_of(pids: Collection[int]) -> list[int]:
    """Returns which of the processes have not ended after a while."""
    end = time.monotonic() + 100
    while (left := [pid for pid in pids if alive(pid)]) and time.monotonic() < end:
        time.sleep(0.05)
    return left


def test_all_dies_with_the_process_that_started_it() -> None:
    child = subprocess.Popen([sys.executable, "-c", ORPHANS], stdout=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdout.readline() == b"up\n"
    started = below(child.pid)
    assert len(started) >= 4  # bwrap, the screen, the X server, the window manager, the editor
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    child.stdout.close()
    assert not left_of(started)


async def test_a_desktop_that_dies_is_not_the_agents_fault() -> None:
    async with playing("calculator") as (env, _):
        assert env._sandbox._process is not None
        env._sandbox._process.kill()
        with pytest.raises(InfrastructureError):
            await env.step("agent", say("wait()"))


async def test_the_next_screen_is_started_ahead_and_none_is_left_when_the_world_is_closed() -> None:
    family = Desktop(kinds=("calculator",))
    before = set(below(os.getpid()))
    await family.open()
    first = family.make(family.tasks("train")[0])
    try:
        await first.start()
        ahead = await family.screens._next
        second = family.make(family.tasks("train")[1])
        await second.start()
        assert second._sandbox is ahead
        await second.close()
        waiting = await family.screens._next
        waiting._process.kill()
        await waiting._process.wait()
        third = family.make(family.tasks("train")[2])
        await third.start()  # on another one, as that is dead
        assert third._sandbox is not waiting
        await third.close()
    finally:
        await first.close()
        await family.close()
    assert family.screens._next is None
    assert not await asyncio.to_thread(left_of, set(below(os.getpid())) - before)


async def test_no_screen_is_started_ahead_of_a_single_play() -> None:
    async with playing("calculator") as (env, _):
        assert env._config.screens._next is None
