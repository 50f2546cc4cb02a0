"""Re-running in a real browser, against `sojourn view --play` in a process of its own."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest
from played_run import TOY, Made
from spawned import PYTHON, variables_of

from sojourn.envs.chromium import find_chromium
from sojourn.errors import ConfigError
from sojourn.record.episodes.store import EpisodeStore


def test_a_person_plays_in_a_browser_and_saves_the_episode(tmp_path: Path) -> None:
    playwright = pytest.importorskip("playwright.sync_api")
    try:
        program = find_chromium()
    except ConfigError as missing:
        pytest.skip(str(missing))
    Made({**TOY, "choices": True}, turns=12, tasks=1, episodes=1).run(tmp_path / "runs" / "toy")
    with EpisodeStore(tmp_path / "runs" / "toy") as store:
        entry = next(iter(store.query()))
        texts = [turn.message.text for turn in store.read(entry).episode.trajectories[0].turns if turn.message]
    out = tmp_path / "runs" / "reruns"
    command = [*PYTHON, "-m", "sojourn", "view", str(tmp_path / "runs"), "--port", "0"]
    server = subprocess.Popen(
        [*command, "--play", "--out", str(out)], stdout=subprocess.PIPE, text=True, env=variables_of()
    )
    assert server.stdout is not None
    try:
        address = server.stdout.readline().split()[2].rstrip("/")
        with playwright.sync_playwright() as started:
            browser = started.chromium.launch(executable_path=program, args=["--no-sandbox"])
            page = browser.new_page()
            page.set_default_timeout(100_000)
            wrong: list[str] = []
            page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
            page.goto(f"{address}/runs/toy/episodes/{entry.id}")
            page.click("[id='turn-0.1'] >> text=re-run from here")
            page.click("main form button")
            page.fill("textarea", "dance")
            page.click("#now form:last-of-type button")
            page.wait_for_selector('text="dance" is no action')
            for action in texts[1:]:
                with page.expect_navigation():
                    page.click(f'#now button[value="{action}"]')
            page.click("button:text-is('save')")
            page.click('a[href*="/episodes/rerun/"]')
            page.wait_for_selector("text=from-turn-2")
            assert not wrong
            browser.close()
    finally:
        server.send_signal(signal.SIGINT)
        assert server.wait(100) is not None
        server.stdout.close()
    with EpisodeStore(out / "toy-reruns") as store:
        kept = store.read(next(iter(store.query()))).episode
    assert [turn.message.text for turn in kept.trajectories[0].turns if turn.message] == [texts[0], "dance", *texts[1:]]
    assert kept.trajectories[0].reward == 1.0
