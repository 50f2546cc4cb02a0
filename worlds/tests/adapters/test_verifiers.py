"""A real taskset and Env of verifiers in an interpreter that SOJOURN_VERIFIERS_PYTHON names (make adapters)."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from playing import expert_play, failed, say
from served import interpreter

from sojourn.checks.env import check_env
from sojourn.checks.report import Outcome
from sojourn.errors import ActionError, ConfigError, InfrastructureError
from sojourn.types import Message, Role, ToolCall
from sojourn_worlds.adapters.verifiers import Verifiers

HERE = Path(__file__).parent
PYTHON = interpreter("VERIFIERS")
TOY = {"python": PYTHON, "taskset": "verifiers_toy", "paths": (str(HERE),), "expert": "verifiers_hooks:halve"}


@pytest.fixture
async def family():
    made = Verifiers(**TOY)
    await made.open()
    yield made
    await made.close()


@pytest.mark.timeout(1_800)
async def test_an_env_keeps_the_promises_of_a_world():
    report = await check_env(Verifiers(**TOY), episodes=1, timeout_s=300.0)
    assert report.passed, failed(report)
    assert report["the expert succeeds"].outcome is Outcome.PASSED
    assert report["plays are isolated"].outcome is Outcome.PASSED


async def test_the_policy_is_the_model_and_the_reward_is_the_traces(family):
    assert [len(family.tasks(split)) for split in ("train", "test")] == [7, 1]
    env = family.make(family.tasks("train")[1])  # the number is 2
    first = await env.start()
    assert [m.text for m in first.system] == ["You find numbers."]
    assert [m.text for m in first.messages] == ["Say a number from 1 to 8."]
    for wrong in (
        say(""),
        say(" \n"),
        say("x" * 20_000),
        say("a\ud800b"),
        Message(Role.ASSISTANT, calls=(ToolCall("guess", {}),)),
    ):
        with pytest.raises(ActionError):
            await env.step("agent", wrong)
    second = await env.step("agent", say("5"))
    assert ([m.text for m in second.observation.messages], second.observation.system) == (["lower"], ())
    last = await env.step("agent", say("2"))
    assert (last.done, last.success, last.rewards) == (True, True, {"agent": 1.0})
    await env.close()
    steps, _ = await expert_play(family, 0, "test")
    assert steps[-1].success
    lost = family.make(family.tasks("train")[1])
    await lost.start()
    steps = [await lost.step("agent", say("8")) for _ in range(4)]
    assert (steps[-1].done, steps[-1].success, steps[-1].rewards) == (True, False, {"agent": 0.0})
    await lost.close()


async def test_an_env_that_raises_is_not_the_agents_fault_and_closing_waits_for_nothing(family):
    env = family.make(family.tasks("train")[0])
    await env.start()
    with pytest.raises(InfrastructureError, match="the wheel is stuck"):
        await env.step("agent", say("crash"))
    await env.close()
    env = family.make(family.tasks("train")[0])
    starting = asyncio.create_task(env.start())
    await asyncio.sleep(0.3)
    starting.cancel()
    await asyncio.wait({starting})
    await env.close()
    child = await family.child()
    child.process.kill()  # the guard; what it guards goes with it
    await asyncio.wait({child.reader})
    steps, _ = await expert_play(family, 0)
    assert steps[-1].success


def test_nothing_is_left_when_python_is_killed(tmp_path):
    (tmp_path / "player.py").write_text(
        "import asyncio\n"
        "from sojourn_worlds.adapters.verifiers import Verifiers\n"
        "async def main():\n"
        f"    world = Verifiers(python={PYTHON!r}, taskset='verifiers_toy', paths=({str(HERE)!r},),"
        f" environment={{'MARK': {str(tmp_path)!r}}})\n"
        "    await world.open()\n"
        "    await world.make(world.tasks('train')[0]).start()\n"
        "    print('plays', flush=True)\n"
        "    await asyncio.sleep(300)\n"
        "asyncio.run(main())\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, str(tmp_path / "player.py")]
    player = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    assert player.stdout is not None
    assert player.stdout.readline() == "plays\n"
    assert marked(tmp_path)
    player.send_signal(signal.SIGKILL)
    player.wait()
    player.stdout.close()
    for _ in range(200):
        if not marked(tmp_path):
            return
        subprocess.run(["sleep", "0.05"], check=True)
    raise AssertionError(f"still there: {marked(tmp_path)}")


def marked(folder):
    """The processes that have the folder among their variables."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if f"MARK={folder}".encode() in (process / "environ").read_bytes():
                found.append((process / "cmdline").read_bytes())
        except OSError:
            continue
    return [command for command in found if command]


async def test_what_does_not_fit_is_refused_in_one_sentence():
    for change, message in [
        ({"python": "/no/such/python"}, "is no interpreter: make one"),
        ({"taskset": ""}, "taskset is empty"),
        ({"splits": {"train": {}}}, "give what both train and test get"),
        ({"scale": 0.0}, r"scale = 0\.0"),
        ({"expert": "verifiers_hooks:nobody"}, "cannot be imported"),
    ]:
        with pytest.raises(ConfigError, match=message):
            Verifiers(**(TOY | change))
    with pytest.raises(ConfigError, match=r"lacks a package \(No module named 'verifiers'\): .* -m pip install"):
        Verifiers(**(TOY | {"python": sys.executable})).tasks("train")
    with pytest.raises(InfrastructureError, match="not found"):
        Verifiers(**(TOY | {"taskset": "no_such_taskset"})).tasks("train")
    with pytest.raises(InfrastructureError, match=r"await the family's open\(\)"):
        Verifiers(**TOY).make(Verifiers(**TOY).tasks("train")[0])
