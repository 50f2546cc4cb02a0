"""Programs as agents: what they ask becomes turns, token by token, and what they do is rewarded where it was said."""

import asyncio
import os
from pathlib import Path

import pytest
from made_world import Says  # noqa: F401

from sojourn.agents.program import Program
from sojourn.rollout.limits import Limits
from sojourn.rollout.runner import Rollout, Runner
from sojourn.types import Ending, SamplingParams
from tests.gateway_sessions import OddSampler, renderer, replies, said
from tests.program_worlds import DOOR, LOOP, Halls

PYTHON = "/usr/bin/python3"


async def played(script, family=None, *, turns=16, seconds=0.0, retries=0, **config):
    """Plays one episode of the halls by a program, the loop of tool calls unless `code` is another."""
    code = config.pop("code", LOOP + "run()")
    given = {"command": (PYTHON, "agent.py"), "files": {"agent.py": code}, "seconds": 60.0, **config}
    sampler, family = OddSampler(renderer(thinking=True), script), family or Halls()
    rollout = Rollout(limits=Limits(turns=turns, seconds=seconds), retries=retries)
    runner = Runner(rollout, family, Program(**given), sampler.format, sampler, 4096, 0)
    episode = await runner.play_episode(family.tasks("train")[0], SamplingParams(512, seed=3), "t")
    return episode, sampler, family


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
