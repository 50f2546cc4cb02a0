"""Agents of the command line, each for one whole episode: they must be installed, as `make clients` does, which sets
`SOJOURN_CLIENTS` to the folder where they are."""

import os
from pathlib import Path

import pytest

from sojourn.agents.program import Program
from sojourn.agents.programs.presets import PRESETS
from sojourn.rollout.limits import Limits
from sojourn.rollout.runner import Rollout, Runner
from sojourn.types import Ending, SamplingParams, ToolCall
from tests.gateway.clients.table import CLAUDE, CODEX, MINI, OPENCODE, PI, Client
from tests.gateway_sessions import OddSampler, renderer, said
from tests.program_worlds import Halls

HOME = os.environ.get("SOJOURN_CLIENTS", "")
pytestmark = [
    pytest.mark.skipif(not HOME, reason="make clients sets SOJOURN_CLIENTS"),
]
CLIENTS: dict[str, Client] = {"claude": CLAUDE, "codex": CODEX, "mini": MINI, "opencode": OPENCODE, "pi": PI}
LOOK = {"claude": "mcp__world__look", "codex": "mcp__world__look", "opencode": "world_look"}  # the world's tool there
SHELL = {"mini": "bash", "pi": "bash"}  # those that know no MCP act by the world's plain HTTP
ACT = """curl -s -X POST -d '{"name": "look", "arguments": {"at": "door"}}' $SOJOURN_URL/act"""
END = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
SANDBOX = {"mini": False}  # its Python may be below a home folder, which no sandbox shows


def script(name):
    """Says what the model does: it looks at the door once, and then says that it is done."""
    look = ToolCall(LOOK[name], {"at": "door"}) if name in LOOK else ToolCall(SHELL[name], {"command": ACT})

    def reply(prompt):
        if "<tools>" not in prompt:
            return said("A title")
        if "The door, 1." not in prompt:
            return said("I look.", "", look)
        return said("", "", ToolCall("bash", {"command": END})) if name == "mini" else said("All seen.")

    return reply


def installed(name):
    """Returns the program of a preset, and the folder in which it is installed."""
    client = CLIENTS[name]
    folder = Path(HOME, client.name).resolve()
    return folder / ("node_modules/.bin" if client.npm else "bin") / PRESETS[name].program, folder


@pytest.mark.parametrize("name", sorted(PRESETS))
async def test_a_preset_plays_an_episode(name):
    program, folder = installed(name)
    sandbox = SANDBOX.get(name, True)
    agent = Program(preset=name, command=(str(program),), sandbox=sandbox, read=(str(folder),) if sandbox else (),
                    last_action="done", seconds=240.0, memory_bytes=2**33, replies=6)  # fmt: skip
    agent.require_installed()
    sampler, family = OddSampler(renderer(), script(name)), Halls()
    runner = Runner(Rollout(limits=Limits(turns=16), retries=0), family, agent, sampler.format, sampler, 400_000, 0)
    episode = await runner.play_episode(family.tasks("train")[0], SamplingParams(512), "t")
    assert episode.error is None
    [trajectory] = episode.trajectories
    assert [trajectory.prompt(n).tolist() for n in range(len(trajectory.turns))] == sampler.prompts
    assert [turn.sample.tokens.tolist() for turn in trajectory.turns] == [
        one.tokens.tolist() for one in sampler.samples
    ]
    assert not any(turn.info.get("program_failed") for turn in trajectory.turns)
    assert sum(turn.parent >= 0 for turn in trajectory.turns) >= 1
    assert trajectory.ending is Ending.DONE
    assert trajectory.reward == 1.5
    assert trajectory.success
