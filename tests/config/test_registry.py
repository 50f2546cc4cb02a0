"""Tables become components of the right kind with values in their ranges, or one sentence says what was expected."""

import dataclasses
import typing
from collections.abc import Iterator
from pathlib import Path

import pytest

from sojourn.config.components import COMPONENTS, MEMBERS
from sojourn.config.fields import Range
from sojourn.config.lookup import find, names
from sojourn.config.registry import build, construct, convert
from sojourn.errors import ConfigError
from sojourn.train.recipe import Recipe

POSITIVE, COUNT = "a whole number of at least 1", "a whole number of at least 0"
ABOVE, LEAST, WARM = "a number above 0", "a number of at least 0", "0, or a number of at least 0.01"
UNIT, SHARE, BETA = f"{LEAST} and at most 1", f"{ABOVE} and at most 1", f"{LEAST} and below 1"
OUTSIDE = [
    ("seed", -1, f"{COUNT} and below {2**63}"), ("seed", 2**63, "a whole number that 64 bits can hold"),
    ("model.lora.rank", 0, POSITIVE), ("model.lora.alpha", 0.0, ABOVE), ("model.name", "", "the name of a model"),
    ("sampling.max_tokens", 0, POSITIVE), ("sampling.temperature", -0.5, WARM), ("sampling.top_p", 0.0, SHARE),
    ("sampling.top_p", 1.5, SHARE), ("sampling.top_k", -1, COUNT), ("sampling.min_p", 1.5, UNIT),
    ("sampling.min_p", -0.5, UNIT),
    ("evaluation.tasks", 0, POSITIVE), ("evaluation.samples", 0, POSITIVE), ("evaluation.temperature", -1.0, WARM),
    ("evaluation.top_p", 0.0, SHARE), ("evaluation.every", -1, COUNT),
    ("record.checkpoint_every", -1, COUNT), ("record.keep", 0, POSITIVE), ("record.drift_groups", -1, COUNT),
    ("record.folder", "", "the path of a folder"),
    ("rollout.concurrency", 0, POSITIVE), ("rollout.retries", -1, COUNT), ("rollout.max_error_rate", 1.5, UNIT),
    ("rollout.max_error_rate", -0.5, UNIT),
    ("rollout.limits.turns", 0, POSITIVE), ("rollout.limits.seconds", -1.0, LEAST),
    ("rollout.limits.stall_s", 0.0, ABOVE),
    ("agent.turns", 0, POSITIVE), ("curriculum", {"name": "shuffle", "max_tasks": -1}, COUNT),
    ("backend.threads", -1, COUNT), ("backend.max_context", 1, "a whole number of at least 2"),
    ("backend.token_budget", 0, POSITIVE), ("backend.memory_gb", 0.0, ABOVE), ("backend.max_batch", 0, POSITIVE),
    ("backend.prefill_chunk", 0, POSITIVE),
    ("stages.0.steps", -1, COUNT), ("stages.0.minibatches", 0, f"{POSITIVE} and at most 1024"),
    ("stages.0.aggregate", {"length": 0}, POSITIVE),
    ("stages.0.optim.lr", -1.0, LEAST), ("stages.0.optim.betas", [0.9, 1.0], BETA),
    ("stages.0.optim.betas", [-0.1, 0.9], BETA), ("stages.0.optim.betas", [0.9], "an array of 2"),
    ("stages.0.optim.betas", [0.9, 0.9, 0.9], "an array of 2"),
    ("stages.0.optim.weight_decay", -1.0, LEAST), ("stages.0.optim.clip_norm", 0.0, ABOVE),
    ("stages.0.optim.schedule.warmup", -1, COUNT),
    ("stages.0.optim.schedule", {"name": "linear", "final": -1.0}, UNIT),
    ("stages.0.optim.schedule", {"name": "cosine", "final": 2.0}, UNIT),
    ("stages.0.groups.width", 0, POSITIVE), ("stages.0.groups.size", 0, POSITIVE),
    ("stages.0.groups.max_lag", -1, COUNT), ("stages.0.groups.max_redraws", -1, COUNT),
    ("stages.0.groups", {"name": "experts", "width": 0}, POSITIVE),
    ("stages.0.groups", {"name": "experts", "distinct_tasks": 0}, POSITIVE),
    ("stages.0.groups", {"name": "folder", "path": "runs", "stage": "rl", "width": 0}, POSITIVE),
    ("stages.0.groups", {"name": "folder", "path": "", "stage": "rl"}, "the path of a folder"),
    ("stages.0.estimator.epsilon", -1.0, LEAST), ("stages.0.estimator", {"name": "reinforce", "discount": 1.5}, UNIT),
    ("stages.0.losses", [{"name": "ppo", "clip_low": 1.5}], UNIT),
    ("stages.0.losses", [{"name": "ppo", "clip_high": -0.5}], LEAST),
]  # fmt: skip


