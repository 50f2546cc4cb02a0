"""Against a real server of OpenEnv in an interpreter of its own: SOJOURN_OPENENV_PYTHON names it (make adapters)."""

from pathlib import Path

import pytest

pytest.importorskip("websockets")

from playing import expert_play, failed, say
from served import interpreter, serving

from sojourn.checks.env import check_env
from sojourn.checks.report import Outcome
from sojourn.errors import ActionError, ConfigError, InfrastructureError
from sojourn.types import Message, Role, ToolCall
from sojourn_worlds.adapters.openenv import OpenEnv

SCRIPT = Path(__file__).parent / "openenv_server.py"
GUESS = {"expert": "openenv_hooks:count_up"}


@pytest.fixture(scope="module")
def url():
    with serving(interpreter("OPENENV"), SCRIPT) as (address, _):
        yield address


async def test_a_served_environment_keeps_the_promises_of_a_world(url):
    report = await check_env(OpenEnv(url=url, **GUESS), episodes=2)
    assert report.passed, failed(report)
    assert report["forks are equal and independent"].outcome is Outcome.PASSED
    assert report["the expert succeeds"].outcome is Outcome.PASSED


async def test_seeds_and_rows_decide_the_task(url, tmp_path):
    for split in ("train", "test"):
        for index in range(3):
            steps, _ = await expert_play(OpenEnv(url=url, **GUESS), index, split)
            assert (steps[-1].success, steps[-1].rewards["agent"]) == (True, 1.0)
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"length": 7}\n{"length": 3}\n')
    family = OpenEnv(url=url, instructions=str(rows), describe="openenv_hooks:words")
    env = family.make(family.tasks("train")[0])
    first = await env.start()
    assert first.messages[0].text == "The number is _______, 10 guesses are left."
    assert first.system[0].text == (
        "Say one call:\nact(digit: int, note: str = ''): Names a digit that may be in the number."
    )
    await env.close()


async def test_actions_that_do_not_fit_are_the_agents_fault_and_broken_servers_are_not(url):
    family = OpenEnv(url=url, timeout_s=20.0)
    env = family.make(family.tasks("train")[0])
    first = await env.start()
    assert first.messages[0].text == "shown: __\nleft: 10"
    for text in ("act('x')", "act()", "act(digit=11)", "act(1, 2, 3)", "", "reset()"):
        with pytest.raises(ActionError):
            await env.step("agent", say(text))
    step = await env.step("agent", Message(Role.ASSISTANT, calls=(ToolCall("act", {"digit": 3}, "c"),)))
    assert (step.observation.messages[0].role, step.observation.messages[0].answers) == (Role.TOOL, "c")
    assert "left: 9" in step.observation.messages[0].text
    with pytest.raises(InfrastructureError, match="EXECUTION_ERROR: the drum is stuck"):
        await env.step("agent", say("act(1, 'crash')"))
    await env.close()
    hasty = OpenEnv(url=url, timeout_s=0.5)
    env = hasty.make(hasty.tasks("train")[0])
    await env.start()
    with pytest.raises(InfrastructureError, match=r"did not answer within 0\.5 s"):
        await env.step("agent", say("act(1, 'sleep')"))
    await env.close()


async def test_a_text_can_be_a_whole_action(url):
    family = OpenEnv(url=url, text="note")
    env = family.make(family.tasks("train")[0])
    await env.start()
    with pytest.raises(ActionError, match="digit"):  # which the server misses
        await env.step("agent", say("hello"))
    await env.close()
    wrong = OpenEnv(url=url, text="word")
    env = wrong.make(wrong.tasks("train")[0])
    with pytest.raises(ConfigError, match="an action has digit, note"):
        await env.start()


async def test_a_limit_of_turns_and_a_server_that_is_gone():
    with serving(interpreter("OPENENV"), SCRIPT) as (address, server):
        family = OpenEnv(url=address, turns=1, timeout_s=20.0)
        env = family.make(family.tasks("train")[0])
        await env.start()
        last = await env.step("agent", say("act(0)"))
        assert (last.done, last.info["truncated"]) == (True, 1.0)
        await env.close()
        env = family.make(family.tasks("train")[1])
        await env.start()
        server.kill()
        server.wait()
        with pytest.raises(InfrastructureError, match="broke off"):
            await env.step("agent", say("act(0)"))
        await env.close()
        with pytest.raises(InfrastructureError, match="cannot be reached"):
            await family.make(family.tasks("train")[0]).start()


def test_what_does_not_fit_is_refused_in_one_sentence():
    for fields, message in [
        ({"url": "localhost:8000"}, 'url = "localhost:8000"'),
        ({"url": "http://x", "turns": 0}, "turns = 0"),
        ({"url": "http://x", "form": "spoken"}, "form = 'spoken'"),
        ({"url": "http://x", "scale": -1.0}, r"scale = -1\.0"),
        ({"url": "http://x", "describe": "nowhere:at_all"}, "cannot be imported"),
    ]:
        with pytest.raises(ConfigError, match=message):
            OpenEnv(**fields)
