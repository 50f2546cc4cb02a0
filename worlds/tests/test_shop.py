"""The text surface of the shop: tasks, pages, actions, forks, the expert, and how little chance earns."""

from __future__ import annotations

import random
from typing import get_type_hints

import pytest

from sojourn.config.registry import build
from sojourn.errors import ActionError, ConfigError, InfrastructureError
from sojourn.types import Message, Role, Step
from sojourn_worlds.shop import Shop
from sojourn_worlds.shop.goals import seed_of
from sojourn_worlds.shop.reward import judge
from sojourn_worlds.shop.text import TextPlay

EASY = {"products": 200, "attributes": 1, "options": 0, "price_limit": False, "results_per_page": 3}
HARD = {"products": 10_000, "attributes": 3, "hidden": True}


def say(text: str) -> Message:
    return Message(Role.ASSISTANT, text)


def enter(number: int = 0, split: str = "train", **fields) -> TextPlay:
    family = Shop(**{"products": 1000, **fields})
    play = family.make(family.tasks(split)[number])
    assert isinstance(play, TextPlay)
    return play


async def follow(play: TextPlay, limit: int = 30) -> list[tuple[str, Step]]:
    """What the expert says and the world answers, to the end."""
    steps = []
    while len(steps) < limit and not (steps and steps[-1][1].done):
        action = play.expert()
        before = play.state_key()
        steps.append((action, await play.step("agent", say(action))))
        assert steps[-1][1].done or play.state_key() != before
    return steps


def shown(step: Step) -> str:
    assert step.observation is not None
    return step.observation.messages[0].text


@pytest.mark.parametrize("fields", [EASY, {}, HARD], ids=["easy", "default", "hard"])
async def test_the_expert_earns_everything(fields) -> None:
    for split, count in (("train", 200), ("test", 50)):
        for number in range(count):
            play = enter(number, split, **fields)
            await play.start()
            last = (await follow(play))[-1][1]
            assert last.rewards == {"agent": 1.0}
            assert last.success is True


async def test_the_expert_goes_on_from_wherever_chance_stopped() -> None:
    rng = random.Random(0)
    for number in range(60):
        play = enter(number, choices=True)
        await wander(play, rng, steps=rng.randrange(1, 12), buy=False)
        last = (await follow(play))[-1][1]
        assert last.rewards == {"agent": 1.0}


async def wander(play: TextPlay, rng: random.Random, steps: int, *, buy: bool = True) -> float:
    """A random policy: words of the goal on the search page, clicks elsewhere; what it earned."""
    observation = await play.start()
    goal = play.goal.instruction.split()
    for _ in range(steps):
        choices = [choice for choice in observation.choices if buy or "Buy" not in choice]
        action = rng.choice(choices) if choices else f"search[{' '.join(rng.sample(goal, 2))}]"
        try:
            step = await play.step("agent", say(action))
        except ActionError:  # nothing but stop words
            continue
        if step.done:
            return step.rewards["agent"]
        assert step.observation is not None
        observation = step.observation
    return 0.0


async def test_chance_earns_little() -> None:
    rng = random.Random(0)
    earned = [await wander(enter(number, products=10_000, choices=True), rng, steps=15) for number in range(200)]
    assert sum(earned) / len(earned) < 0.2
    assert sum(reward == 1.0 for reward in earned) <= 4
    assert any(0 < reward < 1 for reward in earned)


async def test_a_play_from_search_to_purchase() -> None:
    play = enter(3, options=1, results_per_page=4)
    first = await play.start()
    assert play.goal.instruction in first.system[0].text
    assert "search[" in first.system[0].text
    assert first.messages[0].text == "Search the shop."
    results = await play.step("agent", say(f"search[{play.goal.target.kind}]"))
    assert results.rewards == {}
    lines = shown(results).splitlines()
    assert lines[0].startswith("Page 1 of ")
    assert len(lines) == 6
    assert "< Prev" not in shown(results)
    further = await play.step("agent", say("click[Next >]"))
    assert shown(further).splitlines()[0].startswith("Page 2 of ")
    again = await play.step("agent", say("click[< prev]"))
    assert shown(again) == shown(results)
    id = lines[1].split()[0]
    product = play.store.catalogue.by_id[id]
    item = await play.step("agent", say(f"click[{id}]"))
    assert product.title in shown(item)
    features = await play.step("agent", say("click[Features]"))
    assert all(feature in shown(features) for feature in product.features)
    described = await play.step("agent", say("click[< Prev]"))
    assert shown(described) == shown(item)
    told = await play.step("agent", say("click[Description]"))
    assert product.description in shown(told)
    await play.step("agent", say("click[< Prev]"))
    name, values = next(iter(product.options.items()))
    chosen = await play.step("agent", say(f"click[{values[1]}]"))
    assert f"*{values[1]}" in shown(chosen)
    end = await play.step("agent", say("click[Buy Now]"))
    verdict = judge(product, {name: values[1]}, play.goal)
    assert end.rewards == {"agent": verdict.reward}
    assert end.success is (verdict.reward == 1.0)
    assert end.info["shop/options"] == verdict.options
    assert end.observation is None
    with pytest.raises(InfrastructureError):
        await play.step("agent", say("click[Buy Now]"))


