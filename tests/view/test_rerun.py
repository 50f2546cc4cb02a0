"""Episodes played again from a turn on, from the pages: by a person, by checkpoints, and what is refused."""

from __future__ import annotations

import asyncio
import hashlib
import html
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import httpx
import numpy as np
import pytest
from made import chatml
from made_world import Says
from played_match import match
from played_run import SUMS, TOY, Made, Script, Sums
from spawned import PYTHON, variables_of
from starlette.testclient import TestClient
from typer.testing import CliRunner

from sojourn.agents.ask_person import QUESTIONS
from sojourn.agents.text_seat import NO_SAMPLE
from sojourn.cli import app
from sojourn.errors import ConfigError, RecordError
from sojourn.record.episodes.episode_row import EpisodeRow
from sojourn.record.episodes.step_file import Record
from sojourn.record.episodes.store import EpisodeStore
from sojourn.types import Message, Prompt, Role, Sample, SamplingParams, Stop, Turn, Versions
from sojourn.view.page import address
from sojourn.view.reruns import MAX_RUNNING, Reruns, State
from sojourn.view.resume_seat import ReplaySampler, ResumePoint, turns_to_resume
from sojourn.view.server import application
from sojourn_worlds.sokoban import Sokoban
from tests.view import hostile

SEEN: dict[str, Any] = {"observation": "image", "choices": True}
HOME = "http://127.0.0.1"
OPEN: list[str] = []  # worlds that are open


class Shifting(Sums):
    """Asks for something else every time."""

    asked = 0

    def goal(self) -> str:
        Shifting.asked += 1
        return f"What is {Shifting.asked} + 1?"


class Closing(Sums):
    """Says whether it is closed."""

    def goal(self) -> str:
        OPEN.append("world")
        return super().goal()

    def close(self) -> None:
        time.sleep(0.05)  # so long that the event loop goes on
        OPEN.remove("world")


class Marking(Sums):
    """Leaves a file when it is closed."""

    def close(self) -> None:
        Path(os.environ["CLOSED"]).touch()


@pytest.fixture(scope="session")
def played(tmp_path_factory, trained: Path) -> Path:
    """Runs of experts and scripts, and one with checkpoints; nobody may change them."""
    folder = tmp_path_factory.mktemp("played")
    Made({**TOY, "choices": True}, turns=12).run(folder / "toy")
    Made({**TOY, "choices": True}, Script(["dance", "go north", "<b>hm</b>", "go south", "go east"]), turns=5).run(
        folder / "clumsy"
    )
    Made(SUMS).run(folder / "sums")
    Made({**SUMS, "cls": "test_rerun:Shifting"}).run(folder / "shifting")
    Made({**SUMS, "cls": "test_rerun:Closing"}).run(folder / "closing")
    Made({"name": "matrix", "opponent": "self", "choices": True}, Script(["hm"])).run(folder / "game")
    asyncio.run(match("expert", family=Sokoban(**SEEN), table={"name": "sokoban", **SEEN}, out=folder / "pictures"))
    shutil.copytree(trained, folder / "trained")
    return folder


class Browser:
    """A viewer with its re-runs, asked as a browser asks: forms come from its own pages."""

    def __init__(self, folder: Path, reruns: Any) -> None:
        self.folder, self.reruns = folder, reruns
        held = [folder, *([reruns.out] if reruns is not None and reruns.out is not None else [])]
        self.client = TestClient(application(held, reruns=reruns), base_url=HOME, raise_server_exceptions=False)

    def record(self, run: str, stage: str | None = None, turns: int = 1) -> tuple[EpisodeRow, Record]:
        with EpisodeStore(self.folder / run) as store:
            entry = next(entry for entry in store.query(stage=stage) if entry.turns >= turns)
            return entry, store.read(entry)

    def get(self, address: str) -> Any:
        return self.client.get(address)

    def form(self, run: str, turn: int, who: str = "person", stage: str | None = None, **more: Any) -> dict[str, Any]:
        entry, _ = self.record(run, stage, turn)
        page = self.get(f"/rerun/{turn}/{run}/{entry.id}").text
        token = re.search(r'name="token" value="([^"]+)"', page)
        return {
            "run": run, "episode": entry.id, "turn": turn, "player": who, "token": token[1] if token else "", **more
        }  # fmt: skip

    def begin(self, *asked: Any, **more: Any) -> Any:
        return self.client.post("/rerun", data=self.form(*asked, **more), headers={"origin": HOME})

    def post(self, page: Any, what: str, **fields: str) -> Any:
        address = f"{page.url.path}/{what}"
        return self.client.post(address, data={"token": self.reruns.token, **fields}, headers={"origin": HOME})

    def over(self, page: Any) -> Any:
        """The page when its re-run is over."""
        rerun = self.rerun(page)
        with rerun.state_changed:
            assert rerun.state_changed.wait_for(lambda: rerun.over, 200), rerun.state
        return self.get(page.url.path)

    def rerun(self, page: Any) -> Any:
        return self.reruns.get(page.url.path.rpartition("/")[2])


