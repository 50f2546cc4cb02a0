"""MiniWoB in a real Chromium. One browser serves the module; tests that break a browser open their own."""

import asyncio
import random
import re
from contextlib import suppress
from os import environ

import pytest
import pytest_asyncio

pytest.importorskip("miniwob", reason="the pages come with the package miniwob")
pytest.importorskip("playwright", reason="Chromium is driven by playwright")

from miniwob_play import act, solve, task, visit, world

from sojourn.abilities import HasExpert
from sojourn.checks.env import check_env
from sojourn.envs.chromium import find_chromium
from sojourn.errors import ActionError, ConfigError
from sojourn_worlds.miniwob import MiniWoB
from sojourn_worlds.miniwob.experts import EXPERTS
from sojourn_worlds.miniwob.facts import RELOADED, page_names

try:
    find_chromium(environ.get("SOJOURN_CHROMIUM"))
except ConfigError as missing:
    pytest.skip(str(missing), allow_module_level=True)

SEEDS = range(30, 33)  # in whose inboxes nobody has two messages
MARKS = {"marks": True, "refs": "number"}
pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def family():
    async with world(contexts=6) as opened:
        yield opened


@pytest.mark.parametrize("page", sorted(EXPERTS))
async def test_the_expert_reaches_the_full_reward(family, page):
    results = [await solve(family, page, seed) for seed in SEEDS]  # in turn: the page is loaded once
    assert results == [(1.0, True)] * len(SEEDS)


async def test_random_clicks_earn_much_less_than_the_expert(family):
    """On pages without typing, where clicks alone could do it."""
    rng, total = random.Random(0), 0.0
    pages = [page for page in EXPERTS if page.startswith("click-")]
    for page in pages:
        async with visit(differently(family, choices=True, turns=8), page, 3) as (env, seen):
            step = None
            while step is None or not step.done:
                offered = (seen if step is None else step.observation).choices
                step = await act(env, rng.choice(offered) if offered else "wait")
            total += step.rewards["agent"]
    assert total / len(pages) < 0.2


async def test_it_keeps_what_worlds_promise():
    for config in ({"pages": ("click-option", "enter-text")}, {"pages": ("click-checkboxes",), "choices": True}):
        report = await check_env(MiniWoB(contexts=4, **config), episodes=2, timeout_s=600.0)
        assert report.passed, report.failed


async def test_a_play_ends_unpaid_after_its_turns(family):
    async with visit(differently(family, turns=2), "enter-text") as (env, _):
        assert not (await act(env, "wait")).done
        with pytest.raises(ActionError):
            await act(env, "click Nobody")  # does not count
        step = await act(env, "wait")
        assert (step.done, step.rewards, step.success, step.observation) == (True, {"agent": 0.0}, False, None)


async def test_an_expert_goes_on_from_wherever_one_is(family):
    """After random actions that end nothing, it still reaches the full reward."""
    wandering = {
        "choose-date": ["click Date", "click Prev", "click 7", "click Date"],
        "email-inbox-reply": ["click trash", "click star (2)"],
        "use-slider": ["click slider", "press PageUp", "click 5,100"],
        "copy-paste": ["click textbox", 'type "x"', "press Control+A", "press Control+C"],
        "social-media-some": ["click like", "click reply (2)", "click share (3)"],
        "search-engine": ['type textbox "x"', "click Search", "click 3"],
        "order-food": ["click + (2)", "click + (2)", "click + (3)"],
        "form-sequence-2": ["click radio (2)", 'type textbox (2) "9"'],
        "drag-shapes-2": ["wait"],
        "book-flight": ['type From "Emm"', "click Departure Date", "press Escape"],
    }
    for page, actions in wandering.items():
        async with visit(family, page, 21) as (env, _):
            for said in actions:
                with suppress(ActionError):
                    assert not (await act(env, said)).done, page
            step = None
            while step is None or not step.done:
                step = await act(env, await env.expert())
            assert step.rewards == {"agent": 1.0}, page


