"""Measures how long a person in a browser waits for the viewer, with 100,000 episodes and 2 million turns.

    python benchmarks/viewer.py [FOLDER] [--repeats 9]

FOLDER is a run; where there is none, `big_run.py` makes it first (half an hour). The viewer is served by a process of
its own, as `sojourn view` does, and Chromium is driven by real keys and clicks. The time of an interaction is from its
event to the frame in which the page that it leads to is shown, on the browser's clock; of an address that is opened
anew, from the beginning of the navigation to the later of first paint and load. First paint is the browser's
first-contentful-paint. `first` is the first time after the server's start, medians are of all times.

The machine is shared: `slowdown` says how much longer than its own processor time a busy loop took meanwhile.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import big_run
from machine import write
from playwright.sync_api import Page, sync_playwright

from sojourn.envs.chromium import find_chromium
from sojourn.record.episodes.store import EpisodeStore
from sojourn.record.metrics import Jsonl

SMALL = big_run.Size(steps=4, groups=3, plays=4, evaluations=2, panel=20, turns=4)
CLOCK = """
window.clock = {};
for (const kind of ["keydown", "click", "change"]) addEventListener(kind, (event) => {
  clock.began = event.timeStamp;
  requestAnimationFrame(() => setTimeout(() => { clock.frame = performance.now() - clock.began; }));
}, true);
addEventListener("DOMContentLoaded", () => new MutationObserver(() => {
  clock.address = location.href;
  requestAnimationFrame(() => setTimeout(() => { clock.shown = performance.now(); }));
}).observe(document.body, { childList: true }));
"""
LOADED = """() => {
  const paint = performance.getEntriesByName("first-contentful-paint")[0];
  const load = performance.getEntriesByType("navigation")[0];
  return paint && load.loadEventEnd ? [paint.startTime, load.loadEventEnd, load.decodedBodySize] : null;
}"""
SHOWN = """(before) => clock.shown && clock.address !== before && location.href !== before ?
  [clock.shown - clock.began, new TextEncoder().encode(document.body.outerHTML).length] : null"""
SEARCHES = ("refund", "the", '"the of"', "said:umbrella", "tag:hard", "reward:>0.5 tag:hard umbrella", "sort:-reward",
            "the sort:-reward", "error:any", "ending:malformed tool:search", "zzzz", "")  # fmt: skip


@dataclass
class Times:
    """Holds the milliseconds of the whole interaction, and of the first paint where a page was loaded."""

    whole: list[float] = field(default_factory=list)
    paint: list[float] = field(default_factory=list)
    kilobytes: float = 0.0

    def figures(self) -> dict[str, Any]:
        found: dict[str, Any] = {"ms": _spread(self.whole), "page_kB": round(self.kilobytes)}
        return found | ({"first_paint_ms": _spread(self.paint)} if self.paint else {})


@dataclass
class Watch:
    """A page whose interactions are timed."""

    page: Page
    times: dict[str, Times] = field(default_factory=dict)

    def opens(self, name: str, address: str) -> None:
        """An address that is typed."""
        self.page.goto("about:blank")
        self.page.goto(address)
        paint, load, size = self._asked(LOADED)
        held = self._of(name, size)
        held.paint.append(paint)
        held.whole.append(max(paint, load))

    def goes(self, name: str, act: Callable[[], Any]) -> None:
        """Something that leads to another page."""
        before = self.page.url
        self.page.evaluate("clock.shown = clock.address = null")
        act()
        took, size = self._asked(SHOWN, before)
        self._of(name, size).whole.append(took)

    def stays(self, name: str, act: Callable[[], Any]) -> None:
        """Something that changes the page it is on."""
        self.page.evaluate("clock.frame = null")
        act()
        self._of(name, 0).whole.append(self._asked("() => clock.frame"))

    def _asked(self, script: str, *values: str) -> Any:
        """Returns a script's result as soon as it has one (the page's policy forbids Playwright's own waiting)."""
        until = time.monotonic() + 60
        while (found := self.page.evaluate(script, *values)) is None:
            if time.monotonic() > until:
                raise TimeoutError(f"nothing came of it at {self.page.url}")
            time.sleep(0.02)
        return found

    def _of(self, name: str, size: float) -> Times:
        held = self.times.setdefault(name, Times())
        held.kilobytes = size / 1000
        return held