def recipe(path: str, value: object) -> dict:
    """The tables of a whole recipe with one value changed."""
    table = {"name": "t", "env": {"name": "toy"}, "stages": [{"losses": [{"name": "ppo"}]}]}
    here, keys = table, path.split(".")
    for key in keys[:-1]:
        here = here[int(key)] if isinstance(here, list) else here.setdefault(key, {})
    here[keys[-1]] = value
    return table


def test_a_recipe_with_nothing_changed_is_built():
    assert construct(Recipe, recipe("seed", 2**63 - 1), "").value.seed == 2**63 - 1


@pytest.mark.parametrize(("path", "value", "expected"), OUTSIDE)
def test_a_value_out_of_its_range_is_refused(path, value, expected):
    with pytest.raises(ConfigError) as caught:
        construct(Recipe, recipe(path, value), "")
    told = str(caught.value)
    assert told.startswith(path.rpartition(".")[0])
    assert told.endswith(f": expected {expected}")


@pytest.mark.parametrize(
    ("range", "inside", "outside"),
    [
        (Range(1), [1, 7], [0, -1]),
        (Range(0, 1), [0.0, 0.5, 1.0], [-0.1, 1.1]),
        (Range(above=0, max=1), [0.1, 1.0], [0.0, 1.1]),
        (Range(0, below=1), [0.0, 0.9], [-0.1, 1.0]),
    ],
)
def test_a_range_has_the_bounds_it_says(range, inside, outside):
    assert all(range.holds(value) for value in inside)
    assert not any(range.holds(value) for value in outside)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 10**400])
@pytest.mark.parametrize(
    "path", ["stages.0.optim.lr", "reward.malformed", "stages.0.estimator.epsilon", "rollout.limits.seconds"]
)
def test_what_is_no_finite_number_is_refused_everywhere(path, value):
    with pytest.raises(ConfigError, match=rf"{path} = .*: expected a (finite number|number that a float can hold)$"):
        construct(Recipe, recipe(path, value), "")


@pytest.mark.parametrize("path", ["losses", "estimator"])
def test_coefficients_are_finite(path):
    table = {"losses": [{"name": "kl", "coef": float("inf")}], "estimator": {"name": "constant", "value": float("nan")}}
    with pytest.raises(ConfigError, match="expected a finite number"):
        construct(Recipe, recipe(f"stages.0.{path}", table[path]), "")


def test_a_number_of_more_digits_than_python_prints_is_refused_in_a_short_sentence():
    with pytest.raises(ConfigError, match=r"^seed = a huge number: expected"):
        construct(Recipe, recipe("seed", 16**9000), "")
    with pytest.raises(ConfigError) as caught:
        construct(Recipe, recipe("seed", "x" * 100_000), "")
    assert len(str(caught.value)) < 300


def test_an_array_of_a_fixed_length_takes_a_hint_for_each_place():
    assert convert(tuple[int, str], [1, "a"], "x").value == (1, "a")
    assert convert(tuple[int, ...], [1, 2, 3], "x").value == (1, 2, 3)
    with pytest.raises(ConfigError, match=r"x.1 = 2: expected text"):
        convert(tuple[int, str], [1, 2], "x")


OWN_CHECKS = {find("env", name) for name in names("env")}  # each refuses values in its own words


def configs(cls: type) -> Iterator[type]:
    """A dataclass and those of its fields, however deep."""
    yield cls
    for hint in typing.get_type_hints(cls).values():
        for inner in (hint, *typing.get_args(hint)):
            if isinstance(inner, type) and dataclasses.is_dataclass(inner):
                yield from configs(inner)


def test_every_whole_number_of_a_config_has_a_range():
    components = {find(kind, name) for kind in COMPONENTS for name in names(kind)}
    unbounded = [
        f"{cls.__name__}.{f.name}"
        for cls in {*configs(Recipe), *components} - OWN_CHECKS
        for f in dataclasses.fields(cls)
        if typing.get_type_hints(cls, include_extras=True)[f.name] is int
    ]
    assert unbounded == []


