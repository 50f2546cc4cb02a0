"""Services elsewhere as agents: they open sessions over HTTP, act, close them; what goes wrong harms nobody else."""

import asyncio
import socket
from contextlib import closing

import httpx
import pytest

from sojourn.agents.remote import Remote
from sojourn.config.registry import build
from sojourn.config.toml import Tables
from sojourn.errors import ConfigError, InfrastructureError
from sojourn.rollout.limits import Limits
from sojourn.rollout.runner import Rollout, Runner
from sojourn.train.resolve import resolve
from sojourn.types import Ending, SamplingParams
from tests.agents.test_program_recipes import STAGE, TABLE
from tests.gateway_sessions import OddSampler, renderer, replies, said
from tests.program_worlds import DOOR, Halls

LOOK = {"name": DOOR.name, "arguments": dict(DOOR.arguments)}


def free_port():
    with closing(socket.create_server(("127.0.0.1", 0))) as one:
        return one.getsockname()[1]


class Service:
    """Asks the run at a port for episodes, and does what a test says in each."""

    def __init__(self, port, token=""):
        self.root = f"http://127.0.0.1:{port}"
        self.headers = {"Authorization": f"Bearer {token}"} if token else {}

    async def send(self, url, json=None, headers=None):
        async with httpx.AsyncClient(timeout=60, headers=self.headers) as http:
            return await http.post(url, json=json, headers=headers)

    async def open(self):
        """Returns the next episode; before the run listens, it asks again."""
        while True:
            try:
                answer = await self.send(f"{self.root}/open", json={"wait_s": 20})
            except httpx.ConnectError:
                await asyncio.sleep(0.01)
                continue
            if answer.status_code == 200:
                return answer.json()
            assert answer.status_code == 204, answer.text

    async def ask(self, told, *texts):
        messages = [{"role": "user", "content": text} for text in texts or [told["task"]]]
        answer = await self.send(
            f"{told['base_url']}/chat/completions", json={"model": told["model"], "messages": messages}
        )
        return answer.raise_for_status().json()["choices"][0]["message"]["content"]

    async def post(self, told, path, body=None):
        return await self.send(f"{told['url']}/{path}", json=body or {})


def begin(script, port, *, retries=0, episodes=1, **config):
    """Begins to play; returns the task of the episodes, with the world and the sampler."""
    sampler, family = OddSampler(renderer(), script), Halls()
    agent = Remote(port=port, **config)
    rollout = Rollout(limits=Limits(turns=16), retries=retries)
    runner = Runner(rollout, family, agent, sampler.format, sampler, 4096, 0)
    task = family.tasks("train")[0]

    async def play():
        plays = [runner.play_episode(task, SamplingParams(512, seed=n), f"t{n}") for n in range(episodes)]
        return await asyncio.gather(*plays)

    return asyncio.create_task(play()), family, sampler


async def test_a_service_opens_a_session_acts_and_closes_it():
    port = free_port()
    playing, family, sampler = begin(replies(said("I look."), said("I go on.")), port, last_action="{output}")
    service = Service(port)
    told = await service.open()
    assert told["task"] == "Look at the door.\n\nYou are in a hall."
    assert await service.ask(told) == "I look."
    shown = (await service.post(told, "act", LOOK)).json()
    assert shown["messages"][0]["content"] == "The door, 1."
    listed = (await service.post(told, "mcp", {"jsonrpc": "2.0", "id": 1, "method": "tools/list"})).json()
    assert [tool["name"] for tool in listed["result"]["tools"]] == ["look", "say"]
    await service.ask(told, told["task"], "The door")
    assert (await service.post(told, "alive")).json() == {"done": False}
    assert (await service.post(told, "close", {"output": "done"})).json() == {"closed": True}
    [episode] = await playing
    [trajectory] = episode.trajectories
    assert [turn.reward for turn in trajectory.turns] == [0.5, 1.0]
    assert [trajectory.prompt(n).tolist() for n in range(2)] == sampler.prompts
    assert trajectory.ending is Ending.DONE
    assert trajectory.success
    assert (await service.post(told, "close")).status_code == 404
    assert (await service.post(told, "act", LOOK)).status_code == 404
    assert len(family.made[0].actions) == 2


async def test_the_world_ends_an_episode_for_its_service():
    port = free_port()
    playing, *_ = begin(replies(said("Well.")), port)
    service = Service(port)
    told = await service.open()
    await service.ask(told)
    assert (await service.post(told, "act", {"text": "done"})).json()["done"]
    [episode] = await playing
    assert episode.trajectories[0].success


