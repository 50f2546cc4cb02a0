"""A purchase that was not asked for, as the one that was: hindsight in the shop."""

from __future__ import annotations

import random

import numpy as np
import pytest

from sojourn.errors import ActionError
from sojourn.types import Ending, Episode, Message, Role, Sample, Step, Stop, Task, Trajectory, Turn, Versions
from sojourn_worlds.shop import Shop

CHOICES = {"products": 300, "choices": True, "results_per_page": 3}


def say(text: str) -> Message:
    return Message(Role.ASSISTANT, text)


def episode_of(task: Task, texts: list[str]) -> Episode:
    sample = Sample(np.ones(1, dtype=np.int64), np.zeros(1, dtype=np.float32), Versions(0, 0), Stop.END)
    turns = tuple(Turn(-1, np.zeros(0, dtype=np.int64), sample, say(text)) for text in texts)
    return Episode("one", task, (Trajectory("agent", turns, Ending.DONE),))


async def play(family: Shop, task: Task, texts: list[str]) -> Step | None:
    """The last step of a play; what is refused is passed over."""
    env, step = family.make(task), None
    await env.start()
    for text in texts:
        try:
            step = await env.step("agent", say(text))
        except ActionError:
            continue
    return step


async def wandered(family: Shop, task: Task, rng: random.Random) -> list[str]:
    """The actions of a random play, until it buys something or gives up."""
    env, texts = family.make(task), ["search[shoes]", "fly"]
    await env.start()
    step = await env.step("agent", say(texts[0]))
    for _ in range(30):
        if step.observation is None:
            break
        choices = step.observation.choices
        texts.append(rng.choice(choices) if choices[0] != "click[Back to Search]" else "click[Back to Search]")
        if texts[-1] == "click[Back to Search]":
            await env.step("agent", say(texts[-1]))
            texts.append(f"search[{rng.choice(['shoes', 'red', 'lamp', 'small', 'tea'])}]")
        step = await env.step("agent", say(texts[-1]))
    return texts


@pytest.mark.parametrize("fields", [CHOICES, {**CHOICES, "attributes": 1, "options": 0, "price_limit": False}])
async def test_what_was_bought_is_what_the_new_task_asks_for(fields) -> None:
    family, rng = Shop(**fields), random.Random(0)
    bought = 0
    for number in range(80):
        task = family.tasks("train")[number]
        texts = await wandered(family, task, rng)
        last = await play(family, task, texts)
        tasks = family.relabelled(episode_of(task, texts))
        if last is None or not last.done:
            assert tasks == []
        for other in tasks:
            goal = family.goal(other)
            again = await play(family, other, texts)
            assert again is not None
            assert again.success
            assert again.rewards == {"agent": 1.0}
            assert other.split == "train"
            assert len(goal.attributes) == family.attributes
            assert goal.target.kind in goal.instruction
            assert all(f"{name} {value}" in goal.instruction for name, value in goal.options)
            assert family.goal(other) != family.goal(task)
            bought += 1
    assert bought > 20


async def test_the_chosen_options_are_asked_for_and_products_of_the_test_split_are_not() -> None:
    family = Shop(products=300)
    task = family.tasks("train")[0]
    for number in (10, 19):  # every tenth is a target of the test split
        product = family.store.catalogue.products[number]
        name, values = sorted(product.options.items())[0]
        page = next(n for n, items in enumerate(family.store.pages(product.title)) if product in items)
        label = next(label for label, pair in product.clicks.items() if pair == (name, values[0]))
        clicks = [*["Next >"] * page, product.id, label, "Buy Now"]
        texts = [f"search[{product.title}]", *(f"click[{click}]" for click in clicks)]
        tasks = family.relabelled(episode_of(task, texts))
        if number == 19:
            assert tasks == []
            continue
        [other] = tasks
        assert other.data["bought"] == {"product": product.id, "options": {name: values[0]}}
        assert f"with {name} {values[0]}, price under" in family.goal(other).instruction
