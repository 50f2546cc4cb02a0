"""What the pages say, asked of the server without a browser."""

from __future__ import annotations

import html
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from made import TASK, trajectory
from starlette.testclient import TestClient

from sojourn.record.episodes.step_file import Record
from sojourn.record.episodes.store import EpisodeStore
from sojourn.terminal.episode import turns_in_order
from sojourn.types import Credit, Episode, Group
from sojourn.view.pages.group import task_history
from sojourn.view.server import application
from sojourn.view.tokens import colour_maximum, colourings, sampled_tokens


@pytest.fixture
def some_episode(runs: Path):
    with EpisodeStore(runs / "seed0") as store:
        return next(entry for entry in store.query(stage="rl", failed=False) if entry.turns > 1)


def test_every_link_of_every_page_leads_to_a_page(client: TestClient) -> None:
    waiting, seen = ["/"], set[str]()
    kinds: dict[str, int] = {}
    while waiting:
        address = waiting.pop()
        kind = re.sub(r"[0-9]+|rl[^/]*|evaluation[^/?]*", "*", address.partition("?")[0])[:40]
        if address in seen or kinds.get(kind, 0) >= 12:
            continue
        seen.add(address)
        kinds[kind] = kinds.get(kind, 0) + 1
        answer = client.get(address)
        assert answer.status_code == 200, address
        if answer.headers["content-type"].startswith("text/html"):
            links = re.findall(r'(?:href|src)="([^"#]+)', answer.text)
            assert all(link.startswith(("/", "?")) for link in links), "a page leads away from the viewer"
            waiting += [link.replace("&amp;", "&") for link in links if link.startswith("/")]
    assert len(seen) > 60


def test_an_unknown_evaluation_is_named_with_those_that_exist(client: TestClient, runs: Path) -> None:
    shown = client.get("/runs/seed0/changes").text
    names = re.findall(r"<option[^>]*>([^<]*)</option>", shown.partition('name="a"')[2].partition("</select>")[0])
    answer = client.get("/runs/seed0/changes", params={"a": "nosuch"})
    assert answer.status_code == 404
    assert html.unescape(answer.text).count(f"no evaluation 'nosuch' with episodes: it has {', '.join(names)}") == 1
    answer = client.get("/runs/seed0/changes", params={"a": names[0], "other": "seed1", "b": "nosuch"})
    assert answer.status_code == 200, "the form keeps the name where another run is chosen"
    assert "seed1 has no evaluation 'nosuch' with episodes: its newest is shown" in html.unescape(answer.text)


def test_an_episode_shows_its_messages_and_rewards(client: TestClient, runs: Path, some_episode) -> None:
    with EpisodeStore(runs / "seed0") as store:
        record = store.read(some_episode)
    page = client.get(f"/runs/seed0/episodes/{some_episode.id}").text
    turn = record.episode.trajectories[0].turns[0]
    assert turn.message is not None
    assert (turn.message.text or turn.message.calls[0].name).split()[0] in page
    assert page.count('<section class="turn') == some_episode.turns
    assert client.get(f"/runs/seed0/json/{some_episode.id}").json()["episode"]["id"] == some_episode.id


@pytest.mark.parametrize("colouring", ["logprob", "advantage", "lag"])
def test_a_toggle_shows_every_sampled_token(client, runs: Path, some_episode, colouring: str) -> None:
    page = client.get(f"/runs/seed0/episodes/{some_episode.id}?tokens={colouring}").text
    assert len(re.findall(r'<span class="tok ', page)) == some_episode.sampled


def test_the_targets_of_a_critic_are_shown_with_the_tokens() -> None:
    played = trajectory(np.random.default_rng(0))
    targets = tuple(np.full(len(turn.sample.tokens), 2.5, dtype=np.float32) for turn in played.turns)
    episode, credit = Episode("0", TASK, (played,)), Credit.uniform(played, 1.0)
    record = Record(episode, credits=(replace(credit, targets=targets),))
    assert "target" in colourings(record)
    assert "target" not in colourings(Record(episode, credits=(credit,)))
    shown, _ = sampled_tokens(turns_in_order(record)[0], "target", colour_maximum(record, "target"), None, None)
    assert all("target 2.5" in token.tooltip for token in shown)
    assert {token.colour for token in shown} == {"p5"}


def test_a_run_page_shows_its_task_counts(client: TestClient, runs: Path) -> None:
    with EpisodeStore(runs / "seed0") as store:
        played = [entry for entry in store.query(stage="evaluation-rl") if entry.success is not None]
    rates = {task: [e.success for e in played if e.task == task] for task in {entry.task for entry in played}}
    never = sum(not any(successes) for successes in rates.values())
    always = sum(all(successes) for successes in rates.values())
    page = client.get("/runs/seed0").text
    assert f"Of {len(rates)} tasks, {never} were never solved and {always} were always solved" in page
    hardest = re.findall(r"q=task%3A%22?([0-9a-f]{16})", page)[::2]
    assert hardest
    assert all(not any(rates[task] or [1]) for task in hardest[: min(never, len(hardest))])


def test_a_group_page_shows_where_its_episodes_diverge(client: TestClient, runs: Path, some_episode) -> None:
    page = client.get(f"/runs/seed0/groups/rl/{some_episode.step}/{some_episode.place}").text
    assert page.count("<th><a href=") == 4
    assert re.search(r'class="action w\d diverges"', page)


