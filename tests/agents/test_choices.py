"""Many choices: as many as can be sampled among are encoded once; more stop the run with a sentence."""

from dataclasses import dataclass, field
from typing import Any

import pytest
from made_world import Says, renderer

from sojourn.agents.plain import Plain
from sojourn.errors import WorldError
from sojourn.rollout.limits import Limits
from sojourn.rollout.runner import Rollout, Runner
from sojourn.types import Message, Observation, Role, SamplingParams, Step, Task

TASK = Task("lister", {}, 0, "train")


@dataclass
class Lister:
    """Lists the same choices at each turn."""

    choices: tuple[Any, ...]

    def tasks(self, split: str) -> list[Task]:
        return [TASK]

    def make(self, task: Task) -> "Lister":
        return self

    async def start(self) -> Observation:
        return Observation((Message(Role.USER, "?"),), choices=self.choices)

    async def step(self, agent: str, action: Message) -> Step:
        return Step(await self.start(), {agent: 0.0})

    async def close(self) -> None: ...


@dataclass
class Counts:
    """The real renderer, and the replies that it was asked to encode."""

    encoded: list[str] = field(default_factory=list)

    def encode_reply(self, message: Message) -> Any:
        self.encoded.append(message.text)
        return renderer().encode_reply(message)

    def __getattr__(self, name: str) -> Any:
        return getattr(renderer(), name)


def playing(world: Lister, format: Any = None) -> Runner:
    rollout = Rollout(limits=Limits(turns=3))
    return Runner(rollout, world, Plain(choices=True), format or renderer(), Says(), 512, 0)  # type: ignore[arg-type]


async def test_a_list_is_encoded_once_for_all_turns_and_plays() -> None:
    choices = tuple(f"go to room {number}" for number in range(2_000))
    format = Counts()
    group = await playing(Lister(choices), format).play_group(TASK, 0, 2, SamplingParams(8), "x")
    assert [len(trajectory.turns) for trajectory in group.trajectories] == [3, 3]
    assert format.encoded == list(choices)


@pytest.mark.parametrize(
    ("choices", "told"),
    [
        (tuple(map(str, range(10_001))), "lists 10001 choices: expected at most 10000"),
        (("a", "b" * 10_001), "lists choices of 10002 characters, the longest of 10001"),
        (tuple(f"{number}{'b' * 9_000}" for number in range(120)), "characters, the longest of 9003"),
        (("a", 3), "lists the choice 3: expected text"),
    ],
)
async def test_choices_that_cannot_be_sampled_among_stop_the_run(choices, told) -> None:
    with pytest.raises(WorldError) as caught:
        await playing(Lister(choices)).play_episode(TASK, SamplingParams(8), "x")
    assert told in str(caught.value)


async def test_choices_that_nobody_samples_among_are_not_limited() -> None:
    runner = playing(Lister(tuple(map(str, range(10_001)))))
    runner.agent = Plain()
    assert (await runner.play_episode(TASK, SamplingParams(8), "x")).error is None
