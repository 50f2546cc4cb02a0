"""The pages of a live service, and of the requests behind turns, over folders that the real gateway and store made."""

import asyncio
import html
import re
import sqlite3
from concurrent.futures import ThreadPoolExecutor

import pytest
from starlette.testclient import TestClient

from sojourn.live import reading
from sojourn.live.facts import Traffic
from sojourn.live.store import LiveStore
from sojourn.record.episodes.store import EpisodeStore
from sojourn.record.run import RunFolder
from sojourn.types import Group
from sojourn.view.server import application
from tests import live_run
from tests.gateway_sessions import replies, said
from tests.live_sessions import turn
from tests.live_site import Site
from tests.program_worlds import DOOR, LOOP, played
from tests.view import hostile
from tests.view.conftest import Tab, served

CONFIG = "name = 'agents'\nseed = 1\nmodel.name = 'tiny'\n"
TEXT = hostile.TEXT.replace("\ud800", "")
REWRITES = LOOP + """
import sys
BASE = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
messages = [{"role": "user", "content": os.environ["SOJOURN_TASK"] + " <script>window.taken=1</script>" * 10}]
one = asked(BASE, {"model": "m", "messages": messages})["choices"][0]["message"]
messages += [one, {"role": "user", "content": "Go on."}]
asked(BASE, {"model": "m", "messages": messages})
messages[0]["content"] = "<b>changed</b>"
asked(BASE, {"model": "m", "messages": messages})
print("<i>all</i>\\ndone")
print("<u>a warning</u>", file=sys.stderr)
raise SystemExit(3)
"""  # fmt: skip


