"""The browser of MiniWoB: which requests it makes, its contexts, and what becomes of it when it is given up or dies."""

import asyncio
from contextlib import suppress
from os import environ, getpid, kill
from pathlib import Path
from signal import SIGKILL

import pytest
import pytest_asyncio

pytest.importorskip("miniwob", reason="the pages come with the package miniwob")
pytest.importorskip("playwright", reason="Chromium is driven by playwright")

from miniwob_play import act, solve, task, visit, world

from sojourn.envs.chromium import find_chromium
from sojourn.errors import ConfigError, InfrastructureError
from sojourn_worlds.miniwob import MiniWoB
from sojourn_worlds.miniwob.experts import EXPERTS
from sojourn_worlds.miniwob.serve import PagesServer, _Connection

try:
    find_chromium(environ.get("SOJOURN_CHROMIUM"))
except ConfigError as missing:
    pytest.skip(str(missing), allow_module_level=True)

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def family():
    async with world(contexts=6) as opened:
        yield opened


async def test_no_request_leaves_the_machine(family):
    chromium = family._shared.chromium
    tab, asked = await chromium.acquire(""), []
    tab.page.on("request", lambda request: asked.append(request.url))
    for page in ("order-food", "email-inbox", "text-editor", "click-pie"):
        await tab.page.goto(f"{chromium.server.url}/miniwob/{page}.html")
    with pytest.raises(chromium.errors):
        await tab.page.evaluate("fetch('http://example.org/')")
    tab.reusable = False
    chromium.release(tab)
    assert len(asked) > 10
    assert [url for url in asked if not url.startswith((chromium.server.url, "data:"))] == []


async def test_a_task_page_that_can_be_reset_is_loaded_once_in_a_context():
    async with world(contexts=1) as family:
        tab, loaded = await family._shared.chromium.acquire(""), []
        tab.context.on("request", lambda request: loaded.append(request.url.rpartition("/")[2]))
        family._shared.chromium.release(tab)
        for page in ("login-user", "click-option", "login-user", "book-flight", "login-user", "book-flight"):
            assert await solve(family, page, 3) == (1.0, True)
        pages = [name for name in loaded if name.endswith(".html")]
        assert pages == ["login-user.html", "click-option.html", "book-flight.html", "book-flight.html"]
        assert len(tab.context.pages) == 3  # the first, and one for each of the two


async def test_contexts_bound_the_episodes_and_cancelling_leaks_none():
    async with world(contexts=2) as family:
        first, second, third = (family.make(task("click-test", seed)) for seed in range(3))
        await first.start()
        await second.start()
        waiting = asyncio.ensure_future(third.start())
        await asyncio.sleep(0.05)
        assert not waiting.done()
        waiting.cancel()
        with suppress(asyncio.CancelledError):
            await waiting
        await third.close()
        await first.close()
        for delay in (0, 1, 5, 20):  # cancelled while starting, at different points
            env = family.make(task("login-user", 5))
            starting = asyncio.ensure_future(env.start())
            await asyncio.sleep(delay / 1000)
            starting.cancel()
            with suppress(asyncio.CancelledError):
                await starting
            await env.close()
        playing = asyncio.ensure_future(act(second, "click Click Me!"))
        await asyncio.sleep(0.001)
        playing.cancel()
        with suppress(asyncio.CancelledError):
            await playing
        await second.close()
        assert family._shared.chromium._slots._value == 2
        assert await asyncio.gather(*[solve(family, "login-user", seed) for seed in range(4)]) == [(1.0, True)] * 4


def children():
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it ended meanwhile
            if int(stat.read_text().rsplit(")", 1)[1].split()[1]) == getpid():
                found.add(int(stat.parent.name))
    return found


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="finds processes in /proc")
@pytest.mark.parametrize("after_s", [0.0, 0.05, 0.3, 0.8])
async def test_a_world_that_is_given_up_while_it_opens_leaves_no_browser(after_s):
    before, world_of_its_own = children(), MiniWoB(pages=("click-test",))
    opening = asyncio.ensure_future(world_of_its_own.open())
    await asyncio.sleep(after_s)
    opening.cancel()
    with suppress(asyncio.CancelledError):
        await opening
    await world_of_its_own.close()
    assert children() <= before


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="finds processes in /proc")
async def test_a_play_given_up_while_its_context_is_made_launches_no_browser_after_the_close():
    before, world_of_its_own = children(), MiniWoB(pages=("click-test",))
    await world_of_its_own.open()
    env = world_of_its_own.make(task("click-test"))
    starting = asyncio.ensure_future(env.start())
    await asyncio.sleep(0.002)
    starting.cancel()
    with suppress(asyncio.CancelledError):
        await starting
    await env.close()
    await world_of_its_own.close()
    for _ in range(40):
        if children() <= before:
            return
        await asyncio.sleep(0.05)
    raise AssertionError("a browser was launched that nobody closes")


