"""A split without tasks is refused in one sentence by whatever takes tasks of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

import sojourn
from sojourn.cli import app
from sojourn.errors import ConfigError, WorldError

RECIPE = f"""
name = "few"
losses = [{{ name = "ppo" }}]
env = {{ name = "{__name__}:Few" }}
[model]
name = "tiny:layers=1,hidden=64"
dtype = "fp32"
[rollout.limits]
turns = 2
"""
REFUSED = "the split 'test' of the world has no tasks: give it some"


class Few:
    """Press the button."""

    tasks = ({"presses": 1}, {"presses": 2})  # every fifth is a test task

    def __init__(self, presses: int):
        self.left = presses

    def press(self) -> str:
        """Presses the button."""
        self.left -= 1
        return "click"

    def expert(self) -> str:
        return "press()"

    def reward(self) -> float | None:
        return None if self.left else 1.0


class Silent(Few):
    """Press the button, of which the expert knows nothing."""

    tasks = ({"presses": 1},) * 5

    def expert(self):  # type: ignore[override]
        return None


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    (tmp_path / "recipe.toml").write_text(RECIPE)
    return tmp_path / "recipe.toml"


@pytest.mark.parametrize(
    "words",
    [
        ["eval", "RECIPE"],
        ["eval", "RECIPE", "--expert"],
        ["play", "RECIPE", "--split", "test"],
        ["arena", "RECIPE", "--operator", "expert"],
        ["league", "RECIPE", "--operator", "expert", "--operator", "random"],
        ["envs", f"{__name__}:Few", "--measure"],
        ["train", "RECIPE", "--dry"],
    ],
    ids=" ".join,
)
def test_a_command_refuses_a_split_without_tasks(words: list[str], recipe: Path):
    done = CliRunner().invoke(app, [str(recipe) if word == "RECIPE" else word for word in words])
    assert isinstance(done.exception, ConfigError), done.exception
    assert str(done.exception).startswith(REFUSED)


def test_python_refuses_a_split_without_tasks(recipe: Path):
    with pytest.raises(ConfigError, match=REFUSED):
        sojourn.evaluate(recipe, expert=True, progress=False)


def test_a_world_whose_expert_gives_no_action_is_not_measured():
    done = CliRunner().invoke(app, ["envs", f"{__name__}:Silent", "--measure"])
    assert isinstance(done.exception, WorldError), done.exception
    assert "expert() gave None: expected the action as text" in str(done.exception)
