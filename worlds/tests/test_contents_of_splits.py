"""In worlds whose tasks are drawn from few contents, no task of the test split is one of the training split."""

import pytest

from sojourn.protocols import Env
from sojourn_worlds.clarify import Clarify
from sojourn_worlds.clinic import Clinic
from sojourn_worlds.devices import Devices
from sojourn_worlds.redteam import RedTeam
from sojourn_worlds.social import Social


async def shown(env: Env) -> tuple[str, ...]:
    observation = await env.start()
    return tuple(message.text for message in (*observation.system, *observation.messages))


FAMILIES = [
    *(Clarify(), Clinic(), RedTeam(seat="defender"), Social(kind="price")),
    *(Devices(devices=1, requests=1, relative=0.0), Devices(devices=1, requests=2, place="car", relative=0.0)),
]


@pytest.mark.parametrize("family", FAMILIES, ids=lambda one: type(one).__name__)
async def test_no_task_is_in_both_splits(family):
    found = {}
    for split, count in (("train", 1500), ("test", 200)):
        tasks = family.tasks(split)
        made = [tasks[number] for number in range(count)]
        found[split] = {(*await shown(family.make(task)), str(task.data.get("answer"))) for task in made}
    assert len(found["test"]) > 150
    assert not found["train"] & found["test"]
