"""Functions as agents: they ask the model over HTTP in the process that trains, and act in the world themselves."""

import argparse
import asyncio
import contextlib
import gc
import weakref

import httpx
import pytest

from sojourn.agents.programs import seat
from sojourn.agents.python import Python
from sojourn.errors import InfrastructureError
from sojourn.rollout.limits import Limits
from sojourn.rollout.runner import Rollout, Runner
from sojourn.types import Ending, SamplingParams
from tests.gateway_sessions import OddSampler, renderer, replies, said
from tests.program_worlds import DOOR, Halls

LET_GO = asyncio.Event()
SESSIONS = []  # weak references to those of a function's plays


async def asks(client, *texts):
    """Asks the model, after `texts` of the user."""
    body = {"model": client.model, "messages": [{"role": "user", "content": text} for text in texts]}
    async with httpx.AsyncClient(timeout=60) as http:
        answer = await http.post(f"{client.base_url}/chat/completions", json=body)
    answer.raise_for_status()
    return answer.json()["choices"][0]["message"]["content"]


async def looks(client):
    await asks(client, client.task)
    shown = await client.call("look", DOOR.arguments)
    await asks(client, client.task, shown.text)
    refused = await client.act("up")
    assert refused.refusal == "there is nothing to see"
    last = await client.act("done")
    return last.done


async def answers(client):
    return await asks(client, client.observation.messages[0].text)


async def fails(client):
    await asks(client, "Hi")
    raise KeyError("mine")


async def fails_at_once(client):
    raise KeyError("mine")


async def calls_what_is_not_there(client):
    await asks(client, "Hi")
    await client.call("fly", {})


async def calls_with_a_list(client):
    await asks(client, "Hi")
    await client.call("look", [1])


async def exits(client):
    """Parses what the model said as the arguments of a command."""
    await asks(client, "Hi")
    argparse.ArgumentParser().parse_args(["--unknown"])


async def exits_as_it_should(client):
    await asks(client, "Hi")
    raise SystemExit


async def asks_a_broken_server(client):
    """Is told so by one of several tasks."""
    await asks(client, "Hi")
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(asyncio.sleep(3600))
        tasks.create_task(breaks())


async def breaks():
    raise InfrastructureError("the sandbox is gone")


async def waits_for_what_is_cancelled(client):
    await asks(client, "Hi")
    task = asyncio.ensure_future(asyncio.sleep(3600))
    task.cancel()
    await task


async def asks_again(client):
    """Asks until there is a reply."""
    await asks(client, "Hi")
    while True:
        with contextlib.suppress(httpx.HTTPStatusError):
            return await asks(client, "Hi", "and")
        await asyncio.sleep(0.02)


async def acts_without(client):
    """Acts where there is no reply, too."""
    await asks(client, "Hi")
    with contextlib.suppress(httpx.HTTPStatusError):
        await asks(client, "Hi", "and")
    await client.act("done")


async def asks_two(client):
    await asks(client, "Hi")
    await asyncio.gather(asks(client, "Hi", "and"), asks(client, "A title?"))


async def acts_while_it_asks(client):
    SESSIONS.append(weakref.ref(client.site.service.sessions.get(client.key)))
    await asks(client, "Hi")
    asking = asyncio.ensure_future(asks(client, "Hi", "slow"))
    await asyncio.sleep(0.2)
    await client.act("done")
    await asking


async def goes_on(client):
    await asks(client, "Hi")
    await asyncio.sleep(3600)


async def ends_for_nobody(client):
    await asks(client, "Hi")
    while not LET_GO.is_set():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(0.01)


async def asks_nothing(client):
    await asyncio.sleep(3600)


async def two_at_once(client):
    """Sends two actions and ends, before either is answered."""
    await asks(client, "Hi")
    acts = [asyncio.ensure_future(client.call("look", DOOR.arguments)) for _ in range(2)]
    await asyncio.sleep(0)
    return acts and "done"


async def acts_as_it_ends(client):
    """Ends before its action is on its way."""

    async def acts():
        await asyncio.sleep(0)
        await client.call("look", DOOR.arguments)

    await asks(client, "Hi")
    sending.append(asyncio.ensure_future(acts()))


sending: list[asyncio.Future] = []  # nothing else holds them


def no_coroutine(client): ...


async def played(function, script, *, wait=None, **config):
    sampler, family = OddSampler(renderer(), script, wait=wait), Halls()
    agent = Python(function=f"{__name__}:{function}", **config)
    runner = Runner(Rollout(limits=Limits(turns=16), retries=0), family, agent, sampler.format, sampler, 4096, 0)
    episode = await runner.play_episode(family.tasks("train")[0], SamplingParams(512), "t")
    return episode, sampler, family


async def test_a_function_asks_and_acts():
    episode, sampler, _ = await played("looks", replies(said("I look."), said("I go on.")))
    assert episode.error is None
    [trajectory] = episode.trajectories
    assert [turn.reward for turn in trajectory.turns] == [0.5, 1.0]
    assert [turn.info.get("malformed", 0.0) for turn in trajectory.turns] == [0.0, 1.0]
    assert trajectory.success
    assert "The door, 1." in sampler.format.decode(sampler.prompts[1])
    assert [trajectory.prompt(n).tolist() for n in range(2)] == sampler.prompts


@pytest.mark.parametrize("last", ["{reply}", "{output}"])
async def test_what_it_returns_or_the_model_said_may_be_its_last_action(last):
    episode, *_, family = await played("answers", replies(said(" done ")), last_action=last)
    assert family.made[0].actions[-1].text == "done"
    assert episode.trajectories[0].reward == 1.0


