"""The shop in a browser that a program drives: what it can do there, what it cannot, and how both end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from cdp_programs import CLIENT

pytest.importorskip("uvicorn")
pytest.importorskip("starlette")

from sojourn.agents.program import Program
from sojourn.config.toml import Tables
from sojourn.envs.chromium import find_chromium
from sojourn.errors import ActionError, ConfigError
from sojourn.rollout.limits import Limits
from sojourn.rollout.runner import Rollout, Runner
from sojourn.rollout.world import open_world
from sojourn.train.resolve import resolve
from sojourn.types import Ending, Message, Role, SamplingParams
from sojourn_worlds.shop import Shop
from sojourn_worlds.shop.cdp import CdpPlay
from tests.gateway_sessions import OddSampler, renderer, said

PYTHON = "/usr/bin/python3"
EASY = {"products": 200, "attributes": 1, "options": 0, "price_limit": False, "results_per_page": 3}
ROOT = Path(__file__).parents[2]
EXAMPLE = (ROOT / "examples" / "browser_agent.py").read_text()


@pytest.fixture(autouse=True)
def chromium():
    try:
        find_chromium()
    except ConfigError as error:
        pytest.skip(str(error))


def shop() -> Shop:
    return Shop(surface="cdp", **EASY)


def right(task) -> str:
    """Returns the product that a task asks for."""
    return shop().goal(task).target.id


def wrong(task) -> str:
    """Returns a product that earns nothing."""
    kind = shop().goal(task).target.kind
    return next(one.id for one in shop().store.catalogue.products if one.kind != kind)


async def played(code, script=lambda prompt: said("Hm."), *, task=0, retries=0, family=None, **config):
    """Plays one episode by a program of Python, and returns it with its sampler."""
    given = {"command": (PYTHON, "agent.py"), "files": {"agent.py": code}, "seconds": 120.0, **config}
    sampler, family = OddSampler(renderer(thinking=True), script), family or shop()
    rollout = Rollout(limits=Limits(turns=16), retries=retries)
    runner = Runner(rollout, family, Program(**given), sampler.format, sampler, 4096, 0)
    async with open_world(family):
        episode = await runner.play_episode(family.tasks("train")[task], SamplingParams(512, seed=3), "t")
    return episode, sampler


def exact(trajectory, sampler):
    assert len(trajectory.turns) == len(sampler.samples)
    for number, (prompt, sample) in enumerate(zip(sampler.prompts, sampler.samples, strict=True)):
        assert trajectory.prompt(number).tolist() == prompt
        assert trajectory.turns[number].sample.tokens.tolist() == sample.tokens.tolist()


def packages() -> str:
    """Returns the folder where playwright and openai are, for the system's Python in a sandbox."""
    pytest.importorskip("openai")
    home = str(Path(pytest.importorskip("playwright").__file__).parents[1])
    line = [PYTHON, "-c", "import sys, openai, playwright.sync_api; print(*sys.version_info[:2])"]
    if os.geteuid() == 0:
        line = ["setpriv", "--reuid", "20001", "--regid", "20001", "--clear-groups", *line]
    done = subprocess.run(line, env={"PYTHONPATH": home}, capture_output=True, check=False, text=True)
    if done.returncode:
        pytest.skip("the packages of this Python cannot be read by the system's, or by another user")
    return home


async def test_the_example_shops_by_playwright_and_its_tokens_are_exact():
    home, task = packages(), shop().tasks("train")[0]
    goal = shop().goal(task)
    steps = {"Search the shop.": f"search {goal.target.title}", "Page 1 of": f"click {goal.target.id}"}

    def script(prompt):
        shown = prompt.rpartition("<|im_start|>user")[2]
        return said(next((step for seen, step in steps.items() if seen in shown), "click Buy Now"), "a thought")

    episode, sampler = await played(
        EXAMPLE, script, read=(home,), variables={"PYTHONPATH": home}, memory_bytes=2**32, replies=8
    )
    assert episode.error is None
    [trajectory] = episode.trajectories
    exact(trajectory, sampler)
    assert [turn.parent for turn in trajectory.turns] == [-1, 0, 1]
    assert [turn.reward for turn in trajectory.turns] == [0.0, 0.0, 1.0]
    assert trajectory.success
    assert trajectory.ending is Ending.DONE
    assert "Buy Now" in sampler.format.decode(sampler.prompts[2])


