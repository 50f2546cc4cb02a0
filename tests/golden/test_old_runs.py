"""A run folder of before the code was laid out anew opens, shows and goes on as it did.

`run_2026_11` is the run of a recipe of every kind of memory (adapters, a reference, an optimiser, streams that learn),
killed after the second of its three RL steps; the file beside it has the digests of the same run when nothing ended it.
Only its metrics are of two kinds: lines of before count the tokens of contexts in `trained_tokens`, later ones do not.
"""

import json
import re
import shutil
from pathlib import Path

import golden_runs
import pytest
import spawned

from sojourn.record.episodes.store import EpisodeStore

KEPT = Path(__file__).with_name("run_2026_11")


@pytest.fixture
def folder(tmp_path):
    return Path(shutil.copytree(KEPT, tmp_path / "whole"))  # the name is in its exports


def sojourn(*words: object) -> str:
    done = spawned.sojourn(KEPT.parent, *map(str, words), environment=golden_runs.portable())
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_it_goes_on_to_where_it_would_have_ended(folder):
    sojourn("train", "--resume", folder)
    said = spawned.script(Path(golden_runs.__file__), "--of", str(folder), environment=golden_runs.portable())
    told, known = json.loads(said), json.loads(KEPT.with_name("run_2026_11.json").read_text())
    found = {"arithmetic": told["arithmetic"], **told["digests"]}
    if found["arithmetic"] != known["arithmetic"] or golden_runs.own_key(found["arithmetic"]) in golden_runs.KNOWN:
        pytest.skip(f"recorded on no processor like {golden_runs.processor()}")
    assert {kind: found[kind] for kind in known} == known


def test_it_is_shown(folder):
    assert "warmup" in sojourn("show", folder)
    assert "rl:1/" in sojourn("show", folder, "--step", 1)
    assert "reward" in sojourn("show", folder, "rl:1/0/0", "--tokens")
    assert "episodes" in sojourn(
        "show", folder, "--find", "system:treasure observed:bakery"
    )  # its index has another column name


def test_it_is_searched(folder):
    """Its index has other names for some parts of an episode's text."""
    with EpisodeStore(folder) as store:
        assert store.search("system:treasure message:go observed:bakery").total
        assert store.troubles == []


def test_its_config_makes_the_same_run_again(folder):
    assert "rl" in sojourn("train", "--dry", folder / "config.toml")


def test_it_is_viewed(folder):
    testclient = pytest.importorskip("starlette.testclient", reason="the viewer is served by starlette")
    from sojourn.view.server import application

    with testclient.TestClient(application([folder.parent]), base_url="http://127.0.0.1") as client:
        seen, left = set(), ["/"]
        while left:
            page = client.get(left.pop())
            assert page.status_code == 200, page.url
            links = set(re.findall(r'href="(/runs/[^"#?]*)', page.text)) - seen
            seen |= links
            left += sorted(links)
    assert any("episodes" in link for link in seen)
