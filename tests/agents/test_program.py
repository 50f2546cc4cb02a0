"""Programs as agents: what they ask becomes turns, token by token, and what they do is rewarded where it was said."""

import asyncio
import contextlib
import errno
import hashlib
import os
import re
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from sojourn.agents.program import Program
from sojourn.config.registry import build
from sojourn.errors import ConfigError, InfrastructureError
from sojourn.types import Ending, Observation, ToolCall
from tests.gateway_sessions import replies, said, user
from tests.program_worlds import DOOR, LOOP, PYTHON, Hall, Halls, played

LEFT = ToolCall("look", {"at": "left"})
ASK = """
messages = [{"role": "user", "content": "Hi"}]
asked(os.environ["OPENAI_BASE_URL"] + "/chat/completions", {"model": "m", "messages": messages})
"""
SAY_DONE = "mcp('tools/call', name='say', arguments={'text': 'done'})\n"


def exact(trajectory, sampler):
    assert len(trajectory.turns) == len(sampler.samples)
    for number, (prompt, sample) in enumerate(zip(sampler.prompts, sampler.samples, strict=True)):
        assert trajectory.prompt(number).tolist() == prompt
        assert trajectory.turns[number].sample.tokens.tolist() == sample.tokens.tolist()


@pytest.mark.parametrize("sandbox", [True, False])
async def test_a_tool_loop_becomes_exact_turns_with_their_rewards(sandbox):
    script = replies(said(" I look. ", "hm", DOOR), said("", "", DOOR, DOOR), said("All seen. "))
    episode, sampler, family = await played(script, sandbox=sandbox, last_action="done")
    assert episode.error is None
    [trajectory] = episode.trajectories
    exact(trajectory, sampler)
    assert [turn.parent for turn in trajectory.turns] == [-1, 0, 1]
    assert [turn.reward for turn in trajectory.turns] == [0.5, 1.0, 1.0]
    assert trajectory.ending is Ending.DONE
    assert trajectory.success
    assert [len(action.calls) for action in family.made[0].actions] == [1, 1, 1, 0]
    assert family.made[0].closed == 1
    assert "The door, 3." in sampler.format.decode(sampler.prompts[2])


CONTAINER = """
set -eu
while [ $# -gt 0 ]; do case $1 in
    -v) bound=$2; shift 2;;
    -e) export "$2"; shift 2;;
    *) break;;
esac; done
exec bwrap --unshare-all --die-with-parent --ro-bind /usr /usr --symlink usr/lib /lib --symlink usr/lib64 /lib64 \\
    --symlink usr/bin /bin --proc /proc --dev /dev --bind "${bound%%:*}" "${bound#*:}" -- "$@"
"""  # stands in for a runtime of containers: no network, and what is bound
BY_SOCKET = """
import http.client, json, os, socket

def post(path, body):
    line = http.client.HTTPConnection("gateway")
    line.sock = socket.socket(socket.AF_UNIX)
    line.sock.connect("/gateway")
    line.request("POST", "/s/" + os.environ["SESSION"] + path, json.dumps(body), {"Host": "localhost"})
    return json.load(line.getresponse())

task = os.environ["TASK"]
for seen in ("", "more"):
    post("/v1/chat/completions", {"model": "m", "messages": [{"role": "user", "content": task + seen}]})
    post("/act", {"name": "look", "arguments": {"at": "door"}})
"""


async def test_a_container_that_a_command_starts_reaches_the_gateway_by_its_socket_alone():
    line = ("/bin/sh", "container.sh", "-v", "{socket}:/gateway", "-e", "SESSION={key}", "-e", "TASK={task}")
    episode, sampler, _ = await played(
        replies(said("I look."), said("Again.")), sandbox=False, command=(*line, PYTHON, "-c", BY_SOCKET),
        files={"container.sh": CONTAINER}, last_action="done",
    )  # fmt: skip
    assert episode.error is None
    [trajectory] = episode.trajectories
    exact(trajectory, sampler)
    assert [turn.reward for turn in trajectory.turns] == [0.5, 1.5]
    assert "Look at the door." in sampler.format.decode(sampler.prompts[0])


