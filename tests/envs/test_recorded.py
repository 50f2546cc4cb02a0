"""Recorded conversations as a world: what it shows and pays, how it ends, and what can be learnt in it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from trained_run import RECIPE, train
from typer.testing import CliRunner

from sojourn.cli import app
from sojourn.envs.recorded import Recorded
from sojourn.errors import ConfigError
from sojourn.types import Message, Observation, Role, ToolCall

TOOLS = [{"type": "function", "function": {"name": "look", "description": "", "parameters": {"type": "object"}}}]


def conversation(number: int, *words: str, success: bool | None = None) -> Mapping[str, Any]:
    messages = [{"role": "system", "content": "Play."}, {"role": "user", "content": f"Task {number}."}]
    for word in words:
        messages += [{"role": "assistant", "content": word}, {"role": "user", "content": f"After {word}."}]
    return {"messages": messages[:-1]} | ({} if success is None else {"success": success})


def written(path: Path, *lines: Mapping[str, Any]) -> str:
    path.write_text("\n".join(map(json.dumps, lines)))
    return str(path)


def say(text: str, *calls: ToolCall) -> Message:
    return Message(Role.ASSISTANT, text, calls=calls)


def shown(observation: Observation | None) -> list[str]:
    assert observation is not None
    return [message.text for message in observation.messages]


async def test_a_play_goes_on_as_long_as_the_same_is_done(tmp_path: Path):
    world = Recorded(files=(written(tmp_path / "a.jsonl", conversation(1, "go  north", "take key", "go south")),))
    [task] = world.tasks("train")
    play = world.make(task)
    first = await play.start()
    assert (shown(first), [message.text for message in first.system]) == (["Task 1."], ["Play."])
    assert play.expert() == "go  north"
    step = await play.step("agent", say("go north"))
    assert (shown(step.observation), step.rewards, step.done) == (["After go  north."], {"agent": 1 / 3}, False)
    other = await play.fork()
    step = await play.step("agent", say("take lamp"))
    assert (step.observation, step.rewards, step.done, step.success) == (None, {"agent": 0}, True, False)
    assert other.state_key() != world.make(task).state_key()
    step = await other.step("agent", say(other.expert()))
    assert shown(step.observation) == ["After take key."]
    step = await other.step("agent", say(other.expert()))
    assert (step.rewards, step.done, step.success) == ({"agent": 1 / 3}, True, True)


async def test_calls_answers_and_thoughts_are_those_of_the_file(tmp_path: Path):
    call = {"type": "function", "function": {"name": "look", "arguments": '{"at": 1}'}}
    messages = [
        {"role": "user", "content": "Task."},
        {"role": "assistant", "content": "", "reasoning_content": "Let me see.", "tool_calls": [call]},
        {"role": "tool", "content": "A lamp."},
        {"role": "assistant", "content": "It is a lamp."},
    ]
    file = written(tmp_path / "a.jsonl", {"messages": messages, "tools": TOOLS})
    for thoughts, thought in ((True, "Let me see."), (False, "")):
        world = Recorded(files=(file,), thoughts=thoughts)
        play = world.make(world.tasks("train")[0])
        assert [tool.name for tool in (await play.start()).tools] == ["look"]
        assert play.expert() == "look(at=1)"
        action = play.native_action(play.expert())
        assert (action.thought, [(c.name, c.arguments) for c in action.calls]) == (thought, [("look", {"at": 1})])
        step = await play.step("agent", say("Well:", ToolCall("look", {"at": 1}, "x")))
        assert step.observation is not None
        assert [(m.role, m.text) for m in step.observation.messages] == [(Role.TOOL, "A lamp.")]
        assert (await play.step("agent", say("It is a lamp."))).success


def test_the_splits_share_no_task_and_failures_are_left_out(tmp_path: Path):
    """Two conversations with the same beginning are of one task."""
    lines = [conversation(number, "go", *word, success=number != 3) for number in range(10) for word in ((), ("on",))]
    file = written(tmp_path / "a.jsonl", *lines, lines[0])
    world = Recorded(files=(file,), test_fraction=0.3)
    train_tasks, test_tasks = world.tasks("train"), world.tasks("test")
    assert (len(train_tasks), len(test_tasks)) == (12, 6)
    assert len({task.id for task in (*train_tasks, *test_tasks)}) == 18
    opened = [world.make(task).played.exchanges[0].shown[0].text for task in test_tasks]
    assert len(set(opened)) == 3
    assert "Task 3." not in opened
    assert len(Recorded(files=(file,), success_only=False).tasks("train")) == 16
    assert len(Recorded(files=(file,), test_fraction=0.0).tasks("test")) == 0


def test_what_cannot_be_played_is_refused(tmp_path: Path):
    failed = written(tmp_path / "a.jsonl", conversation(1, "go", success=False))
    with pytest.raises(ConfigError, match="hold no conversation that can be played"):
        Recorded(files=(failed,)).tasks("train")
    with pytest.raises(ValueError, match=r"files = \[\]: name at least one"):
        Recorded(files=())
    with pytest.raises(ConfigError, match=r"recorded: files: .*gone.jsonl"):
        Recorded(files=(str(tmp_path / "gone.jsonl"),)).tasks("train")
    other = Recorded(files=(written(tmp_path / "b.jsonl", conversation(2, "go")),))
    with pytest.raises(ConfigError, match="is of no conversation of files"):
        Recorded(files=(failed,), success_only=False).make(other.tasks("train")[0])


def test_the_world_keeps_its_promises_and_trains(tmp_path: Path):
    """Semi-online roll-outs need no world but the recorded episodes; an evaluation in them is the semi-online
    performance."""
    run = train(tmp_path / "run", "stages.warmup.groups.width=8", "stages.warmup.groups.distinct_tasks=8")
    file = tmp_path / "episodes.jsonl"
    done = CliRunner().invoke(app, ["export", str(run), "--where", "stage:warmup", "--out", str(file)])
    assert done.exit_code == 0, done.output
    done = CliRunner().invoke(app, ["check", "recorded", f'files=["{file}"]', "success_only=false"])
    assert done.exit_code == 0, done.output
    env = RECIPE[RECIPE.index("[env]") : RECIPE.index("[agent]")]
    recorded = RECIPE.replace(env, f'[env]\nname = "recorded"\nfiles = ["{file}"]\nsuccess_only = false\n')
    groups = 'stages.rl.groups={name="semi_online", width=2, size=4}'
    learns = (groups, 'stages.rl.estimator={name="ui_s1"}', "agent.choices=false")
    again = train(tmp_path / "again", *learns, recipe=recorded)
    lines = [json.loads(line) for line in (again / "metrics.jsonl").read_text().splitlines()]
    assert 0 <= lines[-1]["semi_online_progress"] < 1
    assert lines[-1]["patched"] > 0
