"""Several worlds as one: whose tasks take turns how, who makes a play, what is opened and closed."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from sojourn.checks.env import check_env
from sojourn.config import toml
from sojourn.config.registry import build
from sojourn.display import Display
from sojourn.envs.mixed import Mixed
from sojourn.envs.proposing import Proposing
from sojourn.envs.toy import Toy, ToyEnv
from sojourn.errors import ConfigError
from sojourn.record import metrics
from sojourn.record.run import RunFolder
from sojourn.rollout.world import open_world
from sojourn.train.resolve import resolve
from sojourn.train.run import run_recipe
from sojourn_worlds.shop import Shop

SMALL = Shop(products=200, attributes=1, options=0, price_limit=False, test=7)

RECIPE = """
name = "mixed"
[model]
name = "tiny:layers=1,hidden=64"
dtype = "fp32"
[env]
name = "mixed"
shares = [2, 1]
worlds = [
    { name = "toy", rooms = 2 },
    { name = "shop", products = 200, attributes = 1, options = 0, price_limit = false },
]
[sampling]
max_tokens = 4
[rollout.limits]
turns = 2
[evaluation]
tasks = 6
[[stages]]
name = "rl"
steps = 1
groups = { name = "slots", width = 6, size = 2 }
losses = [{ name = "ppo" }]
"""


class Counting(Toy):
    """Counts how often it is open; a second world of the same kind must not be opened where the first fails."""

    log: list[str] = []  # noqa: RUF012

    async def open(self) -> None:
        self.log.append("open")

    async def close(self) -> None:
        self.log.append("close")


class Failing(Shop):
    async def open(self) -> None:
        raise ConfigError("no shop today")


class Sometimes(Shop):
    """Can be opened once."""

    opened: list[bool] = []  # noqa: RUF012

    async def open(self) -> None:
        if self.opened:
            raise ConfigError("no shop any more")
        self.opened.append(True)

    async def close(self) -> None:
        pass


def test_tasks_take_turns_by_their_shares() -> None:
    family = Mixed(worlds=(Toy(), SMALL), shares=(3, 1))
    names = [family.tasks("train")[k].env for k in range(8)]
    assert Counter(names[:4]) == {"toy": 3, "shop": 1}
    assert names[:4] == names[4:]
    assert names[0] == "toy"
    toys = [task.id for task in family.tasks("train")[:40] if task.env == "toy"]
    assert toys == [task.id for task in Toy().tasks("train")[:30]]  # each once, in their own order


def test_levels_may_be_one_world_with_other_settings() -> None:
    easy, hard = Toy(rooms=2, doors=0), Toy(rooms=5)
    family = Mixed(worlds=(easy, hard), levels=True)
    tasks = family.tasks("train")[:4]
    assert [(task.env, task.data["rooms"], task.tags) for task in tasks] == [
        ("toy", 2, ("level-0",)),
        ("toy", 5, ("level-1",)),
    ] * 2
    assert [family.world_of(task) for task in tasks] == [easy, hard] * 2
    assert family.make(tasks[1]).layout == hard.make(hard.tasks("train")[0]).layout
    with pytest.raises(ConfigError, match=r"task \w+ is of '', but the levels are level-0, level-1"):
        family.world_of(easy.tasks("train")[0])


def test_levels_of_worlds_that_have_levels_themselves_are_those_of_the_mixture() -> None:
    family = Mixed(worlds=(Toy(levels=2), SMALL), levels=True)
    tasks = family.tasks("train")[:4]
    assert [task.tags[-1] for task in tasks] == ["level-0", "level-1"] * 2
    assert tasks[2].tags == ("level-1", "level-0")
    assert [family.world_of(task) for task in tasks] == [*family.worlds] * 2


def test_levels_that_share_tasks_are_refused() -> None:
    with pytest.raises(ConfigError, match="level-1 has a task of another level"):
        Mixed(worlds=(Toy(), Toy(test=7)), levels=True).tasks("train")


def test_a_test_panel_has_no_task_twice_and_training_begins_again() -> None:
    family = Mixed(worlds=(Toy(train=5, test=1_000), SMALL))
    tested = family.tasks("test")
    assert len(tested) == 14
    assert len({task.id for task in tested}) == 14
    trained = family.tasks("train")
    assert len(trained) == 200_000
    assert trained[0].id == trained[10].id != trained[2].id


def test_a_play_is_of_the_world_that_the_task_is_of() -> None:
    family = Mixed(worlds=(Toy(), SMALL))
    assert isinstance(family.make(family.tasks("train")[0]), ToyEnv)
    assert family.make(family.tasks("train")[1]).goal.instruction  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match="is of 'toy', but the worlds are shop"):
        Mixed(worlds=(SMALL,)).make(Toy().tasks("train")[0])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"worlds": ()}, "give at least one"),
        ({"worlds": (Toy(),), "shares": (1, 2)}, "for each of the 1 worlds"),
        ({"worlds": (Toy(),), "shares": (0,)}, "above 0"),
        ({"worlds": (Mixed(worlds=(Toy(),)),)}, "one of its worlds is mixed itself"),
    ],
)
def test_what_cannot_be_mixed_is_refused(fields, message) -> None:
    with pytest.raises(ConfigError, match=message):
        Mixed(**fields)
    with pytest.raises(ConfigError, match="two of its worlds are called 'toy'"):
        Mixed(worlds=(Toy(), Toy(rooms=4))).tasks("train")


@pytest.mark.parametrize("wrapped", [lambda world: Mixed(worlds=(world,)), lambda world: Proposing(world=world)])
async def test_what_is_opened_twice_is_closed_twice(wrapped) -> None:
    """As by two runs that share a world, one of which ends sooner."""
    Counting.log.clear()
    family = wrapped(Counting())
    for _ in range(2):
        await family.open()
    await family.close()
    assert Counting.log == ["open", "open", "close"]
    await family.close()
    assert Counting.log == ["open", "open", "close", "close"]


async def test_a_second_opening_that_fails_closes_what_it_opened_alone() -> None:
    Counting.log.clear()
    family = Mixed(worlds=(Counting(), Sometimes()))
    async with open_world(family):
        with pytest.raises(ConfigError, match="no shop any more"):
            async with open_world(family):
                pass
        assert Counting.log == ["open", "open", "close"]
    assert Counting.log == ["open", "open", "close", "close"]


async def test_all_worlds_are_opened_and_closed_also_where_one_fails() -> None:
    Counting.log.clear()
    family = Mixed(worlds=(Counting(), SMALL))
    await family.open()
    await family.close()
    await family.close()
    assert Counting.log == ["open", "close"]
    with pytest.raises(ConfigError, match="no shop today"):
        await Mixed(worlds=(Counting(), Failing())).open()
    assert Counting.log == ["open", "close"] * 2


async def test_it_keeps_the_promises_of_a_world() -> None:
    family = build("env", {"name": "mixed", "worlds": [{"name": "toy", "turns": 40, "choices": True}]}).value
    report = await check_env(family, episodes=2)
    assert report.passed, report.failed


def test_one_policy_trains_in_both_and_success_is_told_for_each(tmp_path) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text(RECIPE)
    resolved = resolve(toml.read(path, ()))
    with RunFolder.create(tmp_path / "run", toml.dump(resolved.table)) as folder, Display(live=False) as display:
        found = asyncio.run(run_recipe(resolved.recipe, folder, display))
    assert {name: part.tasks for name, part in found["rl"].envs.items()} == {"shop": 2, "toy": 4}
    line = next(iter(metrics.read(tmp_path / "run" / "metrics.jsonl")))
    assert {"success_toy", "success_shop"} <= line.values.keys()