@pytest.fixture(autouse=True)
def patient(monkeypatch) -> None:
    """Has pages wait for their world on a busy machine too."""
    monkeypatch.setattr("sojourn.view.pages.rerun.WORLD_WAIT_S", 100.0)


@pytest.fixture
def browser(played: Path, tmp_path: Path) -> Iterator[Browser]:
    reruns = Reruns(tmp_path / "kept")
    yield Browser(played, reruns)
    reruns.close()
    assert not OPEN, "a world stays open"


def texts(trajectory: Any) -> list[str]:
    return [turn.message.text for turn in trajectory.turns]


def digests(folder: Path) -> dict[str, str]:
    return {
        str(path): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file() and not path.name.endswith(("-shm", "-wal"))
    }


def test_a_person_plays_on_from_a_turn(browser: Browser) -> None:
    _, record = browser.record("toy", turns=3)
    actions = texts(record.episode.trajectories[0])
    page = browser.begin("toy", 3)
    assert "waiting for your action" in page.text
    assert f'value="{actions[2]}"' in page.text, "choices are buttons"
    for action in actions[2:]:
        page = browser.post(page, "act", action=action)
    assert "done" in page.text
    rerun = browser.rerun(page)
    assert texts(rerun.finished) == actions
    assert rerun.finished.reward == record.episode.trajectories[0].reward == 1.0
    assert [turn.observed for turn in rerun.finished.turns] == [
        t.observed for t in record.episode.trajectories[0].turns
    ]


def test_a_person_does_not_see_the_recorded_continuation(browser: Browser) -> None:
    _, record = browser.record("toy", turns=3)
    page = browser.begin("toy", 2)
    assert "original</th>" in page.text
    assert page.text.count('id="turn-') == 0
    page = browser.post(page, "act", action=texts(record.episode.trajectories[0])[1])
    assert page.text.count('id="turn-') == 1
    facts = page.text.partition('<p class="facts">')[2].partition("</p>")[0]
    assert len(record.episode.trajectories[0].turns) > 2
    assert re.findall(r"(\d+) turns", facts) == ["2", str(len(record.episode.trajectories[0].turns))]
    ended = browser.post(page, "end")
    assert ended.text.count('id="turn-') == len(record.episode.trajectories[0].turns) - 1


def test_a_recorded_refusal_is_replayed(browser: Browser) -> None:
    page = browser.begin("clumsy", 4)
    page = browser.post(page, "act", action="sing")
    assert "&#34;sing&#34; is no action" in page.text
    _, record = browser.record("clumsy", turns=4)
    was = [turn.info.get("malformed") for turn in record.episode.trajectories[0].turns[:3]]
    assert [turn.info.get("malformed") for turn in browser.rerun(page).trajectory.turns] == [*was, 1.0]
    assert 1.0 in was
    assert None in was
    observed = [turn.observed for turn in record.episode.trajectories[0].turns[:4]]
    assert [turn.observed for turn in browser.rerun(page).trajectory.turns] == observed, "refusals are told again"


def test_hostile_text_is_escaped(browser: Browser) -> None:
    page = browser.begin("clumsy", 4)
    page = browser.post(page, "act", action="<script>alert(1)</script>\x1b[2J")
    assert "<script>alert" not in page.text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page.text
    assert "\x1b" not in page.text


def test_a_checkpoint_plays_to_the_end(browser: Browser) -> None:
    _, record = browser.record("trained", "rl", turns=3)
    before = record.episode.trajectories[0]
    page = browser.over(browser.begin("trained", 3, "trained@rl", "rl"))
    now = browser.rerun(page).finished
    assert "done" in page.text
    assert "trained@rl" in page.text
    for turn in (0, 1):
        assert now.turns[turn].sample.tokens.tolist() == before.turns[turn].sample.tokens.tolist()
    assert now.prompt(2).tolist() == before.prompt(2).tolist(), "it sees exactly what was seen"
    again = browser.over(browser.begin("trained", 3, "trained@rl", "rl"))
    assert texts(browser.rerun(again).finished) == texts(now)
    others = [browser.over(browser.begin("trained", 3, "trained@rl", "rl", seed=seed)) for seed in (1, 2, 3)]
    assert any(texts(browser.rerun(other).finished) != texts(now) for other in others)