async def test_what_the_world_refuses_is_told_to_the_program():
    script = replies(said("", "", LEFT), said("", "", DOOR), said("done"))
    episode, sampler, _ = await played(script, last_action="{reply}")
    [trajectory] = episode.trajectories
    exact(trajectory, sampler)
    assert "there is nothing to see" in sampler.format.decode(sampler.prompts[1])
    assert [turn.reward for turn in trajectory.turns] == [0.0, 0.5, 1.0]
    assert [turn.info.get("malformed", 0.0) for turn in trajectory.turns] == [1.0, 0.0, 0.0]
    assert trajectory.success


async def test_a_program_may_end_the_episode_by_its_action_and_is_ended_then():
    code = LOOP + "mcp('tools/call', name='look', arguments={'at': 'door'})\nmcp('tools/list')\n" + ASK + SAY_DONE
    episode, sampler, _ = await played(replies(said("Well.")), code=code + "import time; time.sleep(3600)")
    [trajectory] = episode.trajectories
    exact(trajectory, sampler)
    assert trajectory.ending is Ending.DONE
    assert trajectory.turns[0].reward == 1.5  # the first action came before any turn
    assert trajectory.reward == 1.5


@pytest.mark.parametrize("sandbox", [True, False])
async def test_a_program_that_never_asks_is_a_failure_of_the_infrastructure(sandbox):
    episode, *_ = await played(replies(), code="raise SystemExit('no module named agent')", sandbox=sandbox)
    assert "ended before the model gave it a reply, with exit code 1: no module named agent" in str(episode.error)
    episode, *_ = await played(replies(), command=("/nothing/here",), sandbox=True)
    assert "'/nothing/here' cannot be started" in str(episode.error)
    with pytest.raises(ConfigError, match="'/nothing/here' cannot be started"):
        await played(replies(), command=("/nothing/here",), sandbox=False)


async def test_what_the_machine_has_too_few_of_now_is_a_failure_of_the_infrastructure(monkeypatch):
    async def started(*command, **more):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(asyncio, "create_subprocess_exec", started)
    episode, *_ = await played(replies())
    assert "cannot be started now ([Errno 24] Too many open files): play fewer at once" in str(episode.error)


async def test_a_first_request_without_room_says_so():
    episode, *_ = await played(replies(), max_context=16)
    assert "a context has 16 tokens, too few for its first request: set a higher max_context" in str(episode.error)


async def test_a_program_that_fails_later_is_trained_on():
    episode, *_ = await played(replies(said("Hi")), code=LOOP + ASK + "raise SystemExit(3)")
    assert episode.error is None
    [trajectory] = episode.trajectories
    assert trajectory.turns[-1].info["program_failed"] == 1.0
    assert trajectory.ending is Ending.DONE


@pytest.mark.parametrize("more", [{"replies": 3}, {"turns": 2}])
async def test_the_limits_of_a_program_end_it(more):
    episode, sampler, _ = await played(lambda prompt: said("", "", DOOR), **more)
    assert episode.trajectories[0].ending is Ending.TURNS
    assert len(episode.trajectories[0].turns) == len(sampler.samples) == (3 if "replies" in more else 2)


