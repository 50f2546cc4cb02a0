"""What is recorded, printed and shown of a search, and evaluations with budgets."""

from __future__ import annotations

import dataclasses
import math

import pytest
import trained_run
from search_worlds import TASK, Family, played
from typer.testing import CliRunner

from sojourn.cli import app
from sojourn.codec import from_plain, turn_to_plain
from sojourn.config import toml
from sojourn.errors import ConfigError
from sojourn.record.episodes.store import EpisodeStore
from sojourn.record.summary import summarise
from sojourn.search_cost import PLANNED, spent_tokens
from sojourn.searchers.best_of_n import BestOfN
from sojourn.searchers.mcts import MCTS
from sojourn.terminal.considered import SHOWN, considered_lines, considered_text
from sojourn.train.resolve import resolve
from sojourn.types import Considered, Group, Score

RECIPE = """
name = "small"
model = { name = "tiny:layers=1,hidden=64", dtype = "fp32" }
env = { name = "toy", rooms = 2, side_rooms = 0, doors = 0, decoys = 0, objects = 0, choices = true }
agent = { name = "plain", choices = true, malformed = "end" }
backend = { name = "torch", threads = 1 }
evaluation = { tasks = 6 }
record = { drift_groups = 0 }
rollout = { limits = { turns = 6 } }
sampling = { max_tokens = 8 }

[[stages]]
name = "rl"
steps = 1
groups = { name = "slots", width = 2, size = 2 }
estimator = { name = "grpo" }
losses = [{ name = "ppo" }]
"""


@pytest.fixture
def recipe(tmp_path):
    path = tmp_path / "small.toml"
    path.write_text(RECIPE)
    return path


def tables(recipe, *overrides):
    return resolve(toml.read(recipe, overrides))


def turn_with(*considered):
    turn = played(Family(), BestOfN(n=1)).trajectories[0].turns[0]
    return dataclasses.replace(turn, considered=considered)


def test_what_was_considered_survives_a_record():
    turn = turn_with(Considered(-1, "agent", "1", math.nan, 0), Considered(0, "other", "é\ud800", 0.5, 3))
    data = turn_to_plain(turn, None)
    assert data["considered"] == [(-1, "agent", "1", None, 0), (0, "other", "é\ud800", 0.5, 3)]
    assert from_plain(data["considered"], list[tuple[int, str, str, float | None, int]]) == data["considered"]
    assert "considered" not in turn_to_plain(turn_with(), None)


def test_actions_are_listed_as_a_tree_the_best_first_and_the_one_that_was_taken_is_marked():
    turn = turn_with(
        Considered(-1, "agent", "bad", 0.25, 2),
        Considered(-1, "agent", "good", 0.75, 4),
        Considered(1, "agent", "later", math.nan, 0),
        Considered(-1, "agent", "never", math.nan, 0),
    )
    turn = dataclasses.replace(turn, message=dataclasses.replace(turn.message, text="good"))
    assert [(line.depth, line.considered.text, line.taken) for line in considered_lines(turn)] == [
        (0, "good", True),
        (1, "later", False),
        (0, "bad", False),
        (0, "never", False),
    ]
    assert considered_text(turn, several=False).splitlines() == [
        "> good  0.75 in 4 trials",
        "  - later  not tried on",
        "- bad  0.25 in 2 trials",
        "- never  not tried on",
    ]


def test_a_long_list_is_cut_and_says_so():
    turn = turn_with(*(Considered(-1, "agent", str(n), 0.0, 1) for n in range(SHOWN + 3)))
    assert considered_text(turn, several=True).splitlines()[-1] == "... and 3 more"


def test_tokens_of_an_evaluation_are_those_of_the_search_too():
    episode = played(Family(), MCTS(simulations=6))
    [trajectory] = episode.trajectories
    group = Group(0, TASK, (episode,))
    summary = summarise([group], [[Score(trajectory_rewards(trajectory))]])
    own = sum(len(turn.sample.tokens) for turn in trajectory.turns)
    assert summary.overall.tokens.mean == spent_tokens(trajectory.turns) > own


def trajectory_rewards(trajectory):
    import numpy as np

    return np.array([turn.reward for turn in trajectory.turns], dtype=np.float32)


def test_an_override_adds_a_search_to_the_agent_of_the_recipe(recipe):
    resolved = tables(recipe, "agent.name=mcts", "agent.simulations=3")
    agent = resolved.recipe.agent
    assert isinstance(agent, MCTS)
    assert (agent.simulations, agent.base.malformed, agent.base.choices) == (3, "end", True)
    assert resolve(toml.Tables(dict(resolved.table))).recipe.agent == agent
    assert tables(recipe, "agent={name='mcts'}").recipe.agent.base.malformed == "tell"
    with pytest.raises(ConfigError, match=r"keeps the other keys of plain, of which instructed has no"):
        tables(recipe, "agent.name=instructed", "agent.text=hi")


