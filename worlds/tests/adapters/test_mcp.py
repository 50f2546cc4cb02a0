"""Run with SDK 2.x by default, and with 1.x by `make adapters`."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

pytest.importorskip("mcp")

from playing import expert_play, failed, say

from sojourn.checks.env import check_env
from sojourn.checks.report import Outcome
from sojourn.errors import ActionError, ConfigError, InfrastructureError
from sojourn.types import Message, Role, ToolCall
from sojourn_worlds.adapters.mcp import MCP

HERE = Path(__file__).parent
PLAIN = (sys.executable, "-I", str(HERE / "mcp_plain.py"))
LEDGER = (sys.executable, str(HERE / "mcp_ledger.py"), "{folder}")
ROWS = [
    {
        "instruction": "Give 30 of ada's euros to bob.",
        "wanted": {"ada": 70, "bob": 80},
        "solution": ["transfer('ada', 'bob', 30)", "finish()"],
    },
    {"instruction": "How much has bob?", "answer": 50, "solution": ["balance('bob')", "finish(50)"], "split": "test"},
]
HIDDEN = ("dump", "crash", "sleep")


@pytest.fixture
def rows(tmp_path):
    file = tmp_path / "tasks.jsonl"
    file.write_text("\n".join(map(json.dumps, ROWS)))
    return str(file)


def left_of(folder):
    """The commands of processes that name a folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = process.read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        if str(folder) in command:
            found.append(command)
    return found


async def test_a_server_keeps_the_promises_of_a_world(rows):
    family = MCP(instructions=rows, command=PLAIN, check="mcp_hooks:moved", hidden=HIDDEN, turns=6)
    report = await check_env(family, episodes=1, timeout_s=600.0)
    assert report.passed, failed(report)
    assert report["forks are equal and independent"].outcome is Outcome.PASSED
    assert report["the expert succeeds"].outcome is Outcome.PASSED


@pytest.mark.parametrize("check", ["mcp_hooks:moved", "mcp_hooks:written"])
async def test_the_checker_sees_what_the_agent_cannot_reach(rows, check):
    family = MCP(instructions=rows, command=LEDGER, check=check, hidden=HIDDEN)
    env = family.make(family.tasks("train")[0])
    first = await env.start()
    folder = env.session.folder
    assert first.messages[0].text == "Give 30 of ada's euros to bob."
    assert first.system[0].text.splitlines() == [
        "Amounts are whole euros.",
        "Say one of these calls:",
        "balance(name: str): How much an account holds.",
        "transfer(source: str, target: str, amount: int): Moves money.",
        "finish(answer: str | float = ''): Ends the task; the answer is the one that the task asks for, "
        "if it asks for one.",
    ]
    assert [tool.name for tool in first.tools] == ["balance", "transfer", "finish"]
    for text in ("dump()", "transfer('ada', 'bob', 'much')", "balance()", "balance('ada', of='x')", "", "give"):
        with pytest.raises(ActionError):
            await env.step("agent", say(text))
    with pytest.raises(ActionError, match="half a character"):
        await env.step("agent", say(r"balance('\ud800')"))
    with pytest.raises(ActionError, match="too long"):
        await env.step("agent", Message(Role.ASSISTANT, calls=(ToolCall("balance", {"name": "x" * 100_000}),)))
    refused = await env.step("agent", say("balance('zoe')"))
    assert refused.info == {"error": 1.0}
    assert refused.observation.messages[0].text.startswith("error: Error executing tool balance")
    calls = (ToolCall("transfer", {"source": "ada", "target": "bob", "amount": 30}, "1"), ToolCall("finish", {}, "2"))
    last = await env.step("agent", Message(Role.ASSISTANT, calls=calls))
    assert (last.done, last.success, last.rewards) == (True, True, {"agent": 1.0})
    assert folder.exists()
    await env.close()
    assert not folder.exists()
    assert not left_of(folder)