def test_a_checkpoint_continues_after_turns_that_were_recorded_as_text(browser: Browser) -> None:
    _, record = browser.record("toy", turns=2)
    page = browser.over(browser.begin("toy", 2, "trained@warmup"))
    now = browser.rerun(page).finished
    assert now is not None, page.text
    assert texts(now)[0] == texts(record.episode.trajectories[0])[0]
    assert len(now.turns) > 1


async def test_recorded_samples_are_replayed_token_by_token() -> None:
    says, format = Message(Role.ASSISTANT, "go north"), cast(Any, chatml())
    spelled = np.array([*format.codec.control("go"), *format.codec.control(" nor"), *format.codec.control("th")])
    odd = Sample(spelled, np.zeros(len(spelled), dtype=np.float32), Versions(3, 3), Stop.END)
    turns = [Turn(-1, spelled, odd, says), Turn(0, spelled, NO_SAMPLE, says), Turn(1, spelled, odd, None)]
    usual = list(format.encode_reply(says))
    assert usual != spelled.tolist()
    for same, given in ((True, [spelled.tolist(), usual]), (False, [usual, usual])):
        recited = ReplaySampler(Says("go south"), format, turns, same)
        samples = [await recited.sample(Prompt(spelled), SamplingParams(8)) for _ in range(4)]
        assert [sample.tokens.tolist() for sample in samples[:2]] == given
        assert samples[3].tokens.tolist() == list(format.encode_reply(Message(Role.ASSISTANT, "go south")))


def test_missing_weights_are_reported(browser: Browser) -> None:
    page = browser.over(browser.begin("toy", 1, "trained@nosuch"))
    assert "this run has no such weights" in page.text
    assert browser.begin("toy", 1, "nosuch@rl").status_code == 404


def test_a_finished_rerun_is_saved_and_the_original_run_is_unchanged(browser: Browser) -> None:
    was = digests(browser.folder)
    page = browser.over(browser.begin("trained", 2, "trained@rl", "rl"))
    kept = browser.post(page, "save")
    link = re.search(r'saved as <a href="([^"]+)"', kept.text)
    assert link
    episode = browser.get(html.unescape(link[1]))
    assert episode.status_code == 200
    assert "from-turn-2" in episode.text
    assert browser.get(html.unescape(link[1]) + "?tokens=logprob").text.count('<span class="tok ') > 0
    assert browser.reruns.out is not None
    with EpisodeStore(browser.reruns.out / "trained-reruns") as store:
        entry = next(iter(store.query()))
        assert store.read(entry).episode.trajectories[0].turns[0].message is not None
    browser.post(browser.over(browser.begin("trained", 2, "trained@rl", "rl")), "save")
    with EpisodeStore(browser.reruns.out / "trained-reruns") as store:
        assert len(list(store.query())) == 2
    assert digests(browser.folder) == was


def test_a_rerun_that_cannot_be_saved_is_told_so(browser: Browser) -> None:
    page = browser.over(browser.begin("trained", 2, "trained@rl", "rl"))
    assert browser.reruns.out is not None
    browser.reruns.out.write_text("no folder any more")
    answer = browser.post(page, "save")
    assert "<h1>Not done</h1>" in answer.text
    assert "cannot be created" in answer.text


@pytest.mark.parametrize("out", ["taken", "taken/reruns"])
def test_a_folder_in_which_nothing_can_be_saved_is_refused_at_the_start(tmp_path: Path, out: str) -> None:
    (tmp_path / "taken").write_text("mine")
    # nobody can listen there, so that no viewer starts
    done = CliRunner().invoke(
        app, ["view", str(tmp_path), "--host", "256.0.0.1", "--play", "--out", str(tmp_path / out)]
    )
    assert isinstance(done.exception, RecordError), done.exception
    assert f"{tmp_path / 'taken'} is no folder" in str(done.exception)


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "http://127.0.0.1:1"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site", "origin": HOME},
    ],
)
def test_a_form_of_another_origin_is_refused(browser: Browser, headers: dict[str, str]) -> None:
    answer = browser.client.post("/rerun", data=browser.form("toy", 1), headers=headers)
    assert answer.status_code == 403
    assert "another site" in answer.text
    assert not browser.reruns.reruns
    page = browser.begin("toy", 1)
    for action in ("act", "end", "save"):
        refused = browser.client.post(
            f"{page.url.path}/{action}", data={"token": browser.reruns.token}, headers=headers
        )
        assert refused.status_code == 403
    assert not browser.rerun(page).over


