"""Against a real resources server in an interpreter that SOJOURN_NEMO_GYM_PYTHON names (make adapters)."""

import json
from pathlib import Path

import pytest
from nemo_gym_hooks import row
from playing import expert_play, failed, say
from served import interpreter, serving

from sojourn.checks.env import check_env
from sojourn.checks.report import Outcome
from sojourn.errors import ActionError, ConfigError, InfrastructureError
from sojourn.types import Message, Role, ToolCall
from sojourn_worlds.adapters.nemo_gym import NemoGym

SCRIPT = Path(__file__).parent / "nemo_gym_server.py"


@pytest.fixture
def rows(tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join(json.dumps(row(i, 3 * i + 4)) for i in range(5)))
    return str(file)


@pytest.fixture(scope="module")
def url():
    with serving(interpreter("NEMO_GYM"), SCRIPT) as (address, _):
        yield address


async def test_a_resources_server_keeps_the_promises_of_a_world(url, rows):
    family = NemoGym(url=url, instructions=rows, expert="nemo_gym_hooks:count")
    report = await check_env(family, episodes=3)
    assert report.passed, failed(report)
    assert report["forks are equal and independent"].outcome is Outcome.PASSED
    assert report["the expert succeeds"].outcome is Outcome.PASSED


async def test_tools_are_called_in_a_session_and_the_answer_is_verified(url, rows):
    family = NemoGym(url=url, instructions=rows, expert="nemo_gym_hooks:count", turns=4)
    assert [len(family.tasks(split)) for split in ("train", "test")] == [4, 1]
    for split in ("train", "test"):
        steps, _ = await expert_play(family, 0, split)
        assert (steps[-1].success, steps[-1].rewards["agent"]) == (True, 1.0)
    env = family.make(family.tasks("train")[1])  # from 1 to 7
    first = await env.start()
    assert first.system[0].text.splitlines() == [
        "You count.",
        "Say one of these calls:",
        "increment_counter(count: int): Adds.",
        "get_counter_value()",
        "Or say your answer in words: that ends the task.",
    ]
    for text in ("increment_counter('x')", "increment_counter()", "get_counter_value(1", "", "x" * 20_000, "\ud800"):
        with pytest.raises(ActionError):
            await env.step("agent", say(text))
    calls = (ToolCall("increment_counter", {"count": 2}, "a"), ToolCall("get_counter_value", {}, "b"))
    step = await env.step("agent", Message(Role.ASSISTANT, calls=calls))
    assert [(m.text, m.answers) for m in step.observation.messages] == [('{"success":true}', "a"), ('{"count":3}', "b")]
    lost = await env.step("agent", say("That should do."))
    assert (lost.done, lost.success, lost.rewards) == (True, False, {"agent": 0.0})
    idle = family.make(family.tasks("train")[1])
    await idle.start()
    steps = [await idle.step("agent", say("get_counter_value()")) for _ in range(4)]
    assert (steps[-1].done, steps[-1].success, steps[-1].info["truncated"]) == (True, False, 1.0)


async def test_a_server_that_is_gone_or_refuses_is_not_the_agents_fault(rows, tmp_path):
    with serving(interpreter("NEMO_GYM"), SCRIPT) as (address, server):
        bad = tmp_path / "bad.jsonl"
        bad.write_text(json.dumps({"responses_create_params": {"input": "count"}}))
        family = NemoGym(url=address, instructions=str(bad))
        with pytest.raises(InfrastructureError, match=r"refused the row \(422\)"):
            await family.make(family.tasks("train")[0]).start()
        family = NemoGym(url=address, instructions=rows)
        env = family.make(family.tasks("train")[0])
        await env.start()
        server.kill()
        server.wait()
        with pytest.raises(InfrastructureError, match="cannot be reached"):
            await env.step("agent", say("get_counter_value()"))


def test_what_does_not_fit_is_refused_in_one_sentence(rows, tmp_path):
    empty = tmp_path / "empty.jsonl"
    empty.write_text('{"question": "why?"}')
    for change, message in [
        ({"url": "127.0.0.1:8000"}, "but it must be such as"),
        ({"turns": 0}, "turns = 0"),
        ({"form": "spoken"}, "form = 'spoken'"),
        ({"scale": 0.0}, r"scale = 0\.0"),
        ({"instructions": str(empty)}, "no responses_create_params"),
        ({"expert": "nemo_gym_hooks:nobody"}, "cannot be imported"),
    ]:
        with pytest.raises(ConfigError, match=message):
            NemoGym(**{"url": "http://x", "instructions": rows, **change})