@pytest.mark.parametrize(
    ("kind", "table", "told"),
    [
        ("env", {"name": ["toy"]}, "env.name = ['toy']: expected text in quotes"),
        ("env", {"name": {"name": "toy"}}, "env.name = {'name': 'toy'}: expected text in quotes"),
        ("env", {"name": 3}, "env.name = 3: expected text in quotes"),
        *(("env", {"name": name}, "expected 'module:Class'") for name in (":x", "a:", ":", ".x:y", "a..b:c")),
        ("agent", {"name": "sojourn.losses.ppo:PPO"}, "PPO is no agent: an agent has seat(...)"),
        (
            "loss",
            {"name": "sojourn.credit.grpo:GRPO"},
            "GRPO is no loss: a loss has needs, zero_at",
        ),
        ("estimator", {"name": "sojourn.losses.ppo:PPO"}, "PPO is no estimator"),
        ("reward", {"name": "sojourn.losses.ppo:PPO"}, "PPO is no reward: a reward has __call__(...), no needs"),
        ("reward", {"name": "sojourn.agents.plain:Plain"}, "Plain is no reward"),
        ("stream", {"name": "sojourn.losses.ppo:PPO"}, "PPO is no stream"),
        ("schedule", {"name": "sojourn.losses.ppo:PPO"}, "PPO is no schedule"),
        ("sink", {"name": "sojourn.agents.plain:Plain"}, "Plain is no sink"),
        ("groups", {"name": "sojourn.curricula.cycle:Cycle"}, "Cycle is no groups"),
        ("curriculum", {"name": "sojourn.render.chatml:ChatML"}, "ChatML is no curriculum"),
        (
            "renderer",
            {"name": "sojourn.losses.ppo:PPO"},
            "PPO is no renderer: a renderer has bind(...), no",
        ),
        ("backend", {"name": "sojourn.losses.ppo:PPO"}, "PPO is no backend"),
        ("env", {"name": "sojourn.losses.ppo:PPO"}, "PPO is no env: an env has tasks(...), make(...)"),
        ("env", {"name": "examples.guess:Guess", "train": 0}, "env.train = 0: expected a whole number of at least 1"),
        ("env", {"name": "examples.guess:Guess", "train": -1}, "env.train = -1: expected a whole number of at"),
        ("env", {"name": "examples.guess:Guess", "test": "x"}, "env.test = 'x': expected a whole number"),
        ("env", {"name": "examples.guess:Guess", "form": "xml"}, "form = 'xml', but it must be"),
        ("env", {"name": "examples.guess:Guess", "seed": float("nan")}, "env.seed = nan: expected a finite number"),
    ],
)
def test_what_is_no_component_of_its_kind_is_refused(kind, table, told):
    with pytest.raises(ConfigError) as caught:
        build(kind, table)
    assert told in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_every_kind_says_what_it_needs_and_a_plain_class_keeps_its_table():
    assert set(MEMBERS) == set(COMPONENTS)
    table = {"name": "examples.guess:Guess", "train": 5, "form": "text"}
    built = build("env", table)
    assert built.table == table
    assert (len(built.value.tasks("train")), built.value.form) == (5, "text")


HINTED = """
from dataclasses import dataclass

@dataclass(frozen=True)
class Mine:
    size: Nowhere = 1
"""


@pytest.mark.parametrize(
    ("source", "told", "line"),
    [
        ("x = 1\nx = = 2\n", "raises SyntaxError: invalid syntax", 2),
        ("def f():\n    return 1 / 0\n\nf()\n", "raises ZeroDivisionError: division by zero", 2),
        ("import sys\nsys.exit('no\\nmore')\n", "raises SystemExit: no more", 2),
        ("from math import nothing\n", "raises ImportError: cannot import name 'nothing' from 'math'", 1),
        ("raise ModuleNotFoundError('gone')\n", "raises ModuleNotFoundError: gone", 1),
    ],
)
def test_a_module_that_raises_is_refused_with_the_place(tmp_path: Path, monkeypatch, source, told, line):
    (tmp_path / "raising.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError) as caught:
        find("agent", "raising:Mine")
    assert f"agent 'raising:Mine': importing 'raising' {told}" in str(caught.value)
    assert f"({tmp_path / 'raising.py'}:{line})" in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_a_type_hint_that_cannot_be_read_is_refused(tmp_path: Path, monkeypatch):
    (tmp_path / "hinted.py").write_text(f"from __future__ import annotations\n{HINTED}")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=r"^agent: a type hint of Mine cannot be read \(NameError: .*'Nowhere'"):
        build("agent", {"name": "hinted:Mine"})
