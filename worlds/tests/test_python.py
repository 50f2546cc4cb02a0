"""Problems for a Python session: the reference code finds every answer, and the answer alone decides."""

import random
import shutil
import subprocess
import sys

import pytest

from sojourn.checks.env import check_env
from sojourn.envs.sandbox import Entry, Sandbox
from sojourn.errors import ActionError, ConfigError, InfrastructureError
from sojourn.types import Message, Role, ToolCall
from sojourn_worlds.python import KINDS, Python, problem_of
from sojourn_worlds.python.problem import Problem

pytestmark = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")


def say(text: str) -> Message:
    return Message(Role.ASSISTANT, text)


def enter(index: int = 0, **fields):
    family = Python(**fields)
    return family.make(family.tasks("train")[index])


def shown(step) -> str:
    return step.observation.messages[0].text


@pytest.mark.parametrize("level", [1, 2, 3])
async def test_the_reference_code_finds_every_answer(level):
    family = Python(level=level)
    async with Sandbox() as sandbox:
        for index in range(3 * len(KINDS)):
            task = family.tasks(("train", "test")[index % 2])[index]
            problem = problem_of(task)
            await sandbox.restart()
            await sandbox.write({path: Entry.file(text) for path, text in problem.files.items()})
            result = await sandbox.cell(problem.code, 60)
            assert problem.is_correct(result.output), (task, result, problem.answer)
            assert problem.is_correct(problem.submission)


def test_problems_differ_and_answers_cannot_be_guessed():
    family = Python()
    problems = [problem_of(family.tasks("train")[index]) for index in range(10 * len(KINDS))]
    tested = [problem_of(family.tasks("test")[index]) for index in range(10 * len(KINDS))]
    train, test = ({(p.question, str(p.files)) for p in of} for of in (problems, tested))
    assert min(len(train), len(test)) > 0.97 * len(problems)
    assert not train & test
    assert max(len(p.question) for p in problems) < 400
    commonest = max(sum(p.is_correct(str(guess)) for p in problems) for guess in range(-10, 1000))
    assert commonest <= 4
    again = problem_of(Python().tasks("train")[7])
    assert (again.question, again.answer) == (problems[7].question, problems[7].answer)


@pytest.mark.parametrize(
    ("answer", "right", "wrong"),
    [
        (42, ["42", " 42 ", "+42", "4,2"], ["42.0", "43", "-42", "0x2a", "4 2", "", "4_2", "٤٢", "42" * 200, "42\n43"]),
        (2.5, ["2.5", "2.50", "2.504", "2.495"], ["2.51", "nan", "inf", "2.5e0", "25", "1e999", "two"]),
        ("abc", ["abc", "'abc'", "ABC "], ["abcd", "", "ab c"]),
    ],
)
def test_an_answer_is_read_as_what_it_is(answer, right, wrong):
    problem = Problem("?", answer, "")
    assert all(map(problem.is_correct, right))
    assert not any(map(problem.is_correct, wrong))


async def test_the_expert_answers_every_kind_of_both_splits():
    for index in range(len(KINDS)):
        family = Python(level=1 + index % 3)
        env = family.make(family.tasks(("train", "test")[index % 2])[index])
        await env.start()
        while not env.done:
            step = await env.step("agent", say(env.expert()))
        assert (step.success, step.rewards, env.turns_taken) == (True, {"agent": 1.0}, 2)
        await env.close()


async def test_a_random_policy_earns_next_to_nothing():
    rng, won = random.Random(0), 0.0
    said = ("print(1)", "x = 2", "import os; os.listdir()", "submit {}", "submit {}", "help()", "restart")
    for index in range(len(KINDS)):
        env = enter(index, turns=3)
        await env.start()
        while not env.done:
            step = await env.step("agent", say(rng.choice(said).format(rng.randint(0, 1000))))
        won += step.rewards["agent"]
        await env.close()
    assert won == 0


async def test_it_keeps_its_promises():
    report = await check_env(Python(kinds=("cipher",), form="native", turns=4), episodes=1, timeout_s=600.0)
    assert report.passed, report.failed


