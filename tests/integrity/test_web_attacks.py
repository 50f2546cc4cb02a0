"""What an agent may try in a page: nothing that it types runs as script, reaches beyond the page, or outlives the play.

The probes go through every kind of action on all task pages. Where a test needs script inside a page, which no action
can bring there, it is put there by the debugger, as if it had got through.
"""

import asyncio
import random
from contextlib import asynccontextmanager, suppress
from os import environ

import pytest
import pytest_asyncio

pytest.importorskip("miniwob", reason="the pages come with the package miniwob")
pytest.importorskip("playwright", reason="Chromium is driven by playwright")

from sojourn.envs.chromium import executable
from sojourn.envs.miniwob import MiniWoB
from sojourn.envs.miniwob.actions import KEYS
from sojourn.envs.miniwob.facts import page_names
from sojourn.envs.miniwob.page import FIELDS
from sojourn.errors import ActionError, ConfigError
from sojourn.types import Message, Role, Task

try:
    executable(environ.get("SOJOURN_CHROMIUM"))
except ConfigError as missing:
    pytest.skip(str(missing), allow_module_level=True)

pytestmark = pytest.mark.asyncio(loop_scope="module")
RAN = "console.log('RAN')"
PROBES = (
    f"'\"><img/src='x'onerror={RAN}><svg/onload={RAN}>",
    f"javascript:{RAN}//');{RAN}//${{{RAN}}}{{{{{RAN}}}}}",
    f'"autofocus/onfocus="{RAN}"onmouseover="{RAN}"/><iframe/srcdoc="<script>top.{RAN}</script>">',
)


@asynccontextmanager
async def world(**config):
    family = MiniWoB(**config)
    await family.open()
    try:
        yield family
    finally:
        await family.close()


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def family():
    async with world(contexts=4) as opened:
        yield opened


@asynccontextmanager
async def visit(family, page, seed=1):
    env = family.make(Task("miniwob", {"page": page}, seed, "train"))
    try:
        yield env, await env.start()
    finally:
        await env.close()


async def act(env, said):
    return await env.step("agent", Message(Role.ASSISTANT, said))


def script(env, source):
    return env._seat.page.evaluate(source)


# Probes


def probing(env, probe, rng):
    """Actions that bring a probe into all fields, and then do with it what the page lets one do."""
    fields = [element.label for element in env._page.elements if element.role in FIELDS][:3]
    others = [element for element in env._page.elements if element.label not in fields][:40]
    rng.shuffle(others)
    for number, label in enumerate(fields):
        if number == 0:
            yield from (f'type {label} "{probe}"', "press Control+A", "press Control+C", "press Enter")
        else:
            yield from (f"click {label}", "press Control+V", "press Enter")
    if not fields:
        yield from ("click 80,120", f'type "{probe}"', "press Enter")
    for element in others[:4]:
        yield f"{'select' if element.role == 'option' else 'click'} {element.label}"
    yield from ("drag 20,100 to 120,150", "press Control+X", "click 60,80", "press Control+V", "hover 80,120")
    yield f"press {rng.choice(KEYS)}"


async def ran(family, page, number):
    """Whether a probe ran on the page."""
    heard, rng = [], random.Random(f"{page} {number}")
    env = family.make(Task("miniwob", {"page": page}, 3 + number, "train"))
    try:
        await env.start()
        env._seat.page.on("console", lambda said: heard.append(said.text))
        for said in probing(env, PROBES[number], rng):
            with suppress(ActionError):
                if (await act(env, said)).done:
                    break
        if env._seat.page.is_closed() or env._page.done:
            await asyncio.sleep(0.05)  # what it loads, and fails to
        env._seat.sound = False  # the listener stays in it
    finally:
        await env.close()
    return "RAN" in heard


@pytest.mark.timeout(900)
@pytest.mark.parametrize("number", range(len(PROBES)))
async def test_no_probe_runs_on_any_page(family, number):
    found = await asyncio.gather(*[ran(family, page, number) for page in page_names()])
    assert [page for page, it_ran in zip(page_names(), found, strict=True) if it_ran] == []