async def test_every_page_loads_and_names_what_is_on_it(family):
    async def check(page):
        async with visit(family, page) as (env, observation):
            text, system_text = observation.messages[0].text, observation.system[0].text
            assert text != "(empty page)", page
            assert system_text.split("Task: ")[1], page
            assert not re.search(r"Last reward|Time left|Episodes done|START", text), page
            assert all(0 <= len(e.label) <= 90 for e in env._page.elements), page
            named = [
                e.label for e in env._page.elements if not re.fullmatch(r"\d+,\d+", e.label) and e.role != "option"
            ]
            assert len(named) == len(set(named)), page

    await asyncio.gather(*[check(page) for page in page_names()])


async def test_the_system_message_has_the_goal_and_the_page_has_the_elements(family):
    async with visit(family, "login-user") as (env, observation):
        assert re.search(r'Task: Enter the username "\w+" and the password "\w+"', observation.system[0].text)
        assert observation.messages[0].text.splitlines() == ["textbox Username", "password Password", "button Login"]
        step = await act(env, 'type Username "bob"', 'type Password "abc"')
        assert step.observation.system == ()
        assert step.observation.messages[0].text.splitlines() == [
            "textbox Username: bob",
            "password Password: ***",
            "button Login",
        ]
        step = await act(env, 'type Username "al"')
        assert "textbox Username: al\n" in step.observation.messages[0].text
        step = await act(env, "click Login")
        assert (step.done, step.rewards, step.success, step.observation) == (True, {"agent": -1.0}, False, None)
        with pytest.raises(ValueError, match="not under way"):
            await act(env, "click Login")


STATE = """[...document.querySelectorAll('*')].map(e => [e.scrollTop, e.scrollLeft, e.value || '', e.checked || ''])
.join(';') + document.activeElement.tagName + document.activeElement.id"""


def any_action(rng, elements):
    """Returns a random action, mostly one of use on an element of its kind."""
    element = rng.choice(elements) if elements else None
    if element is None or rng.random() < 0.06:
        return rng.choice(["press Tab", "press Enter", "press ArrowDown", "press Backspace", "scroll down"])
    if element.role in ("textbox", "password", "textarea"):
        return f'type {element.label} "{rng.choice(["ab", "2016"])}"'
    if element.role == "option":
        return f"select {element.label}"
    other = rng.choice(elements).label
    drag = f"drag {element.label} to {other}"
    rare = [f"hover {element.label}", drag, "click 80,120", f"scroll down {element.label}"]
    return rng.choice([*rare, *([f"click {element.label}"] * 8)])


async def history(family, page, seed, *, by_expert=False):
    """Returns what actions led to, and the page's own source and state at each point."""
    rng, seen = random.Random(seed), []
    async with visit(family, page, seed) as (env, observation):
        for _ in range(40 if by_expert else 5):
            body = await env._tab.page.evaluate("document.querySelector('#wrap').outerHTML")
            seen += [observation.messages[0].text, re.sub(r' data-(tampered|wob_\w+)="[^"]*"', "", body)]
            seen.append(await env._tab.page.evaluate(STATE))
            said = await env.expert() if by_expert else any_action(rng, env._page.elements)
            try:
                step = await act(env, said)
            except ActionError as error:
                seen.append((said, str(error)))
                continue
            seen.append((said, step.rewards))
            if step.done:
                break
            observation = step.observation
    return seen


async def test_a_page_used_again_is_as_a_fresh_one(monkeypatch):
    async with world(contexts=1, loaded=4) as family:  # one, so that the second play of a page is where the first was
        for page in [page for page in page_names() if page not in RELOADED]:
            with monkeypatch.context() as patch:
                patch.setattr("sojourn_worlds.miniwob.visit.RELOADED", frozenset(page_names()))
                fresh = await history(family, page, 7)
            await history(family, page, 8, by_expert=page in EXPERTS)
            assert await history(family, page, 7) == fresh, page


