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

from sojourn.envs.chromium import FLAGS, BlockingProxy, find_chromium, risks
from sojourn.errors import ActionError, ConfigError, InfrastructureError
from sojourn.types import Message, Role, Task
from sojourn_worlds.miniwob import MiniWoB
from sojourn_worlds.miniwob.actions import KEYS
from sojourn_worlds.miniwob.facts import page_names
from sojourn_worlds.miniwob.page import FIELDS

try:
    find_chromium(environ.get("SOJOURN_CHROMIUM"))
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
    return env._tab.page.evaluate(source)


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


async def probes_that_ran(family, page):
    """Returns the numbers of the probes that ran on the page; where no field can take them, the first alone is tried,
    to save time."""
    found = []
    for number in range(len(PROBES)):
        has_field, it_ran = await tried(family, page, number)
        found += [number] * it_ran
        if not has_field:
            break
    return found


async def tried(family, page, number):
    """Returns whether the page has a field, and whether a probe ran on it."""
    heard, rng = [], random.Random(f"{page} {number}")
    env = family.make(Task("miniwob", {"page": page}, 3 + number, "train"))
    try:
        await env.start()
        has_field = any(element.role in FIELDS for element in env._page.elements)
        env._tab.page.on("console", lambda said: heard.append(said.text))
        for said in probing(env, PROBES[number], rng):
            with suppress(ActionError):
                if (await act(env, said)).done:
                    break
        if env._tab.page.is_closed() or env._page.done:
            await asyncio.sleep(0.05)  # what it loads, and fails to
        env._tab.reusable = False  # the listener stays in it
    finally:
        await env.close()
    return has_field, "RAN" in heard


@pytest.mark.timeout(900)
async def test_no_probe_runs_on_any_page(family):
    found = await asyncio.gather(*[probes_that_ran(family, page) for page in page_names()])
    assert {page: ran for page, ran in zip(page_names(), found, strict=True) if ran} == {}


async def test_markup_that_would_run_is_refused_and_counted_and_the_seat_is_thrown_away():
    async with world(contexts=1) as family:
        async with visit(family, "terminal") as (env, _):
            first = env._tab.context
            await act(env, f'type "{PROBES[0]}"')
            step = await act(env, "press Enter")
            assert step.info["refused"] >= 1.0
            assert (step.done, step.rewards) == (False, {})
        async with visit(family, "terminal") as (env, _):
            assert env._tab.context is not first


MARKUP = (
    "<img src=x onerror=1>",
    "<svg><a xlink:href='javascript:1'></a><set to=javascript:1 /></svg>",
    "<a href=' java\tscript:1'></a><form action=javascript:1><button formaction=javascript:1>",
    "<iframe srcdoc='<script>1</script>'></iframe><iframe src=javascript:1></iframe>",
    "<script>1</script><object data=javascript:1></object><embed src=javascript:1><base href=x><meta>",
)
RUNS = """html => {
  const holder = document.createElement('div');
  holder.innerHTML = html;
  return [...holder.querySelectorAll('*')].some(el => /^(script|object|embed|base|meta)$/i.test(el.tagName)
    || [...el.attributes].some(({name, value}) => /^on|srcdoc/.test(name) || /^\\s*java\\s*script:/.test(value)));
}"""


@pytest.mark.parametrize("html", MARKUP)
async def test_markup_that_would_run_is_taken_out_before_the_policy_of_the_page_sees_it(family, html):
    async with visit(family, "click-test") as (env, _):
        assert not await env._tab.page.evaluate(RUNS, html)
        assert (await act(env, "wait")).info["refused"] >= 1.0


# The reward

CALLS = (
    "core.endEpisode(1, true)",
    "core.endEpisode.call(core, 1)",
    "[1].forEach(core.endEpisode)",
    "Reflect.apply(core.endEpisode, core, [1])",
    "setTimeout(core.endEpisode, 0, 1)",
    "setTimeout('core.endEpisode(1)', 0)",
    "requestAnimationFrame(() => core.endEpisode(1))",
    "window.addEventListener('mousemove', core.endEpisode.bind(core, 1))",
    "Promise.resolve(1).then(core.endEpisode)",
    "$.each([1], (_, one) => core.endEpisode(one))",
    "$('#area').one('probe', core.endEpisode.bind(core, 1)).trigger('probe')",
    "$.globalEval('core.endEpisode(1)')",
    "$('#area').append('<script>core.endEpisode(1)</' + 'script>')",
    "$('#area').html('<img src=x onerror=core.endEpisode(1)>')",
    "document.body.setAttribute('onmousemove', 'core.endEpisode(1)')",
    "location.href = 'javascript:core.endEpisode(1)'",
    "new Function('core.endEpisode(1)')()",
    "WOB_RAW_REWARD_GLOBAL = WOB_REWARD_GLOBAL = 1; WOB_DONE_GLOBAL = true",
    "core.EP_TIMER = null; core.endEpisode = () => 1; core = {endEpisode: 1}",
    "Object.defineProperty(Error, 'prepareStackTrace', {value: () => []}); core.endEpisode(1)",
    "Error.stackTraceLimit = 0; core.endEpisode(1)",
    "Object.prototype.hasOwnProperty = () => true; Number = Math.max = () => 1; core.endEpisode(1)",
    "__sojourn().after(0, 'text')",
)


