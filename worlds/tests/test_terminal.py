"""Jobs at a bash shell: each can be done, none is done by doing nothing, and files alone decide."""

import random
import shutil

import pytest

from sojourn.checks.env import check_env
from sojourn.envs.sandbox import Entry, Sandbox, Tree
from sojourn.errors import ActionError, ConfigError, InfrastructureError
from sojourn.types import Message, Role, ToolCall
from sojourn_worlds.terminal import KINDS, Terminal, job_of
from sojourn_worlds.terminal.job import pack_archive, parse_json, unpack_archive

pytestmark = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
RANDOM = ("ls", "ls -la", "cat *", "pwd", "echo 1 > count.txt", "mkdir out", "touch top.txt", "rm *", "sort *", "done")


def say(text: str) -> Message:
    return Message(Role.ASSISTANT, text)


def tree_of(files) -> Tree:
    return Tree({f"/task/{path}": entry for path, entry in files.items()})


async def play(family: Terminal, index: int, split: str = "train"):
    env = family.make(family.tasks(split)[index])
    try:
        await env.start()
        for turn in range(family.turns):
            step = await env.step("agent", say(await env.expert()))
            if step.done:
                return step, turn + 1
        raise AssertionError("a play does not end")
    finally:
        await env.close()


@pytest.mark.parametrize("level", [1, 2, 3])
async def test_every_job_is_done_by_its_solution_and_by_nothing_less(level):
    """All in one sandbox, emptied in between; and once more from the state that the solution leaves."""
    family = Terminal(level=level)
    async with Sandbox() as sandbox:
        for split in ("train", "test"):
            for index in range(len(KINDS)):
                task = family.tasks(split)[index]
                job = job_of(task)
                await sandbox.run("cd /task; rm -rf /task/* /tmp/*")
                assert await sandbox.write(job.files) == []
                assert not job.check(await sandbox.tree()), task
                assert not job.check(Tree()), task
                whole = "\n".join(job.solution)
                result = await sandbox.run(whole, 60)
                assert job.check(await sandbox.tree()), (task, result)
                if split == "test":
                    await sandbox.run(whole, 60)
                    assert job.check(await sandbox.tree()), (task, "again")


def test_jobs_are_short_differ_and_pass_no_other_jobs_check():
    family = Terminal()
    jobs = [job_of(family.tasks("train")[index]) for index in range(10 * len(KINDS))]
    assert len(KINDS) >= 12
    assert max(len(job.instruction) for job in jobs) < 300
    tested = [job_of(family.tasks("test")[index]) for index in range(10 * len(KINDS))]
    train, test = ({(job.instruction, tree_of(job.files).digest) for job in of} for of in (jobs, tested))
    assert min(len(train), len(test)) > 0.97 * len(jobs)
    assert not train & test
    assert not any(job.check(tree_of(job.files)) for job in jobs)
    again = job_of(Terminal().tasks("train")[5])
    assert tree_of(again.files).digest == tree_of(jobs[5].files).digest


async def test_the_expert_does_every_kind_of_both_splits():
    family = Terminal()
    for index in range(len(KINDS)):
        step, turns = await play(family, index, ("train", "test")[index % 2])
        assert step.success
        assert step.rewards == {"agent": 1.0}
        assert turns <= 5


async def test_the_expert_finds_its_way_back():
    family = Terminal(kinds=("split_by_day", "repair_script"), level=2, turns=20)
    for index in range(2):
        env = family.make(family.tasks("train")[index])
        await env.start()
        for said in (
            env.job.solution[0],
            "cd /tmp",
            "echo x > top.txt",
            env.job.solution[-1],
            "mkdir -p /tmp/a; cd /tmp/a",
        ):
            await env.step("agent", say(said))
        while not env.done:
            step = await env.step("agent", say(await env.expert()))
        assert step.success
        await env.close()


async def test_a_random_policy_earns_next_to_nothing():
    family, rng, won = Terminal(turns=4), random.Random(0), 0.0
    for index in range(len(KINDS)):
        env = family.make(family.tasks("train")[index])
        await env.start()
        while not env.done:
            step = await env.step("agent", say(rng.choice(RANDOM)))
        won += step.rewards["agent"]
        await env.close()
    assert won <= 1


async def test_it_keeps_its_promises():
    report = await check_env(Terminal(kinds=("tidy", "release"), turns=6), episodes=1, timeout_s=600.0)
    assert report.passed, report.failed