@pytest.mark.parametrize("sandbox", [True, False])
async def test_a_program_that_goes_on_too_long_is_ended_and_what_it_printed_last_is_kept(sandbox):
    """It prints before it asks, and more than is kept; so all of it is there when its reply is."""
    prints = "import sys, time; print('x' * 70_000 + ' waiting for the lock', flush=True)\n"
    prints += "print('no lock with sk-abcdefghijklmnopqrstuvwx', file=sys.stderr, flush=True)\n"
    code = prints + LOOP + ASK + "time.sleep(3600)"
    episode, *_ = await played(lambda prompt: said("Hi"), code=code, seconds=2.0, sandbox=sandbox)
    assert episode.error is None
    [trajectory] = episode.trajectories
    assert trajectory.ending is Ending.TIME
    notes = trajectory.turns[-1].notes
    assert notes["program"] == "it ran on until the episode ended, and was ended then"
    assert notes["program's output"].endswith("x waiting for the lock\n")
    assert len(notes["program's output"]) == 1 << 14
    assert notes["program's errors"].startswith("no lock with ")
    assert "sk-abc" not in notes["program's errors"]


async def test_a_full_context_ends_it():
    episode, sampler, _ = await played(lambda prompt: said("x" * 300, "", DOOR), max_context=1500)
    assert episode.trajectories[0].ending is Ending.TOKENS
    exact(episode.trajectories[0], sampler)


async def test_an_engine_that_fails_is_never_the_fault_of_the_program():
    def broken(prompt):
        raise InfrastructureError("the engine is gone")

    script = replies(said("", "", DOOR))
    episode, *_ = await played(lambda prompt: script(prompt) if "door," not in prompt else broken(prompt))
    assert "the engine is gone" in str(episode.error)


async def test_a_program_sees_no_other_files_networks_or_sessions():
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as outside:
        code = f"""
import os, socket
found = []
for path in ("/root", "/home", "{Path(__file__).parent}", "/etc/shadow"):
    found.append(os.path.exists(path))
for address in (("127.0.0.1", {outside.getsockname()[1]}), ("1.1.1.1", 80)):
    try:
        socket.create_connection(address, 2)
        found.append(True)
    except OSError:
        found.append(False)
try:
    asked(os.environ["SOJOURN_URL"].rpartition("/")[0] + "/other/observation")
    found.append(True)
except urllib.error.HTTPError as error:
    found.append(error.code != 404)
print(found)
"""
        episode, *_, family = await played(
            replies(said("Hi")), code=LOOP + "import urllib.error\n" + ASK + code, last_action="{output}"
        )
    assert episode.trajectories
    assert family.made[0].actions[-1].text == str([False] * 7)


async def test_a_program_that_takes_too_much_memory_is_ended():
    code = LOOP + ASK + "x = [b'x' * 10**7 for _ in range(40)]\nimport time; time.sleep(3600)"
    episode, *_ = await played(replies(said("Hi")), code=code, memory_bytes=2**26)
    assert episode.trajectories[0].turns[-1].info["program_failed"] == 1.0


async def test_a_play_that_is_cancelled_ends_its_program(tmp_path):
    (tmp_path / "open").mkdir()
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    code = LOOP + ASK + f"import os, time; open('{pipe}', 'w').write(str(os.getpid())); time.sleep(3600)"
    play = asyncio.create_task(played(replies(said("Hi")), code=code, sandbox=False))
    pid = await asyncio.to_thread(pipe.read_text)
    play.cancel()
    with pytest.raises(asyncio.CancelledError):
        await play
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid), 0)


async def test_programs_at_once_never_mix():
    """Each world names its own number, which the script repeats: what a program is told is its own."""

    def script(prompt):
        seen = prompt.count("The door")
        return said("", "", DOOR) if seen < 3 else said("done")

    plays = [played(script, last_action="{reply}", sandbox=number % 4 == 0) for number in range(12)]
    for episode, sampler, _ in await asyncio.gather(*plays):
        [trajectory] = episode.trajectories
        exact(trajectory, sampler)
        assert [turn.reward for turn in trajectory.turns] == [0.5, 0.5, 0.5, 1.0]


class LongHall(Hall):
    """A hall whose first observation is the text of `seen`."""

    seen = ""

    async def start(self) -> Observation:
        return replace(await super().start(), messages=(user(self.seen),))