async def test_an_episode_ends_with_the_purchase_and_with_the_program():
    task = shop().tasks("train")[0]
    code = CLIENT + f"say('Hi')\nbuy(page(), {right(task)!r})\ntime.sleep(3600)"
    episode, sampler = await played(code, seconds=1e6)
    [trajectory] = episode.trajectories
    exact(trajectory, sampler)
    assert (trajectory.reward, trajectory.ending, trajectory.success) == (1.0, Ending.DONE, True)
    for code in ("say('Hi')", "say('Hi')\npage()\nraise SystemExit(3)"):
        [trajectory] = (await played(CLIENT + code))[0].trajectories
        assert (trajectory.reward, trajectory.success) == (0.0, False)
        assert trajectory.turns[-1].info.get("program_failed", 0.0) == float("raise" in code)


HOSTILE = """
say('Hi')
one, found = Cdp(), {}
found["targets"] = sorted({t["url"] for t in one.ask("Target.getTargets")["targetInfos"]})
found["contexts"] = one.ask("Target.getBrowserContexts")["browserContextIds"]
found["listed"] = sorted({t["url"] for t in listed()})
one.ask("Browser.grantPermissions", permissions=["clipboardReadWrite"])
made = one.ask("Target.createTarget", url="about:blank")["targetId"]
session = one.ask("Target.attachToTarget", targetId=made, flatten=True)["sessionId"]
one.ask("Page.setBypassCSP", session, enabled=True)
for path in FILES:
    one.go("file://" + path, session)
    found[path] = "secret" in one.run("document.body.innerText", session)
one.go("file:///proc/", session)
found["processes"] = one.run("document.body.innerText", session).count("sojourn-")
for address in ADDRESSES:
    found[address] = not one.go(address, session) and "secret" in one.run("document.body.innerText", session)
one.go("http://127.0.0.1:8000/s/shopper/", session)
found["shop"] = one.run("document.querySelector('main').innerText", session)
one.go("http://127.0.0.1:8000/s/", session)
found["others"] = one.run("document.body.innerText", session)
one.ask("Browser.setDownloadBehavior", behavior="allow", downloadPath="/task")
print(json.dumps(found))
"""


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder that every user of the machine can read."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


async def test_a_hostile_client_reaches_no_other_episode_no_file_and_no_network(public):
    """Two episodes are played at once, by a client that looks for all that is not its own."""
    (public / "file").write_text("secret")

    async def answer(reader, writer):
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nsecret")
        await writer.drain()
        writer.close()

    outside = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = outside.sockets[0].getsockname()[1]
    files = [f"{public}/file", __file__, "/etc/shadow"]
    addresses = [f"http://127.0.0.1:{port}/", "http://127.0.0.1:8088/s/other/observation", "http://example.com/"]
    code = CLIENT + HOSTILE.replace("FILES", repr(files)).replace("ADDRESSES", repr(addresses))
    async with outside:
        plays = await asyncio.gather(*(played(code, task=number) for number in range(2)))
    for episode, sampler in plays:
        assert episode.error is None
        [trajectory] = episode.trajectories
        exact(trajectory, sampler)
        notes = trajectory.turns[-1].notes
        assert "program's errors" not in notes
        found = json.loads(notes["program's output"])
        own = "http://127.0.0.1:8000/s/shopper/"
        assert found.pop("targets") == found.pop("listed") == [own]
        assert found.pop("shop") == "Search the shop."
        assert found.pop("others") == "Not Found"
        assert found == {**dict.fromkeys((*files, *addresses), False), "contexts": [], "processes": 0}