def test_a_form_without_the_viewers_token_is_refused(browser: Browser) -> None:
    form = {**browser.form("toy", 1), "token": "guessed"}
    assert browser.client.post("/rerun", data=form, headers={"origin": HOME}).status_code == 403
    assert browser.client.get("/rerun").status_code in (404, 405)
    assert not browser.reruns.reruns


def test_reruns_are_off_by_default(played: Path) -> None:
    browser = Browser(played, None)
    entry, _ = browser.record("toy")
    assert "re-run from here" in browser.get(f"/runs/toy/episodes/{entry.id}").text
    page = browser.get(f"/rerun/1/toy/{entry.id}")
    assert "sojourn view --play" in page.text
    assert "<button>play" not in page.text
    assert browser.client.post("/rerun", data={}, headers={"origin": HOME}).status_code == 403
    assert "sojourn view --play" in browser.get("/play").text


@pytest.mark.parametrize(
    ("run", "turn", "sentence"), [("game", 1, "several seats (row, column)"), ("toy", 99, "instead of turn 99")]
)
def test_a_rerun_that_is_impossible_gets_a_reason(browser: Browser, run: str, turn: int, sentence: str) -> None:
    entry, _ = browser.record(run)
    assert sentence in browser.get(f"/rerun/{turn}/{run}/{entry.id}").text
    form = {"token": browser.reruns.token, "run": run, "episode": entry.id, "turn": turn, "player": "person"}
    answer = browser.client.post("/rerun", data=form, headers={"origin": HOME})
    assert answer.status_code == 404
    assert sentence in answer.text


def test_turns_link_to_a_rerun_only_where_one_can_start(browser: Browser) -> None:
    def links(run: str) -> int:
        return browser.get(f"/runs/{run}/episodes/{browser.record(run)[0].id}").text.count("re-run from here")

    assert links("toy") == browser.record("toy")[0].turns
    assert links("game") == 0


def test_no_rerun_starts_after_a_turn_that_asked_a_person(browser: Browser) -> None:
    _, record = browser.record("toy", turns=3)
    seat = record.episode.trajectories[0]
    assert turns_to_resume(record.episode) == set(range(len(seat.turns)))
    asking = replace(seat.turns[1], info={QUESTIONS: 1.0})
    asked = replace(record.episode, trajectories=(replace(seat, turns=(seat.turns[0], asking, *seat.turns[2:])),))
    assert turns_to_resume(asked) == {0, 1}
    assert ResumePoint.of(asked, 1).after[0] is asking
    with pytest.raises(ConfigError, match="turn 2 asked a person"):
        ResumePoint.of(asked, 2)


def test_a_world_that_differs_from_the_record_is_reported(browser: Browser) -> None:
    page = browser.over(browser.begin("shifting", 2))
    assert "what is shown is" in page.text


def test_idle_reruns_are_ended(played: Path) -> None:
    reruns = Reruns(idle_s=0.05)
    browser = Browser(played, reruns)
    try:
        page = browser.over(browser.begin("closing", 1))
    finally:
        reruns.close()
    assert "no action was entered for" in page.text
    assert not OPEN


def test_a_stopped_rerun_waits_for_no_action(browser: Browser) -> None:
    """Otherwise the page that follows would be shown before the re-run is over."""
    rerun = browser.rerun(browser.begin("closing", 1))
    assert rerun.state is State.WAITING_FOR_ACTION
    browser.reruns.end(rerun)
    assert rerun.state is not State.WAITING_FOR_ACTION


def test_a_rerun_that_is_stopped_before_it_begins_is_over(browser: Browser, monkeypatch) -> None:
    """The event loop of all re-runs may be busy, as when another one loads a model."""
    monkeypatch.setattr("sojourn.view.pages.rerun.WORLD_WAIT_S", 0.0)
    free = threading.Event()
    browser.reruns._event_loop().call_soon_threadsafe(free.wait)
    rerun = browser.rerun(browser.begin("closing", 1))
    assert rerun.state is State.WAITING
    browser.reruns.end(rerun)
    free.set()
    with rerun.state_changed:
        assert rerun.state_changed.wait_for(lambda: rerun.over, 100)
    assert rerun.state is State.ENDED
    assert not OPEN