async def test_a_last_reply_that_cannot_be_read_acts_itself_not_an_earlier_one():
    """Else the turn that cannot be read would have the reward of one before it."""
    broken = "<tool_call>no call</tool_call><|im_end|>"
    episode, *_, family = await played("asks_again", replies(said("done"), broken), last_action="{reply}")
    assert [action.text for action in family.made[0].actions] == ["<tool_call>no call</tool_call>"]
    assert [turn.reward for turn in episode.trajectories[0].turns] == [0.0, 0.0]


async def test_actions_that_were_sent_before_it_ended_are_performed():
    episode, *_, family = await played("two_at_once", replies(said("Hi")), last_action="{output}")
    assert [len(action.calls) for action in family.made[0].actions] == [1, 1, 0]
    assert episode.trajectories[0].reward == 2.0


async def test_an_action_that_is_sent_as_it_ends_is_performed():
    episode, *_, family = await played("acts_as_it_ends", replies(said("Hi")))
    assert [len(action.calls) for action in family.made[0].actions] == [1]
    assert episode.trajectories[0].reward == 0.5
    sending.clear()


async def test_what_a_function_raises_is_told_by_when_it_raises():
    episode, *_ = await played("fails", replies(said("Hi")))
    assert episode.error is None
    assert episode.trajectories[0].turns[0].info["program_failed"] == 1.0
    assert episode.trajectories[0].ending is Ending.DONE
    episode, *_ = await played("fails_at_once", replies())
    assert "KeyError: 'mine'" in str(episode.error)


@pytest.mark.parametrize(
    ("function", "error"),
    [("calls_what_is_not_there", "there is no tool 'fly'"), ("calls_with_a_list", "expected an object")],
)
async def test_a_call_that_is_none_is_a_failure_of_the_policy(function, error):
    episode, *_ = await played(function, replies(said("Hi")))
    assert episode.error is None
    [turn] = episode.trajectories[0].turns
    assert turn.info["program_failed"] == 1.0
    assert error in turn.notes["program's errors"]


@pytest.mark.parametrize(
    ("function", "code", "error"),
    [
        ("exits", 1, "SystemExit: 2"),
        ("exits_as_it_should", 0, ""),
        ("waits_for_what_is_cancelled", 1, "CancelledError"),
    ],
)
async def test_a_function_that_exits_or_is_cancelled_within_ends_its_own_episode(function, code, error):
    episode, *_ = await played(function, replies(said("Hi")))
    assert episode.error is None
    [turn] = episode.trajectories[0].turns
    assert turn.info.get("program_failed", 0.0) == code
    assert error in turn.notes.get("program's errors", "")


@pytest.mark.parametrize("function", ["asks_again", "acts_without", "asks_two"])
async def test_what_a_function_does_without_the_engine_is_not_trained_on(function):
    def script(prompt):
        if "and" in prompt:
            raise InfrastructureError("the engine is gone")
        return said("Hi")

    episode, *_ = await played(function, script, seconds=1.0)
    assert "the model gave a program no reply: the engine is gone" in str(episode.error)
    assert episode.trajectories[0].turns, "for people to look at"


async def test_a_failure_of_the_infrastructure_in_a_group_of_tasks_is_one():
    episode, *_ = await played("asks_a_broken_server", replies(said("Hi")))
    assert "the sandbox is gone" in str(episode.error)


async def test_an_engine_that_recovers_harms_no_episode():
    left = [None, RuntimeError("not now"), None]

    def script(prompt):
        if (error := left.pop(0)) is not None:
            raise error
        return said("Hi")

    episode, *_ = await played("asks_again", script)
    assert episode.error is None
    assert len(episode.trajectories[0].turns) == 2


async def test_no_session_outlives_its_play():
    """Nor does a reply that was under way when the play ended."""
    prompts, ended = [], []

    def script(prompt):
        prompts.append(prompt)
        return said("Hi")

    async def wait():
        if "slow" in prompts[-1]:
            try:
                await asyncio.sleep(3600)
            finally:
                ended.append(True)

    episode, *_ = await played("acts_while_it_asks", script, wait=wait)
    assert episode.trajectories[0].success
    await asyncio.sleep(0.05)
    assert ended == [True]
    gc.collect()
    assert SESSIONS.pop()() is None


async def test_a_function_that_ignores_its_cancellation_is_abandoned(monkeypatch):
    monkeypatch.setattr(seat, "ENDING_S", 0.1)
    try:
        episode, *_ = await asyncio.wait_for(played("ends_for_nobody", replies(said("Hi")), seconds=0.2), 10)
    finally:
        LET_GO.set()
    assert "did not end within 0.1 s after it was cancelled" in str(episode.error)


async def test_it_ends_with_its_time():
    episode, *_ = await played("goes_on", replies(said("Hi")), seconds=1.0)
    assert episode.trajectories[0].ending is Ending.TIME


async def test_one_that_asks_nothing_in_its_time_is_a_failure_of_the_infrastructure():
    episode, *_ = await played("asks_nothing", replies(), seconds=0.2)
    assert "went on for 0.2 s, as long as it may, and the model gave it no reply" in str(episode.error)


def test_only_asynchronous_functions_act():
    with pytest.raises(ValueError, match="expected an asynchronous function"):
        Python(function=f"{__name__}:no_coroutine")