async def test_the_reward_is_that_of_the_first_purchase_whatever_scripts_run():
    task = shop().tasks("train")[0]
    code = (
        CLIENT
        + f"""
say('Hi')
one = page()
one.ask("Page.enable")
one.ask("Page.setBypassCSP", enabled=True)
one.ask("Page.addScriptToEvaluateOnNewDocument", source="window.reward = 1; window.fetch = () => 1; Date = Math")
one.ask("Fetch.enable", patterns=[])
one.ask("Network.setExtraHTTPHeaders", headers={{"X-Reward": "1"}})
one.go("http://127.0.0.1:8000/s/shopper/done")
one.run("document.cookie = 'purchase=1'; localStorage.purchase = 1; document.body.innerText = 'Thank you.'")
one.go("http://127.0.0.1:8000/s/shopper/item/NONE/buy")
other = Cdp()
buy(one, {wrong(task)!r})
buy(page(), {right(task)!r})
time.sleep(3600)
"""
    )
    episode, _ = await played(code)
    [trajectory] = episode.trajectories
    assert episode.error is None
    assert (trajectory.reward, trajectory.success) == (0.0, False)
    assert trajectory.turns[-1].info["shop/type"] == 0.0


@pytest.mark.parametrize(
    ("last", "lost"),
    [
        ("one.ask('Browser.close')", 0.0),
        ("one.ask('Browser.crash')", 1.0),
        ("one.ask('Target.createTarget', url='chrome://inducebrowsercrashforrealz')\ntime.sleep(3600)", 1.0),
    ],
)
async def test_a_program_that_ends_its_browser_ends_its_episode_without_reward(last, lost):
    episode, _ = await played(CLIENT + f"say('Hi')\none = Cdp()\n{last}\n", seconds=20.0)
    assert episode.error is None
    [trajectory] = episode.trajectories
    assert trajectory.reward == 0.0
    assert trajectory.ending is Ending.DONE
    assert trajectory.turns[-1].info.get("lost", 0.0) == lost


def browsers() -> set[psutil.Process]:
    """Returns the processes of browsers in sandboxes, that this process has begun."""
    found = set()
    for one in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if any("--remote-debugging-port" in word for word in one.cmdline()):
                found.add(one)
    return found


async def until(condition):
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - of another process
            await asyncio.sleep(0.05)


async def test_a_browser_that_fails_is_a_failure_of_the_infrastructure_and_is_tried_again():
    killed, tries = [], []

    class Killing(CdpPlay):
        async def browsed(self):
            tries.append(self)
            if len(tries) == 1:
                main = next(one for one in browsers() if "--type=" not in " ".join(one.cmdline()))
                killed.append(main)
                main.send_signal(signal.SIGABRT)
            await super().browsed()

    class Family(Shop):
        def make(self, task):
            return Killing(self.store, self.goal(task), task.id)

    task = shop().tasks("train")[0]
    code = CLIENT + f"say('Hi')\ntime.sleep(1)\nbuy(page(), {right(task)!r})\ntime.sleep(3600)"
    for retries in (0, 1):
        tries.clear()
        episode, _ = await played(code, family=Family(surface="cdp", **EASY), retries=retries)
        if retries:
            assert episode.error is None
            assert episode.trajectories[0].reward == 1.0
        else:
            assert "the Chromium of an episode failed" in str(episode.error)
    assert len(killed) == 2


async def test_the_browser_ends_with_its_episode():
    before = browsers()
    family = shop()
    play = family.make(family.tasks("train")[0])
    await play.start()
    mine, folder = browsers() - before, Path(play.cdp_socket).parent
    assert mine
    assert folder.exists()
    with pytest.raises(ActionError, match="Act in the browser"):
        await play.step("agent", Message(Role.ASSISTANT, "search[sofa]"))
    assert (await play.step("agent", Message(Role.ASSISTANT, "stop"))).done
    await play.close()
    assert not [one for one in mine if one.is_running()]
    assert not folder.exists()
    await family.make(family.tasks("train")[0]).close()  # one that never started