def test_the_number_of_reruns_is_limited_and_each_can_be_stopped(browser: Browser) -> None:
    pages = [browser.begin("closing", 1) for _ in range(MAX_RUNNING)]
    assert len(OPEN) == MAX_RUNNING
    refused = browser.begin("closing", 1)
    assert refused.status_code == 404
    assert f"{MAX_RUNNING} re-runs are running" in refused.text
    assert browser.get("/play").text.count("waiting for your action") == MAX_RUNNING
    ended = browser.over(browser.post(pages[0], "end"))
    assert "stopped" in ended.text
    assert "waiting for your action" in browser.begin("closing", 1).text


def test_closing_the_viewer_closes_the_worlds(played: Path) -> None:
    reruns = Reruns()
    browser = Browser(played, reruns)
    for _ in range(2):
        browser.begin("closing", 2)
    assert OPEN
    reruns.close()
    assert not OPEN


def test_images_of_the_world_are_shown(browser: Browser) -> None:
    page = browser.begin("pictures", 2)
    address = re.search(r'<image href="(/play/[^"]+/blobs/[0-9a-f]{64})"', page.text)
    assert address, page.text
    image = browser.get(address[1])
    assert image.headers["content-type"] == "image/png"
    assert image.content.startswith(b"\x89PNG")
    assert browser.get(f"{address[1][:-4]}beef").status_code == 404
    assert 'href="/runs/pictures/blobs/' in browser.post(page, "end").text, "the recorded images are there too"


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM])
def test_ending_the_viewer_closes_the_worlds(tmp_path: Path, end: signal.Signals, monkeypatch) -> None:
    monkeypatch.setenv("CLOSED", str(tmp_path / "closed"))
    Made({**SUMS, "cls": "test_rerun:Marking"}, tasks=1, episodes=1).run(tmp_path / "runs" / "marking")
    (tmp_path / "closed").unlink()
    command = [*PYTHON, "-m", "sojourn", "view", str(tmp_path / "runs"), "--port", "0", "--play"]
    paths = [str(Path(__file__).parent), *sys.path]
    server = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=variables_of({"PYTHONPATH": os.pathsep.join(paths)})
    )
    assert server.stdout is not None
    try:
        client = httpx.Client(base_url=server.stdout.readline().split()[2], follow_redirects=True, timeout=100)
        with EpisodeStore(tmp_path / "runs" / "marking") as store:
            entry = next(iter(store.query()))
        token = re.search(r'name="token" value="([^"]+)"', client.get(f"/rerun/1/marking/{entry.id}").text)
        assert token
        form = {"token": token[1], "run": "marking", "episode": entry.id, "turn": 1, "player": "person"}
        page = client.post("/rerun", data=form, headers={"origin": str(client.base_url).rstrip("/")})
        while "waiting for your action" not in page.text and page.is_success and "failed" not in page.text:
            page = client.get(page.url)
        assert "waiting for your action" in page.text, page.text
        client.close()
        assert not (tmp_path / "closed").exists()
    finally:
        server.send_signal(end)
        server.wait(100)
        server.stdout.close()
    assert (tmp_path / "closed").exists()


def test_a_malicious_run_is_reported_in_a_sentence(tmp_path: Path) -> None:
    name = '<b>"it\'s" a run'  # the client takes a % for two
    hostile.make(tmp_path / name)
    reruns = Reruns()
    client = TestClient(application([tmp_path], reruns=reruns), base_url=HOME)
    try:
        for number, sentence in enumerate(
            ("there is no world to play in", "there is no world", "its environment failed")
        ):
            episode = f"evaluation-<b>:0/0/{number}"
            page = client.get(address("rerun", 1, name, episode))
            assert page.status_code == 200
            form = {"token": reruns.token, "run": name, "episode": episode, "turn": 2, "player": "person"}
            begun = client.post("/rerun", data=form, headers={"origin": HOME})
            assert sentence in begun.text
            for text in (page.text, begun.text):
                assert len(text) < 1_000_000
                assert not re.search(r"<(img|svg onload|i>|u>|script>|b>.it)", text.partition("<main")[2])
                assert not set(text) & set("\x00\x1b\u202e")
    finally:
        reruns.close()