async def test_only_the_pages_that_were_shown_last_stay_loaded():
    async with world(contexts=1, loaded=2) as family:
        for page, pages in (("click-test", 2), ("click-link", 3), ("click-test", 3), ("focus-text", 3)):
            async with visit(family, page) as (env, observation):
                assert observation.messages[0].text
                tab = env._tab
                assert len(tab.context.pages) == pages  # with the one of a context's beginning
        assert tab.keeps("click-test")
        assert not tab.keeps("click-link")  # the one that was not shown for longest


async def test_it_chooses_a_play_whose_page_is_loaded_where_nobody_plays():
    async with world(contexts=2) as family:
        waiting = [task(page) for page in ("click-link", "click-test", "focus-text", "click-test")]
        assert family.next_task(waiting) == 0
        async with visit(family, "click-test"):
            assert family.next_task(waiting) == 0
            async with visit(family, "focus-text"):
                pass
            assert family.next_task(waiting) == 2
        assert family.next_task(waiting) == 1


async def test_two_episodes_at_once_do_not_meet(family):
    async with visit(family, "enter-text") as (one, _), visit(family, "enter-text") as (two, _):
        await act(one, 'type textbox "first"', "press Control+A", "press Control+C")
        step = await act(two, 'type textbox "second"', "press Control+A", "press Control+V")
        assert step.observation.messages[0].text.startswith("textbox: second")
        step = await act(one, 'type textbox ""', "press Control+V")
        assert step.observation.messages[0].text.startswith("textbox: first")


async def test_what_selects_nothing_is_neither_copied_nor_cut(family):
    async with visit(family, "enter-text") as (env, _):
        step = await act(
            env, 'type textbox "abc"', "press Control+A", "press Control+C", "press Home", "press Control+X"
        )
        assert step.observation.messages[0].text.startswith("textbox: abc\n")
        step = await act(env, "press Control+C", "press Control+V")
        assert step.observation.messages[0].text.startswith("textbox: abcabc\n")


@pytest.mark.parametrize(
    "said", ["", "hello", "click Nobody", "click 10,10 twice", 'type Submit "x"', "scroll up", "press F5"]
)
async def test_an_impossible_action_changes_nothing(family, said):
    async with visit(family, "enter-text") as (env, _):
        await act(env, 'type textbox "x"')
        before = env.state_key()
        with pytest.raises(ActionError):
            await act(env, said)
        env._page = await env._read("read")
        assert env.state_key() == before
        assert (await act(env, "click Submit")).done


async def test_state_keys_tell_states_apart(family):
    async with visit(family, "enter-text") as (env, _):
        keys = [env.state_key()]
        for text in ("a", "b", ""):
            await act(env, f'type textbox "{text}"')
            keys.append(env.state_key())
        assert keys[0] == keys[3]
        assert len(set(keys)) == 3


PLAYS = {
    "button-delay": ["click ONE", "click TWO"],  # asks for one second: a step is one second
    "drag-box": ["drag s to L", "click Submit"],
    "click-scroll-list": ["select Miguelita", "select Lolita", "click Submit"],
    "copy-paste": [
        "click textarea",
        "press Control+A",
        "press Control+C",
        "click textbox",
        "press Control+V",
        "click Submit",
    ],
    "enter-date": ['type date "2012-09-10"', "click Submit"],
    "use-autocomplete": ['type Tags "Egy"', "press ArrowDown", "press Enter", "click Submit"],
    "click-menu-2": ["click Menu", "hover Playback", "click Prev"],
    "scroll-text-2": ["scroll down textarea", "click Submit"],
    "resize-textarea": ["drag 109,119 to 120,150", "click Submit"],
    "use-slider": ["click slider", *["press ArrowRight"] * 3, "click Submit"],
    "email-inbox": ["click trash"],
    "click-color": ["click lime"],
    "ascending-numbers": ["click 72,152", "click 49,107", "click 122,101", "click 118,163", "click 35,65"],
}


