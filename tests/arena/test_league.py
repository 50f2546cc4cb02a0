"""Leagues: who meets whom in which seat, who has won, and what a failure is."""

from __future__ import annotations

import asyncio
import io
import json
import math
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from rich.console import Console
from trained_run import train

from sojourn.agents.text_seat import TextReply, TextSeat
from sojourn.arena.checkpoints import CheckpointOperator
from sojourn.arena.league import Game, League, Standing, standings
from sojourn.arena.operators import RandomOperator, StatelessOperator
from sojourn.arena.run_league import _rated, run_league
from sojourn.arena.run_match import MatchConfig
from sojourn.envs.toy import Toy
from sojourn.errors import ConfigError, InfrastructureError, RecordError
from sojourn.intervals import Estimate
from sojourn.protocols import AgentContext
from sojourn.rollout.limits import Limits
from sojourn.types import Message, Observation, Role, Task
from sojourn_worlds.auction import Auction
from sojourn_worlds.matrix import Matrix

PD = Matrix(opponent="self", choices=True, rounds=2)
TASKS = PD.tasks("test")[:3]


@dataclass
class Says(StatelessOperator):
    """Always takes the choice of this number; None: fails."""

    choice: int | None

    def seat(self, context: AgentContext, env: Any) -> TextSeat:
        return TextSeat(context.name, self, context.trainable)

    async def reply(self, observation: Observation) -> TextReply:
        if self.choice is None:
            raise InfrastructureError("the server is gone")
        return TextReply(Message(Role.ASSISTANT, observation.choices[self.choice]))


COOPERATES, DEFECTS = Says("cooperates", 0), Says("defects", 1)


def league(*operators: Any, family: Any = PD) -> League:
    return League(family, operators, Limits(turns=8))


def test_every_two_play_each_task_once_with_each_seat() -> None:
    made = league(COOPERATES, DEFECTS, RandomOperator("random"))
    games = asyncio.run(made.play(TASKS))
    assert len(games) == made.games(TASKS) == 3 * 3 * 2
    assert {(game.task, game.first, game.second, game.seat) for game in games} == {
        (task, *pair, seat) for task in range(3) for pair in ((0, 1), (0, 2), (1, 2)) for seat in PD.seats
    }


def test_the_higher_return_wins_whatever_the_seat() -> None:
    games = asyncio.run(league(COOPERATES, DEFECTS, Says("too", 1)).play(TASKS))
    assert {game.points for game in games if (game.first, game.second) == (0, 1)} == {0.0}
    assert {game.points for game in games if (game.first, game.second) == (1, 2)} == {0.5}
    best, also, worst = standings(["cooperates", "defects", "too"], games)
    assert [best.name, also.name, worst.name] == ["defects", "too", "cooperates"]
    assert best.rating.mean == pytest.approx(also.rating.mean)
    assert (best.points, worst.points) == (0.75, 0.0)
    assert {game.returns for game in games if (game.first, game.second) == (0, 1)} == {(-1.0, 1.0)}
    assert (best.reward.mean, worst.reward.mean) == (
        pytest.approx((1.0 - 0.6) / 2),
        -1.0,
    )  # a mutual defection pays -0.6
    assert best.rating.n == 12


def test_the_same_seed_plays_the_same_games() -> None:
    made = league(RandomOperator("one"), RandomOperator("two"))
    games = [asyncio.run(made.play(TASKS)) for _ in range(2)]
    assert games[0] == games[1]
    assert len({game.points for game in asyncio.run(made.play(PD.tasks("test")[:20]))}) > 1


def test_a_failure_ends_its_own_game_and_is_no_loss() -> None:
    games = asyncio.run(league(COOPERATES, DEFECTS, Says("broken", None)).play(TASKS))
    failed = [game for game in games if game.points is None]
    assert {game.second for game in failed} == {2}
    assert {game.error for game in failed} == {"InfrastructureError: the server is gone"}
    found = {one.name: one for one in standings(["cooperates", "defects", "broken"], games)}
    assert (found["broken"].failed, found["defects"].failed) == (12, 6)
    assert math.isnan(found["broken"].points)
    assert found["broken"].rating.n == 0


def test_more_than_two_seats_are_one_against_the_mean_of_the_others() -> None:
    """Each is alone as often as the other, so that what it is worth to be alone makes nobody stronger."""
    sale = Auction(opponent="self", choices=True)
    made = League(sale, [RandomOperator("one"), RandomOperator("two")], Limits(turns=64))
    games = asyncio.run(made.play(sale.tasks("test")[:1]))
    seats = ("bidder1", "bidder2", "bidder3")
    assert [game[1:4] for game in games] == [(*pair, seat) for pair in ((0, 1), (1, 0)) for seat in seats]
    assert all(game.points is not None for game in games)
    assert made.games(sale.tasks("test")[:1]) == 6


