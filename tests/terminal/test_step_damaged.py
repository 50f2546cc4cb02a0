"""The groups of a step of which a part cannot be read keep their numbers, by which others find them."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest
from rich.console import Console

sys.path.insert(0, str(Path(__file__).parent.parent.parent / "benchmarks"))

import big_run

from sojourn.record.episodes.store import EpisodeStore
from sojourn.terminal.find import find_episode
from sojourn.terminal.step import as_json, table


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_an_address_leads_to_the_episode_beside_it(tmp_path: Path) -> None:
    run, maker = tmp_path / "run", big_run.Maker(1, 4)
    big_run.make(run, big_run.Size(steps=1, groups=2, plays=2, panel=2, turns=2), 0)
    with EpisodeStore(run, write=True) as store:
        for first in (0, 2):  # a step that is recorded in two parts, of two groups each
            store.append("rl", 1, *maker.step("rl", range(first, first + 2), 2, 1, 0.5))
    (run / "tokens" / "rl-000001-0.npz").write_bytes(b"damaged")
    console = Console(width=200, file=io.StringIO())
    console.print(table(run, "rl", 1, 200))
    shown = [line.split() for line in console.file.getvalue().splitlines() if line.startswith("rl:1/")]
    assert [words[0] for words in shown] == ["rl:1/2/0", "rl:1/2/1", "rl:1/3/0", "rl:1/3/1"]
    with EpisodeStore(run) as store:
        assert [find_episode(store, words[0]).id for words in shown] == [words[-1] for words in shown]
    assert [group["place"] for group in json.loads(as_json(run, "rl", 1))["groups"]] == [2, 3]