async def test_variables_last_until_the_session_ends():
    env = enter(timeout_s=4, turns=20)
    await env.start()
    assert shown(await env.step("agent", say("```python\nx = 2\nx * 3\n```"))) == "6"
    assert shown(await env.step("agent", say("open('note', 'w').write('n'); print(x)"))) == "2"
    assert "ZeroDivisionError" in shown(await env.step("agent", say("1 / 0")))
    assert shown(await env.step("agent", say("x"))) == "2"
    gone = shown(await env.step("agent", say("while True: pass")))
    assert gone == "[stopped: it took too long]\n[the session has ended, and its variables are gone]"
    assert "NameError" in shown(await env.step("agent", say("x")))
    assert shown(await env.step("agent", say("open('note').read()"))) == "'n'"
    await env.step("agent", say("y = 1"))
    assert shown(await env.step("agent", say("restart"))) == "A new session."
    assert "NameError" in shown(await env.step("agent", say("y")))
    code = Message(Role.ASSISTANT, calls=(ToolCall("python", {"code": "print(len('abc'))"}),))
    assert shown(await env.step("agent", code)) == "3"
    submission = Message(Role.ASSISTANT, calls=(ToolCall("submit", {"answer": env.problem.answer}),))
    step = await env.step("agent", submission)
    assert (step.done, step.success, step.rewards) == (True, True, {"agent": 1.0})
    with pytest.raises(InfrastructureError):
        await env.step("agent", say("1"))
    await env.close()


async def test_what_is_no_action_is_refused():
    env = enter()
    await env.start()
    key = env.state_key()
    for wrong in (
        say(""),
        say("x" * 20_000),
        say("```python\n\n```"),
        Message(Role.ASSISTANT, calls=(ToolCall("run", {"code": "1"}),)),
        Message(Role.ASSISTANT, calls=(ToolCall("submit", {"answer": None}),)),
        Message(Role.ASSISTANT, calls=(ToolCall("restart", {}), ToolCall("restart", {}))),
    ):
        with pytest.raises(ActionError):
            await env.step("agent", wrong)
    assert env.state_key() == key
    assert env.turns_taken == 0
    await env.close()


async def test_a_fork_has_the_variables_and_goes_its_own_way():
    env = enter(turns=20)
    await env.start()
    for code in (
        "import os\nx = [1]",
        "open('f', 'a').write('a')",
        "os._exit(1)",
        "x = [2]",
        "open('f', 'a').write('b')",
    ):
        await env.step("agent", say(code))
    twin = await env.fork()
    assert twin.state_key() == env.state_key()
    assert shown(await twin.step("agent", say("x.append(3); print(x, open('f').read())"))) == "[2, 3] ab"
    assert shown(await env.step("agent", say("print(x, open('f').read())"))) == "[2] ab"
    await twin.close()
    await env.close()


async def test_a_play_ends_lost_when_its_turns_are_used_up():
    env = enter(turns=2)
    await env.start()
    await env.step("agent", say("1"))
    assert env.expert() == f"submit {env.problem.submission}"
    step = await env.step("agent", say(f"print({env.problem.answer})"))
    assert (step.done, step.success, step.rewards) == (True, False, {"agent": 0.0})
    await env.close()


@pytest.mark.parametrize(
    ("wrong", "told"),
    [({"kinds": ("nosuch",)}, "kinds lists 'nosuch'"), ({"level": 0}, "level = 0"), ({"shown": 5}, "shown = 5")],
)
def test_wrong_configs_are_refused(wrong, told):
    with pytest.raises(ConfigError, match=told):
        Python(**wrong)
    with pytest.raises(ConfigError, match='"dev"'):
        Python().tasks("dev")


def test_no_action_holds_the_process_while_it_is_read():
    """All its plays stand still meanwhile: the child of this test would, for an hour."""
    code = "import sys; from sojourn_worlds.python import parse; from sojourn.errors import ActionError\n"
    code += "from sojourn.types import Message, Role\n"
    code += "try: parse(Message(Role.ASSISTANT, sys.stdin.read()))\n"
    code += "except ActionError as error: sys.exit(str(error))"
    longest = "submit" + " " * 10**6 + "\nx"
    read_it = subprocess.run([sys.executable, "-c", code], input=longest, text=True, capture_output=True, timeout=120)
    assert "are too many" in read_it.stderr