@pytest.mark.parametrize("rewards", [True, False])
async def test_a_service_gives_a_reward_only_where_the_recipe_takes_it(rewards):
    port = free_port()
    playing, *_ = begin(replies(said("Hi")), port, rewards=rewards)
    service = Service(port)
    told = await service.open()
    await service.ask(told)
    answer = await service.post(told, "close", {"reward": 0.75})
    if not rewards:
        assert answer.status_code == 403
        await service.post(told, "close")
    [episode] = await playing
    assert episode.trajectories[0].reward == (0.75 if rewards else 0.0)


async def test_an_episode_that_nobody_opens_is_a_failure_of_the_infrastructure():
    port = free_port()
    playing, *_ = begin(replies(), port, open_seconds=0.05)
    [episode] = await playing
    assert f"no service opened the episode within 0.05 s: start one that asks POST http://127.0.0.1:{port}/open" in str(
        episode.error
    )
    assert (await Service(port).send(f"http://127.0.0.1:{port}/open", json={"wait_s": 0})).status_code == 204


@pytest.mark.parametrize("way", ["disappears", "fails"])
async def test_an_episode_whose_service_is_lost_is_played_again(way):
    port = free_port()
    silent = 0.3 if way == "disappears" else 120.0
    playing, family, _ = begin(lambda prompt: said("Hi"), port, retries=1, last_action="done", silent_seconds=silent)
    service = Service(port)
    lost = await service.open()
    await service.ask(lost)
    if way == "fails":
        await service.post(lost, "close", {"failure": "my browser is gone"})
    told = await service.open()
    assert told["key"] != lost["key"]
    assert (await service.post(lost, "alive")).status_code == 404
    await service.ask(told)
    await service.post(told, "close")
    [episode] = await playing
    assert episode.error is None
    assert episode.trajectories[0].reward == 1.0
    assert len(episode.trajectories[0].turns) == 1
    assert [hall.closed for hall in family.made] == [1, 1]


async def test_why_a_service_failed_is_in_the_error():
    port = free_port()
    playing, *_ = begin(replies(said("Hi")), port)
    service = Service(port)
    told = await service.open()
    await service.ask(told)
    await service.post(told, "close", {"failure": "my browser is gone"})
    [episode] = await playing
    assert "the service that took the episode failed: my browser is gone" in str(episode.error)


async def test_a_service_that_asks_the_model_for_nothing_in_its_time_is_a_failure_of_the_infrastructure():
    port = free_port()
    playing, *_ = begin(replies(), port, seconds=0.3)
    service = Service(port)
    told = await service.open()
    assert (await service.post(told, "close", {"output": [1]})).json()["error"][
        "message"
    ] == "output = [1]: expected a text"
    [episode] = await playing
    assert "went on for 0.3 s, as long as it may, and the model gave it no reply" in str(episode.error)


async def test_a_service_that_asks_again_until_its_time_as_the_engine_failed_is_no_failure_of_the_policy():
    def script(prompt):
        if "and" in prompt:
            raise InfrastructureError("the engine is gone")
        return said("Hi")

    port = free_port()
    playing, *_ = begin(script, port, seconds=0.5)
    service = Service(port)
    told = await service.open()
    await service.ask(told)
    with pytest.raises(httpx.HTTPStatusError):
        await service.ask(told, "and")
    [episode] = await playing
    assert "the engine is gone" in str(episode.error)


async def test_a_reply_that_takes_long_is_no_silence_and_time_ends_it():
    port = free_port()
    playing, *_ = begin(replies(said("Hi")), port, seconds=0.5, silent_seconds=60.0)
    service = Service(port)
    told = await service.open()
    await service.ask(told)
    [episode] = await playing
    assert episode.error is None
    assert episode.trajectories[0].ending is Ending.TIME


