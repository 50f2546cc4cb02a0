"""In worlds whose tasks are drawn from few contents, no task of the test split is one of the training split."""

import pytest

from sojourn.protocols import Env
from sojourn_worlds.clarify import Clarify
from sojourn_worlds.clinic import Clinic
from sojourn_worlds.devices import DIFFICULTY, Devices
from sojourn_worlds.devices.errand import draw as draw_errand
from sojourn_worlds.redteam import RedTeam
from sojourn_worlds.social import Social
from sojourn_worlds.social.scene import draw


async def shown(env: Env) -> tuple[str, ...]:
    observation = await env.start()
    return tuple(message.text for message in (*observation.system, *observation.messages))


FAMILIES = [
    *(Clarify(), Clinic(), RedTeam(seat="defender"), Social(kind="price")),
    *(Devices(devices=1, requests=1, relative=0.0), Devices(devices=1, requests=2, place="car", relative=0.0)),
]


@pytest.mark.parametrize("fields", [{}, {"place": "car", "requests": 1}], ids=["default", "car"])
def test_errands_with_two_devices_are_in_one_split_alone(fields):
    family, found = Devices(**fields), {}
    size = tuple((name, getattr(family, name)) for name in DIFFICULTY)
    for split, count in (("train", 4000), ("test", 400)):
        errands = [draw_errand(task.seed, size) for task in family.tasks(split)[:count]]
        found[split] = {f"{sorted(one.initial.items())} {sorted(one.target.items())}" for one in errands}
    assert len(found["test"]) > 350
    assert not found["train"] & found["test"]


def test_scenes_of_prices_among_others_are_in_one_split_alone():
    """Each sees what is sold and at which prices; there are 96 of these, and every fourth scene is one."""
    found = {}
    for split, count in (("train", 1500), ("test", 300)):
        scenes = [draw(task.seed, "mixed") for task in Social().tasks(split)[:count]]
        found[split] = {f"{one.about} {one.issues['price']}" for one in scenes if "price" in one.issues}
    assert len(found["test"]) > 10
    assert not found["train"] & found["test"]


@pytest.mark.parametrize("family", FAMILIES, ids=lambda one: type(one).__name__)
async def test_no_task_is_in_both_splits(family):
    found = {}
    for split, count in (("train", 1500), ("test", 200)):
        tasks = family.tasks(split)
        made = [tasks[number] for number in range(count)]
        found[split] = {(*await shown(family.make(task)), str(task.data.get("answer"))) for task in made}
    assert len(found["test"]) > 150
    assert not found["train"] & found["test"]