ENDLESS = """
import asyncio, sys
sys.path[:0] = {path!r}
from test_shop_cdp import played, CLIENT
asyncio.run(played(CLIENT + "say('Hi')\\npage()\\ntime.sleep(3600)"))
"""


async def test_the_browser_ends_with_a_trainer_that_is_killed():
    path = [str(ROOT), str(ROOT / "worlds"), str(ROOT / "tests"), str(Path(__file__).parent)]
    trainer = await asyncio.create_subprocess_exec(sys.executable, "-c", ENDLESS.format(path=path))
    own = psutil.Process(trainer.pid)

    def begun():
        words = [" ".join(one.cmdline()) for one in own.children(recursive=True) if one.is_running()]
        return any("--remote-debugging-port" in word for word in words) and any("agent.py" in w for w in words)

    with contextlib.suppress(psutil.Error):
        await until(begun)
    left = own.children(recursive=True)
    trainer.kill()
    await trainer.wait()
    await until(lambda: not [one for one in left if one.is_running() and one.status() != psutil.STATUS_ZOMBIE])


async def test_without_a_sandbox_a_program_reaches_the_browser_by_its_unix_socket():
    task = shop().tasks("train")[0]
    code = (
        CLIENT
        + f"""
line = socket.socket(socket.AF_UNIX)
line.connect(os.environ["BROWSER"])
line.sendall(b"GET /json/list HTTP/1.1\\r\\nHost: localhost\\r\\n\\r\\n")
text = b""
while b"]" not in text:
    text += line.recv(4096)
path = json.loads(text[text.index(b"["):])[0]["webSocketDebuggerUrl"].partition("localhost")[2]
more = socket.socket(socket.AF_UNIX)
more.connect(os.environ["BROWSER"])
say("Hi")
buy(Cdp(path, more), {right(task)!r})
time.sleep(3600)
"""
    )
    episode, _ = await played(code, sandbox=False, variables={"BROWSER": "{cdp_socket}"})
    assert episode.trajectories[0].reward == 1.0


async def test_a_machine_without_sandboxes_is_told_at_the_start(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name, *more: None)
    with pytest.raises(ConfigError, match=r"shop, with surface 'cdp', needs"):
        await shop().open()


def test_what_cannot_be_meant_is_refused():
    with pytest.raises(ConfigError, match="leave choices out"):
        Shop(surface="cdp", choices=True)


RECIPE = {
    "name": "browsers",
    "model": {"name": "tiny:layers=1,hidden=64", "dtype": "fp32"},
    "env": {"name": "shop", "surface": "cdp"},
    "stages": [{
        "name": "rl", "steps": 1, "groups": {"name": "slots", "width": 1, "size": 2},
        "estimator": {"name": "grpo"}, "losses": [{"name": "ppo"}],
    }],
}  # fmt: skip


@pytest.mark.parametrize(
    ("agent", "words"),
    [
        ({"name": "plain"}, "which the agent 'plain' cannot reach"),
        ({"name": "python", "function": "tests.program_worlds:chooses"}, "which the function .* cannot reach"),
        ({"name": "remote"}, "which a service that asks at .* cannot reach"),
        ({"name": "program", "command": ["x"], "sandbox": False}, "which the program 'x' cannot reach"),
        ({"name": "program", "command": ["{cdp_url} {cdp_socket}"], "sandbox": False}, "which a sandbox alone has"),
        ({"name": "program", "command": ["x"]}, ""),
        ({"name": "program", "command": ["{cdp_socket}"], "sandbox": False}, ""),
    ],
)
def test_an_agent_that_reaches_no_browser_is_refused_at_the_start(agent, words):
    table = Tables({**RECIPE, "agent": agent})
    if not words:
        resolve(table)
        return
    with pytest.raises(ConfigError, match=words):
        resolve(table)


def test_a_browser_that_no_world_has_is_refused_at_the_start():
    table = {**RECIPE, "env": {"name": "shop"}, "agent": {"name": "program", "command": ["x", "{cdp_url}"]}}
    with pytest.raises(ConfigError, match="no world here has a browser for it"):
        resolve(Tables(table))
