"""Values that make no sense are refused when a recipe is built, each in one sentence."""

import dataclasses
import math
from contextlib import suppress

import pytest
from test_config import write

from sojourn.commands.train import check_buildable
from sojourn.config.components import COMPONENTS
from sojourn.config.lookup import find, names
from sojourn.config.registry import build
from sojourn.errors import ConfigError, SojournError
from sojourn.train.resolve import load


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (["sampling.stop_strings=['']"], "sampling.stop_strings.0 = '': expected a text of at least one character"),
        (["sampling.stop_tokens=[-1]"], "sampling.stop_tokens.0 = -1: expected a whole number of at least 0"),
        (["sampling.max_tokens=512", "backend.max_context=512"], "leaves no room for a prompt in backend.max_context"),
        (["evaluation.split=' '"], "evaluation.split = ' ': expected a text that is not empty"),
        (["curriculum.split=''"], "curriculum.split = '': expected a text that is not empty"),
        (["record.tags=['']"], "record.tags.0 = '': expected a text that is not empty"),
        (["groups.width=1180591620717411303424"], "expected a whole number that 64 bits can hold"),
        (["optim.lr=1e39"], "optim.lr = 1e+39: expected a number between -3e+38 and 3e+38"),
        (["optim.lr=nan"], "optim.lr = nan: expected"),
        (["optim.lr=-inf"], "optim.lr = -inf: expected"),
        (["reward={name='composite', weights={success=nan}}"], "reward.weights.success = nan: expected a finite"),
        (["reward={name='composite', weights={success='much'}}"], "reward.weights.success = 'much': expected a number"),
        (["minibatches=65"], "minibatches = 65, but a step has 64 trajectories"),
        (["losses=[{name='epo', min_ratio=3.0}]"], "min_ratio = 3 with max_ratio = 2"),
        (["losses=[{name='importance', min_weight=3.0}]"], "min_weight = 3 with max_weight = 2"),
        (["losses=[{name='clip_cov', min_covariance=6.0}]"], "min_covariance = 6 with max_covariance = 5"),
    ],
)
def test_a_value_without_sense_is_refused(tmp_path, overrides, told):
    with pytest.raises(ConfigError) as caught:
        load(write(tmp_path), overrides)
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("key", ["evaluation.split", "curriculum.split"])
def test_a_split_that_is_not_there_is_refused_before_a_run(tmp_path, key):
    with pytest.raises(ConfigError, match=r"['\"]x['\"]"):
        check_buildable(load(write(tmp_path), [f"{key}=x", "model.name=tiny"]).recipe)


def test_weights_that_are_not_there_are_refused_before_a_run(tmp_path):
    with pytest.raises(SojournError, match=r"model.weights = 'nowhere': expected a run folder"):
        check_buildable(load(write(tmp_path), ["model.weights=nowhere", "model.name=tiny"]).recipe)


RELATIVE = ["grpo", "rloo", "opo", "gigpo", "stratified", "mgrpo", "dyna_grpo", "difficulty", "aem", "whitened"]


@pytest.mark.parametrize("estimator", [f"{{name='{name}'}}" for name in RELATIVE])
@pytest.mark.parametrize("groups", ["{name='slots', size=1}", "{name='experts'}"])
def test_a_group_of_one_is_refused_where_episodes_are_compared(tmp_path, estimator, groups):
    needs = ["streams=[{name='entropy'}]"] if "ae" in estimator else []
    with pytest.raises(ConfigError, match=r"learns nothing from groups of 1: expected groups of at least 2"):
        load(write(tmp_path), [f"estimator={estimator}", f"groups={groups}", *needs])


@pytest.mark.parametrize("estimator", ["{name='reinforce'}", "{name='whitened', base={name='reinforce'}}"])
def test_a_group_of_one_is_enough_where_they_are_not(tmp_path, estimator):
    assert load(write(tmp_path), [f"estimator={estimator}", "groups.size=1"]).recipe.stages[0].groups.size == 1


GIVEN = {"folder": {"path": "x", "stage": "s"}, "imported": {"files": ["a"]}}
OPTIONAL = ("", "<answer>\n", "\n</answer>")  # texts that may be anything
WORLDLY = {"env"}  # worlds say in tests of their own what they take


@pytest.mark.parametrize("kind", sorted(COMPONENTS.keys() - WORLDLY))
def test_no_field_of_any_component_takes_what_is_no_number_of_the_machine(kind):
    for name in COMPONENTS[kind]:
        for field in dataclasses.fields(find(kind, name)):
            for value in (math.nan, math.inf, -math.inf, 1e300, 10**60, "\0"):
                if field.init and not (value == "\0" and field.default in OPTIONAL):
                    with pytest.raises(SojournError):
                        build(kind, {"name": name, **GIVEN.get(name, {}), field.name: value})


@pytest.mark.parametrize("world", names("env"))
def test_every_field_of_a_world_is_taken_or_refused_in_a_sentence(world):
    cls = find("env", world)
    fields = {"name": world, **(cls.about.smallest if hasattr(cls, "about") else {})}
    for field in dataclasses.fields(cls):
        for value in (-1, 0, 10**30, math.nan, "x", [], ["x"], {"x": 1}, True):
            if field.init:
                with suppress(SojournError):
                    build("env", {**fields, field.name: value})
    with pytest.raises(ConfigError, match=r"unknown key 'env\.feilds'"):
        build("env", {**fields, "feilds": 1})