async def test_a_context_that_closes_slowly_ends_no_other_play(monkeypatch):
    monkeypatch.setattr("sojourn_worlds.miniwob.browser.CLOSING_S", 0.05)
    async with world(contexts=2) as family, visit(family, "enter-text") as (env, _):
        tab = await family._shared.chromium.acquire("")
        close, closed = tab.context.close, asyncio.Event()

        async def slowly():
            await asyncio.sleep(0.5)
            await close()
            closed.set()

        tab.context.close, tab.reusable = slowly, False
        family._shared.chromium.release(tab)
        await asyncio.wait_for(closed.wait(), 100)
        step = await act(env, 'type textbox "still here"')
        assert step.observation.messages[0].text.startswith("textbox: still here")


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="finds processes in /proc")
async def test_a_close_that_is_given_up_goes_on():
    before, world_of_its_own = children(), MiniWoB(pages=("click-test",))
    await world_of_its_own.open()
    closing = asyncio.ensure_future(world_of_its_own.close())
    await asyncio.sleep(0)
    closing.cancel()
    with suppress(asyncio.CancelledError):
        await closing
    for _ in range(2_000):
        if children() <= before:
            return
        await asyncio.sleep(0.05)
    raise AssertionError("Chromium is still there after 100 s")


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="finds processes in /proc")
@pytest.mark.parametrize("what", ["browser", "driver"])
async def test_a_crash_is_not_the_agents_fault_and_the_next_episode_works(what):
    before = children()
    async with world(contexts=1) as family:
        async with visit(family, "click-test") as (env, _):
            if what == "driver":
                for pid in children() - before:
                    kill(pid, SIGKILL)
            else:
                gone = asyncio.Event()
                env._tab.browser.on("disconnected", lambda _: gone.set())
                session = await env._tab.context.new_cdp_session(env._tab.page)
                crashing = asyncio.ensure_future(session.send("Browser.crash"))
                await asyncio.wait_for(gone.wait(), 100)
                crashing.cancel()
                await asyncio.gather(crashing, return_exceptions=True)
            with pytest.raises(InfrastructureError):
                await act(env, "click Click Me!")
        assert await solve(family, "click-test", 2) == (1.0, True)


async def test_an_expert_that_is_at_a_loss_loses_its_play_and_not_the_run(monkeypatch):
    async with world(contexts=1) as family, visit(family, "click-test") as (env, _):
        monkeypatch.setitem(EXPERTS, "click-test", lambda page: next(e for e in page.elements if e.name == "nobody"))
        with pytest.raises(InfrastructureError, match=r"the expert finds no next action .* it shows Click Me!"):
            await env.expert()


@pytest.fixture
def slow_pictures(monkeypatch):
    """Returns what makes the server of the pages answer late where it is asked for a picture."""
    answer = _Connection._answer

    def slowly(connection, request_line):
        delay_s = 0.3 * request_line[1].endswith(".png")
        asyncio.get_running_loop().call_later(delay_s, answer, connection, request_line)

    return lambda: monkeypatch.setattr(_Connection, "_answer", slowly)


async def test_icons_that_chromium_forgot_are_there_when_the_page_is_read(slow_pictures):
    """It forgets those that a page has not shown yet when another page that has them too is closed."""
    async with world(contexts=1, loaded=2) as family:
        for page in ("email-inbox-forward-nl", "email-inbox", "email-inbox-forward-nl", "click-test"):
            async with visit(family, page):
                pass
        slow_pictures()
        async with visit(family, "email-inbox-forward-nl") as (env, _):
            session = await env._tab.context.new_cdp_session(env._tab.page)
            await session.send("Network.clearBrowserCache")  # those on the disk, which are there within milliseconds
            step = await act(env, await env.expert())
            assert "item close email" in step.observation.messages[0].text.splitlines()


async def test_a_screenshot_has_what_style_sheets_draw(slow_pictures):
    seen = []
    for prepare in (lambda: None, slow_pictures):
        prepare()
        async with (
            world(contexts=1, observation="screenshot") as family,
            visit(family, "use-spinner") as (_, observation),
        ):
            seen.append(observation.messages[0].images)
    assert seen[0] == seen[1]


async def test_a_page_whose_icons_cannot_be_loaded_is_no_page_to_play_on(monkeypatch):
    answer = PagesServer._answer
    monkeypatch.setattr(
        PagesServer, "_answer", lambda server, target: None if target.endswith("send.png") else answer(server, target)
    )
    async with world(contexts=1) as family:
        env = family.make(task("email-inbox"))
        with pytest.raises(InfrastructureError, match="an icon of the page could not be loaded"):
            await env.start()
        await env.close()
