"""What real clients sent (see benchmarks/clients.py) leads to the turns that it led to when they were there."""

import json
from pathlib import Path

import pytest

from sojourn.gateway.server import APIS
from sojourn.types import Ending
from tests.gateway.clients.table import CLIENTS
from tests.gateway.clients.task import LONG, SUMMARY
from tests.gateway_sessions import cause, exact, session

RECORDED = sorted((Path(__file__).parent / "recorded").glob("*.json"))
FOREST = {  # the parent of each turn
    "aider_chat": [-1, -1],
    "anthropic_messages": [-1, 0, 1, 2],
    "autogen_chat": [-1, 0, 1, 2],
    "claude_code_messages": [-1, -1, 1, 2, 3],
    "claude_code_messages_sub_agents": [-1, -1, -1, 2, 3, 1, 5],
    "claude_code_messages_compaction": [-1, -1, 1, 1, -1, 4],
    "codex_responses": [-1, 0, 1, 2],
    "codex_responses_compaction": [-1, -1, -1, 2, 3],
    "crewai_chat": [-1, 0, 1],
    "dspy_chat": [-1, -1, -1, -1, -1],
    "google_adk_chat": [-1, 0, 1, 2],
    "langgraph_chat": [-1, 0, 1, 2],
    "langgraph_messages": [-1, 0, 1, 2],
    "langgraph_responses": [-1, 0, 1, 2],
    "mini_swe_agent_chat": [-1, -1, 1, 2],
    "openai_agents_chat": [-1, 0, 1, 2],
    "openai_agents_responses": [-1, 0, 1, 2],
    "openai_chat": [-1, 0, 1, 2],
    "openai_responses": [-1, 0, 1, 2],
    "opencode_chat": [-1, -1, 1, 2, 3],
    "opencode_chat_compaction": [-1, -1, -1, -1, 3, 4],
    "opencode_chat_sub_agents": [-1, -1, -1, 2, 3, 1, 5],
    "pi_chat": [-1, 0, 1, 2],
    "pi_chat_compaction": [-1, 0, -1, -1, 3],
    "pydantic_ai_chat": [-1, 0, 1, 2],
    "pydantic_ai_messages": [-1, 0, 1, 2],
    "pydantic_ai_responses": [-1, 0, 1, 2],
    "qwen_code_chat": [-1, 0, 1, -1, -1],
    "smolagents_chat": [-1, -1, -1, -1],
    "strands_chat": [-1, 0, 1, 2],
}


async def replayed(path):
    """Answers the recorded requests of a client, one after another, in a session of their own."""
    fixture = json.loads(path.read_text())
    (client,) = [client for client in CLIENTS if client.key == path.stem]
    one, sampler = session(client.script, "recorded", thinking=True, max_context=1_000_000)
    for request in fixture["requests"]:
        name = next(name for name in APIS if request["path"].endswith(name))
        body = {**request["body"], "tools": fixture["tools"][request["tools"]]}
        await one.reply(APIS[name].read(body))
    return fixture, one, sampler


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
async def test_what_a_client_sent_becomes_the_same_turns(path):
    fixture, one, sampler = await replayed(path)
    assert [{"parent": turn.parent, "cause": cause(turn)} for turn in one.turns] == fixture["turns"]
    exact(one, sampler)
    trajectory = one.trajectory(Ending.DONE)
    for number, turn in enumerate(one.turns):
        if turn.parent >= 0:
            before = [*trajectory.prompt(turn.parent).tolist(), *one.turns[turn.parent].sample.tokens.tolist()]
            assert trajectory.prompt(number).tolist()[: len(before)] == before


@pytest.mark.parametrize("path", [path for path in RECORDED if "compaction" in path.stem], ids=lambda path: path.stem)
async def test_a_compaction_in_the_middle_of_a_task_is_known_and_all_its_turns_are_trained(path):
    _, one, sampler = await replayed(path)
    assert one.counts["window_compacted"] == 1
    assert one.counts["window_rewritten"] == 0
    compacted = next(n for n, turn in enumerate(one.turns) if cause(turn) == "compacted")
    asked, after = (sampler.format.decode(sampler.prompts[n]) for n in (compacted - 1, compacted))
    assert SUMMARY not in one.turns[0].message.text
    assert one.turns[compacted - 1].message.text == SUMMARY
    assert LONG in asked or "quokka41" in asked
    assert SUMMARY in after
    assert LONG not in after
    assert all(len(turn.sample.tokens) for turn in one.trajectory(Ending.DONE).turns)


def test_every_client_is_recorded():
    assert [path.stem for path in RECORDED] == sorted(client.key for client in CLIENTS)
    assert {
        path.stem: [turn["parent"] for turn in json.loads(path.read_text())["turns"]] for path in RECORDED
    } == FOREST