def test_a_group_page_shows_when_its_task_was_played(client: TestClient, runs: Path) -> None:
    with EpisodeStore(runs / "seed0") as store:
        shown = next(iter(store.query(stage="evaluation-rl")))
        played = list(store.query(task=shown.task))
    successes: dict[tuple[str, int, int], list[float]] = {}
    for entry in played:
        if entry.error is None and entry.success is not None:
            successes.setdefault((entry.stage, entry.step, entry.place), []).append(entry.success)
    assert len(successes) > 1
    page = client.get(f"/runs/seed0/groups/{shown.stage}/{shown.step}/{shown.place}").text
    table = page[page.index('<table class="history">') :]
    rows = re.findall(r"<tr><td>(?:<a href=[^>]*>)?([\w-]+).*?</td><td>(\d+)</td><td>(\d+)</td>(.*?)</tr>", table)
    assert {(stage, int(step), int(place)) for stage, step, place, _ in rows} == set(successes)
    for stage, step, place, rest in rows:
        of = successes[stage, int(step), int(place)]
        assert rest.startswith(f"<td>{len(of)}</td><td>{100 * sum(of) / len(of):.0f}%</td>")
    assert table.count("shown above") == 1
    assert f'href="/runs/seed0/groups/{shown.stage}/' not in table


def test_the_history_of_a_task_has_its_groups_step_by_step_without_failed_episodes(tmp_path: Path) -> None:
    played = trajectory(np.random.default_rng(0))
    with EpisodeStore(tmp_path, write=True) as store:
        for step in range(2):
            episodes = [Episode(f"{step}/{n}", TASK, (played,), "the world died" if n == 0 else None) for n in range(3)]
            store.append("rl", step, [Group(0, TASK, tuple(episodes))])
        history = task_history(store, TASK.id)
    assert [(group.stage, group.step, group.episodes) for group in history] == [("rl", 0, 2), ("rl", 1, 2)]


@pytest.mark.parametrize(
    ("address", "sentence"),
    [
        ("/runs/nosuch", "no run &#39;nosuch&#39;"),
        ("/runs/seed0/steps/rl/999", "no episodes at step 999: it has steps 0 to 5"),
        ("/runs/seed0/steps/nosuch/0", "it has none"),
        ("/runs/seed0/groups/rl/0/99", "no group 99"),
        ("/runs/seed0/episodes/nosuch", "no episode &#39;nosuch&#39;"),
        ("/runs/seed0/blobs/%2e%2e%2f%2e%2e%2fconfig.toml", "there is no page"),
        ("/runs/seed0/blobs/" + "0" * 64, "is not in"),
        ("/nowhere", "there is no page /nowhere"),
    ],
)
def test_missing_things_are_named_in_a_sentence(client: TestClient, address: str, sentence: str) -> None:
    answer = client.get(address)
    assert answer.status_code == 404
    assert sentence in answer.text


@pytest.mark.parametrize("format", ["prov", "adp", "chat"])
def test_an_episode_is_exported_in_other_formats(client, runs: Path, some_episode, format: str) -> None:
    answer = client.get(f"/runs/seed0/export/{format}/{some_episode.id}")
    assert answer.headers["content-disposition"].startswith("attachment")
    first = json.loads(answer.text.splitlines()[0]) if format != "prov" else json.loads(answer.text)
    assert some_episode.id in json.dumps(first)
    assert client.get(f"/runs/seed0/export/{format}/nosuch").status_code == 404


def test_a_malformed_query_gets_a_reason(client: TestClient) -> None:
    answer = client.get("/runs/seed0/find", params={"q": "rewrad:1"})
    assert answer.status_code == 400
    assert "reward" in answer.text


def test_a_folder_without_runs_says_what_to_do(tmp_path: Path) -> None:
    page = TestClient(application([tmp_path]), base_url="http://127.0.0.1").get("/").text
    assert "No runs yet" in page
    assert "sojourn train" in page


def test_pages_may_load_nothing_from_elsewhere(client: TestClient) -> None:
    policy = client.get("/").headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self'" in policy
    assert "unsafe" not in policy


def test_other_hosts_are_refused(client: TestClient) -> None:
    assert client.get("/", headers={"host": "evil.example"}).status_code == 400


def test_a_viewer_with_a_token_asks_for_it(runs: Path) -> None:
    guarded = TestClient(application([runs], ["*"], "secret"), base_url="http://127.0.0.1")
    assert guarded.get("/").status_code == 403
    assert guarded.get("/?token=wrong").status_code == 403
    assert guarded.get("/?token=secret&q=x", follow_redirects=False).headers["location"] == "/?q=x"
    assert guarded.get("/").status_code == 200, "the cookie is enough"


def test_more_runs_than_are_compared_are_counted(runs: Path, tmp_path: Path) -> None:
    names = [f"run{number}" for number in range(18)]
    for name in names:
        (tmp_path / name).mkdir()
        for file in ("config.toml", "metrics.jsonl"):
            (tmp_path / name / file).write_bytes((runs / "seed0" / file).read_bytes())
    client = TestClient(application([tmp_path]), base_url="http://127.0.0.1")
    page = client.get("/diff", params={"run": names}).text
    assert "the first 16 of 18 runs are compared" in page
    assert "runs are compared" not in client.get("/diff", params={"run": names[:16]}).text
