"""The viewer as a person meets it: real pages in a real browser, served by the real command."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import big_run
import pytest

from sojourn.record.episodes.store import EpisodeStore
from sojourn.record.metrics import Jsonl
from tests.view import hostile
from tests.view.conftest import Tab, served

HOSTILE = "/runs/" + "it%27s%20a%20%22run%22%20%231%20100%25%20%C3%BC%20%252f..%20%3Cb%3E%26amp%3B"


@pytest.fixture(scope="module")
def folder(runs: Path, tmp_path_factory) -> Path:
    """A folder of runs that tests may add to."""
    folder = tmp_path_factory.mktemp("folder")
    for path in runs.iterdir():
        shutil.copytree(path, folder / path.name)
    hostile.make(folder / hostile.NAME)
    return folder


@pytest.fixture(scope="module")
def address(folder: Path):
    with served(folder) as address:
        yield address


@pytest.fixture
def tab(chromium, address: str):
    made = Tab(chromium, address)
    yield made
    made.close()


@pytest.fixture(scope="module")
def episode(runs: Path) -> str:
    """One of several turns, in a group of several."""
    with EpisodeStore(runs / "seed0") as store:
        return next(e.id for e in store.query(stage="rl", step=3, failed=False) if e.turns > 1)


def test_new_steps_and_new_runs_appear_without_a_reload(tab: Tab, folder: Path) -> None:
    page = tab.open("/runs/seed1")
    page.wait_for_selector(".pulse.on")
    assert page.locator("a:text-is('rl 6')").count() == 0
    maker, metrics = big_run.Maker(1, 4), Jsonl(folder / "seed1" / "metrics.jsonl")
    with EpisodeStore(folder / "seed1", write=True) as store:
        store.append("rl", 6, *maker.step("rl", range(3), 4, 6, 0.5))
    metrics.write(6, "rl", {"success": 0.25, "reward": 0.5})
    metrics.close()
    page.wait_for_selector("a:text-is('rl 6')")
    page.click("a:text-is('rl 6')")
    page.wait_for_selector("h1:text-is('rl, step 6')")
    tab.open("/").wait_for_selector(".pulse.on")
    big_run.make(folder / "another", big_run.Size(steps=1, groups=1, plays=2, panel=2, turns=2, evaluations=2), 5)
    page.wait_for_selector("a:text-is('another')")


def test_open_sections_and_choices_survive_a_page_update(tab: Tab, folder: Path) -> None:
    page = tab.open("/runs/seed1")
    page.wait_for_selector(".pulse.on")
    page.keyboard.press("j")
    chosen = page.locator(".chosen").get_attribute("data-href")
    metrics = Jsonl(folder / "seed1" / "metrics.jsonl")
    metrics.write(7, "rl", {"success": 0.5})
    metrics.close()
    page.wait_for_selector("a:text-is('rl 7')")
    assert page.locator(".chosen").get_attribute("data-href") == chosen


def test_keys_lead_from_the_runs_to_an_episode_and_back(tab: Tab) -> None:
    page = tab.open("/?q=seed0")
    keys = page.keyboard
    keys.press("j")
    keys.press("Enter")
    page.wait_for_url("**/runs/seed0")
    page.click("a:text-is('rl 4')")
    page.wait_for_url("**/steps/rl/4")
    keys.press("[")
    page.wait_for_url("**/steps/rl/3")
    for key in ("j", "j", "k", "j", "Enter"):
        keys.press(key)
    page.wait_for_url("**/groups/rl/3/1")
    keys.press("]")
    page.wait_for_url("**/groups/rl/3/2")
    first, second = (page.locator("table.group thead a").nth(at).get_attribute("href") for at in (0, 1))
    keys.press("j")
    keys.press("Enter")  # which opens the first link of a row that has no page of its own
    page.wait_for_url(f"**{first}#turn-0.0")
    keys.press("h")
    page.wait_for_url("**/groups/rl/3/2")
    page.locator("table.group thead a").first.click()
    page.wait_for_url(f"**{first}")
    keys.press("]")
    page.wait_for_url(f"**{second}")
    keys.press("[")
    page.wait_for_url(f"**{first}")
    for place in ("**/groups/rl/3/2", "**/steps/rl/3", "**/runs/seed0", "**/"):
        keys.press("h")
        page.wait_for_url(place)
    page.go_back()
    page.wait_for_selector("h1:has-text('seed0')")
    assert page.url.endswith("/runs/seed0")
    keys.press("g")
    page.wait_for_url("**/")


def test_keys_open_find_and_help(tab: Tab) -> None:
    page = tab.open("/runs/seed0")
    page.keyboard.press("?")
    page.wait_for_selector("dialog[open]")
    page.keyboard.press("Escape")
    page.wait_for_selector("dialog[open]", state="detached")
    page.keyboard.press("/")
    page.keyboard.type("stage:rl step:0..2 sort:-reward")
    page.keyboard.press("Enter")
    page.wait_for_selector("h1:has-text('36 episodes')")
    assert "q=stage" in page.url
    page.keyboard.press("]")
    page.wait_for_url("**after=**")
    assert page.locator("tbody tr[data-row]").count() == 16
    page.go_back()
    page.wait_for_function("() => document.querySelectorAll('tbody tr[data-row]').length === 20")


def test_a_toggle_shows_tokens_and_prompts(tab: Tab, episode: str) -> None:
    page = tab.open(f"/runs/seed0/episodes/{episode}")
    assert page.locator(".tok").count() == 0
    page.keyboard.press("t")
    page.wait_for_selector(".tok")
    assert page.locator(".tok[class*=' h']").first.get_attribute("title").startswith("token ")  # type: ignore[union-attr]
    page.click(".controls a:text-is('advantage')")
    page.wait_for_url("**tokens=advantage")
    page.locator("text=show the exact prompt").nth(1).click()
    page.wait_for_selector(".message.prompt")
    assert "#turn-0.1" in page.url
    page.keyboard.press("t")
    page.wait_for_selector(".tok", state="detached")


def test_an_episode_is_copied_as_json(tab: Tab, episode: str) -> None:
    tab.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page = tab.open(f"/runs/seed0/episodes/{episode}")
    page.keyboard.press("c")
    page.wait_for_selector("button:text-is('copied')")
    assert json.loads(page.evaluate("navigator.clipboard.readText()"))["episode"]["id"] == episode


@pytest.mark.parametrize("system", ["light", "dark"])
def test_light_and_dark_follow_the_system_until_one_is_chosen(chromium, address: str, system: str) -> None:
    tab = Tab(chromium, address, color_scheme=system)
    page = tab.open("/")
    brightness = "() => Number(getComputedStyle(document.body).backgroundColor.match(/[0-9.]+/)[0])"
    assert (page.evaluate(brightness) > 128) == (system == "light")
    page.click("#theme")
    assert (page.evaluate(brightness) > 128) == (system == "dark")
    page.reload()
    assert (page.evaluate(brightness) > 128) == (system == "dark"), "the choice is remembered"
    tab.close()


def test_ticked_runs_are_compared(tab: Tab) -> None:
    page = tab.open("/")
    for name in ("seed0", "seed1"):
        page.check(f"input[value={name}]")
    page.click("text=compare the selected runs")
    page.wait_for_selector("h1:has-text('2 runs')")
    assert page.locator(".chart").first.locator("path.line").count() == 2
    page.check("input[name=seeds]")
    page.wait_for_selector("path.band")
    page.click("input[value=seed1]")  # it leaves with its run: nobody can see it unticked
    page.wait_for_selector("h1:text-is('Comparison of 1 run')")
    page.select_option("select[aria-label='add a run']", "another" if "another" in page.content() else "seed1")
    page.wait_for_selector("h1:has-text('2 runs')")


def test_compared_evaluations_link_to_their_episodes(tab: Tab) -> None:
    page = tab.open("/runs/seed0")
    page.locator("text=changes by task").last.click()
    page.wait_for_selector("h2:has-text('Improved')")
    page.locator("section:has(h2:has-text('Improved')) tbody tr").first.click()
    page.wait_for_selector("section.turn")


def test_curves_are_smoothed_and_show_their_values(tab: Tab) -> None:
    page = tab.open("/runs/seed0")
    line = page.locator(".chart path.line").first
    before = line.get_attribute("d")
    page.select_option("select[name=smooth]", "2")
    page.wait_for_url("**smooth=2")
    drawn = "(before) => document.querySelector('.chart path.line').getAttribute('d') !== before"
    page.wait_for_function(drawn, arg=before)
    page.locator(".chart svg").first.hover()
    tip = page.locator(".tip").text_content() or ""
    assert re.match(r"step \d\nsuccess  0\.\d+", tip), tip
    page.locator("h1").hover()
    assert page.locator(".tip").count() == 0


def test_hostile_text_is_shown_and_never_runs(tab: Tab) -> None:
    page, seen = tab.page, set[str]()
    waiting = ["/", *(HOSTILE + rest for rest in ("", "?all=1", "/find?q=taken", "/changes"))]
    while waiting:
        path = waiting.pop(0)
        kind = re.sub(r"\d+", "0", path.removeprefix(HOSTILE).partition("?")[0])[:14] + path[-20:]
        if kind in seen or re.search(r"/(json|text|export)/", path):
            continue
        seen.add(kind)
        tab.open(path)
        assert page.evaluate("() => window.taken") is None, path
        assert page.locator("main img, main script, main svg[onload], main a[href^='javascript']").count() == 0, path
        assert page.locator("section.trouble").count() == 0, path
        assert len(page.content()) < 2_000_000, "megabytes are shown in part"
        own = "() => [...document.querySelectorAll('a:not([download])')].map((link) => link.getAttribute('href'))"
        links = page.evaluate(own)
        waiting += [link for link in links if link.startswith(HOSTILE)]
    assert len(seen) > 12


def test_hostile_text_is_shown_in_full(tab: Tab) -> None:
    page = tab.open(f"{HOSTILE}/episodes/0/0%3F%23%26%22%3Cb%3E%2500")
    text = page.locator(".message pre").first.text_content() or ""
    assert text.startswith("</pre></textarea></title></script><script>window.taken=1</script><img src=x")
    for spelled in (r"\x00", r"\x1b[31m", r"\u202egnp.exe", r"\u2066", r"\ud800", hostile.MARK):
        assert spelled in text
    assert not set(text) & set("\x00\x1b\u202e\u2066")
    whole = tab.context.request.get(
        tab.address + str(page.locator("a:has-text('more characters')").first.get_attribute("href"))
    )
    assert whole.text().count("<") >= 5_000_000
    assert whole.headers["content-type"].startswith("text/plain")
    page.click("text=group 0")
    page.wait_for_selector("table.group")
    assert page.title() == "group 0 · rl <b>/%2f?# 0 · Sojourn"