def evaluated(tmp_path, recipe, *overrides):
    """Returns the actions of an evaluation's turns, and whether any was planned."""
    folder = trained_run.train(tmp_path, "stages.0.steps=0", *overrides, recipe=recipe.read_text())
    with EpisodeStore(folder) as store:
        episodes = [episode for group in store.groups("evaluation-before") for episode in group.episodes]
    turns = [turn for episode in episodes for trajectory in episode.trajectories for turn in trajectory.turns]
    return [turn.message for turn in turns], any(PLANNED in turn.info for turn in turns)


def test_evaluations_without_a_search_play_as_the_base_alone(recipe, tmp_path):
    searches = ("agent.name=best_of_n", "agent.n=3")
    alone, planned = evaluated(tmp_path / "alone", recipe)
    assert not planned
    assert evaluated(tmp_path / "without", recipe, *searches, "evaluation.search=false") == (alone, False)
    searched, planned = evaluated(tmp_path / "with", recipe, *searches)
    assert planned
    assert searched != alone


FORKING = "{name='slots', branching={name='uniform'}}"


@pytest.mark.parametrize(
    "groups",
    [FORKING, f"{{name='purified', base={FORKING}}}", f"{{name='mixed', parts=[{{name='spliced', base={FORKING}}}]}}"],
    ids=["slots", "wrapped", "mixed and wrapped"],
)
def test_plays_that_fork_are_refused_with_an_agent_that_searches(recipe, groups):
    with pytest.raises(ConfigError, match="groups fork the plays of MCTS, which itself"):
        tables(recipe, "agent.name=mcts", f"stages.rl.groups={groups}")


def run(*arguments):
    return CliRunner().invoke(app, ["eval", *map(str, arguments)])


def test_budgets_are_evaluated_side_by_side_and_drawn(recipe, tmp_path):
    out = tmp_path / "curve.png"
    done = run(recipe, "agent.name=best_of_n", "agent.n=3", "--budgets", "8,64", "--curve", out)
    assert done.exit_code == 0, done.output
    for name in ("no search", "8 tokens", "64 tokens"):
        assert f"evaluation {name}: success" in done.output
    assert out.read_bytes().startswith(b"\x89PNG")
    assert "the curve is" in done.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--budgets", "8"], "the agent Plain searches nothing"),
        (["agent.name=mcts", "--budgets", "8", "--expert"], "--expert searches nothing"),
        (["agent.name=mcts", "--budgets", "8,x"], "expected numbers of tokens above 0"),
        (["agent.name=mcts", "--budgets", "0"], "expected numbers of tokens above 0"),
        (["agent.name=mcts", "--curve", "a.png"], "say with --budgets which"),
        (["agent.name=mcts", "--budgets", "8", "--curve", "a.svg"], "curves are PNGs"),
    ],
)
def test_what_cannot_be_evaluated_is_refused(recipe, arguments, message):
    done = run(recipe, *arguments)
    assert done.exit_code != 0
    assert message in " ".join(str(done.exception or done.output).split())


def test_a_trained_search_is_recorded_and_shown(recipe, tmp_path):
    out = tmp_path / "run"
    overrides = ["agent.name=best_of_n", "agent.n=3"]
    done = CliRunner().invoke(app, ["train", str(recipe), "--out", str(out), *overrides])
    assert done.exit_code == 0, done.output
    shown = CliRunner().invoke(app, ["show", str(out), "rl/0/0/0"])
    assert "tried in copies before it:" in shown.output
    assert "search_tokens" in shown.output
    with EpisodeStore(out) as store:
        rows = {row.id: row.sampled for row in store.query(stage="rl")}
        [*records] = store.records("rl")
    episodes = [episode for record in records for episode in record.group.episodes]
    assert len(episodes) == 4
    for episode in episodes:
        assert rows[episode.id] == sum(spent_tokens(t.turns) for t in episode.trajectories)
        assert rows[episode.id] > sum(len(turn.sample.tokens) for t in episode.trajectories for turn in t.turns)


def test_listed_actions_are_imitated_alone(recipe):
    done = CliRunner().invoke(app, ["train", str(recipe), "--dry", "agent.name=minimax"])
    assert done.exit_code != 0
    assert "the agent Minimax, which says listed actions" in str(done.exception)
    imitate = ["stages.rl.losses=[{name='nll'}]", "stages.rl.estimator={name='constant'}"]
    for overrides in (["agent.name=minimax", *imitate], ["agent.name=minimax", "agent.listed=false"]):
        assert CliRunner().invoke(app, ["train", str(recipe), "--dry", *overrides]).exit_code == 0
