"""Records whose turns go on from themselves are damaged: nothing follows their contexts for ever."""

from __future__ import annotations

from dataclasses import replace
from html import unescape
from pathlib import Path

import numpy as np
import pytest
from made import group, score, trajectory
from starlette.testclient import TestClient

from sojourn.record.episodes.store import EpisodeStore
from sojourn.record.run import RunFolder
from sojourn.view.server import application


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("parent", [1, 2, -2])
def test_a_turn_that_goes_on_from_itself_or_a_later_one_is_told(tmp_path: Path, parent: int) -> None:
    one = trajectory(np.random.default_rng(0))
    first, second, third = one.turns
    forged = group([replace(one, turns=(first, replace(second, parent=parent), third))])
    with (
        RunFolder.create(tmp_path / "run", 'name = "x"', seeds={}),
        EpisodeStore(tmp_path / "run", write=True) as store,
    ):
        store.append("rl", 0, [forged], [[score(forged.trajectories[0], 1.0)]])
        [row] = store.query()
    client = TestClient(application([tmp_path]), base_url="http://127.0.0.1")
    for page in (f"episodes/{row.id}?prompt=0.1", "groups/rl/0/0"):
        answer = client.get(f"/runs/run/{page}")
        assert answer.status_code == 200
        assert f"a turn has the parent {parent}: expected an earlier turn, or -1" in unescape(answer.text)
