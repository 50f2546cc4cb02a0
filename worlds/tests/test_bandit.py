"""The bandit: its luck, its regret, and what it promises."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from sojourn.checks.env import check_env
from sojourn.errors import ActionError, ConfigError
from sojourn.types import Message, Role
from sojourn_worlds.bandit import ARMS, Arms, Bandit


def say(text: str) -> Message:
    return Message(Role.ASSISTANT, text)


async def play(env, policy) -> tuple[float, bool]:
    observation, total = await env.start(), 0.0
    while observation is not None:
        step = await env.step("agent", say(policy(env.game)))
        observation, total = step.observation, total + step.rewards["agent"]
    return total, step.success


def explore_then_keep(game: Arms, each: int = 2) -> str:
    """Every arm twice, then the one that paid most: knows nothing but what it was paid."""
    if len(game.pulled_arms) < each * len(game.names):
        return game.names[len(game.pulled_arms) % len(game.names)]
    paid = [sum(game._payoff(arm, number) for number in range(each)) for arm in range(len(game.names))]
    return game.names[paid.index(max(paid))]


@pytest.mark.parametrize("fields", [{"choices": True}, {}, {"kind": "gaussian", "choices": True, "arms": 10}])
async def test_it_keeps_its_promises(fields) -> None:
    report = await check_env(Bandit(**fields))
    assert report.passed, report.failed


async def test_the_expert_earns_one_the_learner_more_than_chance() -> None:
    family, rng = Bandit(kind="gaussian", rounds=40), random.Random(0)
    learnt, chance = [], []
    for split in ("train", "test"):
        for task in family.tasks(split)[:50]:
            assert await play(family.make(task), lambda game: game.expert()) == (1.0, True)
            chance.append((await play(family.make(task), lambda game: rng.choice(game.names)))[0])
            learnt.append((await play(family.make(task), explore_then_keep))[0])
    assert sum(chance) / 100 < 0.45
    assert sum(learnt) / 100 > 0.7


async def test_the_reward_is_one_minus_the_share_of_the_regret() -> None:
    family = Bandit(arms=3, rounds=4)
    game = family.make(family.tasks("train")[0]).game
    best, middle, worst = sorted(range(3), key=lambda arm: -game.means[arm])
    means = game.means
    for arm in (best, worst, middle):
        assert game.act(ARMS[arm]) == {"agent": 0.0}
    missed = 2 * means[best] - means[worst] - means[middle]
    assert game.info()["regret"] == pytest.approx(missed)
    paid = game.act(ARMS[best])
    assert paid["agent"] == pytest.approx(1 - missed / (4 * (means[best] - means[worst])))
    assert game.current_seat is None


async def test_whoever_pulls_the_worst_arm_earns_nothing_whatever_it_paid() -> None:
    family = Bandit()
    env = family.make(family.tasks("train")[1])
    total, success = await play(env, lambda game: game.names[game.means.index(min(game.means))])
    assert total == pytest.approx(0)
    assert success is False


def test_the_best_arm_leads_by_the_gap_and_is_any_of_them() -> None:
    family, places = Bandit(arms=3, gap=0.4), set()
    for task in family.tasks("train")[:200]:
        means = family.make(task).game.means
        best, second, *_ = sorted(means, reverse=True)
        assert best - second >= 0.4
        assert all(0.1 <= mean <= 0.9 for mean in means)
        places.add(means.index(best))
    assert places == {0, 1, 2}


@pytest.mark.parametrize("kind", ["bernoulli", "gaussian"])
def test_an_arm_pays_its_mean_in_the_long_run_and_the_order_of_pulls_does_not_matter(kind) -> None:
    family = Bandit(kind=kind, rounds=10_000, arms=2)
    game = family.make(family.tasks("train")[0]).game
    for arm in range(2):
        paid = [game._payoff(arm, number) for number in range(3_000)]
        assert sum(paid) / 3_000 == pytest.approx(game.means[arm], abs=0.04)
        assert (set(paid) == {0.0, 1.0}) == (kind == "bernoulli")
    shown = []
    for order in (("red", "red", "blue"), ("blue", "red", "red")):
        twin = family.make(family.tasks("train")[0]).game
        said = []
        for arm in order:
            twin.act(arm)
            said.append(twin.last_result)
        shown.append((sorted(said), twin.state_key()))
    assert shown[0] == shown[1]


@pytest.mark.parametrize("said", ["", "mauve", "red blue", "0", "pink"])
async def test_what_is_no_arm_is_refused(said) -> None:
    env = Bandit().make(Bandit().tasks("train")[0])
    await env.start()
    with pytest.raises(ActionError, match="say one of: red, blue, green, yellow"):
        await env.step("agent", say(said))
    assert env.game.pulled_arms == []


@pytest.mark.parametrize("wrong", [{"arms": 1}, {"arms": 11}, {"rounds": 0}, {"gap": 0.0}, {"threshold": 2}])
def test_impossible_fields_are_refused(wrong) -> None:
    with pytest.raises(ConfigError, match=f"bandit: {next(iter(wrong))} = .* must be from"):
        Bandit(**wrong)


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ConfigError, match="one of bernoulli, gaussian"):
        Bandit(kind="cauchy")  # type: ignore[arg-type]


def test_a_task_carries_its_fields_and_no_others() -> None:
    task = Bandit(arms=7).tasks("train")[3]
    assert len(Bandit().make(task).game.means) == 7
    with pytest.raises(ConfigError, match="a task has the unknown field 'levers': expected some of arms"):
        Bandit().make(replace(task, data={"levers": 3}))