@pytest.mark.parametrize(
    "action",
    ["", "buy it", "click[Buy Now]", "search[]", "search[the]?", "search[!!]", "click[", f"search[{'long ' * 60}]"],
)
async def test_bad_actions_leave_the_world_alone(action: str) -> None:
    play = enter()
    await play.start()
    before = play.state_key()
    with pytest.raises(ActionError):
        await play.step("agent", say(action))
    assert play.state_key() == before


async def test_searching_needs_the_search_page_and_may_find_nothing() -> None:
    play = enter(choices=True)
    assert (await play.start()).choices == ()
    nothing = await play.step("agent", say("search[zzyzx]"))
    assert nothing.observation is not None
    assert nothing.observation.choices == ("click[Back to Search]",)
    with pytest.raises(ActionError, match="Back to Search"):
        await play.step("agent", say("search[sofa]"))
    assert play.expert() == "click[Back to Search]"
    assert shown(await play.step("agent", say(" CLICK[back to search]\n"))) == "Search the shop."


async def test_choices_are_what_can_be_clicked() -> None:
    play = enter(5, choices=True)
    await play.start()
    seen = 0
    while True:
        step = await play.step("agent", say(play.expert()))
        if step.done:
            break
        assert step.observation is not None
        for choice in step.observation.choices:
            seen += 1
            copy = await play.fork()
            await copy.step("agent", say(choice))
    assert seen > 10


async def test_a_fork_is_an_independent_copy() -> None:
    play = enter(7)
    await play.start()
    await play.step("agent", say(play.expert()))
    copy = await play.fork()
    assert copy.state_key() == play.state_key()
    before = play.state_key()
    assert (await follow(copy))[-1][1].success
    assert play.state_key() == before
    assert not play.done
    assert (await follow(play))[-1][1].success


async def test_the_same_actions_show_the_same_pages() -> None:
    transcripts = []
    for _ in range(2):
        play = enter(11)
        first = await play.start()
        transcripts.append([first.messages, *[(action, step) for action, step in await follow(play)]])
    assert transcripts[0] == transcripts[1]


async def test_state_keys_tell_states_and_tasks_apart() -> None:
    play, other = enter(1), enter(2)
    assert play.state_key() != other.state_key()
    keys = {play.state_key()}
    for action in ("search[sofa]", "click[Next >]"):
        await play.step("agent", say(action))
        keys.add(play.state_key())
    assert len(keys) == 3


def test_splits_share_neither_seed_nor_target() -> None:
    family = Shop(products=500)
    train, test = family.tasks("train"), family.tasks("test")
    assert (len(train), len(test)) == (100_000, 500)
    seeds = {split: {seed_of(split, number) for number in range(2000)} for split in ("train", "test")}
    assert len(seeds["train"]) == len(seeds["test"]) == 2000
    assert not seeds["train"] & seeds["test"]
    targets = [{family.goal(tasks[number]).target.id for number in range(500)} for tasks in (train, test)]
    assert len(targets[0]) > 200
    assert not targets[0] & targets[1]
    assert train[3].id == Shop(products=500).tasks("train")[3].id
    assert family.goal(train[3]).instruction == Shop(products=500).goal(train[3]).instruction


def test_difficulty_shapes_the_goal() -> None:
    for number in range(50):
        easy, hard = (Shop(**fields).goal(Shop(**fields).tasks("train")[number]) for fields in (EASY, HARD))
        assert (len(easy.attributes), len(easy.options), easy.price_limit) == (1, 0, None)
        assert easy.attributes[0] in easy.target.title
        assert (len(hard.attributes), len(hard.options)) == (3, 2)
        assert not any(attribute in hard.target.title for attribute in hard.attributes)
        assert hard.price_limit is not None
        assert f"under {hard.price_limit:g} dollars" in hard.instruction
        assert judge(hard.target, dict(hard.options), hard).reward == 1.0


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"products": 5}, "products = 5"),
        ({"attributes": 4, "hidden": True}, "attributes = 4"),
        ({"options": 3}, "options = 3"),
        ({"results_per_page": 0}, "results_per_page"),
        ({"surface": "paper"}, "surface"),
        ({"data": "x", "options": 1}, "leave them out"),
        ({"data": "/nowhere"}, "items_shuffle"),
    ],
)
def test_wrong_configs_are_refused(fields, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Shop(**fields).tasks("train")


def test_a_task_of_another_shop_is_refused() -> None:
    with pytest.raises(ConfigError, match="belongs to the shop"):
        Shop(products=300).make(Shop(products=400).tasks("train")[0])
    with pytest.raises(ConfigError, match="unknown split"):
        Shop().tasks("dev")


def test_it_is_built_from_a_table() -> None:
    built = build("env", {"name": "shop", "products": 300, "surface": "text"})
    assert built.value == Shop(products=300)
    assert "_opened" not in built.table
    assert get_type_hints(Shop)["products"] is int
