"""The pages of a step, a group and an episode tell where groups came from."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from made import group, trajectory
from starlette.testclient import TestClient

from sojourn.record.episodes.store import EpisodeStore
from sojourn.record.run import RunFolder
from sojourn.types import Group
from sojourn.view.server import application

CONFIG = (
    'name = "made"\n[env]\nname = "toy"\n[model]\nname = "tiny"\n[[stages]]\nname = "rl"\nlosses = [{ name = "ppo" }]\n'
)


def named(played: Group, name: str, origin: str = "policy") -> Group:
    episodes = tuple(replace(episode, id=f"{name}-{n}") for n, episode in enumerate(played.episodes))
    return replace(played, episodes=episodes, origin=origin)


@pytest.fixture
def pages(tmp_path: Path) -> TestClient:
    """A viewer of a run whose step 2 plays a group, demonstrates one, and replays that of step 0; step 3 replays it
    again and records nothing; step 4 has a copy of an episode of step 1."""
    played = group([trajectory(np.random.default_rng(0)) for _ in range(2)])
    with RunFolder.create(tmp_path / "made", CONFIG) as folder, EpisodeStore(folder.path, write=True) as store:
        for step in range(2):
            store.append("rl", step, [named(played, f"rl/{step}/0/0")])
        again = named(played, "rl/0/0/0", "replay")
        store.append("rl", 2, [named(played, "rl/2/0/0"), named(played, "shown", "experts")], reused=[again])
        store.append("rl", 3, [], reused=[again])
        copied = replace(played.episodes[0], id="rl/1/0/0-1#4-0")
        store.append("rl", 4, [replace(played, episodes=(copied,))])
        counts = [(1, 0, 0), (1, 0, 0), (1, 1, 1), (0, 0, 1), (1, 0, 0)]
        names = [f"groups_of_{origin}" for origin in ("policy", "experts", "replay")]
        lines = [{"stage": "rl", "step": n, **dict(zip(names, of, strict=True))} for n, of in enumerate(counts)]
        (folder.path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return TestClient(application([tmp_path]), base_url="http://127.0.0.1", raise_server_exceptions=True)


def words(page: str) -> str:
    """Returns the text of a page, without its tags."""
    return " ".join(re.sub(r"<[^>]*>", " ", page).split())


def test_a_step_has_its_groups_by_origin_with_those_that_it_trained_again(pages: TestClient):
    page = pages.get("/runs/made/steps/rl/2").text
    assert "3 groups (1 policy, 1 experts, 1 replay)" in words(page)
    cells = re.findall(r'<td class="nowrap">(policy|experts|replay)(?: <span class="dim">(.*?)</span>)?</td>', page)
    assert cells == [("policy", ""), ("experts", ""), ("replay", "2 steps old")]
    assert '<a href="/runs/made/groups/rl/0/0">0 of step 0</a>' in page
    plain = pages.get("/runs/made/steps/rl/0").text
    assert "<th>origin</th>" in page
    assert "<th>origin</th>" not in plain  # where all groups are the policy's own


def test_a_step_that_only_trains_again_is_a_page_between_its_neighbours(pages: TestClient):
    assert "1 group (1 replay)" in words(pages.get("/runs/made/steps/rl/3").text)
    assert 'rel="next" href="/runs/made/steps/rl/3"' in pages.get("/runs/made/steps/rl/2").text
    assert 'rel="prev" href="/runs/made/steps/rl/3"' in pages.get("/runs/made/steps/rl/4").text
    assert pages.get("/runs/made/steps/rl/5").status_code == 404


@pytest.mark.parametrize("address", ["episodes/rl/0/0/0-1", "groups/rl/0/0"])
def test_what_was_trained_again_links_to_the_steps(pages: TestClient, address: str):
    page = pages.get(f"/runs/made/{address}").text
    assert "trained again in step 2 , 3" in words(page)
    assert all(f'<a href="/runs/made/steps/rl/{step}" title="replay">' in page for step in (2, 3))


def test_an_episode_has_its_origin_and_its_first_record(pages: TestClient):
    assert '<span class="tag" title="the source that gave its group">experts</span>' in pages.get(
        "/runs/made/episodes/shown-0"
    ).text  # fmt: skip
    copy = pages.get("/runs/made/episodes/rl/1/0/0-1%234-0").text
    assert 'first recorded in <a href="/runs/made/groups/rl/1/0">rl 1</a>' in copy
    own = pages.get("/runs/made/episodes/rl/2/0/0-0").text
    assert "trained again" not in own
    assert "first recorded" not in own
    assert "the source that gave" not in own


def test_a_run_has_a_chart_of_origins_and_search_finds_them(pages: TestClient):
    page = words(pages.get("/runs/made").text)
    assert "trained groups by origin" in page
    found = pages.get("/runs/made/find?q=origin:replay").text
    assert "rl/0/0/0-1" in found
    assert "rl/2/0/0-0" not in found
