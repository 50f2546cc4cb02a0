import asyncio
import io
import os
import re

import pytest
from rich.console import Console

from sojourn.agents.person import Played, play_in_terminal
from sojourn.envs.tools import as_family
from sojourn.envs.toy import ROOMS, Toy
from sojourn.errors import ConfigError
from sojourn.types import Message, Observation, Role, Step, Task

TOY = Toy(choices=True)
TASK = TOY.tasks("train")[0]


class Watching:
    """A family that remembers whether what it opened was closed."""

    def __init__(self, family):
        self.family, self.log = family, []

    async def open(self):
        self.log.append("open")

    async def close(self):
        self.log.append("close")

    def tasks(self, split):
        return self.family.tasks(split)

    def make(self, task):
        env, log = self.family.make(task), self.log

        class Env(type(env)):
            async def close(self):
                log.append("closed env")

        env.__class__ = Env
        return env


def plan() -> list[str]:
    env = TOY.make(TASK)
    return env.layout.plan(env.state)


async def play(typed: str, family=TOY, task=TASK, **options) -> tuple[Played, str]:
    out = io.StringIO()
    console = Console(file=out, width=200)
    return await play_in_terminal(family, task, console, stream=io.StringIO(typed), **options), out.getvalue()


async def test_a_person_plays_to_the_end():
    played, shown = await play("\n".join(plan()) + "\n")
    assert played == Played(turns=len(plan()), reward=1.0, success=True, done=True)
    assert "Take the treasure." in shown
    assert len(re.findall(rf"The (?:{'|'.join(ROOMS)})\.", shown)) == len(plan())
    assert f"success, reward 1, {len(plan())} turns" in shown


async def test_numbers_stand_for_choices():
    env = TOY.make(TASK)
    typed, observation = [], await env.start()
    for action in plan():
        typed.append(str(observation.choices.index(action) + 1))
        observation = (await env.step("agent", Message(Role.ASSISTANT, action))).observation
    played, shown = await play("\n".join(typed) + "\n")
    assert played.success
    assert "  1  go " in shown


async def test_a_refused_action_is_told_and_costs_no_turn():
    played, shown = await play("\n".join(["dance", "99", *plan()]) + "\n")
    assert '"dance" is no action, say go, take or open.' in shown
    assert '"99" is no action' in shown
    assert played.turns == len(plan())


@pytest.mark.parametrize("typed", ["", "1\n", "1\n:quit\n", ":quit\nnever read\n"])
async def test_leaving_ends_the_play_and_closes_the_world(typed):
    family = Watching(TOY)
    played, shown = await play(typed, family)
    assert not played.done
    assert not played.success
    assert played.turns == typed.count("1")
    assert "left before the end" in shown
    assert family.log == ["open", "closed env", "close"]


async def test_hints_and_help_take_no_turn():
    played, shown = await play("\n:hint\n:help\n")
    assert played.turns == 0
    assert f"> {plan()[0]}\n" in shown.replace("> > ", "> ")
    assert shown.count(":quit to leave") == 3
    _, shown = await play(":hint\n", as_family(Silent), as_family(Silent).tasks("train")[0])
    assert "there is no expert here" in shown


async def test_the_expert_plays_while_one_watches():
    played, shown = await play("", expert=True)
    assert played.success
    for action in plan():
        assert f"> {action}\n" in shown


class Silent:
    """Say stop."""

    def __init__(self, seed: int): ...

    def stop(self) -> None:
        """Ends it."""

    def reward(self) -> float | None: ...


async def test_watching_where_there_is_no_expert_is_refused():
    family = as_family(Silent)
    with pytest.raises(ConfigError, match="no expert"):
        await play("", family, family.tasks("train")[0], expert=True)


async def test_tools_are_shown_and_turns_are_limited():
    family = as_family(Silent, form="native")
    played, shown = await play("stop()\n" * 5, family, family.tasks("train")[0], max_turns=3)
    assert "stop()  Ends it." in shown
    assert played == Played(turns=3, reward=0.0, success=False, done=False)


async def test_what_the_world_says_is_shown_as_it_is():
    class Loud:
        async def start(self):
            return Observation((Message(Role.USER, "[red]not markup[/red] :smile:", images=("abc",)),), agent="left")

        async def step(self, agent, action):
            return Step(None, {"left": -0.5}, done=True)

        async def close(self): ...

    class Family:
        def tasks(self, split):
            return []

        def make(self, task):
            return Loud()

    played, shown = await play("x\n", Family(), Task("loud", {}, 0, "train"))
    assert "[red]not markup[/red] :smile:" in shown
    assert "[left]" in shown
    assert "(image abc)" in shown
    assert played == Played(turns=1, reward=-0.5, success=False, done=True)


async def test_cancelling_while_a_line_is_awaited_closes_the_world():
    family = Watching(TOY)
    read, write = os.pipe()
    console = Console(file=io.StringIO())
    with os.fdopen(read) as terminal, os.fdopen(write, "w") as keyboard:
        task = asyncio.ensure_future(play_in_terminal(family, TASK, console, stream=terminal))
        while "Take the treasure." not in console.file.getvalue() or ">" not in console.file.getvalue():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert family.log == ["open", "closed env", "close"]
        keyboard.write("\n")  # lets the reading thread end
        keyboard.flush()
