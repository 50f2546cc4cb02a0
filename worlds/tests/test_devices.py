"""Devices: what settings need and bring with them, errands and their worth, both ways of setting, and the expert."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from people_at_play import enter, expert_play, go_on, say

from sojourn.checks.env import check_env
from sojourn.errors import ActionError, ConfigError
from sojourn.types import Message, Role, ToolCall
from sojourn_worlds.devices import Devices, Panel
from sojourn_worlds.devices.errand import Errand, draw
from sojourn_worlds.devices.table import devices

DATA = {"mode": "both", "shown": True, "turns": 12}


def panel(names: tuple[str, ...], changes: dict, **data) -> Panel:
    """These devices, all at the first of their values, and a target that differs in `changes`."""
    there = devices("both").of(names)
    initial = {p.path: p.options[0] if p.options else p.low for p in there.properties.values()}
    return Panel(Errand(there, initial, {**initial, **changes}, ("Do it.",)), {**DATA, **data})


@pytest.mark.parametrize("fields", [{}, {"mode": "state", "shown": False, "place": "car"}, Devices.about.smallest])
async def test_its_promises(fields) -> None:
    report = await check_env(Devices(**fields))
    assert report.passed, report.failed


@pytest.mark.parametrize("mode", ["function", "state", "both"])
@pytest.mark.parametrize("place", ["car", "home"])
async def test_the_expert_does_every_errand(mode: str, place: str) -> None:
    family = Devices(mode=mode, place=place, devices=3, requests=4)
    for index in range(40):
        for split in ("train", "test"):
            total, step, said = await expert_play(family, index, split)
            assert total == 1.0
            assert step.success
            assert step.info["side_effects"] == 0
            assert len(said) <= 13


def random_call(tools, rng: random.Random) -> Message:
    tool = rng.choice(tools)
    arguments = {}
    for name, schema in tool.parameters["properties"].items():
        if "enum" in schema:
            arguments[name] = rng.choice(schema["enum"])
        else:
            arguments[name] = rng.randint(schema.get("minimum", -9), schema.get("maximum", 9))
    return Message(Role.ASSISTANT, calls=(ToolCall(tool.name, arguments),))


async def test_chance_earns_little() -> None:
    rng, earned, family = random.Random(0), 0.0, Devices()
    for index in range(200):
        env = enter(family, index)
        tools = [tool for tool in (await env.start()).tools if tool.name != "look"]
        step = None
        while step is None or not step.done:
            try:
                step = await env.step("agent", random_call(tools, rng))
            except ActionError:
                continue
        earned += step.rewards["agent"]
    assert earned / 200 < 0.15


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(["car", "home", "both"]))
def test_from_every_state_there_is_a_way_to_the_target(seed: int, place: str) -> None:
    """Two states that may come about, of any devices: the way from one to the other ends, and soon."""
    rng = random.Random(seed)
    everything = devices(place)
    there = everything.of(rng.sample(everything.names(), 3))
    state, target = there.draw(rng), there.draw(rng)
    for _ in range(3 * len(state)):
        if state == target:
            break
        there.write(state, *there.toward(state, target))
    assert state == target


async def test_the_expert_mends_what_was_done_at_random() -> None:
    rng = random.Random(1)
    for index in range(40):
        env = enter(Devices(turns=60), index)
        tools = [tool for tool in (await env.start()).tools if tool.name not in ("look", "done")]
        for _ in range(20):
            try:
                await env.step("agent", random_call(tools, rng))
            except ActionError:
                continue
        total, step, _ = await go_on(env)
        assert total == 1.0
        assert step.success


def test_settings_need_others_and_say_so() -> None:
    play = panel(("oven",), {"oven.power": "on", "oven.temperature": 200})
    with pytest.raises(ValueError, match=r"oven.temperature can be set only while oven.power is on, it is off"):
        play.set_oven_temperature(200)
    assert play.set_oven_power("on") == "oven.power is on."
    assert play.info == {"tool_score": 1.0, "subgoal": 1.0}
    with pytest.raises(ValueError, match="must be a whole number from 50 to 250"):
        play.set_state("oven.temperature", 300)
    with pytest.raises(ValueError, match="is on already"):
        play.set_state("oven.power", "on")
    assert play.change_oven_temperature(150) == "oven.temperature is 200."
    play.done()
    assert play.reward() == 1.0
    assert play.success()


def test_settings_bring_others_with_them() -> None:
    play = panel(("oven",), {"oven.door": "open"})
    play.set_oven_power("on")
    assert play.info == {"tool_score": -1.0, "subgoal": 0.0}
    assert play.set_oven_door("open") == "oven.door is open. oven.power is now off."
    seat = panel(("seat",), {"seat.heating": 3})
    seat.set_seat_cooling(2)
    assert seat.set_state("seat.heating", 3) == "seat.heating is 3. seat.cooling is now 0."
    chain = panel(("trunk",), {"doors.lock": "locked"})
    chain.set_trunk_lid("open")
    chain.set_trunk_light("on")
    assert chain.set_doors_lock("locked") == "doors.lock is locked. trunk.lid is now closed. trunk.light is now off."


@pytest.mark.parametrize(
    ("done", "worth"),
    [
        ({}, 0.0),
        ({"lamp.power": "on"}, 0.5),
        ({"lamp.power": "on", "lamp.brightness": 40}, 1.0),
        ({"lamp.power": "on", "lamp.brightness": 40, "lamp.colour": "red"}, 0.5),
        ({"lamp.power": "on", "lamp.brightness": 50}, 0.5),
        ({"lamp.power": "on", "lamp.colour": "red"}, 0.0),
    ],
)
def test_what_a_state_is_worth(done, worth: float) -> None:
    play = panel(("lamp",), {"lamp.power": "on", "lamp.brightness": 40})
    for path, value in done.items():
        play.set_state(path, value)
    play.done()
    assert play.reward() == worth
    assert play.success() is (worth == 1.0)


def test_a_subgoal_counts_once() -> None:
    play = panel(("lamp",), {"lamp.power": "on"})
    told = []
    for value in ("on", "off", "on"):
        play.set_lamp_power(value)
        told.append((play.info["subgoal"], play.info["tool_score"]))
    assert told == [(1.0, 1.0), (0.0, -1.0), (0.0, 1.0)]


async def test_the_mode_decides_which_calls_there_are() -> None:
    for mode, expected in {
        "function": {"set_lamp_power", "change_lamp_brightness"},
        "state": {"set_state"},
        "both": {"set_lamp_power", "set_state"},
    }.items():
        family = Devices(mode=mode, place="home", devices=9)
        names = {tool.name for tool in (await enter(family).start()).tools}
        assert names >= expected | {"look", "done"}
        assert ("set_state" in names) is (mode != "function")
    env = enter(Devices(mode="state", place="home", devices=9))
    await env.start()
    with pytest.raises(ActionError, match="no tool"):
        await env.step("agent", say('set_lamp_power("on")'))


async def test_what_is_not_shown_can_be_looked_at() -> None:
    family = Devices(shown=False, place="home", devices=9)
    env = enter(family)
    first = (await env.start()).messages[0].text
    assert "power" not in first.split("User:")[0]
    step = await env.step("agent", say('look("lamp")'))
    assert step.observation.messages[0].text.startswith("lamp: power o")


async def test_it_ends_unpaid_when_the_turns_are_used_up() -> None:
    env = enter(Devices(turns=9, place="home", devices=9))
    await env.start()
    for turn in range(9):
        step = await env.step("agent", say('look("lamp")'))
        assert step.done is (turn == 8)
    assert step.rewards == {"agent": 0.0}
    assert step.success is False


@pytest.mark.parametrize(
    ("call", "told"),
    [
        ("set_lamp_power('maybe')", "must be Literal"),
        ("set_lamp_power(True)", "must be Literal"),
        ("set_state('lamp.warp', 9)", "there is no 'lamp.warp'"),
        ("set_state('lamp.brightness', '9; drop')", "whole number"),
        ("set_state('lamp.brightness', 999999999999999999999999)", "must be"),
        ("change_lamp_brightness(10)", "only while"),
        ("look('moon')", "there is no 'moon'"),
        ("state", "is no call"),
        ("errand()", "there is no tool"),
    ],
)
async def test_bad_actions_are_refused_and_change_nothing(call: str, told: str) -> None:
    env = enter(Devices(place="home", devices=9, mode="both"), next(lamps_off()))
    await env.start()
    before = env.state_key()
    with pytest.raises(ActionError, match=told):
        await env.step("agent", say(call))
    assert env.state_key() == before


def lamps_off():
    for index in range(100):
        if enter(Devices(place="home", devices=9, mode="both"), index).game.state["lamp.power"] == "off":
            yield index


def test_wishes_are_true_of_the_target_and_the_answer_lists_the_changes() -> None:
    family, relative = Devices(devices=3, requests=3), 0
    for index in range(100):
        task = family.tasks("train")[index]
        errand = draw(task.seed, tuple((k, task.data[k]) for k in task.data if k != "answer"))
        assert task.data["answer"].count("=") == len(errand.needed) >= 3
        assert errand.worth(errand.target) == 1.0
        assert errand.worth(errand.initial) == 0.0
        relative += sum(wish.startswith(("Raise", "Lower")) for wish in errand.wishes)
    assert 10 < relative < 100


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"place": "boat"}, 'place = "boat"'),
        ({"mode": "voice"}, 'mode = "voice"'),
        ({"devices": 30}, "devices = 30"),
        ({"devices": 1, "requests": 3}, "requests = 3"),
        ({"turns": 5}, "turns = 5"),
    ],
)
def test_wrong_configs_are_refused(fields, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Devices(**fields)