@pytest.mark.parametrize("call", CALLS)
async def test_script_of_the_content_cannot_take_the_reward(family, call):
    async with visit(family, "login-user") as (env, _):
        source = f"() => {{ try {{ {call} }} catch (error) {{ return String(error); }} }}"
        await script(env, source)
        step = await act(env, "hover 80,120")
        assert (step.done, step.rewards) == (False, {})
        env._tab.reusable = False
        step = await act(env, "click Login")
        assert (step.done, step.rewards) == (True, {"agent": -1.0})  # the page's own, still


# What would outlive the episode

LASTING = (
    "localStorage.setItem('a', 'b')",
    "sessionStorage.setItem('a', 'b')",
    "indexedDB.open('a')",
    "caches.open('a')",
    "new Worker('/core/core.js')",
    "new Worker(URL.createObjectURL(new Blob(['1'])))",
    "new SharedWorker('/core/core.js')",
    "navigator.serviceWorker.register('/core/core.js')",
    "new BroadcastChannel('a')",
    "if (!window.open('/miniwob/click-test.html')) throw 1",
    "navigator.storage.getDirectory()",
)


async def test_nothing_of_an_episode_can_stay(family):
    async with visit(family, "click-test") as (env, _):
        pages = len(env._tab.context.pages)
        for source in LASTING:
            for inside in ("window", "document.body.appendChild(document.createElement('iframe')).contentWindow"):
                tried = (
                    f"() => {{ try {{ with ({inside}) {{ {source} }} }} catch (e) {{ return 'no'; }} return 'yes'; }}"
                )
                assert await script(env, tried) == "no", (source, inside)
        await script(
            env,
            "() => { const a = document.body.appendChild(document.createElement('a')); a.target = '_blank';"
            " a.href = '/miniwob/click-test.html'; a.dispatchEvent(new MouseEvent('click')); }",
        )
        await act(env, "wait")
        context = env._tab.context
        assert len(context.pages) == pages
        await script(env, "() => { document.cookie = 'a=b'; }")
        assert await context.storage_state() == {"cookies": [], "origins": []}
        env._tab.reusable = False


async def test_a_seat_in_which_a_page_was_opened_is_thrown_away():
    async with world(contexts=1) as family:
        async with visit(family, "click-test") as (env, _):
            first = env._tab.context
            await first.new_page()
        async with visit(family, "click-test") as (env, _):
            assert env._tab.context is not first
        async with visit(family, "click-test", 2) as (env, _):
            second = env._tab.context
        async with visit(family, "click-test", 3) as (env, _):
            assert env._tab.context is second  # nothing happened in it


# Requests


