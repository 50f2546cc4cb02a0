"""The web surface: the same pages, actions and rewards as the text, over HTTP and in Chromium."""

from __future__ import annotations

import asyncio
import re
import threading
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator

import psutil
import pytest

pytest.importorskip("uvicorn")
pytest.importorskip("starlette")

from sojourn.errors import ActionError, ConfigError, InfrastructureError
from sojourn.types import Message, Role
from sojourn_worlds.shop import Shop
from sojourn_worlds.shop.catalogue import Catalogue, Product, generate
from sojourn_worlds.shop.search import Index
from sojourn_worlds.shop.store import State, Store, address
from sojourn_worlds.shop.web import Server, Site, app
from tests.envs.busy import given_up_while_it_queues

FIELDS = {"products": 1000, "choices": True}


def say(text: str) -> Message:
    return Message(Role.ASSISTANT, text)


@pytest.fixture
def site() -> Iterator[tuple[Site, str]]:
    application = app(generate(200, 0))
    server = Server(application)
    server.start()
    yield application.state.site, server.url
    server.stop()


async def fetch(url: str, *, post: bool = False) -> tuple[int, str]:
    def get() -> tuple[int, str]:
        try:
            with urllib.request.urlopen(urllib.request.Request(url, method="POST" if post else "GET")) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    return await asyncio.to_thread(get)


async def test_the_site_serves_sessions_on_loopback(site: tuple[Site, str]) -> None:
    shop, url = site
    assert url.startswith("http://127.0.0.1:")
    name, other = shop.enter(), shop.enter()
    code, page = await fetch(f"{url}/s/{name}/")
    assert code == 200
    assert '<input name="q"' in page
    product = shop.store.catalogue.products[0]
    state = State("sofa", 1, product.id)
    code, page = await fetch(f"{url}/s/{name}/{address(state)}")
    assert code == 200
    assert product.title in page
    assert shop.sessions[name].state == state
    assert (await fetch(f"{url}/s/{name}/{address(state).replace('?', '/buy?')}", post=True))[0] == 200
    assert shop.sessions[name].purchase == state
    assert shop.sessions[other].purchase is None
    again = State("sofa", 1, shop.store.catalogue.products[1].id)
    await fetch(f"{url}/s/{name}/{address(again).replace('?', '/buy?')}", post=True)
    assert shop.sessions[name].purchase == state
    assert "Thank you" in (await fetch(f"{url}/s/{name}/"))[1]


async def test_wrong_addresses_change_nothing(site: tuple[Site, str]) -> None:
    shop, url = site
    name = shop.enter()
    product = shop.store.catalogue.products[0].id
    for path in (
        "s/unknown/",
        f"s/{name}/search?q=sofa&page=99",
        f"s/{name}/search?q=sofa&page=x",
        f"s/{name}/item/NONE?q=sofa&page=1",
        f"s/{name}/item/{product}",
        f"s/{name}/item/{product}/secrets?q=sofa",
        f"s/{name}/item/{product}?q=sofa&option.colour=plaid",
        f"s/{name}/done",
    ):
        assert (await fetch(f"{url}/{path}"))[0] == 404, path
    assert (await fetch(f"{url}/s/{name}/item/{product}/buy?q=sofa&page=1"))[0] in (404, 405)
    assert shop.sessions[name].state == State()
    assert shop.sessions[name].purchase is None


def test_every_link_leads_where_the_text_goes() -> None:
    site = Site(Store(catalogue := generate(200, 0), Index(catalogue), 5))
    states, seen = [State("lamp", 1)], 0
    while states and seen < 300:
        state = states.pop(0)
        for link in site.store.links(state):
            if link.to is not None and link.to.page:
                path, _, query = address(link.to).partition("?")
                fields = dict(re.findall(r"([^&=]+)=([^&]*)", query))
                parts = path.split("/")
                named = dict(zip(("product", "part"), parts[1:], strict=False))
                decoded = {name: value.replace("+", " ") for name, value in fields.items()}
                assert site.read(named, decoded) == link.to
                states.append(link.to)
                seen += 1


async def test_words_from_products_and_shoppers_are_escaped() -> None:
    evil = "<script>alert(1)</script>\"'&"
    product = Product(
        id="P1", kind="mug", category=("a", "b"), brand="", title=evil, attributes=(), options={evil: (evil,)},
        price=1.0, features=(evil,), description=evil,
    )  # fmt: skip
    application = app(Catalogue((product,)))
    server = Server(application)
    server.start()
    name = application.state.site.enter()
    for state in (
        State("<b>script</b>", 1),
        State(evil, 1, "P1"),
        State(evil, 1, "P1", ((evil, evil),)),
        State(evil, 1, "P1", (), "Features"),
        State(evil, 1, "P1", (), "Description"),
    ):
        code, page = await fetch(f"{server.url}/s/{name}/{address(state)}")
        assert code == 200
        assert "<script" not in page
        assert "<b>" not in page
        assert "&lt;" in page
    server.stop()


@pytest.fixture
async def web() -> AsyncIterator[Shop]:
    pytest.importorskip("playwright")
    from sojourn.envs.chromium import find_chromium

    try:
        find_chromium()
    except ConfigError as error:
        pytest.skip(str(error))
    family = Shop(surface="web", **FIELDS)
    await family.open()
    yield family
    await family.close()


