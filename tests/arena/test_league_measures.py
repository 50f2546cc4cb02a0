"""Mixtures of policies, and what a league measures of the checkpoints that play."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from measured_world import Picks
from rich.console import Console
from trained_run import train

from sojourn.arena.league_measures import Mixture, Remembered
from sojourn.arena.run_league import run_league
from sojourn.arena.run_match import MatchConfig
from sojourn.types import Message, Observation, Role

FIRST = Observation((Message(Role.USER, "first"),), choices=("left", "right"), agent="row")
SECOND = Observation((Message(Role.USER, "second"),), choices=("left", "right"), agent="row")


class Scripted:
    """Takes the first choice as likely as `rows` says of what it has done, and counts how often it is asked."""

    def __init__(self, rows: Mapping[tuple[str, ...], float]) -> None:
        self.rows, self.asked = rows, 0

    async def __call__(self, seat: str, seen: Sequence[Observation | str]) -> list[float]:
        self.asked += 1
        first = self.rows[tuple(part for part in seen if isinstance(part, str))]
        return [first, 1 - first]


def two() -> list[Scripted]:
    return [
        Scripted({(): 0.9, ("left",): 0.2, ("right",): 0.5}),
        Scripted({(): 0.1, ("left",): 0.8, ("right",): 0.0}),
    ]


@pytest.mark.parametrize(
    ("seen", "first"),
    [
        ((FIRST,), 0.5),
        ((FIRST, "left", SECOND), 0.9 * 0.2 + 0.1 * 0.8),  # of both together, left is as likely as right
        ((FIRST, "right", SECOND), 0.1 * 0.5 + 0.9 * 0.0),
    ],
)
async def test_a_mixture_weighs_each_policy_by_how_likely_it_came_here(seen: Any, first: float) -> None:
    found = await Mixture(two())("row", seen)
    assert found == [pytest.approx(first), pytest.approx(1 - first)]


async def test_where_no_policy_comes_all_count_alike() -> None:
    never = [Scripted({(): 1.0, ("right",): 0.2}), Scripted({(): 1.0, ("right",): 0.4})]
    assert (await Mixture(never)("row", (FIRST, "right", SECOND)))[0] == pytest.approx(0.3)


async def test_each_policy_is_asked_once_for_each_past() -> None:
    policies = two()
    mixture = Mixture([Remembered(one) for one in policies])
    seen = [(FIRST,), (FIRST, "left", SECOND), (FIRST, "right", SECOND)]
    await asyncio.gather(*(mixture("row", one) for one in 2 * seen))
    assert [one.asked for one in policies] == [3, 3]


RECIPE = """
name = "league"
model = { name = "tiny:layers=1,hidden=64", dtype = "fp32" }
backend = { name = "torch", threads = 1 }
env = { name = "measured_world:Picks" }
agent = { name = "plain", choices = true }
sampling = { max_tokens = 16 }
evaluation = { tasks = 2 }
record = { checkpoint_every = 0, keep_every = 1 }
[[stages]]
name = "rl"
steps = 3
groups = { name = "slots", width = 1, size = 4 }
losses = [{ name = "ppo" }]
optim = { lr = 0.03 }
"""


async def test_a_league_measures_each_checkpoint_and_their_mixture(tmp_path: Path) -> None:
    run = await asyncio.to_thread(train, tmp_path / "run", recipe=RECIPE)
    out, config = io.StringIO(), MatchConfig(operators=(f"{run}@*", "random"), tasks=1, turns=4)
    told = Console(file=out, width=1000)
    await run_league(Picks(), {"env": {"name": "measured_world:Picks"}}, config, told, out=tmp_path / "league.json")
    measures = json.loads((tmp_path / "league.json").read_text())["measures"]
    of_all = measures.pop("run@*")
    assert len(measures) >= 3
    assert "random" not in measures
    red = np.array([one["left/red"] for one in measures.values()])
    up = np.array([one["left/red/up"] for one in measures.values()])
    assert red.std() > 0.01
    assert of_all["left/red"] == pytest.approx(red.mean(), abs=1e-6)
    assert of_all["left/red/up"] == pytest.approx(red @ up / red.sum(), abs=1e-6)
    last = json.loads((run / "evaluations.json").read_text())[-1]["summary"]["measures"]
    assert measures["run@rl"] == pytest.approx(last, abs=1e-6)
    shown = out.getvalue().splitlines()
    assert [line.split()[0] for line in shown[shown.index("") + 1 :] if line][: 2 + len(measures)] == [
        "measured", *measures, "run@*",
    ]  # fmt: skip


async def test_a_league_of_what_cannot_be_measured_shows_ratings_alone(tmp_path: Path) -> None:
    out, config = io.StringIO(), MatchConfig(operators=("random", "random"), tasks=1, turns=4)
    await run_league(Picks(), {"env": {"name": "measured_world:Picks"}}, config, Console(file=out, width=300))
    assert "measured" not in out.getvalue()


async def test_checkpoints_that_do_not_sample_among_listed_actions_are_not_measured(tmp_path: Path) -> None:
    run = await asyncio.to_thread(train, tmp_path / "run", "agent.choices=false", recipe=RECIPE)
    out, config = io.StringIO(), MatchConfig(operators=(f"{run}@*",), tasks=1, turns=4)
    await run_league(Picks(), {"env": {"name": "measured_world:Picks"}}, config, Console(file=out, width=300))
    assert "run@rl" in out.getvalue()
    assert "measured" not in out.getvalue()
