"""What an agent may try in the worlds where its code runs: nothing of it earns, breaks, or gets out.

Every attack is played to the end of its play. It must earn nothing, raise nothing but refusals, leave this machine as
it was, and where it left the task possible, the honest way must still earn everything afterwards.
"""

import os
import shutil
import tempfile

import pytest
from attacks import GONE, LASTING, TERMINAL

from sojourn.envs.terminal import Terminal
from sojourn.errors import ActionError
from sojourn.types import Message, Role, Step

pytestmark = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")


def say(text: str) -> Message:
    return Message(Role.ASSISTANT, text)


def sleepers() -> list[str]:
    """Processes of attacks, wherever on this machine."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/cmdline", "rb") as file:
                if LASTING.encode() in file.read():
                    found.append(name)
        except OSError:
            continue
    return found


@pytest.fixture(autouse=True)
def intact():
    """A folder that everybody may write to, if only they could see it."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        os.chmod(folder, 0o777)
        with open(os.path.join(folder, "canary"), "w") as file:
            file.write("alive")
        os.chmod(file.name, 0o666)
        os.environ["SOJOURN_CANARY"] = "sung"
        yield folder
        del os.environ["SOJOURN_CANARY"]
        with open(file.name) as file:
            assert file.read() == "alive"
        assert os.listdir(folder) == ["canary"]
    assert sleepers() == []


async def tried(env, actions) -> Step | None:
    """The last step of what was said; None where all was refused."""
    step = None
    for action in actions:
        if step is not None and step.done:
            break
        try:
            step = await env.step("agent", say(action))
        except ActionError:
            continue
        assert step.rewards == {"agent": 0.0}
    return step


async def honest(env) -> Step:
    while True:
        action = env.expert()
        step = await env.step("agent", say(action))
        if step.done:
            return step


@pytest.mark.parametrize("attack", TERMINAL)
async def test_terminal(attack):
    kind, actions = TERMINAL[attack]
    family = Terminal(kinds=(kind,), turns=40, timeout_s=1.5)
    env = family.make(family.tasks("test")[len(attack)])
    await env.start()
    try:
        step = await tried(env, [action for action in actions if action is not GONE])
        if step is None or not step.done:
            if GONE not in actions:
                twin = await env.fork()
                assert (await honest(twin)).rewards == {"agent": 1.0}
                await twin.close()
            step = await tried(env, ["done"])
        assert step.done
        assert step.success is False
        assert step.rewards == {"agent": 0.0}
    finally:
        await env.close()
