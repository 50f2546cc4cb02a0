"""Renamed keys: a person who gives an old one is told the new one; what a run folder recorded is read all the same."""

import dataclasses
import shutil
import typing
from collections.abc import Iterator
from pathlib import Path

import pytest

from sojourn.config import old_keys, toml
from sojourn.config.components import COMPONENTS
from sojourn.config.lookup import find, names
from sojourn.errors import ConfigError
from sojourn.record.run import RunFolder
from sojourn.train.recipe import Recipe
from sojourn.train.resolve import load

KEPT = Path(__file__).parents[1] / "golden" / "run_2026_11"
RENAMED = {  # as if these keys of today had once been called otherwise
    ("", "*", "reproduce"): "seed",
    ("stages", "*", "methods"): "streams",
    ("stages", "*", "updates"): "minibatches",
    ("groups", "slots", "least"): "size",
    ("groups", "*", "groups"): "width",
    ("loss", "ppo", "low"): "clip_low",
    ("estimator", "grpo", "tiny"): "epsilon",
    ("optim", "*", "slope"): "lr",
    ("schedule", "constant", "warm"): "warmup",
    ("reward", "*", "broken"): "malformed",
}


@pytest.fixture(autouse=True)
def renamed(monkeypatch):
    monkeypatch.setattr(old_keys, "OLD_KEYS", {**old_keys.OLD_KEYS, **RENAMED})


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("reproduce=1", "reproduce is now seed: rename it"),
        ("updates=1", "updates is now minibatches: rename it"),
        ("stages.rl.updates=1", "stages.rl.updates is now stages.rl.minibatches: rename it"),
        ("stages.rl.groups.least=1", "stages.rl.groups.least is now stages.rl.groups.size: rename it"),
        ("stages.rl.groups.groups=1", "stages.rl.groups.groups is now stages.rl.groups.width: rename it"),
        ("stages.rl.losses.ppo.low=1", "stages.rl.losses.0.low is now stages.rl.losses.0.clip_low: rename it"),
        ("stages.rl.optim.slope=1", "stages.rl.optim.slope is now stages.rl.optim.lr: rename it"),
        ("stages.rl.optim.schedule.warm=1", "rl.optim.schedule.warm is now stages.rl.optim.schedule.warmup: rename"),
        ("stages.rl.estimator.base.base.base.tiny=1", "base.tiny is now stages.rl.estimator.base.base.base.epsilon: "),
        ("reward.broken=1", "reward.broken is now reward.malformed: rename it"),
        ("reward.low=1", "unknown key 'reward.low'"),
    ],
)
def test_a_person_is_told_the_new_name(override, sentence):
    with pytest.raises(ConfigError) as caught:
        load(KEPT, [override])
    assert sentence in str(caught.value)


OLD = """
name = "before"
reproduce = 3
methods = [{ name = "entropy" }]
[reward]
name = "native"
broken = -0.5
[[stages]]
name = "rl"
updates = 2
losses = [{ name = "ppo", low = 0.1 }, { name = "kl", low = 0.2 }]
optim = { slope = 0.1, schedule = { name = "constant", warm = 5 } }
[stages.groups]
name = "slots"
groups = 2
least = 3
[stages.estimator]
name = "process"
[stages.estimator.base]
name = "grpo"
tiny = 1e-6
[[stages.methods]]
name = "implicit_reward"
optim = { slope = 0.2 }
"""
NEW = """
name = "before"
seed = 3
streams = [{ name = "entropy" }]
[reward]
name = "native"
malformed = -0.5
[[stages]]
name = "rl"
minibatches = 2
losses = [{ name = "ppo", clip_low = 0.1 }, { name = "kl", low = 0.2 }]
optim = { lr = 0.1, schedule = { name = "constant", warmup = 5 } }
[stages.groups]
name = "slots"
width = 2
size = 3
[stages.estimator]
name = "process"
[stages.estimator.base]
name = "grpo"
epsilon = 1e-6
[[stages.streams]]
name = "implicit_reward"
optim = { lr = 0.2 }
"""


@pytest.fixture
def folder(tmp_path):
    """A run folder whose config was recorded with the old names."""
    (tmp_path / "config.toml").write_text(OLD)
    shutil.copy(KEPT / "versions.json", tmp_path)
    return tmp_path


@pytest.mark.parametrize("path", ["", "config.toml"])
def test_what_a_run_recorded_is_read_under_the_new_names(folder, path):
    assert toml.read(folder / path).data == toml.parsed(NEW)
    assert RunFolder.read(folder).config == toml.parsed(NEW)


def test_a_recipe_may_extend_a_run_of_old_names(folder):
    (folder / "mine.toml").write_text('extends = "."\nreward.scale = 7.0\n')
    new = toml.parsed(NEW)
    assert toml.read(folder / "mine.toml").data == {**new, "reward": {**new["reward"], "scale": 7.0}}


def test_a_run_opens_that_recorded_a_key_which_is_gone(folder):
    """It is only gone from the top level: a component of that key keeps it."""
    (folder / "config.toml").write_text('unverified = "its abstract was read"\n' + OLD)
    assert RunFolder.read(folder).config == toml.parsed(NEW)
    table = {"reward": {"name": "mine:Reward", "unverified": "yes"}}
    assert old_keys.upgraded(table) == table


def test_a_person_is_told_that_a_key_is_gone():
    with pytest.raises(ConfigError, match=r"^unverified is no longer a key: delete its line$"):
        load(KEPT, ["unverified=''"])


def test_a_recipe_of_that_name_is_no_record(folder):
    (folder / "versions.json").unlink()
    with pytest.raises(ConfigError, match="is now"):
        load(folder / "config.toml")


def test_a_key_of_somebody_elses_component_is_theirs():
    table = {"reward": {"name": "mine:Reward", "broken": 1}, "env": {"name": "toy", "arguments": {"lr": {"broken": 1}}}}
    assert old_keys.upgraded(table) == table


def test_a_new_name_that_is_there_as_well_stays():
    assert old_keys.upgraded({"reproduce": 1, "seed": 2}) == {"reproduce": 1, "seed": 2}


def keys_of_tables(cls: type, kind: str = "") -> Iterator[tuple[str, set[str]]]:
    """Yields the kind and the keys of a table and of those in it that are no components."""
    yield kind, {field.name for field in dataclasses.fields(cls)}
    for key, hint in typing.get_type_hints(cls).items():
        for inner in (hint, *typing.get_args(hint)):
            if isinstance(inner, type) and dataclasses.is_dataclass(inner):
                yield from keys_of_tables(inner, key)


def wrong_lines() -> list[tuple[str, str, str]]:
    """Returns the lines whose new name is no key of today, or whose old name is one."""
    tables = dict(keys_of_tables(Recipe))
    wrong = []
    for (kind, name, old), new in old_keys.OLD_KEYS.items():
        if kind in COMPONENTS and name != old_keys.ANY:
            keys = find(kind, name).__dataclass_fields__.keys()
        elif kind in COMPONENTS:
            keys = {key for own in names(kind) for key in getattr(find(kind, own), "__dataclass_fields__", ())}
        else:
            keys = tables[kind]
        wrong += [(kind, name, old)] * (new not in keys or old in keys)
    return wrong


def test_every_line_names_a_key_of_today(monkeypatch):
    assert wrong_lines() == []
    monkeypatch.setitem(old_keys.OLD_KEYS, ("aggregate", "*", "length"), "tokens")
    assert wrong_lines() == [("aggregate", "*", "length")]
    monkeypatch.undo()
    assert wrong_lines() == []