async def test_actions_as_text_fenced_or_as_calls():
    env = Terminal(kinds=("sort_lines",)).make(Terminal(kinds=("sort_lines",)).tasks("train")[0])
    first = await env.start()
    assert "done" in first.system[0].text
    step = await env.step("agent", say("```bash\necho hi\necho ho\n```"))
    assert step.observation.messages[0].text == "hi\nho"
    step = await env.step("agent", Message(Role.ASSISTANT, calls=(ToolCall("bash", {"command": "false"}),)))
    assert step.observation.messages[0].text == "[exit code 1]"
    step = await env.step("agent", say("true"))
    assert step.observation.messages[0].text == "(no output)"
    step = await env.step("agent", say("seq 1 3000"))
    assert len(step.observation.messages[0].text) < 1_600
    assert "characters left out" in step.observation.messages[0].text
    key = env.state_key()
    for wrong in (
        say(""),
        say("x" * 20_000),
        say("```\n```"),
        Message(Role.ASSISTANT, calls=(ToolCall("run", {"command": "ls"}),)),
        Message(Role.ASSISTANT, calls=(ToolCall("bash", {"command": 3}),)),
        Message(Role.ASSISTANT, calls=(ToolCall("done", {}), ToolCall("done", {}))),
    ):
        with pytest.raises(ActionError):
            await env.step("agent", wrong)
    assert env.state_key() == key
    step = await env.step("agent", Message(Role.ASSISTANT, calls=(ToolCall("done", {}),)))
    assert (step.done, step.success, step.rewards) == (True, False, {"agent": 0.0})
    with pytest.raises(InfrastructureError):
        await env.step("agent", say("done"))
    await env.close()


async def test_a_play_ends_lost_when_its_turns_are_used_up_even_with_the_job_done():
    family = Terminal(kinds=("sort_lines",), turns=2)
    env = family.make(family.tasks("train")[0])
    await env.start()
    await env.step("agent", say(await env.expert()))
    assert await env.expert() == "done"
    step = await env.step("agent", say("ls"))
    assert (step.done, step.success, step.rewards) == (True, False, {"agent": 0.0})
    await env.close()


async def test_forks_part():
    family = Terminal(kinds=("rename",))
    env = family.make(family.tasks("train")[1])
    await env.start()
    await env.step("agent", say("cd docs; x=1"))
    twin = await env.fork()
    assert twin.state_key() == env.state_key()
    shown = (await twin.step("agent", say("pwd; echo $x; rm *; ls"))).observation.messages[0].text
    assert shown == "/task/docs\n1"
    assert twin.state_key() != env.state_key()
    await twin.close()
    while not env.done:
        step = await env.step("agent", say(await env.expert()))
    assert step.success
    await env.close()


def test_near_misses_are_no_passes():
    for index in range(len(KINDS)):
        job = job_of(Terminal().tasks("train")[index])
        for name in ("count.txt", "addresses.txt", "top.txt", "names.txt", "answer.txt", "totals.txt", "big.csv"):
            assert not job.check(tree_of({**job.files, name: Entry.file("1\n")}))
            assert not job.check(tree_of({**job.files, name: Entry("link", b"/proc/self/environ")}))


def test_what_checkers_parse_may_be_anything():
    assert parse_json(b"[" * 100_000) is None
    assert parse_json(b"1" * 10_000) is None
    assert parse_json(b"\xff") is None
    assert parse_json(None) is None
    assert unpack_archive(None) is None
    assert unpack_archive(b"x" * 1000) is None
    assert unpack_archive(pack_archive({"a": "b"})[:40]) is None
    assert unpack_archive(pack_archive({"big": "0" * 2**23})) is None
    assert unpack_archive(pack_archive({"./a": "b"})) == {"a": b"b"}


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"kinds": ("nosuch",)}, "kinds lists 'nosuch'"),
        ({"level": 4}, "level = 4"),
        ({"turns": 0}, "turns = 0"),
        ({"timeout_s": 0}, "timeout_s = 0"),
        ({"form": "json"}, "form = 'json'"),
    ],
)
def test_wrong_configs_are_refused(wrong, told):
    with pytest.raises(ConfigError, match=told):
        Terminal(**wrong)
    with pytest.raises(ConfigError, match='"dev"'):
        Terminal().tasks("dev")


def test_without_bubblewrap_it_says_so(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match=r"terminal needs the program 'bwrap'.*apt-get install bubblewrap"):
        Terminal().make(Terminal().tasks("train")[0])


@pytest.mark.parametrize("level", [1, 2, 3])
def test_the_example_in_an_instruction_is_never_the_answer(level):
    """It would be paid without a look at the files."""
    for kind in ("largest", "release"):
        for task in Terminal(kinds=(kind,), level=level).tasks("test")[:60]:
            job = job_of(task)
            example = job.instruction.partition("as in: ")[2].split()[0].removesuffix(".")
            link = {"current": Entry("link", example.encode())}
            assert not job.check(tree_of(job.files | {"largest.txt": Entry.file(f"{example}\n")} | link)), task
