import asyncio

import pytest

pytest.importorskip("gymnasium")

from gymnasium_hooks import Waits
from playing import chance_play, expert_play, failed, say

from sojourn.checks.env import check_env
from sojourn.checks.report import Outcome
from sojourn.config.registry import build
from sojourn.errors import ActionError, ConfigError, InfrastructureError
from sojourn_worlds.adapters.gymnasium import Gymnasium, unpainted

LAKE = {
    "id": "FrozenLake-v1",
    "arguments": {"is_slippery": False},
    "actions": ("left", "down", "right", "up"),
    "expert": "gymnasium_hooks:shortest",
    "choices": True,
}
TAXI = {
    "id": "Taxi-v4",
    "actions": ("south", "north", "east", "west", "pickup", "dropoff"),
    "expert": "gymnasium_hooks:drive",
    "scale": 0.05,
    "choices": True,
    "masked": True,
}
POLE = {
    "id": "CartPole-v1",
    "actions": ("left", "right"),
    "arguments": {"max_episode_steps": 60},
    "solved": 59.0,
    "scale": 1 / 60,
    "expert": "gymnasium_hooks:balance",
    "choices": True,
}
ROOM = {
    "id": "minigrid:MiniGrid-Empty-5x5-v0",
    "describe": "gymnasium_hooks:facing",
    "actions": ("left", "right", "forward", "pickup", "drop", "toggle", "done"),
}


@pytest.mark.parametrize("fields", [LAKE | {"describe": "render"}, TAXI, POLE], ids=lambda fields: fields["id"])
async def test_environments_of_gymnasium_keep_the_promises_of_a_world(fields):
    report = await check_env(Gymnasium(**fields), episodes=2)
    assert report.passed, failed(report)
    assert report["forks are equal and independent"].outcome is Outcome.PASSED
    assert report["the expert succeeds"].outcome is Outcome.PASSED


@pytest.mark.parametrize(("fields", "least"), [(LAKE, 1.0), (TAXI, 0.1), (POLE, 1.0)], ids=["lake", "taxi", "pole"])
async def test_the_expert_earns_what_there_is_and_chance_does_not(fields, least):
    family, returns = Gymnasium(**fields), []
    for split in ("train", "test"):
        for index in range(5):
            steps, _ = await expert_play(family, index, split)
            assert steps[-1].success
            returns.append(sum(step.rewards["agent"] for step in steps))
    random = [sum(s.rewards["agent"] for s in await chance_play(family, index, index)) for index in range(10)]
    assert min(returns) >= least
    assert sum(random) / 10 < 0.6 * sum(returns) / 10


async def test_minigrid_is_said_by_a_function():
    pytest.importorskip("minigrid")
    report = await check_env(Gymnasium(**ROOM, choices=True), episodes=2)
    assert report.passed, failed(report)
    env = Gymnasium(**ROOM).make(Gymnasium(**ROOM).tasks("train")[0])
    text = (await env.start()).messages[0].text
    assert text.startswith("get to the green goal square. Ahead: empty, empty, wall, ")
    steps = [await env.step("agent", say(said)) for said in ("forward", "forward", "right", "forward", "forward")]
    assert steps[-1].success
    assert steps[-1].rewards["agent"] == pytest.approx(1 - 0.9 * 5 / 100)


async def test_the_documented_minigrid_is_said_as_it_is():
    """`7 x 7 cells of 3 numbers`, without a function that describes them."""
    pytest.importorskip("minigrid")
    family = Gymnasium(id=ROOM["id"])
    report = await check_env(family, episodes=1)
    assert report.passed, failed(report)
    lines = (await family.make(family.tasks("train")[0]).start()).messages[0].text.splitlines()
    assert lines[:2] == ["direction: 0", "image:"]
    assert lines[8] == "2,5,0 2,5,0 2,5,0 2,5,0 2,5,0 2,5,0 2,5,0"
    assert lines[9] == "mission: get to the green goal square"


async def test_the_time_limit_truncates_and_is_no_success():
    family = Gymnasium(**LAKE, turns=3)
    env = family.make(family.tasks("train")[0])
    await env.start()
    steps = [await env.step("agent", say("left")) for _ in range(3)]
    assert [step.done for step in steps] == [False, False, True]
    assert (steps[-1].success, steps[-1].info["truncated"], steps[-1].rewards["agent"]) == (False, 1.0, 0.0)
    fell = family.make(family.tasks("train")[0])
    await fell.start()
    await fell.step("agent", say("down"))
    last = await fell.step("agent", say("RIGHT "))
    assert (last.done, last.success, last.info["truncated"]) == (True, False, 0.0)
    with pytest.raises(InfrastructureError, match="after its end"):
        await fell.step("agent", say("left"))


async def test_seeds_decide_the_start_and_masked_actions_are_refused():
    family = Gymnasium(**TAXI | {"masked": True})
    starts = []
    for task in [*family.tasks("train")[:5], family.tasks("train")[0]]:
        env = family.make(task)
        seen = await env.start()
        starts.append(seen.messages[0].text)
        missing = next(name for name in TAXI["actions"] if name not in seen.choices)
        with pytest.raises(ActionError, match=f"{missing} is not possible now"):
            await env.step("agent", say(missing))
    assert starts[0] == starts[5]
    assert len(set(starts)) > 3


