"""Intervals against published values, and against their own coverage."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console
from scipy import stats

from sojourn.intervals import NOTHING, Estimate, difference, mean, pass_at_k, pass_rate, proportion, t_quantile, wilson
from sojourn.record.summary import Summary, _mean_reward, summarise
from sojourn.terminal.evaluations import side_by_side
from sojourn.types import Ending, Episode, Group, Message, Role, Sample, Score, Stop, Task, Trajectory, Turn, Versions


@pytest.mark.parametrize(
    ("freedom", "value"),
    [(1, 12.7062), (2, 4.3027), (4, 2.7764), (5, 2.5706), (6, 2.4469), (10, 2.2281), (30, 2.0423), (100, 1.9840)],
)
def test_t_quantiles(freedom: int, value: float):
    assert t_quantile(freedom) == pytest.approx(value, abs=5e-5)


def test_no_percentage_is_below_zero_by_rounding_alone():
    assert Estimate(0.2, -0.001, 0.44, 9).percent == "20% [0–44]"
    assert Estimate(-0.2, -0.4, -0.002, 9).percent == "-20% [-40–0]"


def test_wilson_against_newcombe():
    """Newcombe 1998, Statistics in Medicine 17, table I, method 3."""
    for wins, plays, low, high in ((81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611)):
        found = wilson(wins, plays)
        assert (found.low, found.high) == pytest.approx((low, high), abs=5e-5)
    assert wilson(29, 29).low == pytest.approx(0.8830, abs=5e-5)
    assert wilson(29, 29).high == 1.0
    assert wilson(0, 0) == NOTHING


@pytest.mark.parametrize(("wins", "plays"), [(0, 1), (3, 7), (15, 148), (263, 263)])
def test_wilson_is_that_of_scipy_where_plays_are_whole(wins: int, plays: int):
    expected = stats.binomtest(wins, plays).proportion_ci(method="wilson")
    assert wilson(wins, plays)[1:3] == pytest.approx(tuple(expected), abs=1e-12)


def test_the_bootstrap_is_that_of_scipy():
    by_task = [(4, wins % 5) for wins in range(23)]
    values = [pass_at_k(plays, wins, 2) for plays, wins in by_task]
    rng = np.random.default_rng(0)
    expected = stats.bootstrap((values,), np.mean, n_resamples=1000, method="percentile", rng=rng).confidence_interval
    assert pass_rate(by_task, 2)[1:3] == pytest.approx(tuple(expected), abs=1e-12)


def test_mean_against_a_hand_made_interval():
    found = mean([1.0, 2.0, 3.0, 4.0, 5.0])
    half = 2.7764451 * math.sqrt(2.5 / 5)
    assert found == pytest.approx((3.0, 3 - half, 3 + half, 5))
    assert mean([2.0]) == Estimate(2.0, -math.inf, math.inf, 1)
    assert mean([]) == NOTHING


def test_plays_of_one_task_are_not_new_evidence():
    """Repeating every value k times inside its task leaves the interval exactly where it was."""
    values = [0.0, 1.0, 2.0, 5.0, 3.0]
    tasks = list(range(5))
    once = mean(values, tasks)
    thrice = mean(np.repeat(values, 3).tolist(), np.repeat(tasks, 3).tolist())
    assert thrice[:3] == pytest.approx(once[:3])
    outcomes = [True, False, True, True, False, True]
    several = proportion(np.repeat(outcomes, 8).tolist(), np.repeat(range(6), 8).tolist())
    alone = proportion(outcomes)
    assert several.mean == alone.mean
    assert several.n == 48
    assert several.high - several.low >= alone.high - alone.low
    naive = proportion(np.repeat(outcomes, 8).tolist())
    assert several.high - several.low > 2 * (naive.high - naive.low)


def test_a_perfect_panel_counts_tasks_once():
    perfect = proportion([True] * 40, np.repeat(range(10), 4).tolist())
    assert perfect.low == pytest.approx(wilson(10, 10).low)
    assert (perfect.mean, perfect.high, perfect.n) == (1.0, 1.0, 40)
    single = proportion([True, False, True, True], ["a"] * 4)
    assert single.high - single.low > 0.7


@pytest.mark.parametrize("spread", [0.0, 0.35])
def test_intervals_cover(spread: float):
    """Over 400 simulated evaluations of 25 tasks x 4 plays, about 95% of the intervals hold the truth."""
    rng = np.random.default_rng(1)
    truth = 0.5
    held = {"proportion": 0, "mean": 0, "naive": 0}
    for _ in range(400):
        rates = truth + spread * rng.choice([-1.0, 1.0], size=25)
        outcomes = (rng.random((25, 4)) < rates[:, None]).astype(float).ravel().tolist()
        tasks = np.repeat(range(25), 4).tolist()
        found = {
            "proportion": proportion(outcomes, tasks),
            "mean": mean(outcomes, tasks),
            "naive": proportion(outcomes),
        }
        for name, estimate in found.items():
            held[name] += estimate.low <= truth <= estimate.high
    assert held["proportion"] >= 0.92 * 400
    assert held["mean"] >= 0.91 * 400
    if spread:
        assert held["naive"] < 0.9 * 400  # the interval that takes the plays for independent is too narrow


def test_tasks_that_agree_have_an_interval_whatever_they_agree_on():
    """A resample of equal values has no width, and a lone task says next to nothing."""
    assert pass_rate([(4, 2)] * 8, 1)[:3] == pytest.approx(wilson(4, 8)[:3])
    half, most = pass_rate([(4, 2)], 1), pass_rate([(4, 2)], 2)
    assert (half.mean, half.n, half.high - half.low > 0.8) == (0.5, 1, True)
    assert (most.mean, most.n, most.high - most.low > 0.7) == (pytest.approx(5 / 6), 1, True)


@pytest.mark.parametrize(
    ("first", "other", "low", "high"),
    [((48, 80), (56, 70), -0.3339, -0.0524), ((3, 10), (9, 10), -0.8090, -0.1705), ((0, 20), (10, 10), -1, -0.6791)],
)
def test_differences_against_newcombe(first: tuple[int, int], other: tuple[int, int], low: float, high: float):
    """Newcombe 1998, Statistics in Medicine 17, p. 873, table II, method 10."""
    found = difference(wilson(*other), wilson(*first))
    assert (found.low, found.high) == pytest.approx((low, high), abs=5e-5)


def test_pass_at_k_is_the_share_of_draws_with_a_success():
    for plays, wins in ((5, 2), (6, 0), (4, 4), (7, 1)):
        outcomes = [True] * wins + [False] * (plays - wins)
        for k in range(1, plays + 1):
            draws = list(itertools.combinations(outcomes, k))
            assert pass_at_k(plays, wins, k) == pytest.approx(sum(map(any, draws)) / len(draws))
    with pytest.raises(ValueError, match="pass@5 of 4 plays"):
        pass_at_k(4, 1, 5)


def test_pass_rate_over_tasks():
    by_task = [(4, 0), (4, 1), (4, 4), (1, 1)] * 5
    found = pass_rate(by_task, 2)
    assert found.mean == pytest.approx((0 + 0.5 + 1) / 3)
    assert found.n == 15  # tasks played once are left out
    assert found.low < found.mean < found.high
    assert pass_rate(by_task, 2) == found  # the bootstrap has a seed
    assert pass_rate([(4, 4)] * 8, 2) == wilson(8, 8)
    assert pass_rate([(1, 1)], 2) == NOTHING


def play(task: Task, number: int, success: bool, *, malformed: int = 0, error: str | None = None) -> Episode:
    turns = tuple(
        Turn(
            parent=k - 1,
            context=np.arange(2),
            sample=Sample(np.arange(k + 1), np.zeros(k + 1, np.float32), Versions(0, 0), Stop.END),
            message=None if k < malformed else Message(Role.ASSISTANT, "go"),
            info={"success": float(success)} if k == 2 else {},
        )
        for k in range(3)
    )
    return Episode(f"{task.id}-{number}", task, (Trajectory("agent", turns, Ending.DONE),), error)


def panel() -> tuple[list[Group], list[list[Score]]]:
    groups = []
    for number in range(6):
        env, tags = ("maze", ("hard",)) if number % 2 else ("shop", ("hard", "long") if number == 4 else ())
        task = Task(env, {"n": number}, number, "test", tags)
        episodes = [play(task, i, i < number % 4, malformed=number == 0) for i in range(4)]
        if number == 5:
            episodes[3] = play(task, 3, False, error="lost")
        groups.append(Group(number, task, tuple(episodes)))
    scores = [[Score(np.array([0, 0, t.success], np.float32)) for t in group.trajectories] for group in groups]
    return groups, scores


def test_summary_counts():
    found = summarise(*panel())
    overall = found.overall
    assert (overall.tasks, overall.episodes, found.errors) == (6, 23, 1)
    assert overall.success.mean == overall.reward.mean == pytest.approx((0 + 1 + 2 + 3 + 0 + 1) / 23)
    assert (overall.turns.mean, overall.tokens.mean) == (3.0, 6.0)
    assert overall.malformed.mean == pytest.approx(4 / 69)
    assert set(found.envs) == {"maze", "shop"}
    assert found.envs["maze"].success.mean == pytest.approx(5 / 11)
    assert {tag: part.tasks for tag, part in found.tags.items()} == {"hard": 4, "long": 1}
    assert sorted(overall.pass_at) == [1, 2, 4]
    assert overall.pass_at[4].n == 5
    assert overall.pass_at[4].mean == pytest.approx(3 / 5)
    assert overall.success.low < overall.success.mean < overall.success.high


def test_an_episode_of_two_seats_is_one_episode():
    groups, _ = panel()
    groups = [
        replace(g, episodes=tuple(replace(e, trajectories=e.trajectories * 2) for e in g.episodes)) for g in groups
    ]
    found = summarise(groups, [[Score(np.zeros(3, np.float32)) for _ in group.trajectories] for group in groups])
    assert (found.overall.episodes, found.errors) == (23, 1)
    assert found.envs["maze"].episodes == 11
    assert found.overall.success.mean == summarise(*panel()).overall.success.mean


def test_summaries_survive_json():
    found = summarise(*panel())
    text = json.dumps(found.to_json(), allow_nan=False)
    assert Summary.from_json(json.loads(text)) == found
    empty = summarise([], [])
    assert json.dumps(Summary.from_json(json.loads(json.dumps(empty.to_json(), allow_nan=False))).to_json())
    assert empty.overall.success.n == 0


def test_scores_must_fit():
    groups, scores = panel()
    with pytest.raises(ValueError):
        summarise(groups, [scores[0][:1], *scores[1:]])


def test_table_fits_a_terminal():
    console = Console(width=80, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    found = summarise(*panel())
    console.print(side_by_side({"base": found, "warm-up": found, "trained": found}, title="miniwob"))
    text = console.export_text()
    console.file.close()
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= 80
    for word in ("success", "pass@2", "pass@4", "maze", "long", "errors", found.overall.success.percent):
        assert word in text


@pytest.mark.parametrize(
    ("rewards", "low", "high"),
    [
        ([0.0, 0.0, 0.0, 0.0], 0.0, 0.49),  # as of a rate: where none wins, some might
        ([0.0, 0.0, 0.0, 1.0], 0.046, 0.70),
        ([0.0, 0.0, 0.0, 0.5], 0.0, 0.5),  # cut at what was seen
        ([0.2, 0.3, 0.4, 0.3], 0.2, 0.4),
        ([0.2, 0.3, 0.4, 0.3, 0.3, 0.3, 0.3], 0.246, 0.354),
    ],
)
def test_the_interval_of_rewards_stays_within_them(rewards: list[float], low: float, high: float):
    found = _mean_reward(rewards, list(map(str, range(len(rewards)))))
    assert found.mean == pytest.approx(np.mean(rewards))
    assert (found.low, found.high) == pytest.approx((low, high), abs=0.005)
    assert math.isinf(_mean_reward([0.2, 0.4], ["a", "a"]).high)  # of one task nothing is known of others