@pytest.mark.parametrize("page", PLAYS)
async def test_the_verbs_do_what_they_say(family, page):
    async with visit(family, page) as (env, _):
        assert (await act(env, *PLAYS[page])).rewards == {"agent": 1.0}


async def test_dragging_sorts_a_list(family):
    async with visit(family, "drag-sort-numbers") as (env, _):
        step = await act(env, "drag 74 to -51")
        assert step.observation.messages[0].text.split("\n")[:4] == ["item -47", "item -14", "item -51", "item 74"]
        assert (await act(env, "drag -51 to -47", "click Submit")).success


async def test_a_partly_right_answer_is_paid_as_such(family):
    async with visit(family, "click-checkboxes") as (env, _):
        assert "Select nothing" in env._page.goal  # of three boxes
        step = await act(env, f"click {env._page.elements[0].label}", "click Submit")
        assert step.rewards["agent"] == pytest.approx(1 / 3)
        assert step.success


async def test_a_page_without_expert_says_so(family):
    async with visit(family, "tic-tac-toe") as (env, _):
        assert not isinstance(env, HasExpert)


def differently(family, **config):
    """Another config of the same open world."""
    other = MiniWoB(**config)
    object.__setattr__(other, "_shared", family._shared)
    return other


@pytest.mark.parametrize(
    "config", [{"refs": "number"}, {"observation": "dom", "refs": "number"}, {"observation": "aria"}]
)
async def test_the_other_texts_can_be_acted_on(family, config):
    async with visit(differently(family, **config), "enter-text") as (env, observation):
        assert "Submit" in observation.messages[0].text
        assert "Last reward" not in observation.messages[0].text
        await act(env, await env.expert())
        assert (await act(env, await env.expert())).success


async def test_screenshots_are_blobs_and_coordinates_work(family):
    async with visit(differently(family, observation="screenshot"), "click-test-2") as (env, seen):
        (digest,) = seen.messages[0].images
        assert env.blobs[digest].startswith(b"\x89PNG")
        assert "click x,y" in seen.system[0].text
        button = env._page.elements[0]
        assert (await act(env, f"click {button.x},{button.y}")).rewards == {"agent": 1.0}


async def test_marks_number_what_is_drawn_and_leave_the_page_as_it_was(family):
    plain, marked = (differently(family, observation="screenshot", **more) for more in ({}, MARKS))
    async with visit(plain, "login-user") as (one, first), visit(marked, "login-user") as (two, second):
        pictures = [env.blobs[seen.messages[0].images[0]] for env, seen in ((one, first), (two, second))]
        assert pictures[0] != pictures[1]
        assert await two._tab.page.evaluate("document.querySelectorAll('.sojourn-mark').length") == 0
        await act(two, 'type(1, "keli")', 'type 2 "3hI"')
        assert [e.value for e in two._page.elements[:2]] == ["keli", "3hI"]
        assert (await act(two, "click(3)")).done
    async with visit(marked, "choose-list") as (_, seen):
        assert re.fullmatch(r"options 2 \w+ \| 3 .*", seen.messages[0].text)


async def test_the_dom_has_the_expert_of_the_text(family):
    for page in ("choose-date", "drag-shapes", "social-media-some", "login-user"):
        assert await solve(differently(family, observation="dom", refs="number"), page, 21) == (1.0, True), page


async def test_choices_cover_the_clicks(family):
    async with visit(differently(family, choices=True), "choose-list") as (env, seen):
        assert "click Submit" in seen.choices
        step = await act(env, next(said for said in seen.choices if said.startswith("select ")))
        assert "click Submit" in step.observation.choices


async def test_what_cannot_have_the_focus_any_more_has_lost_it(family):
    """A browser takes it away when it paints next, which would depend on how busy the machine is."""
    for _ in range(20):
        async with visit(family, "login-user-popup", 7) as (env, _):
            await act(env, 'type Password "2016"', 'type Username "ab"')  # by which both are disabled
            assert await env._tab.page.evaluate("document.activeElement.tagName") == "BODY"
