"""What an agent may try in the worlds where its code runs: nothing of it earns, breaks, or gets out.

Every attack is played to the end of its play. It must earn nothing, raise nothing but refusals, leave this machine as
it was, and where it left the task possible, the honest way must still earn everything afterwards.
"""

import inspect
import json
import os
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from attacks import GONE, LASTING, PYTHON, REPO, TERMINAL

from sojourn.config import plugins
from sojourn.envs.sandbox import Sandbox, command
from sojourn.errors import ActionError
from sojourn.types import Message, Role, Step
from sojourn_worlds.python import Python
from sojourn_worlds.repo import Repo
from sojourn_worlds.repo.bugs import cases_of, expected, source_of
from sojourn_worlds.repo.cases import CASES
from sojourn_worlds.terminal import Terminal

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
    env.family = replace(env.family, timeout_s=60.0)  # only attacks are to run into a limit, on a busy machine too
    while True:
        action = env.expert()
        action = await action if inspect.isawaitable(action) else action
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


@pytest.mark.parametrize("attack", PYTHON)
async def test_python(attack):
    """Every action of an attack is said in a play of its own, and all of them in one; the answer is seen by none."""
    family = Python(kinds=("digit_sum",), turns=40, timeout_s=1, level=3, shown=10**6)
    actions = [[action] for action in PYTHON[attack]] if attack == "odd answers" else [PYTHON[attack]]
    for number, said in enumerate(actions):
        env = family.make(family.tasks("test")[number])
        await env.start()
        try:
            for action in said:
                step = await env.step("agent", say(action.replace("{answer}", str(env.problem.answer))))
                assert step.rewards == {"agent": 0.0}
                if step.done:
                    break
                assert str(env.problem.answer) not in step.observation.messages[0].text
            if not step.done:
                assert (await honest(env)).rewards == {"agent": 1.0}
        finally:
            await env.close()


def repository(index: int = 0):
    family = Repo(modules=1, timeout_s=2)
    env = family.make(family.tasks("test")[index])
    return env, f"{env.names[0]}.py", env.names[0]


@pytest.mark.parametrize("attack", REPO)
async def test_repo(attack):
    env, file, module = repository(len(attack))
    await env.start()
    text = REPO[attack].replace("{functions}", repr(list(CASES[module])))
    assert (await env.step("agent", say(f"write {file}\n{text}"))).rewards == {"agent": 0.0}
    told = await env.step("agent", say("test"))
    assert "tests fail" in told.observation.messages[0].text
    assert "sung" not in told.observation.messages[0].text
    twin = await env.fork()
    step = await env.step("agent", say("submit"))
    assert (step.done, step.success, step.rewards) == (True, False, {"agent": 0.0})
    assert (await honest(twin)).rewards == {"agent": 1.0}


async def test_repo_knowing_the_tests_by_heart():
    """What is seen is answered, from a table; what is not seen is not."""
    env, file, module = repository()
    env.family = replace(env.family, timeout_s=60.0)
    await env.start()
    table = {
        (case.function, json.dumps(case.arguments)): right
        for case, right in zip(cases_of(module), expected(module), strict=True)
        if case.seen
    }
    text = f"""
import inspect
import json
TABLE = {table!r}
def known(name):
    def answer(*arguments):
        said = json.loads(TABLE.get((name, json.dumps(arguments)), '{{"value": null}}'))
        if "error" in said:
            raise type(said["error"], (Exception,), {{}})
        return said["value"]
    return answer
for name in {list(CASES[module])!r}:
    globals()[name] = known(name)
"""
    await env.step("agent", say(f"write {file}\n{text}"))
    told = await env.step("agent", say("test"))
    assert told.observation.messages[0].text.startswith("All ")
    assert (await env.step("agent", say("submit"))).rewards == {"agent": 0.0}


async def test_repo_files_are_named_and_no_path_is_followed():
    env, file, module = repository()
    await env.start()
    for name in (
        "../x.py",
        "/tmp/x.py",
        "sitecustomize.py",
        "conftest.py",
        f"./{file}",
        f"test_{module}.txt",
        "/proc/self/mem",
    ):
        for action in (f"write {name}\nx = 1", f"replace {name} 1\nx = 1"):
            with pytest.raises(ActionError, match="no file"):
                await env.step("agent", say(action))
    assert list(env.files) == [file]
    assert source_of(module) != env.files[file]


@pytest.mark.parametrize("whose", ["ours", "another distribution's"])
async def test_files_of_worlds_are_not_in_a_sandbox_though_they_lie_in_usr(monkeypatch, whose):
    if whose == "ours":
        monkeypatch.setattr(command, "PACKAGE", Path("/usr/share/doc"))
    else:
        monkeypatch.setattr(plugins, "folders", lambda: (Path("/usr/share/doc"), Path("/usr/lib/os-release")))
    async with Sandbox() as sandbox:
        assert (await sandbox.run("ls /usr/share/doc | wc -l; touch /usr/share/doc/x")).output.startswith("0\ntouch: ")
        assert int((await sandbox.run("ls /usr/share | wc -l")).output) > 1
        seen = (await sandbox.run("cat /usr/lib/os-release")).output
        assert ("NAME=" in seen) == (whose == "ours")
