"""MiniWoB++ by BrowserGym in an interpreter that SOJOURN_BROWSERGYM_PYTHON names (make adapters), in Chromium."""

import shutil
import sys

import pytest

pytest.importorskip("miniwob")

from playing import expert_play, failed, say
from served import interpreter, pages

from sojourn.checks.env import check_env
from sojourn.checks.report import Outcome
from sojourn.errors import ActionError, ConfigError, InfrastructureError
from sojourn_worlds.adapters.browsergym import BrowserGym

PYTHON = interpreter("BROWSERGYM")
CHROMIUM = shutil.which("chromium") or pytest.skip("Chromium is not installed", allow_module_level=True)


@pytest.fixture(scope="module")
def url():
    with pages() as address:
        yield address


def world(url, **more):
    fields = {"python": PYTHON, "ids": ("miniwob.click-button",), "chromium": CHROMIUM, "turns": 3}
    return BrowserGym(**{**fields, "environment": {"MINIWOB_URL": url}, "expert": "browsergym_hooks:press", **more})


@pytest.mark.timeout(1_800)
async def test_miniwob_keeps_the_promises_of_a_world(url):
    report = await check_env(world(url), episodes=1, timeout_s=400.0)
    assert report.passed, failed(report)
    assert report["the expert succeeds"].outcome is Outcome.PASSED


async def test_pages_are_read_and_acted_on(url):
    for split in ("train", "test"):
        steps, _ = await expert_play(world(url), 0, split)
        assert (steps[-1].success, steps[-1].rewards["agent"]) == (True, 1.0)
    env = world(url).make(world(url).tasks("train")[1])
    first = await env.start()
    assert "click(bid: str" in first.system[0].text
    assert "RootWebArea" in first.messages[0].text
    assert first.messages[0].text.startswith("Click on the")
    for text in ("", "press it", "click(", "import os", "x" * 20_000, "fly('1')"):
        with pytest.raises(ActionError):
            await env.step("agent", say(text))
    missed = await env.step("agent", say("click('9999')"))
    assert missed.info["error"] == 1.0
    assert missed.observation.messages[0].text.startswith("error: ")
    await env.close()


async def test_what_cannot_be_run_is_said(url):
    for change, message in [
        ({"python": "/no/such/python"}, "is no interpreter: make one"),
        ({"ids": ()}, "ids is empty"),
        ({"environment": {"MINIWOB_URL": "file:///pages"}}, "must be http, with a slash"),
        ({"turns": 0}, "turns = 0"),
        ({"longest": 5}, "longest = 5"),
    ]:
        with pytest.raises(ConfigError, match=message):
            world(url, **change)
    bare = world(url, python=sys.executable)
    env = bare.make(bare.tasks("train")[0])
    with pytest.raises(ConfigError, match=r"lacks a package .*-m pip install browsergym-core"):
        await env.start()
    await env.close()
    unknown = world(url, ids=("miniwob.no-such-task",))
    env = unknown.make(unknown.tasks("train")[0])
    with pytest.raises(InfrastructureError, match="start failed"):
        await env.start()
    await env.close()
