"""Every recipe can be built: its config, its world's tasks, and its first prompts."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from sojourn.cli import app

ROOT = Path(__file__).parent.parent
RECIPES = sorted(ROOT.glob("recipes/*/*.toml"))


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_recipe_can_be_built(path):
    done = CliRunner().invoke(app, ["train", "--dry", str(path)])
    assert done.exit_code == 0, done.output
    assert "lr" in done.stdout  # every value is printed


def test_there_are_recipes():
    assert len(RECIPES) > 100