async def test_each_episode_is_given_to_one_service_and_none_reads_another():
    """Services take eight episodes at once; each sees what its own world shows."""
    port = free_port()
    playing, *_ = begin(lambda prompt: said("Hi"), port, episodes=8, last_action="{output}")

    async def serve(looks):
        service = Service(port)
        told = await service.open()
        await service.ask(told)
        seen = [(await service.post(told, "act", LOOK)).json()["messages"][0]["content"] for _ in range(looks)]
        assert seen == [f"The door, {n + 1}." for n in range(looks)]
        await service.post(told, "close", {"output": "done"})
        return told["key"]

    keys = await asyncio.gather(*(serve(looks) for looks in range(8)))
    assert len(set(keys)) == 8
    episodes = await playing
    assert sorted(one.trajectories[0].reward for one in episodes) == [1.0 + 0.5 * n for n in range(8)]


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("open", {"wait": 1}, 400),
        ("open", {"wait_s": -1}, 400),
        ("open", {"wait_s": "now"}, 400),
        ("open", [1], 400),
        ("close", {"rewards": 1}, 400),
        ("close", {"reward": True}, 400),
        ("close", {"reward": 1e9}, 400),
        ("close", {"reward": "1"}, 400),
        ("close", {"reward": 1, "failure": "x"}, 400),
        ("close", {"failure": 3}, 400),
    ],
)
async def test_requests_that_cannot_be_meant_change_nothing(path, body, status):
    port = free_port()
    playing, *_ = begin(replies(said("Hi")), port, rewards=True)
    service = Service(port)
    told = await service.open()
    await service.ask(told)
    place = f"{service.root}/open" if path == "open" else f"{told['url']}/{path}"
    assert (await service.send(place, json=body)).status_code == status
    assert (await service.send(f"{service.root}/s/{'0' * 32}/close")).status_code == 404
    await service.post(told, "close")
    assert (await service.post(told, "close")).status_code in (404, 409)
    [episode] = await playing
    assert episode.trajectories[0].reward == 0.0


async def test_a_session_cannot_be_used_before_it_is_opened_or_without_the_token(monkeypatch):
    monkeypatch.setenv("AGENTS_TOKEN", "secret-of-ours")
    port = free_port()
    playing, *_ = begin(replies(said("Hi")), port, token="AGENTS_TOKEN")
    service = Service(port, "secret-of-ours")
    told = await service.open()
    for other in (Service(port), Service(port, "guessed")):
        assert (await other.send(f"{other.root}/open", json={"wait_s": 0})).status_code == 401
    page = {"Origin": "https://elsewhere.example"}
    assert (await service.send(f"{service.root}/open", headers=page)).status_code == 403
    assert (await service.send(f"{told['url']}/close", headers=page)).status_code == 403
    assert (await service.send(f"{service.root}/open", headers={"Host": "elsewhere.example"})).status_code == 403
    await service.ask(told)
    await service.post(told, "close")
    [episode] = await playing
    assert episode.error is None


async def test_of_services_that_ask_at_once_one_takes_an_episode_and_the_others_none():
    port = free_port()
    first, *_ = begin(replies(), port, open_seconds=0.05)
    await first  # the desk is open, and nothing waits there
    service = Service(port)
    asking = [asyncio.create_task(service.send(f"{service.root}/open", json={"wait_s": 2})) for _ in range(8)]
    await asyncio.sleep(0.3)  # in which all of them have come
    playing, *_ = begin(replies(said("Hi")), port)
    answers = await asyncio.gather(*asking)
    assert sorted(answer.status_code for answer in answers) == [200, *[204] * 7]
    [told] = [answer.json() for answer in answers if answer.status_code == 200]
    await service.ask(told)
    await service.post(told, "close")
    await playing


async def test_a_service_that_leaves_while_it_waits_takes_no_episode():
    port = free_port()
    first, *_ = begin(replies(), port, open_seconds=0.05)
    await first  # the desk is open, and nothing waits there
    leaving = Service(port)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await leaving.send(f"{leaving.root}/open", json={"wait_s": 60})
    playing, *_ = begin(replies(said("Hi")), port)
    await asyncio.sleep(0.2)  # in which whoever waits at the desk would take it
    service = Service(port)
    told = await asyncio.wait_for(service.open(), 60)
    await service.ask(told)
    await service.post(told, "close")
    [episode] = await playing
    assert episode.error is None


def test_what_cannot_be_served_is_refused(monkeypatch):
    with pytest.raises(ConfigError, match="no loopback address: name the variable with a token"):
        build("agent", {"name": "remote", "host": "0.0.0.0"})
    with pytest.raises(ConfigError, match="expected an address such as"):
        build("agent", {"name": "remote", "url": "here"})
    monkeypatch.delenv("AGENTS_TOKEN", raising=False)
    with pytest.raises(ConfigError, match="this variable is not set"):
        resolve(Tables({**TABLE, "agent": {"name": "remote", "token": "AGENTS_TOKEN"}}))
    stages = [{**STAGE, "groups": {"name": "experts", "width": 2}}]
    with pytest.raises(ConfigError, match="gives the samples of plays, but a service that asks at"):
        resolve(Tables({**TABLE, "agent": {"name": "remote"}, "stages": stages}))


async def test_a_port_that_is_taken_is_told():
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        playing, *_ = begin(replies(), taken.getsockname()[1])
        with pytest.raises(ConfigError, match="nothing can be served at 127"):
            await playing