def halls(text):
    hall = LongHall()
    hall.seen = text
    family = Halls()
    family.make = lambda task: hall
    return family


READS = LOOP + ASK + "import hashlib\ntext = open(os.environ['SOJOURN_TASK_FILE'], 'rb').read()\n"
READS += "print(hashlib.sha256(text).hexdigest(), 'SOJOURN_TASK' in os.environ)"


@pytest.mark.parametrize("sandbox", [True, False])
@pytest.mark.parametrize("text", ["x" * 200_000, "é" * 70_000, "a\0b"])
async def test_a_task_that_no_variable_can_hold_is_read_from_its_file_or_refused(sandbox, text):
    """The program is no worse than others: without the file it would know nothing of its task."""
    episode, *_ = await played(replies(said("Hi")), halls(text), code=READS, sandbox=sandbox)
    assert "of the program has " in str(episode.error)
    assert "name {task_file} in agent.command" in str(episode.error)
    episode, *_ = await played(
        replies(said("Hi")), halls(text), code=READS, sandbox=sandbox, variables={"MINE": "{task_file}"},
        last_action="{output}",
    )  # fmt: skip
    assert episode.error is None
    told = hashlib.sha256(f"Look at the door.\n\n{text}".encode()).hexdigest()
    assert f"{told} False" in episode.trajectories[0].turns[-1].notes["program's output"]
    too_long = played(replies(), halls(text), sandbox=sandbox, command=(PYTHON, "{task_file}", "{task}"))
    episode, *_ = await too_long
    assert "an argument of the program has " in str(episode.error)


@pytest.mark.parametrize("sandbox", [True, False])
async def test_half_a_surrogate_pair_in_a_task_is_a_question_mark(sandbox):
    code = LOOP + ASK + "print(os.environ['SOJOURN_TASK'] == open('task.txt').read(), os.environ['SOJOURN_TASK'])\n"
    code += "print(asked(os.environ['SOJOURN_URL'] + '/observation')['messages'][0]['content'])"
    episode, *_ = await played(replies(said("Hi")), halls("a\ud800b"), code=code, sandbox=sandbox)
    assert episode.error is None
    printed = episode.trajectories[0].turns[-1].notes["program's output"]
    assert printed.splitlines() == ["True Look at the door.", "", "a?b", "a?b"]


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"command": ()}, "expected a program"),
        ({"read": ("/a",), "sandbox": False}, "read says"),
        ({"variables": {"": "x"}}, "the name '': expected that of a variable, such as HOME"),
        ({"variables": {"A=B": "x"}}, "the name 'A=B': expected that of a variable"),
        ({"variables": {"A": "x" * 131_072}}, "variables.A has 131074 bytes, of which it may have 131071"),
        ({"variables": {"A": "a\0b"}}, "variables.A has a character of code 0"),
        *(
            ({"files": {path: "x"}}, "expected one below the program's folder")
            for path in ("", ".", "/etc/x", "../x", "a/../../x", "a/", "./a", "a\0b")
        ),
        ({"files": {"a": "x", "a/b": "y"}}, "'a/b', but 'a' is a file: expected a folder"),
        ({"files": {"task.txt/b": "y"}}, "'task.txt/b', but 'task.txt' is a file"),
    ],
)
def test_what_cannot_be_meant_is_refused(config, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        Program(**{"command": ("x",), **config})


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"read": ["opt"]}, "agent.read.0 = 'opt': expected the absolute path of a folder"),
        ({"command": ["x", "a\0b"]}, "expected a text without characters of code 0"),
        ({"variables": {"A": "a\0b"}}, "expected a text without characters of code 0"),
        ({"variables": {"A": 1}}, "agent.variables.A = 1: expected text in quotes"),
    ],
)
def test_a_table_of_a_program_is_refused_by_its_key(table, words):
    with pytest.raises(ConfigError, match=re.escape(words)):
        build("agent", {"name": "program", "command": ["x"], **table}, "agent")
