"""Objects that a Python program gives a recipe: which are written as tables, and how a run gets the others back."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import pytest
from spawned import script

import sojourn
from sojourn.config.fields import Kind
from sojourn.config.objects import table_of
from sojourn.config.passed import PREFIX
from sojourn.config.registry import build
from sojourn.errors import ConfigError
from sojourn.models.spec import Model
from sojourn.optim import Optim
from sojourn.protocols import Reward
from sojourn.rewards.native import Native
from sojourn.rewards.overlong import Overlong
from sojourn.schedules import Cosine
from sojourn.train.recipe import Record
from sojourn.types import Message, Role


@dataclass(frozen=True)
class Twice(Native):
    """A reward of this module."""


@dataclass(frozen=True)
class Around:
    """A reward whose part is another of this module, unless its config says otherwise."""

    base: Annotated[Reward, Kind("reward")] = field(default_factory=Twice)

    async def __call__(self, group):
        return await self.base(group)


def test_a_part_of_an_object_stays_what_it_is():
    """And is not the component that the field has by default."""
    table = table_of(Overlong(base=Twice(scale=0.5)), "reward")
    assert table["base"] == {"name": f"{__name__}:Twice", "scale": 0.5, "malformed": 0.0, "truncated": 0.0}
    assert build("reward", table).value == Overlong(base=Twice(scale=0.5))


def test_an_object_with_a_part_that_no_module_has_is_passed_as_it_is():
    @dataclass(frozen=True)
    class Local(Native):
        pass

    reward = Overlong(base=Local())
    table = table_of(reward, "reward")
    assert table["name"].startswith(PREFIX)
    assert build("reward", table).value is reward


@dataclass(frozen=True)
class Bounded(Native):
    """A reward of this module with a bound, unless it has none."""

    bound: float | None = 1.0


def test_none_in_place_of_a_default_is_kept():
    assert build("reward", table_of(Bounded(bound=None), "reward")).value.bound is None
    assert table_of(Bounded(), "reward")["name"] == f"{__name__}:Bounded"


def test_a_config_names_the_default_parts_of_ones_own_classes():
    """Without the name, the config that a run recorded could not be read again."""
    built = build("reward", {"name": f"{__name__}:Around"})
    assert built.table["base"]["name"] == f"{__name__}:Twice"
    assert build("reward", built.table).value == Around()
    assert build("reward", {"name": f"{__name__}:Around", "base": {"scale": 2.0}}).value == Around(Twice(scale=2.0))


def test_settings_without_a_kind_are_tables_without_a_name():
    """Such as those of the optimiser, which a program may give as it gives a loss."""
    assert table_of(Optim(lr=0.5, schedule=Cosine(warmup=3)), "optim") == {
        "lr": 0.5,
        "weight_decay": Optim().weight_decay,
        "betas": list(Optim().betas),
        "clip_norm": Optim().clip_norm,
        "schedule": {"name": "cosine", "warmup": 3, "final": Cosine().final},
    }
    assert table_of({"policy": Model(name="tiny")}, "x")["policy"]["name"] == "tiny"
    with pytest.raises(ConfigError, match=r"record = Record\(.*TOML cannot hold all of it"):
        table_of(Record(keep=None), "record")  # pyright: ignore[reportArgumentType]


PROGRAM = """
import sys
from pathlib import Path
import sojourn
from examples.guess import Guess
from sojourn.credit.rloo import RLOO
from sojourn.losses.ppo import PPO

class Estimator:
    needs = frozenset()
    def __call__(self, groups, scores, streams):
        return RLOO()(groups, scores, streams)

class Loss:
    needs, zero_at_zero_advantage = frozenset(), True
    def __call__(self, out, batch):
        return PPO()(out, batch)

RECIPE = {
    "name": "guess", "steps": 1, "model": {"name": "tiny:layers=1,hidden=64", "dtype": "fp32"},
    "backend": {"name": "torch", "threads": 1}, "rollout": {"limits": {"turns": 2}}, "sampling": {"max_tokens": 4},
    "evaluation": {"tasks": 1}, "groups": {"name": "slots", "width": 1, "size": 2},
}
out = Path(sys.argv[1])
if out.exists():  # in another order, and under the keys of before
    run = sojourn.train(
        out, resume=True, progress=False, losses=[Loss()], estimator=Estimator(), **{"stages.train.steps": 2}
    )
else:
    run = sojourn.train(RECIPE, out=out, env=Guess, progress=False, estimator=Estimator(), losses=[Loss()])
print(len(run.metrics()), [stage["name"] for stage in run.config["stages"]])
"""


def test_a_run_gets_the_objects_of_all_stages_back_under_the_same_keys(tmp_path: Path):
    (program := tmp_path / "program.py").write_text(PROGRAM)
    for steps in (1, 2):
        assert script(program, str(tmp_path / "run"), environment={}).splitlines()[-1].startswith(f"{steps} ")


def test_what_is_no_message_is_refused_in_a_sentence(tmp_path: Path):
    recipe = {
        "name": "small",
        "model": {"name": "tiny:layers=1,hidden=64"},
        "backend": {"name": "torch", "threads": 1},
        "env": {"name": "toy"},
        "evaluation": {"tasks": 1},
        "rollout": {"limits": {"turns": 1}},
        "steps": 1,
        "groups": {"name": "slots", "width": 1, "size": 2},
        "losses": [{"name": "ppo"}],
    }
    run = sojourn.train(recipe, out=tmp_path / "run", progress=False)
    with run.policy() as policy:
        with pytest.raises(ConfigError, match="is no message: expected a text"):
            policy.answer([{"role": "user", "content": "Hi"}], max_tokens=2)
        assert policy.answer([Message(Role.USER, "Hi")], max_tokens=2).role is Role.ASSISTANT