@pytest.fixture
def others() -> set[psutil.Process]:
    """The processes that other tests have left running, before a browser is opened."""
    return set(psutil.Process().children(recursive=True))


async def test_a_browser_whose_close_is_given_up_is_closed(others: set[psutil.Process], web: Shop) -> None:
    browsers = set(psutil.Process().children(recursive=True)) - others
    server = [thread for thread in threading.enumerate() if thread.name == "shop"]
    assert browsers
    assert server
    await given_up_while_it_queues(web.close())
    for _ in range(2400):
        left = [*(thread for thread in server if thread.is_alive()), *(p for p in browsers if p.is_running())]
        if not left:
            break
        await asyncio.sleep(0.05)
    assert not left


async def test_chromium_that_died_is_not_the_agents_fault_and_the_next_episode_works(
    others: set[psutil.Process], web: Shop
) -> None:
    play = web.make(web.tasks("train")[0])
    await play.start()
    for process in set(psutil.Process().children(recursive=True)) - others:
        if "chrom" in process.name():
            process.kill()
    with pytest.raises(InfrastructureError, match="Chromium failed in the shop"):
        await play.step("agent", say("search[sofa]"))
    await play.close()
    plays = [web.make(web.tasks("train")[number]) for number in (0, 1)]
    first, _ = await asyncio.gather(*(one.start() for one in plays))
    assert first.messages[0].text == "Search the shop."
    for one in plays:
        await one.close()


async def test_a_program_that_is_no_chromium_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("playwright")
    monkeypatch.setenv("SOJOURN_CHROMIUM", "true")
    family = Shop(surface="web", **FIELDS)
    with pytest.raises(ConfigError, match="does not start as Chromium"):
        await family.open()
    await family.close()


async def test_a_server_may_be_stopped_before_its_start() -> None:
    server = Server(app(generate(200, 0)))
    server.stop()
    with pytest.raises(InfrastructureError, match="stopped before"):
        server.start()


async def test_both_surfaces_show_and_pay_the_same(web: Shop) -> None:
    text = Shop(**FIELDS)
    for number in range(4):
        task = text.tasks("train")[number]
        plays = [text.make(task), web.make(task)]
        assert len({repr(await play.start()) for play in plays}) == 1
        detour = [f"search[{text.goal(task).target.kind}]", "click[Next >]", "click[< Prev]", "click[Back to Search]"]
        for action in detour:
            assert len({repr(await play.step("agent", say(action))) for play in plays}) == 1
        done = False
        while not done:
            assert len({play.expert() for play in plays}) == 1
            assert len({play.state_key() for play in plays}) == 1
            action = plays[0].expert()
            steps = [await play.step("agent", say(action)) for play in plays]
            assert steps[0] == steps[1]
            done = steps[0].done
        assert steps[1].rewards == {"agent": 1.0}
        for play in plays:
            await play.close()


async def test_a_poor_purchase_pays_the_same_on_both(web: Shop) -> None:
    text = Shop(**FIELDS)
    task = text.tasks("test")[1]
    plays = [text.make(task), web.make(task)]
    ends = []
    for play in plays:
        await play.start()
        step = await play.step("agent", say(f"search[{text.goal(task).target.kind}]"))
        assert step.observation is not None
        await play.step("agent", say(step.observation.choices[1]))
        await play.step("agent", say("click[Features]"))
        await play.step("agent", say("click[< Prev]"))
        ends.append(await play.step("agent", say("click[buy now]")))
        await play.close()
    assert ends[0] == ends[1]
    assert 0 < ends[1].rewards["agent"] < 1


async def test_tabs_do_not_affect_each_other_and_bad_actions_do_nothing(web: Shop) -> None:
    one, two = (web.make(web.tasks("train")[number]) for number in (0, 1))
    await asyncio.gather(one.start(), two.start())
    first = await one.step("agent", say("search[sofa]"))
    second = await two.step("agent", say("search[<lamp> & rug]"))
    assert first.observation is not None
    assert second.observation is not None
    assert first.observation.messages != second.observation.messages
    before = one.state_key()
    for action in ("click[Buy Now]", "search[sofa]", "hello"):
        with pytest.raises(ActionError):
            await one.step("agent", say(action))
    assert one.state_key() == before
    assert (await one.step("agent", say("click[Next >]"))).observation is not None
    await asyncio.gather(one.close(), two.close())


async def test_letters_that_browsers_count_twice_are_searched_on_both_surfaces(web: Shop) -> None:
    text, action = Shop(**FIELDS), say(f"search[{150 * chr(0x1F600)} sofa]")
    plays = [text.make(text.tasks("train")[0]), web.make(web.tasks("train")[0])]
    for play in plays:
        await play.start()
    first, second = [await play.step("agent", action) for play in plays]
    assert first == second
    for play in plays:
        await play.close()


async def test_the_web_surface_needs_open() -> None:
    family = Shop(surface="web", **FIELDS)
    with pytest.raises(InfrastructureError, match="open"):
        family.make(family.tasks("train")[0])
    await family.close()


async def test_open_and_close_may_nest(web: Shop) -> None:
    await web.open()
    await web.close()
    play = web.make(web.tasks("train")[0])
    assert (await play.start()).messages[0].text == "Search the shop."
    await play.close()