async def played(*operators: str, family: Any = PD, **options: Any) -> tuple[list[Any], str]:
    out, config = io.StringIO(), MatchConfig(operators=operators, tasks=3, turns=options.pop("turns", 4))
    found = await run_league(family, {"env": {"name": "matrix"}}, config, Console(file=out, width=80), **options)
    return found, out.getvalue()


async def test_a_league_is_printed_and_written(tmp_path: Path) -> None:
    found, shown = await played("random", "random", out=tmp_path / "league.json", curve=tmp_path / "league.png")
    assert [line.split()[0] for line in shown.splitlines()[:3]] == ["operator", found[0].name, found[1].name]
    assert "failed" not in shown
    written = json.loads((tmp_path / "league.json").read_text())
    assert [one["name"] for one in written["standings"]] == [one.name for one in found]
    assert Game(**written["games"][0]).seat == PD.seats[0]
    assert (tmp_path / "league.png").read_bytes().startswith(b"\x89PNG")


RECIPE = """
name = "league"
model = { name = "tiny:layers=1,hidden=64", dtype = "fp32" }
backend = { name = "torch", threads = 1 }
env = { name = "matrix", opponent = "self", choices = true, rounds = 1 }
agent = { name = "plain", choices = true }
sampling = { max_tokens = 8 }
evaluation = { tasks = 2 }
record = { checkpoint_every = 1 }
[[stages]]
name = "rl"
steps = 2
groups = { name = "slots", width = 1, size = 2 }
losses = [{ name = "ppo" }]
"""


def test_the_checkpoints_of_a_run_meet_each_other(tmp_path: Path) -> None:
    run = train(tmp_path / "run", recipe=RECIPE)
    found, shown = asyncio.run(played(f"{run}@*", "random", turns=0, curve=tmp_path / "curve.png"))
    names = {one.name for one in found}
    assert {"random", "run@before", "run@rl"} <= names
    assert (tmp_path / "curve.png").stat().st_size > 10_000
    assert all(one.failed == 0 for one in found), shown


@pytest.mark.parametrize(
    ("agent", "words"),
    [
        ({"name": "when_to_ask", "model": "sage"}, "WhenToAsk asks others, whom a match does not have"),
        ({"name": "ask_person", "unanswered": "Nobody is there."}, "AskPerson asks others"),
    ],
)
async def test_a_run_whose_agent_has_or_asks_others_plays_no_league(agent, words, tmp_path: Path) -> None:
    models = {"sage": {"name": "tiny:layers=1,hidden=64"}} if "model" in agent else {}
    lacks = {"agent": agent, "models": models}
    (tmp_path / "config.toml").write_text(tomli_w.dumps({**tomllib.loads(RECIPE), **lacks}))
    with pytest.raises(ConfigError, match=words):
        await played(str(tmp_path), "random")


@pytest.mark.parametrize(
    ("operators", "family", "sentence"),
    [
        (("random",), PD, "1 operators: expected two or more"),
        (("random", "random"), Toy(choices=True), "only the seat agent, so that operators cannot meet"),
        (("random", "person"), PD, "nobody plays a league in person"),
        (("random", "nothing@*"), PD, "nothing is no run folder"),
        (("random", "expert"), PD, "has no expert"),
    ],
)
async def test_an_impossible_league_gets_a_reason(operators: tuple[str, ...], family: Any, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        await played(*operators, family=family)


@pytest.mark.parametrize("where", [{"out": "league.json"}, {"curve": "league.png"}])
async def test_a_league_that_cannot_be_written_is_not_played(tmp_path: Path, where: dict[str, str]) -> None:
    named: dict[str, Any] = {key: tmp_path / "nowhere" / name for key, name in where.items()}
    with pytest.raises(RecordError, match="there is no folder"):
        await played("random", "random", family=Broken(opponent="self", choices=True), **named)


def test_runs_of_one_name_are_rated_apart(tmp_path: Path) -> None:
    players = [CheckpointOperator(f"x-{n}", tmp_path / sweep / "x", step=n) for n, sweep in enumerate("ab")]
    found = [Standing(one.name, Estimate(1.0, 0.0, 2.0, 1), 0.5, Estimate(0.0, 0.0, 0.0, 1), 0) for one in players]
    assert [one.name for one in _rated(players, found)] == ["a/x", "b/x"]
    assert [one.name for one in _rated(players[:1], found)] == ["x"]


@dataclass(frozen=True, kw_only=True)
class Broken(Matrix):
    def make(self, task: Task) -> Any:
        raise InfrastructureError("no memory is left")


async def test_a_league_whose_games_all_fail_says_why() -> None:
    with pytest.raises(InfrastructureError, match="all 6 games failed: InfrastructureError: no memory is left"):
        await played("random", "random", family=Broken(opponent="self", choices=True))