@asynccontextmanager
async def service():
    """Another service on loopback, and what connected to it."""
    met = []
    server = await asyncio.start_server(lambda _, writer: (met.append(1), writer.close()), "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}", met
    finally:
        server.close()
        await server.wait_closed()


REQUESTS = (
    "fetch('http://{0}/')",
    "new Image().src = 'http://{0}/'",
    "navigator.sendBeacon('http://{0}/', '1')",
    "document.head.append(Object.assign(document.createElement('link'), {{rel: 'preconnect', href: 'http://{0}/'}}))",
    "document.head.append(Object.assign(document.createElement('link'), {{rel: 'stylesheet', href: 'http://{0}/'}}))",
    "document.body.append(Object.assign(document.createElement('iframe'), {{src: 'http://{0}/'}}))",
    "document.body.style.backgroundImage = 'url(http://{0}/)'",
    "location.href = 'http://{0}/'",
    "const f = document.createElement('form'); f.action = 'http://{0}/'; document.body.append(f); f.submit()",
)


async def test_no_request_of_a_page_reaches_another_service(family):
    async with service() as (address, met), visit(family, "click-test") as (env, _):
        for source in REQUESTS:
            await script(env, f"() => {{ try {{ {source.format(address)} }} catch (error) {{}} }}")
        step = await act(env, "wait")
        assert step.info["refused"] >= 5.0
        assert env._tab.page.url.endswith("/click-test.html")
        assert met == []


async def test_the_wall_holds_without_the_policy_of_a_page(family):
    """Whatever is opened in such a context, with no header to forbid it."""
    wall, browser = BlockingProxy(), await family._shared.chromium._shared.launched()
    await wall.start()
    async with service() as (address, met), service() as (exempt, reached):
        context = await browser.new_context(**wall.context_options(exempt))
        page = await context.new_page()
        for url in (f"http://{address}/", f"https://{address}/", "http://localhost:8099/", "http://example.org/"):
            with suppress(*family._shared.chromium.errors):
                await page.goto(url)
        assert wall.refused >= 4
        before, page = wall.refused, await context.new_page()
        for source in (
            f"fetch('http://{address}/').catch(() => 0)",
            f"new Promise(done => {{ new WebSocket('ws://{address}/').onerror = done; }}).then(() => 0)",
            f"new Promise(done => {{ new Worker(`data:,fetch('http://{address}/').finally(() => postMessage(1))`)"
            ".onmessage = done; }).then(() => 0)",
        ):
            await page.evaluate(source)
        assert wall.refused >= before + 3
        assert met == []
        with suppress(*family._shared.chromium.errors):
            await page.goto(f"http://{exempt}/")
        assert reached != []
        await context.close()
    wall.close()


@pytest.mark.parametrize("acts", [True, False])
async def test_what_met_the_wall_is_told_and_costs_the_seat(acts):
    """The test asks the wall itself, as a page's own policy lets none of its requests come that far."""
    async with world(contexts=1) as family:
        async with visit(family, "click-test") as (env, _):
            first, port = env._tab.context, env._tab.wall.context_options("")["proxy"]["server"].rpartition(":")[2]
            reader, writer = await asyncio.open_connection("127.0.0.1", int(port))
            writer.write(b"GET http://example.org/ HTTP/1.1\r\n\r\n")
            assert (await reader.read()).startswith(b"HTTP/1.1 403")
            writer.close()
            if acts:
                assert (await act(env, "wait")).info == {"refused": 1.0}
        async with visit(family, "click-test") as (env, _):
            assert env._tab.context is not first


# What an agent can break

BREAKS = {
    "hangs": "() => addEventListener('mousemove', () => { for (;;); })",
    "is emptied": "() => addEventListener('mousemove', () => document.documentElement.remove())",
    "loses its body": "() => addEventListener('mousemove', () => document.body.remove())",
    "never ends a timer": "() => addEventListener('mousemove', () => { const f = () => setTimeout(f, 0); f(); })",
    "loses its goal": "() => addEventListener('mousemove', () => document.querySelector('#query').remove())",
}


@pytest.mark.parametrize("how", BREAKS)
async def test_a_page_that_an_action_breaks_is_lost(how):
    async with world(contexts=1, timeout_s=10.0) as family:
        async with visit(family, "click-test") as (env, _):
            await script(env, BREAKS[how])
            step = await act(env, "hover 80,120")
            assert (step.observation, step.rewards, step.done, step.success) == (None, {"agent": -1.0}, True, False)
            assert step.info["lost"] == 1.0
        async with visit(family, "click-test", 2) as (env, _):
            assert (await act(env, "click Click Me!")).success


@pytest.mark.parametrize("what", ["renderer", "address"])
async def test_a_page_that_is_gone_is_lost(what):
    async with world(contexts=1) as family:
        async with visit(family, "click-test") as (env, _):
            tab = env._tab
            if what == "renderer":
                gone = asyncio.Event()
                tab.page.on("crash", lambda _: gone.set())
                session = await tab.context.new_cdp_session(tab.page)
                crashing = asyncio.ensure_future(session.send("Page.crash"))
                await asyncio.wait_for(gone.wait(), 100)
                crashing.cancel()
                await asyncio.gather(crashing, return_exceptions=True)
            else:
                await tab.page.goto("about:blank")
            step = await act(env, "click Click Me!")
            assert (step.rewards, step.done, step.info["lost"]) == ({"agent": -1.0}, True, 1.0)
        async with visit(family, "click-test", 2) as (env, _):
            assert (await act(env, "click Click Me!")).success


async def test_a_page_that_fails_before_the_first_action_is_nobodys_fault(family):
    env = family.make(Task("miniwob", {"page": "no-such-page"}, 1, "train"))
    with pytest.raises(InfrastructureError):
        await env.start()
    await env.close()


async def test_dialogs_do_not_stop_a_page(family):
    async with visit(family, "click-test") as (env, _):
        await script(env, "() => addEventListener('mousemove', () => { alert(1); confirm(2); prompt(3); print(); })")
        assert not (await act(env, "hover 80,120")).done
        env._tab.reusable = False


async def test_an_action_of_any_length_is_read_or_refused(family):
    async with visit(family, "login-user") as (env, _):
        for said in ("drag " + "a to " * 10**5, "click " + "x" * 10**6, 'type "' + "y" * 10**6 + '"'):
            with pytest.raises(ActionError):
                await act(env, said)
        await act(env, 'type Username "' + "z" * 900 + '"')
        for _ in range(5):  # each round doubles what was copied, up to a bound
            for key in ("Control+A", "Control+C", "End", "Control+V"):
                await act(env, f"press {key}")
        assert len(env._clipboard) <= 10_000


async def test_the_sandbox_is_left_out_for_root_alone_and_said():
    assert not [flag for flag in FLAGS if "sandbox" in flag]
    said = MiniWoB().risks()
    assert said == risks()
    assert all(sentence.startswith("Chromium runs without its own sandbox, because ") for sentence in said)