def in_a_thread(coroutine):
    """Runs a coroutine in an event loop of its own, as a browser's may run here."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, coroutine).result()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("live")
    in_a_thread(live_run.make(folder / "support"))
    in_a_thread(live_run.make(folder / "hostile", TEXT, person=TEXT, frozen=False))
    RunFolder.create(folder / "agents", CONFIG).close()
    return folder


@pytest.fixture(scope="module")
def client(folder):
    return TestClient(application([folder]), base_url="http://127.0.0.1", raise_server_exceptions=False)


def shown(client, address):
    """Returns the text of a page, without its tags."""
    answer = client.get(address)
    assert answer.status_code == 200, answer.text
    assert "<script>window" not in answer.text
    assert "<img src=x" not in answer.text
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", answer.text)).split())


def rows(client, address, heading):
    """Returns the cells of the table below a heading."""
    page = client.get(address).text
    table = page[page.index(f"<h2>{heading}</h2>") :]
    table = table[: table.index("</table>")]
    texts = [re.findall(r"<td.*?</td>", row, re.DOTALL) for row in re.findall(r"<tr.*?</tr>", table, re.DOTALL)]
    return [[html.unescape(re.sub(r"<[^>]+>", "", cell)).strip() for cell in row] for row in texts if row]


def test_a_page_says_what_was_published_why_and_what_it_changed(client):
    told = [row[1:] for row in rows(client, "/runs/support/live", "What was decided, and why")]
    assert [row[0] for row in told] == [
        "frozen", "rolled back", "canary", "offered", "refused", "serving", "canary", "offered", "serving", "offered",
    ]  # fmt: skip
    why = "success 20.0%, at least 15.0%, where 55.5% serves: expected at least that less 10.0%"
    assert told[4] == ["refused", "-", "rl-8", why, "56% [49–62]", "20% [15–26]"]
    assert told[5][:3] == ["serving", "1", "rl-4"]
    assert told[5][4:] == ["40% [33–47]", "56% [49–62]"]
    assert "feedback -1.000" in told[1][3]
    table = [row for row in rows(client, "/runs/support/live", "Releases") if len(row) > 2]
    assert [row[:6] for row in table] == [
        ["2", "rolled back", "12", "rl-12", "60% [53–67]", "+4.5 points than 1"],
        ["1", "serving", "4", "rl-4", "56% [49–62]", "+15.5 points than 0"],
        ["0", "served", "0", "before", "40% [33–47]", "-"],
    ]
    assert [row[9] for row in table] == ["3", "3", "2"]
    page = shown(client, "/runs/support/live")
    assert "release 1 serves, of step 4 (rl-4)" in page
    assert "nothing is offered, and nothing changes, until it is removed" in page
    assert "requests per minute, by release" in page
    assert "201 requests, 36 failed" in page
    assert "live service" in shown(client, "/runs/support").lower()


def test_a_page_has_the_sessions_and_says_which_were_trained_on(client):
    table = {row[0]: row[1:] for row in rows(client, "/runs/support/live", "Sessions")}
    assert len(table) == 9
    assert table["first"][:7] == ["u-17", "ended", "0", "3", "1", "yes", "rl 0"]
    assert table["second"][:7] == ["u-17", "ended", "0", "3", "-0.5 of 2", "yes", "rl 0"]
    assert table["goes-on"][:7] == ["u-17", "goes on", "0", "3", "-", "yes", "-"]
    assert "/runs/support/episodes/live-first" in client.get("/runs/support/live").text
    page = shown(client, "/runs/support/episodes/live-first")
    assert "API: chat completions" in page
    assert "no earlier sessions" in shown(client, "/runs/support/live?skip=50").lower()
    assert shown(client, "/runs/support/live?skip=x")


def test_a_session_shows_its_requests_beside_the_exact_tokens(client, folder):
    page = shown(client, "/runs/support/live/first")
    assert "what came before our last reply was changed" in page
    assert "message 1 of the user, from character 1 on: as recorded My parcel is late." in page
    assert "as the client sent it (summary) My parcel is late." in page
    assert "feedback: 1 for turn 1" in page
    store = LiveStore.to_read(folder / "support" / "live")
    sampled = sum(len(turn.sample.tokens) for turn in store.turns("first"))
    store.close()
    tokens = client.get("/runs/support/live/first?tokens=logprob").text
    assert len(re.findall(r'<span class="tok ', tokens)) == sampled
    text = client.get("/runs/support/text/live/2/first")
    assert text.headers["content-type"].startswith("text/plain")
    assert '"content": "(summary) My parcel is late."' in text.text
    assert client.get("/runs/support/text/live/9/first").status_code == 404
    assert client.get("/runs/support/live/nobody").status_code == 404


def test_texts_that_mean_harm_are_shown_as_they_are(client):
    for address in ("/live", "/live/first", "/live/first?tokens=logprob", "/episodes/live-first"):
        page = shown(client, f"/runs/hostile{address}")
        assert hostile.MARK in page or address == "/live"
    assert "</script><script>window.taken=1" in html.unescape(client.get("/runs/hostile/live/first").text)


async def test_traffic_over_a_long_time_is_counted_together_and_nothing_is_lost(tmp_path):
    RunFolder.create(tmp_path / "run", CONFIG).close()
    client = TestClient(application([tmp_path]), base_url="http://127.0.0.1", raise_server_exceptions=False)
    store = LiveStore(tmp_path / "run" / "live")
    statuses = ("200", "499", "503")
    store.add_traffic({Traffic(10_000 + 7 * n, n % 3, "responses", statuses[n % 3]): 1 for n in range(900)})
    store.close()
    found = reading.read(tmp_path / "run", 10)
    assert found.minutes == 53
    assert len({one.minute for one in found.traffic}) == 119
    assert found.requests() == (900, 300, 300)
    assert found.requests(2) == (300, 300, 0)
    page = shown(client, "/runs/run/live")
    assert "900 requests, 300 failed, of 300 the client left" in page
    assert "requests per 53 minutes, by release" in page


def test_a_session_without_a_name_that_an_older_service_kept_has_a_page(tmp_path):
    RunFolder.create(tmp_path / "run", CONFIG).close()
    client = TestClient(application([tmp_path]), base_url="http://127.0.0.1", raise_server_exceptions=False)
    store = LiveStore(tmp_path / "run" / "live")
    store.open("", "", 0, consent=True)
    store.add_turn("", 0, turn("Hi there"))
    store.close()
    address = re.findall(r'data-href="(/runs/run/live[^"]*)"', client.get("/runs/run/live").text)
    assert "Hi there" in shown(client, address[0])
    assert "Hi there" in client.get("/runs/run/text/live/0/").text


async def test_texts_are_not_shown_while_their_person_does_not_agree(tmp_path):
    RunFolder.create(tmp_path / "run", CONFIG).close()
    client = TestClient(application([tmp_path]), base_url="http://127.0.0.1", raise_server_exceptions=False)
    async with Site(tmp_path / "run" / "live", consent=True) as site:
        await site.ask("a", [{"role": "user", "content": "a secret"}])
        await site.post("/s/a/consent", consent=True, person="jo-17")
        await site.post("/s/a/feedback", value=-0.625)
        for path in ("/runs/run/live", "/runs/run/live/a"):
            page = shown(client, path)
            assert ("jo-17" in page, ".625" in page) == (True, True)
        await site.post("/s/a/consent", consent=False)
        page = shown(client, "/runs/run/live/a")
        assert ("a secret" in page, "Its person does not agree" in page) == (False, True)
        assert ("jo-17" in page, ".625" in page) == (False, False)
        page = shown(client, "/runs/run/live")
        assert ("jo-17" in page, "does not agree" in page) == (False, True)
        assert client.get("/runs/run/text/live/0/a").status_code == 404
        await site.post("/s/a/consent", consent=True)
        assert "a secret" in shown(client, "/runs/run/live/a")


async def test_what_is_deleted_is_shown_no_more(tmp_path):
    RunFolder.create(tmp_path / "run", CONFIG).close()
    client = TestClient(application([tmp_path]), base_url="http://127.0.0.1", raise_server_exceptions=False)
    async with Site(tmp_path / "run" / "live", consent=True) as site:
        await site.ask("a", [{"role": "user", "content": "a secret"}])
        assert "a secret" in shown(client, "/runs/run/live/a")
        await site.http.delete("/s/a")
        assert client.get("/runs/run/live/a").status_code == 404
        assert "nobody has asked yet, or nobody has agreed" in shown(client, "/runs/run/live")


def test_where_nothing_is_there_or_cannot_be_read_one_sentence_says_so(client, tmp_path, folder):
    assert "This run serves nobody" in shown(client, "/runs/agents/live")
    run = tmp_path / "run"
    RunFolder.create(run, CONFIG).close()
    broken = TestClient(application([tmp_path]), base_url="http://127.0.0.1", raise_server_exceptions=False)
    store = LiveStore(run / "live")
    store.tell("offered", 0, "x")
    store.close()
    page = shown(broken, "/runs/run/live")
    assert "No weights were offered yet" in page
    assert "nothing serves yet" in page
    path = run / "live" / "live.sqlite"
    for log in path.parent.glob("live.sqlite-*"):
        log.unlink()
    path.write_bytes(b"SQLite format 3\0" + b"no more" * 1000)
    page = shown(broken, "/runs/run/live")
    assert "is damaged" in page
    assert "cannot be read now" in page
    assert broken.get("/runs/run/live/a").status_code == 404


def test_a_store_that_is_held_by_another_program_is_named(tmp_path):
    run = tmp_path / "run"
    RunFolder.create(run, CONFIG).close()
    store = LiveStore(run / "live")
    store.tell("offered", 0, "x")
    store.close()
    client = TestClient(application([tmp_path]), base_url="http://127.0.0.1", raise_server_exceptions=False)
    holder = sqlite3.connect(run / "live" / "live.sqlite", isolation_level=None)
    holder.execute("PRAGMA journal_mode = DELETE")
    holder.execute("BEGIN EXCLUSIVE")
    page = shown(client, "/runs/run/live")
    holder.close()
    assert "another program holds it" in page


@pytest.fixture(scope="module")
def program(folder):
    """The id of an episode that a program played, which rewrites its history and fails."""
    script = replies(said("I look.", "hm", DOOR), said("Seen."), said("Again."))
    episode, *_ = in_a_thread(played(script, code=REWRITES, last_action="done"))
    assert episode.error is None
    older, *_ = in_a_thread(played(replies(said("a"), said("b"), said("c")), code=REWRITES, last_action="done"))
    with EpisodeStore(folder / "agents", write=True) as store:
        store.append("rl", 0, [Group(0, episode.task, (episode,))])
        bare = [live_run.without_notes(older)]
        store.append("older", 0, [Group(0, older.task, tuple(bare))])
    return episode.id


def test_an_episode_shows_the_requests_of_its_program_and_how_that_ended(client, folder, program):
    page = shown(client, f"/runs/agents/episodes/{program}")
    assert page.count("API: chat completions · client: Python-urllib/") == 3
    assert "as the client sent it <b>changed</b>" in page
    assert "program: it ended by itself, with exit code 3" in page
    assert "program's errors: <u>a warning</u>" in page
    assert "<i>all</i> done" in page
    assert re.search(
        r"the request's body, [\d,]+ characters, \d+ of them new \[\d+ characters as in the request of", page
    )
    whole = client.get(f"/runs/agents/text/notes/0.2/{program}").text
    assert '{"model": "m", "messages": [{"role": "user", "content": "<b>changed</b>"}' in whole
    for number in ("0.9", "7.0", "x", "0"):
        assert client.get(f"/runs/agents/text/notes/{number}/{program}").status_code == 404


def test_episodes_of_older_runs_say_that_nothing_is_recorded_and_others_say_nothing(client, folder, program, runs):
    with EpisodeStore(folder / "agents") as store:
        [older] = store.query(stage="older")
    page = shown(client, f"/runs/agents/episodes/{older.id}")
    assert "an older Sojourn recorded nothing of the request behind this turn" in page
    others = TestClient(application([runs]), base_url="http://127.0.0.1")
    with EpisodeStore(runs / "seed0") as store:
        one = next(store.query(stage="rl", failed=False))
    assert "request behind" not in shown(others, f"/runs/seed0/episodes/{one.id}")


@pytest.mark.parametrize("width", [1400, 420])
def test_a_browser_shows_the_pages_whole_and_takes_no_harm(folder, chromium, program, width):
    with served(folder) as address:
        tab = Tab(chromium, address, viewport={"width": width, "height": 900})
        for path in ("hostile/live", "hostile/live/first?tokens=logprob", f"agents/episodes/{program}", "agents/live"):
            page = tab.open(f"/runs/{path}")
            for fold in page.locator("details").all():
                fold.evaluate("element => { element.open = true; }")
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            assert page.evaluate("window.taken") is None
        tab.close()


def test_the_page_changes_as_the_service_goes_on(tmp_path, chromium):
    RunFolder.create(tmp_path / "run", CONFIG).close()
    store = LiveStore(tmp_path / "run" / "live")
    store.tell("offered", 0, "x")
    with served(tmp_path) as address:
        tab = Tab(chromium, address)
        page = tab.open("/runs/run/live")
        page.wait_for_selector(".pulse.on")
        store.tell("failed", 0, "it broke just now")
        page.wait_for_selector("td:text-is('it broke just now')")
        tab.close()
    store.close()


def test_a_release_that_serves_again_keeps_what_it_was_better_than_and_the_gates_numbers_do_without_the_run(tmp_path):
    RunFolder.create(tmp_path / "run", CONFIG).close()
    client = TestClient(application([tmp_path]), base_url="http://127.0.0.1", raise_server_exceptions=False)
    store = LiveStore(tmp_path / "run" / "live")
    for number, success in enumerate((0.4, 0.6)):
        panel = {"success": success, "success_low": success - 0.1, "malformed": 0.25, "tokens": 12.0, "part:a": 0.5}
        store.offer(number, tmp_path / f"rl-{number}@{number}", panel)
        store.tell("offered", number, f"rl-{number}")
        store.tell("serving", number, "nothing is tried first (canary_share = 0)")
    store.tell("rolled back", 1, "feedback -1.000 in 9 sessions")
    store.tell("serving", 0, "release 1 was rolled back")
    store.close()
    table = [row[:8] for row in rows(client, "/runs/run/live", "Releases") if len(row) > 2]
    assert table == [
        ["1", "rolled back", "1", "rl-1", "60% (at least 50%)", "+20.0 points than 0", "25%", "12"],
        ["0", "serving", "0", "rl-0", "40% (at least 30%)", "-", "25%", "12"],
    ]
    told = [row[1:] for row in rows(client, "/runs/run/live", "What was decided, and why")]
    assert told[0] == ["serving", "0", "rl-0", "release 1 was rolled back", "60% (at least 50%)", "40% (at least 30%)"]


def test_a_page_says_that_the_learner_went_back_and_that_a_watch_has_ended(tmp_path):
    RunFolder.create(tmp_path / "run", CONFIG).close()
    client = TestClient(application([tmp_path]), base_url="http://127.0.0.1", raise_server_exceptions=False)
    store = LiveStore(tmp_path / "run" / "live")
    panel = {"success": 0.4, "success_low": 0.3, "malformed": 0.25, "tokens": 12.0}
    store.offer(0, tmp_path / "before@0", panel)
    store.tell("serving", 0, "it is the first")
    store.tell("kept", 0, "too few sessions to tell: feedback +0.550 in 8 sessions")
    store.tell("returned", 0, "8 candidates in a row were refused, the last one rl-8")
    store.close()
    told = [row[1:] for row in rows(client, "/runs/run/live", "What was decided, and why")]
    assert told[0] == ["returned", "0", "before", "8 candidates in a row were refused, the last one rl-8", "-", "-"]
    assert told[1][:4] == ["kept", "0", "before", "too few sessions to tell: feedback +0.550 in 8 sessions"]
    assert [row[1] for row in rows(client, "/runs/run/live", "Releases")] == ["serving"]
