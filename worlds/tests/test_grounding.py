"""Grounding: what is asked is on the page, and answers are paid by how near they are."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

pytest.importorskip("miniwob", reason="some of the pages come with the package miniwob")
pytest.importorskip("playwright", reason="Chromium is driven by playwright")
pytest.importorskip("uvicorn", reason="the shop's pages need it")

from sojourn.checks.env import check_env
from sojourn.envs.chromium import find_chromium
from sojourn.errors import ActionError, ConfigError, InfrastructureError
from sojourn.types import Message, Role, Step
from sojourn_worlds.grounding import SCREENS, Grounding, GroundingEnv
from sojourn_worlds.grounding.rewards import REWARDS

try:
    find_chromium(None)
except ConfigError as missing:
    pytest.skip(str(missing), allow_module_level=True)

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def family() -> AsyncIterator[Grounding]:
    opened = Grounding()
    await opened.open()
    yield opened
    await opened.close()


def differently(family: Grounding, **config: object) -> Grounding:
    """Another config of the same open world."""
    other = Grounding(**config)  # type: ignore[arg-type]
    object.__setattr__(other, "_shared", family._shared)
    return other


async def answered(env: GroundingEnv, said: str | None = None) -> Step:
    return await env.step("agent", Message(Role.ASSISTANT, env.expert() if said is None else said))


async def test_it_keeps_what_worlds_promise() -> None:
    for config in ({"observation": "text"}, {"sources": ("drawn",), "answer": "box", "reward": "gaussian"}):
        report = await check_env(Grounding(**config), episodes=3, timeout_s=600.0)  # type: ignore[arg-type]
        assert report.passed, report.failed


@pytest.mark.parametrize("split", ["train", "test"])
async def test_the_expert_earns_everything(family: Grounding, split: str) -> None:
    async def one(index: int, world: Grounding) -> tuple[float, bool | None]:
        env = world.make(world.tasks(split)[index])
        await env.start()
        step = await answered(env)
        return step.rewards["agent"], step.success

    worlds = [
        differently(family, answer=answer, reward=reward)
        for answer in ("point", "box")
        for reward in REWARDS
        if (answer, reward) != ("point", "sized")
    ]
    plays = [one(index, world) for number, world in enumerate(worlds) for index in range(3 * number, 3 * number + 3)]
    for paid, success in await asyncio.gather(*plays):
        assert paid == pytest.approx(1.0)
        assert success


async def test_random_points_earn_little(family: Grounding) -> None:
    rng, total = random.Random(1), 0.0
    for index in range(24):
        env = family.make(family.tasks("train")[index])
        await env.start()
        width, height = SCREENS[str(env.task.data["source"])]
        total += (await answered(env, f"click({rng.randrange(width)}, {rng.randrange(height)})")).rewards["agent"]
    assert total <= 6


async def test_what_is_asked_is_there_and_the_picture_shows_it(family: Grounding) -> None:
    image = pytest.importorskip("PIL.Image")
    from io import BytesIO

    for index in range(6):
        env = family.make(family.tasks("test")[index])
        seen = await env.start()
        lines = seen.messages[0].text.splitlines()
        asked = lines[-1].removeprefix("Find: ")
        assert sum(line.rsplit(" ", 2)[0] == asked for line in lines[:-1]) == 1
        assert env.target is not None
        picture = image.open(BytesIO(env.blobs[seen.messages[0].images[0]])).convert("RGB")
        assert picture.size == SCREENS[str(env.task.data["source"])]
        within = picture.crop(tuple(int(edge) for edge in env.target[1]))
        assert len(within.getcolors(100_000)) > 1  # something is drawn there


async def test_a_page_is_the_same_for_whoever_renders_it(family: Grounding) -> None:
    for index in range(3):
        task = family.tasks("train")[index]
        one, two = await asyncio.gather(family.render(task), family.render(task))
        assert one.elements == two.elements


async def test_observations_leave_out_what_is_not_wanted(family: Grounding) -> None:
    blind = differently(family, observation="text")
    env = blind.make(blind.tasks("train")[0])
    assert (await env.start()).messages[0].images == ()
    eyes = differently(family, observation="screenshot")
    env = eyes.make(eyes.tasks("train")[0])
    seen = (await env.start()).messages[0]
    assert seen.text.startswith("Find: ")
    assert "\n" not in seen.text
    assert len(seen.images) == 1


async def test_one_answer_ends_it_and_a_bad_one_does_not(family: Grounding) -> None:
    env = family.make(family.tasks("train")[0])
    await env.start()
    for said in ("", "click", "click(1)", "click(1, 2, 3)", "click(-1, 2)", "click(1e3, 2)", "click(481, 2)",
                 "click(nan, 2)", "box(1, 2, 3, 4)", "click(1, 2), 3)", "click(" + "9" * 300 + ", 1)"):  # fmt: skip
        with pytest.raises(ActionError):
            await answered(env, said)
    twin = await env.fork()
    assert (await answered(env, "click(0, 319)")).rewards == {"agent": 0.0}
    with pytest.raises(InfrastructureError, match="twice"):
        await answered(env, "click(0, 0)")
    assert (await answered(twin)).success
