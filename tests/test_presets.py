"""Every preset resolves, says where it is from, and can be stood on by a recipe of several stages."""

import asyncio
from pathlib import Path

import pytest

from sojourn.errors import ConfigError
from sojourn.train.group_checks import check_groups
from sojourn.train.resolve import load

FOLDER = Path(__file__).parent.parent / "recipes" / "presets"
PRESETS = sorted(FOLDER.glob("*.toml"))

MINE = """
extends = "{path}"
name = "mine"
[env]
name = "shop"
[[stages]]
name = "warmup"
groups = {{ name = "experts" }}
estimator = {{ name = "constant" }}
losses = [{{ name = "nll" }}]
streams = []
minibatches = 1
[[stages]]
name = "rl"
optim = {{ lr = 3e-6 }}
"""


def test_there_are_presets():
    assert len(PRESETS) >= 35


@pytest.mark.parametrize("path", PRESETS, ids=lambda path: path.stem)
def test_a_preset_resolves_and_can_be_stood_on(path, tmp_path):
    assert path.read_text().startswith("# ")
    assert "arXiv:" in path.read_text()
    recipe = load(path).recipe
    assert recipe.name == path.stem
    asyncio.run(check_groups(recipe))
    own = tmp_path / "mine.toml"
    if len(recipe.stages) > 1:  # which belong together
        own.write_text(MINE.format(path=path).partition("[[stages]]")[0])
        mine = load(own).recipe
        assert (type(mine.env).__name__, mine.stages) == ("Shop", recipe.stages)
        return
    own.write_text(MINE.format(path=path))
    mine = load(own).recipe
    assert type(mine.env).__name__ == "Shop"
    [_, rl] = mine.stages
    [only] = recipe.stages
    assert (rl.estimator, rl.losses, rl.aggregate) == (only.estimator, only.losses, only.aggregate)


def test_a_preset_is_found_by_its_name_wherever_the_recipe_is(tmp_path):
    recipe = tmp_path / "mine.toml"
    recipe.write_text('extends = "preset:dapo"\nname = "mine"\n')
    assert load(recipe, ()).recipe.stages == load(FOLDER / "dapo.toml", ()).recipe.stages
    recipe.write_text('extends = "preset:dappo"\n')
    with pytest.raises(ConfigError, match="no such preset: did you mean 'dapo'"):
        load(recipe, ())