def walk(watch: Watch, address: str, run: str) -> None:
    """Once through everything."""
    page, keys = watch.page, watch.page.keyboard
    watch.opens("list of runs", address)
    page.evaluate("localStorage.clear()")
    watch.stays("choose a row (j)", lambda: keys.press("j"))
    watch.goes("open the run (click)", lambda: page.click(f"td.name a:text-is('{run}')"))
    watch.opens("the run (its address)", f"{address}runs/{run}")
    watch.goes("smoothing", lambda: page.select_option("select[name=smooth]", "5"))
    watch.goes("all metrics and steps", lambda: page.click("text=all metrics and steps"))
    watch.goes("up to all runs (g)", lambda: keys.press("g"))
    watch.opens("the run (its address)", f"{address}runs/{run}")
    watch.goes("open a step (click)", lambda: page.click("h2:text-is('Steps') + table tbody a"))
    watch.goes("the step before ([)", lambda: keys.press("["))
    keys.press("j")
    watch.goes("open a group (Enter)", lambda: keys.press("Enter"))
    watch.goes("the next group (])", lambda: keys.press("]"))
    watch.goes("open an episode (click)", lambda: page.click("table.group thead a"))
    watch.goes("its tokens (t)", lambda: keys.press("t"))
    watch.goes("coloured by advantage (click)", lambda: page.click(".controls a:text-is('advantage')"))
    watch.goes("the exact prompt (click)", lambda: page.locator("text=show the exact prompt").last.click())
    watch.goes("the next episode (])", lambda: keys.press("]"))
    watch.opens("an episode (its address)", page.url)
    watch.goes("up to the group (h)", lambda: keys.press("h"))
    watch.stays("light or dark (d)", lambda: keys.press("d"))
    watch.stays("keys (?)", lambda: keys.press("?"))
    keys.press("Escape")
    for query in SEARCHES:
        _search(watch, query)
        if query in ("the", "the sort:-reward"):
            watch.goes(f"find {query}: the next page (])", lambda: keys.press("]"))
    watch.opens("find the (its address)", f"{address}runs/{run}/find?q=the")
    watch.opens("an evaluation of 500 tasks", f"{address}runs/{run}/steps/evaluation-rl/{_last(page)}")
    page.goto(f"{address}runs/{run}")
    watch.goes("compare evaluations", lambda: page.locator("text=changes by task").last.click())
    watch.goes("compare with another", lambda: page.select_option("select[name=b]", index=3))
    page.goto(address)
    for name in (run, "again"):
        page.check(f"input[name=run][value='{name}']")
    watch.goes("compare two runs", lambda: page.click("text=compare the selected runs"))


def _search(watch: Watch, query: str) -> None:
    watch.page.keyboard.press("/")
    watch.page.fill("header input[name=q]", query)
    watch.goes(f"find {query or 'everything'}", lambda: watch.page.keyboard.press("Enter"))


def _last(page: Page) -> str:
    """The step of the last evaluation, as the run's page names it."""
    page.goto(page.url.partition("/find")[0])
    return page.locator("a[href*='/steps/evaluation-rl/']").first.get_attribute("href").rsplit("/", 1)[1]  # type: ignore[union-attr]