async def test_spaces_of_every_kind_are_said_and_read_and_forks_repeat_what_cannot_be_copied():
    family = Gymnasium(id="gymnasium_hooks:Odd")
    env = family.make(family.tasks("train")[3])
    first = await env.start()
    assert first.messages[0].text.splitlines()[0] == "pair: [2, [0, 1]]"
    assert "table:\n" in first.messages[0].text
    assert "word: hello" in first.messages[0].text
    assert first.system[0].text.endswith(
        'Say one action: {"push": a list of 2 numbers from -1 to 1, "which": a list of 2 whole numbers, below [2, 3]}.'
    )
    wrong = ['{"push": [0.5, 2], "which": [1, 2]}', '{"push": [0.5], "which": [1, 2]}', '{"push": [0, 0]}', "[1, 2]"]
    wrong += ['{"push": [0.5, 1], "which": [1.5, 2]}', '{"push": ["a", 1], "which": [1, 2]}', "{"]
    wrong += ['{"push": [1e999, 0], "which": [1, 2]}', '{"push": [10**3, 0], "which": [1, 2]}']
    for text in wrong:
        with pytest.raises(ActionError, match="is no action, say"):
            await env.step("agent", say(text))
    right = '{"push": [0.5, -0.25], "which": [1, 2]}'
    one = await env.step("agent", say(right))
    assert 0.25 <= one.rewards["agent"] <= 0.26
    twin = await env.fork()
    assert twin.env is not env.env
    assert (await twin.step("agent", say(right))) == (await env.step("agent", say(right)))


@pytest.mark.parametrize("forks", ["copy", "replay"])
async def test_forks_share_no_array_that_an_environment_changes_in_place(forks):
    fields = {"masked": True, "choices": True, "expert": "gymnasium_hooks:first_free", "forks": forks}
    family = Gymnasium(id="gymnasium_hooks:Marks", **fields)
    env = family.make(family.tasks("train")[0])
    await env.start()
    await env.step("agent", say("0"))
    twin = await env.fork()
    await env.step("agent", say("1"))
    assert (await env.expert(), await twin.expert()) == ("2", "1")
    assert (await twin.step("agent", say("1"))).observation.choices == ("2",)
    await env.close()
    await twin.close()


async def test_a_fork_that_is_no_copy_of_the_play_is_a_failure_of_the_environment():
    family = Gymnasium(id="gymnasium_hooks:Drifting", threads=0)
    env = family.make(family.tasks("train")[0])
    await env.start()
    await (await env.fork()).close()
    await env.step("agent", say("1"))
    with pytest.raises(InfrastructureError, match="Drifting is not deterministic: replayed for a fork"):
        await env.fork()
    await env.close()


async def test_a_copy_that_would_start_again_is_not_taken_for_a_fork():
    report = await check_env(Gymnasium(id="gymnasium_hooks:Walk", choices=True, turns=20), episodes=2)
    assert report.passed, failed(report)
    assert report["forks are equal and independent"].outcome is Outcome.PASSED


async def test_what_does_not_fit_is_refused_in_one_sentence():
    for fields, message in [
        ({"id": ""}, "id is empty"),
        ({"id": "X", "scale": 0.0}, "scale = 0.0"),
        ({"id": "X", "turns": -1}, "turns = -1"),
        ({"id": "X", "train": 0}, "train = 0"),
        ({"id": "X", "expert": "nowhere:to_be"}, "expert = .*cannot be imported"),
    ]:
        with pytest.raises(ConfigError, match=message):
            Gymnasium(**fields)
    with pytest.raises(ConfigError, match='unknown split "dev"'):
        Gymnasium(**LAKE).tasks("dev")
    for fields, message in [
        ({"id": "NoSuchGame-v0"}, "NoSuchGame-v0. is not registered"),
        ({"id": "FrozenLake-v1", "actions": ("left",)}, "actions has 1 names, but there are 4"),
        ({"id": "FrozenLake-v1", "actions": ("a", "b", "c", "A")}, "a name twice"),
        ({"id": "gymnasium_hooks:Wide"}, "1200 numbers, more than 256"),
        ({"id": "CartPole-v1", "masked": True}, "gives no action mask"),
    ]:
        family = Gymnasium(**fields)
        with pytest.raises(ConfigError, match=message):
            await family.make(family.tasks("train")[0]).start()


async def test_a_broken_simulator_is_not_the_agents_fault():
    family = Gymnasium(id="gymnasium_hooks:Odd", arguments={"broken": True})
    env = family.make(family.tasks("train")[0])
    await env.start()
    with pytest.raises(RuntimeError, match="the simulator is gone"):
        await env.step("agent", say('{"push": [0, 0], "which": [0, 0]}'))


def test_colours_become_words():
    assert unpainted("\x1b[41mS\x1b[0mFF\x1b[34;1mB\x1b[0m\n") == "(S red)FF(B blue)"


def test_a_config_names_it():
    built = build("env", {"name": "gymnasium", "id": "FrozenLake-v1", "actions": ["left", "down", "right", "up"]})
    assert built.value.tasks("test")[0].seed == 10**9


async def test_others_go_on_while_an_environment_takes_its_time():
    family = Gymnasium(id="gymnasium_hooks:Waits", forks="replay", threads=2)
    one, other = (family.make(task) for task in family.tasks("train")[:2])
    await asyncio.gather(one.start(), other.start())

    async def meanwhile():
        Waits.go.set()

    Waits.go.clear()
    steps = await asyncio.gather(one.step("agent", say("0")), other.step("agent", say("1")), meanwhile())
    assert [step.observation.messages[0].text for step in steps[:2]] == ["1", "1"]
    twin = await one.fork()
    assert (await one.step("agent", say("0"))).done
    assert (await twin.step("agent", say("0"))).done
    for env in (one, other, twin):
        await env.close()