async def test_answers_are_judged_and_doing_nothing_earns_nothing(rows):
    family = MCP(instructions=rows, command=PLAIN, check="mcp_hooks:moved", hidden=HIDDEN, turns=2)
    steps, _ = await expert_play(family, 0)
    assert steps[-1].success
    for said, success in [("finish()", False), ("balance('ada')", False)]:
        env = family.make(family.tasks("train")[0])
        await env.start()
        for _ in range(2):
            step = await env.step("agent", say(said))
            if step.done:
                break
        assert (step.done, step.success, step.rewards["agent"]) == (True, success, 0.0)
        await env.close()


async def test_an_expected_answer_needs_no_checker(tmp_path):
    file = tmp_path / "tasks.toml"
    file.write_text('[[task]]\ninstruction = "How much has bob?"\nanswer = 50\n')
    family = MCP(instructions=str(file), command=PLAIN)
    for said, reward in [("finish(50)", 1.0), ("finish('50.0')", 1.0), ("finish('a lot')", 0.0), ("finish()", 0.0)]:
        env = family.make(family.tasks("train")[0])
        await env.start()
        assert (await env.step("agent", say(said))).rewards["agent"] == reward
        await env.close()


async def test_failures_of_the_server_are_not_the_agents(rows):
    family = MCP(instructions=rows, command=LEDGER, check="mcp_hooks:odd", timeout_s=100.0)
    env = family.make(family.tasks("train")[0])
    await env.start()
    with pytest.raises(InfrastructureError, match=r"odd gave 7: return a number"):
        await env.step("agent", say("finish()"))
    env.done = False
    with pytest.raises(InfrastructureError, match=r"calling crash failed \(\w+: Connection closed\)"):
        await env.step("agent", say("crash()"))
    await env.close()
    for command, message in [
        (("/no/such/program",), "cannot be used.*No such file"),
        ((sys.executable, "-c", "raise SystemExit('no licence found')"), "no licence found"),
    ]:
        broken = MCP(instructions=rows, command=command, check="mcp_hooks:moved")
        env = broken.make(broken.tasks("train")[0])
        with pytest.raises(InfrastructureError, match=message):
            await env.start()
        await env.close()
        assert not env.session
    silent = MCP(instructions=rows, command=("sleep", "60"), check="mcp_hooks:moved", timeout_s=0.5)
    env = silent.make(silent.tasks("train")[0])
    with pytest.raises(InfrastructureError, match=r"did not start within 0\.5 s"):
        await env.start()
    folder = env.session.folder
    await env.close()
    assert not left_of(folder)


async def test_no_server_is_left_of_a_fork_that_was_given_up(rows, tmp_path, monkeypatch):
    """Calls of before are made again in a fork; one of them takes longer there than somebody waits."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    family = MCP(instructions=rows, command=LEDGER, check="mcp_hooks:moved")
    env = family.make(family.tasks("train")[0])
    await env.start()
    await env.step("agent", say("sleep(0.01)"))
    env.calls.append(env.calls[0]._replace(arguments={"seconds": 20.0}))  # as a busy machine would have it
    forking = asyncio.create_task(env.fork())
    while len(left_of(tmp_path)) < 4:  # noqa: ASYNC110  (the guard and the server, of either play)
        await asyncio.sleep(0.05)
    forking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await forking
    own = env.session.folder
    assert [folder.name for folder in tmp_path.glob("sojourn-mcp-*")] == [own.name]
    assert all(str(own) in command for command in left_of(tmp_path / "sojourn-mcp-"))
    await env.close()


def test_nothing_is_left_when_python_is_killed(rows, tmp_path):
    """The player is killed while its server runs; the server, its child and its folder go too."""
    (tmp_path / "player.py").write_text(
        "import asyncio, sys\n"
        "from sojourn_worlds.adapters.mcp import MCP\n"
        "async def main():\n"
        f"    world = MCP(instructions={rows!r}, command={('sh', '-c', 'sleep 300 & exec ' + ' '.join(PLAIN))!r},"
        f" check='mcp_hooks:moved')\n"
        "    env = world.make(world.tasks('train')[0])\n"
        "    await env.start()\n"
        "    print(env.session.folder, flush=True)\n"
        "    await asyncio.sleep(300)\n"
        "asyncio.run(main())\n"
    )
    paths = os.pathsep.join([str(HERE), *sys.path])
    player = subprocess.Popen(
        [sys.executable, str(tmp_path / "player.py")],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": paths},
    )
    assert player.stdout is not None
    folder = Path(player.stdout.readline().strip())
    assert folder.exists()
    assert left_of(folder)
    player.send_signal(signal.SIGKILL)
    player.wait()
    player.stdout.close()
    for _ in range(5_000):
        if not left_of(folder) and not folder.exists():
            return
        time.sleep(0.02)
    raise AssertionError(f"still there: {left_of(folder)} {folder.exists()}")


@pytest.fixture
def served():
    """A server on loopback: its port, and its process."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen([sys.executable, str(HERE / "mcp_http.py"), str(port)], stderr=subprocess.DEVNULL)
    try:
        for _ in range(2_000):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.05)
        yield port, server
    finally:
        server.kill()
        server.wait()


