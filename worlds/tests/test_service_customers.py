"""Service with its customer in a seat, which any model takes."""

from __future__ import annotations

import re

import pytest
from people_at_play import answered, enter, say, shown

from sojourn.checks.env import check_env
from sojourn.envs.user_seat import STOP
from sojourn.errors import ActionError, InfrastructureError
from sojourn.types import Message, Role, ToolCall
from sojourn_worlds.service import Service


def ada(system: str, told: str) -> str:
    """Plays any customer by its instructions."""
    if "confirm" in told:
        return "Yes, please."
    if "else" in told:
        return f"No. {STOP}"
    return re.search(r"You are (.*)", system).group(1) if system else "I told you."


@pytest.mark.parametrize("form", ["both", "native"])
async def test_anybody_may_take_the_seat_of_the_customer(form: str) -> None:
    family, won = Service(user="seat", denied=0.0, form=form), 0
    assert family.seats == ("agent", "user")
    for index in range(12):
        env = enter(family, index)
        assert shown_start(await env.start()).startswith("Customer: ")
        asked = await env.step("agent", say('say("Who are you?")'))
        assert asked.observation.agent == "user"
        assert asked.observation.tools == ()
        assert "You want the following" in asked.observation.system[0].text
        greeting = await answered(env, asked, ada)
        assert greeting.observation.agent == "agent"
        assert "zip code" in shown(greeting)
        while True:
            action = env.expert()
            step = await env.step("agent", say(action if action != "finish()" else 'say("Anything else?")'))
            step = await answered(env, step, ada)
            if step.done:
                break
        assert step.rewards["agent"] == step.rewards["user"]
        won += step.rewards["agent"]
        await env.close()
    assert won == 12
    report = await check_env(family)
    assert report.passed, report.failed


async def test_the_answer_takes_the_place_of_what_the_tool_returned() -> None:
    env = enter(Service(user="seat"))
    await env.start()
    calls = (ToolCall("get_product", {"product": "mug"}, "a"), ToolCall("say", {"text": "Who are you?"}, "b"))
    step = await env.step("agent", Message(Role.ASSISTANT, calls=calls))
    with pytest.raises(ActionError, match="from 1 to 2000"):
        await env.step("user", say(" "))
    assert step.observation.agent == "user"
    seen = (await env.step("user", say("Ada."))).observation.messages
    assert [message.answers for message in seen] == ["a", "b"]
    assert seen[1].text == "Customer: Ada."
    both = (ToolCall("say", {"text": "Hello."}, "a"), ToolCall("say", {"text": "Hello?"}, "b"))
    step = await env.step("agent", Message(Role.ASSISTANT, calls=both))
    seen = (await env.step("user", say("Yes?"))).observation.messages
    assert seen[0].text == "Customer: Yes?"
    assert "wait for the user's answer" in seen[1].text
    with pytest.raises(InfrastructureError, match="an action of user in the turn of agent"):
        await env.step("user", say("Me again."))


def shown_start(observation) -> str:
    return observation.messages[0].text