def follow(page: Page, address: str, small: Path, repeats: int) -> list[float]:
    """Milliseconds from a step's last write to the page that shows it, while the page is open."""
    maker, found = big_run.Maker(7, SMALL.turns), []
    page.goto(f"{address}runs/{small.name}")
    page.wait_for_selector(".pulse.on")
    metrics = Jsonl(small / "metrics.jsonl")
    with EpisodeStore(small, write=True) as store:
        for step in range(SMALL.steps, SMALL.steps + repeats):
            played = maker.step(big_run.STAGE, range(3), 4, step, 0.5)
            store.append(big_run.STAGE, step, *played)
            metrics.write(step, big_run.STAGE, big_run._metrics(maker.random, played, step, SMALL))
            began = time.perf_counter()
            page.wait_for_selector(f"main a:text-is('rl {step}')", state="attached")
            found.append(1000 * (time.perf_counter() - began))
    metrics.close()
    return found


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address of a viewer of the runs in a folder."""
    command = [sys.executable, "-m", "sojourn", "view", str(folder), "--port", "0"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        yield server.stdout.readline().split()[2]
    finally:
        server.terminate()
        server.wait()


def slowdown() -> float:
    """Returns the time that a busy loop took, over its processor time."""
    began, used = time.perf_counter(), time.process_time()
    while time.process_time() - used < 0.3:
        sum(range(1000))
    return (time.perf_counter() - began) / (time.process_time() - used)


def _spread(values: list[float]) -> dict[str, float]:
    low, high = min(values), max(values)
    found = {"median": statistics.median(values), "low": low, "high": high, "first": values[0]}
    return {name: round(value) for name, value in found.items()}


def main() -> None:
    options = argparse.ArgumentParser(description="How long the viewer takes in a browser.")
    options.add_argument("folder", type=Path, nargs="?", default=Path("runs/big"))
    options.add_argument("--repeats", type=int, default=9)
    options.add_argument("--into", type=Path, default=None, help="another folder for the result")
    given = options.parse_args()
    if not given.folder.exists():
        big_run.make(given.folder, big_run.Size())
    slow = [slowdown()]
    with tempfile.TemporaryDirectory() as made, sync_playwright() as playwright:
        shown = Path(made)
        for name in (given.folder.name, "again"):  # the run beside itself, to compare two
            (shown / name).symlink_to(given.folder.resolve(), target_is_directory=True)
        big_run.make(shown / "small", SMALL)
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=["--no-sandbox"])
        page = browser.new_page()
        page.add_init_script(CLOCK)
        watch = Watch(page)
        with served(shown) as address:
            for _ in range(given.repeats):
                walk(watch, address, given.folder.name)
                slow.append(slowdown())
            followed = follow(page, address, shown / "small", given.repeats)
        browser.close()
    _publish(given, watch.times, followed, slow)


def _publish(given: argparse.Namespace, times: dict[str, Times], followed: list[float], slow: list[float]) -> None:
    with EpisodeStore(given.folder) as store:
        episodes, turns = store.rows("SELECT count(*), sum(turns) FROM episodes", (), tuple)[0]
    opened = [found for found in times.values() if found.paint]
    acted = [found for found in times.values() if not found.paint]
    figures = {
        "run": {"episodes": episodes, "turns": turns},
        "repeats": given.repeats,
        "slowdown": {"median": round(statistics.median(slow), 2), "low": round(min(slow), 2),
                     "high": round(max(slow), 2)},
        "slowest_first_paint_median_ms": round(max(statistics.median(found.paint) for found in opened)),
        "slowest_interaction_median_ms": round(max(statistics.median(found.whole) for found in acted)),
        "new_step_shown_ms": _spread(followed),
        "actions": {name: found.figures() for name, found in times.items()},
    }  # fmt: skip
    for name, found in times.items():
        paint = f"{statistics.median(found.paint):6.0f}" if found.paint else "     -"
        whole = _spread(found.whole)
        print(f"{name:45} {whole['median']:6} ms ({whole['low']} to {whole['high']}), first paint {paint} ms, "
              f"{found.kilobytes:.0f} kB")  # fmt: skip
    print(f"a new step is shown after {_spread(followed)}; slowdown {figures['slowdown']}")
    where = {"folder": given.into} if given.into else {}
    print(write("viewer", figures, "starlette", "playwright", **where))


if __name__ == "__main__":
    main()