async def test_a_server_on_http(rows, served):
    port, server = served
    family = MCP(instructions=rows, url=f"http://127.0.0.1:{port}/mcp", check="mcp_hooks:moved", hidden=HIDDEN)
    steps, _ = await expert_play(family, 0)
    assert steps[-1].success
    assert not hasattr(family.make(family.tasks("train")[0]), "fork")
    server.kill()
    server.wait()
    env = family.make(family.tasks("train")[0])
    with pytest.raises(InfrastructureError, match=f"{port}/mcp cannot be used"):
        await env.start()
    await env.close()


def test_what_does_not_fit_is_refused_in_one_sentence(rows, tmp_path):
    good = {"instructions": rows, "command": PLAIN, "check": "mcp_hooks:moved"}
    for change, message in [
        ({"command": ()}, "give either a command"),
        ({"url": "http://127.0.0.1:1/mcp"}, "give either a command"),
        ({"form": "spoken"}, "form = 'spoken'"),
        ({"turns": 0}, "turns = 0"),
        ({"check": "mcp_hooks:nothing"}, "check = .*cannot be imported"),
        ({"check": ""}, "has no answer"),
        ({"instructions": str(tmp_path / "none.jsonl")}, "cannot be read"),
    ]:
        with pytest.raises(ConfigError, match=message):
            MCP(**(good | change))
    odd = tmp_path / "odd.jsonl"
    for solution, message in [
        ("finish()", "odd.jsonl: 'finish\\(\\)' is no list: expected a list of calls as text"),
        ([{"name": "finish"}], "{'name': 'finish'} is no text"),
        (["balance bob"], "'balance bob' is no call with plain values"),
    ]:
        odd.write_text(json.dumps({"instruction": "x", "answer": 1, "solution": solution}))
        with pytest.raises(ConfigError, match=message):
            MCP(**(good | {"instructions": str(odd)}))
    odd.write_text("{not json")
    with pytest.raises(ConfigError, match="neither JSON lines nor TOML"):
        MCP(**(good | {"instructions": str(odd)}))


async def test_the_documented_solution_is_one(tmp_path):
    """The line of the docstring, and without the last `finish()`, which the expert adds."""
    told = " ".join((MCP.__doc__ or "").split())
    solution = json.loads(told.split('`"solution": ')[1].split("`")[0])
    for number, calls in enumerate((solution, solution[:-1])):
        row = {"instruction": "Give 5 of ada's euros to bob.", "wanted": {"ada": 95, "bob": 55}, "solution": calls}
        file = tmp_path / f"{number}.jsonl"
        file.write_text(json.dumps(row))
        steps, _ = await expert_play(MCP(instructions=str(file), command=PLAIN, check="mcp_hooks:moved"), 0)
        assert (len(steps), steps[-1].success) == (2, True)


async def test_tools_that_are_not_there_are_named(rows):
    family = MCP(instructions=rows, command=PLAIN, check="mcp_hooks:moved", tools=("balance", "fly"))
    env = family.make(family.tasks("train")[0])
    with pytest.raises(ConfigError, match="no tool fly: it has balance, transfer, dump"):
        await env.start()
    await env.close()
