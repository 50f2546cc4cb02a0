"""Plays in which a task is proposed: what is shown, what is a task, and what the policy is to blame for."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest

from sojourn.checks.env import check_env
from sojourn.checks.report import Outcome
from sojourn.envs.mixed import Mixed
from sojourn.envs.proposing import MADE, PROPOSING, Proposing
from sojourn.envs.toy import Toy
from sojourn.errors import ActionError, ConfigError
from sojourn.protocols import Env
from sojourn.types import Ending, Episode, Message, Observation, Role, Step, Task, Trajectory, Turn

GOOD = "rooms 4\nside rooms 0\ndoors 1\ndecoys 0\nobjects 2"
IMPOSSIBLE = GOOD.replace("doors 1", "doors 4")
NUMBERS = {"rooms": 4, "side_rooms": 0, "doors": 1, "decoys": 0, "objects": 2}


def played(world: Proposing, task: Task, *texts: str) -> tuple[list[Step | ActionError], Episode]:
    """Returns the steps of a play in which these texts are said, and its episode."""
    steps: list[Step | ActionError] = []
    turns: list[Turn] = []
    env = world.make(task)
    asyncio.run(env.start())
    for text in texts:
        message = Message(Role.ASSISTANT, text)
        try:
            steps.append(asyncio.run(env.step("proposer", message)))
            info = dict(steps[-1].info)
            info |= {} if steps[-1].success is None else {"success": float(steps[-1].success)}
        except ActionError as error:
            steps.append(error)
            info = {"malformed": 1.0}
        turns.append(Turn(-1, None, None, message, info=info))  # type: ignore[arg-type]
    return steps, Episode("e", task, (Trajectory("proposer", tuple(turns), Ending.DONE),))


@pytest.fixture
def world() -> Proposing:
    return Proposing(world=Toy())


@pytest.fixture
def task(world: Proposing) -> Task:
    return world.proposal(world.tasks("train")[0], [GOOD], 7)


def test_it_is_the_world_itself_but_for_proposing(world):
    assert list(world.tasks("test")[:3]) == list(Toy().tasks("test")[:3])
    first = world.tasks("train")[0]
    assert type(world.make(first)) is type(Toy().make(first))
    assert world.world_of(first) is world.world
    assert [len(world.tasks(split)) for split in ("train", "test")] == [100_000, 1_000]
    assert world.make_task(first, {**first.data, "rooms": 4}, 3) == Toy().make_task(
        first, {**first.data, "rooms": 4}, 3
    )


def test_a_proposer_is_told_how_a_task_is_written_and_shown_examples(world, task):
    shown = asyncio.run(world.make(task).start())
    assert shown.agent == "proposer"
    assert "side rooms from 0 to" in shown.system[0].text
    assert GOOD in shown.messages[0].text


def test_a_task_that_was_proposed_is_a_training_task_of_these_numbers(world, task):
    [step], episode = played(world, task, GOOD)
    assert step.done
    assert step.success
    assert step.rewards == {"proposer": 0.0}
    made = world.proposed(episode)
    assert made is not None
    assert {key: made.data[key] for key in NUMBERS} == NUMBERS
    assert (made.env, made.split, MADE in made.tags) == ("toy", "train", True)
    assert world.written(made) == GOOD
    assert world.proposed(episode) == made, "it depends on nothing else"


def test_what_is_written_in_another_way_is_read_alike(world, task):
    _, episode = played(world, task, "Rooms: 4\n\nSIDE ROOMS = 0\n doors 1\ndecoys   0\nobjects:2\n")
    made = world.proposed(episode)
    assert made is not None
    assert world.written(made) == GOOD


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "There is no line of rooms"),
        ("a nice task", "is no line of a task"),
        (GOOD + "\nrooms 4", "is no line of a task"),
        (GOOD.replace("objects 2", ""), "no line of objects"),
        (GOOD.replace("rooms 4", "rooms 99", 1), "rooms 99: expected a whole number from 2"),
        (GOOD.replace("rooms 4", "rooms 2.5", 1), "expected a whole number"),
        (GOOD + "\n" * 30_000, "at most"),
    ],
)
def test_malformed_text_ends_the_play_with_the_lowest_reward(world, task, text, reason):
    [step], episode = played(world, task, text)
    assert step.done
    assert (step.success, step.rewards, step.info) == (False, {"proposer": -1.0}, {"malformed": 1.0})
    assert world.proposed(episode) is None
    with pytest.raises(ActionError, match=reason):
        world.proposals.read(task, [text])


def test_a_task_that_nobody_could_solve_is_refused(world, task):
    [step], episode = played(world, task, IMPOSSIBLE)
    assert (step.success, step.rewards, step.info) == (False, {"proposer": -1.0}, {"impossible": 1.0})
    assert world.proposed(episode) is None


def test_a_proposer_may_try_again():
    world = Proposing(world=Toy(), tries=2)
    task = world.proposal(world.tasks("train")[0], [], 7)
    (refused, step), episode = played(world, task, "nothing", GOOD)
    assert isinstance(refused, ActionError)
    assert step.success
    made = world.proposed(episode)
    assert made is not None
    assert world.written(made) == GOOD
    (_, last), _ = played(world, task, "nothing", "nothing")
    assert last.done


def test_equal_texts_are_equal_tasks_and_another_seed_is_another_task(world, task):
    like = world.tasks("train")[0]
    first, again = (world.proposed(played(world, task, GOOD)[1]) for _ in range(2))
    other = world.proposed(played(world, world.proposal(like, [GOOD], 8), GOOD)[1])
    assert first == again
    assert first.id != other.id


def test_chosen_numbers_are_asked_for_one_by_one():
    world = Proposing(world=Toy(), choices=True, limits={"rooms": [3, 5], "doors": [0, 1]})
    task = world.proposal(world.tasks("train")[0], [], 7)
    assert world.proposal_turns(world.tasks("train")[0]) == 2
    env = world.make(task)
    first = asyncio.run(env.start())
    assert first.choices == ("rooms 3", "rooms 4", "rooms 5")
    steps, episode = played(world, task, "rooms 5", "doors 0")
    assert steps[0].observation.choices == ("doors 0", "doors 1")
    made = world.proposed(episode)
    assert made is not None
    assert made.data == {**Toy().tasks("train")[0].data, "rooms": 5, "doors": 0}
    [wrong], _ = played(world, task, "rooms 6")
    assert (wrong.done, wrong.info) == (True, {"malformed": 1.0})


def test_a_line_that_was_refused_is_no_part_of_the_task():
    world = Proposing(world=Toy(), choices=True, limits={"rooms": [3, 5], "doors": [0, 1]}, tries=2)
    task = world.proposal(world.tasks("train")[0], [], 7)
    (_, refused, last), episode = played(world, task, "rooms 5", "doors 7", "doors 0")
    assert isinstance(refused, ActionError)
    assert last.success
    made = world.proposed(episode)
    assert made is not None
    assert made.data["rooms"] == 5


@pytest.mark.parametrize("choices", [False, True])
def test_the_expert_writes_a_task_of_the_split(choices):
    world = Proposing(world=Toy(levels=3), choices=choices, warmup=True)
    assert [task.env for task in world.tasks("train")[:4]] == ["toy", PROPOSING] * 2
    assert {task.env for task in world.tasks("test")[:4]} == {"toy"}
    tasks = world.tasks("train")[1:10:2]
    for number in range(5):
        env = world.make(tasks[number])
        asyncio.run(env.start())
        step, texts = Step(None), list[str]()
        while not step.done:
            texts.append(env.expert())
            step = asyncio.run(env.step("proposer", Message(Role.ASSISTANT, texts[-1])))
        made = world.proposed(played(world, tasks[number], *texts)[1])
        assert made is not None
        assert made.data == world.tasks("train")[2 * number].data


def test_worlds_of_a_mixture_are_proposed_each_in_its_own_numbers():
    small, large = Toy(rooms=2, doors=0), Toy(rooms=5, doors=2)
    world = Proposing(world=Mixed(worlds=(small, large), levels=True))
    for number in range(2):
        like = world.tasks("train")[number]
        made = world.proposed(played(world, world.proposal(like, [], 1), GOOD)[1])
        assert made is not None
        assert f"level-{number}" in made.tags
        assert world.world_of(made) is world.world_of(like)


def test_a_world_that_makes_no_tasks_is_refused():
    class Fixed:
        def tasks(self, split):
            return [Task("fixed", {}, 1, split)]

        def make(self, task):
            raise NotImplementedError

    world = Proposing(world=Fixed())
    with pytest.raises(ConfigError, match="the world 'fixed' reads no tasks from text"):
        world.proposal(world.tasks("train")[0], [], 1)
    wrong = Proposing(world=Toy(), limits={"turns": [1, 2]})
    with pytest.raises(ConfigError, match="limits name 'turns'"):
        wrong.proposal(wrong.tasks("train")[0], [], 1)


# -- worlds in which a task is proposed by acting


@dataclass(frozen=True, kw_only=True)
class Counting(Toy):
    """A task is made by counting: its number of rooms is how often "more" was said."""

    def propose(self, like: Task, examples: Sequence[str], seed: int, tries: int) -> Env:
        return CountingPlay(examples, tries)

    def made_by(self, like: Task, actions: Sequence[str], seed: int) -> Task:
        return replace(like, data={**like.data, "rooms": actions.count("more")}, seed=seed)

    def write_task(self, task: Task) -> str:
        return f"{task.data['rooms']} rooms"


@dataclass
class CountingPlay:
    examples: Sequence[str]
    tries: int

    async def start(self) -> Observation:
        return Observation((Message(Role.USER, f"Count. {self.examples} {self.tries}"),), agent="proposer")

    async def step(self, agent: str, action: Message) -> Step:
        if action.text == "less":
            raise ActionError("There is no less.")
        done = action.text == "enough"
        seen = None if done else Observation((Message(Role.USER, "Go on."),), agent="proposer")
        return Step(seen, {agent: 0.0}, done=done, success=True if done else None)

    async def close(self) -> None: ...


def test_a_task_may_be_what_the_actions_of_a_play_have_made():
    world = Proposing(world=Mixed(worlds=(Counting(),)), tries=2)
    like = world.tasks("train")[0]
    task = world.proposal(like, ["3 rooms"], 7)
    assert asyncio.run(world.make(task).start()).messages[0].text == "Count. ['3 rooms'] 2"
    _, episode = played(world, task, "more", "less", "more", "enough")
    made = world.proposed(episode)
    assert made is not None
    assert (made.data["rooms"], made.tags) == (2, (*like.tags, MADE))
    assert world.written(made) == "2 rooms"
    assert world.proposal_turns(like) == 1
    _, unfinished = played(world, task, "more")
    assert world.proposed(unfinished) is None


@pytest.mark.parametrize("keys", [{"choices": True}, {"limits": {"rooms": (2, 3)}}])
def test_a_world_that_is_proposed_in_by_acting_reads_no_choices_or_limits(keys):
    world = Proposing(world=Counting(), **keys)
    with pytest.raises(ConfigError, match="proposed by acting"):
        world.proposal(world.tasks("train")[0], [], 1)


def test_a_world_with_tasks_of_proposing_keeps_what_a_world_promises():
    report = asyncio.run(check_env(Proposing(world=Toy(levels=3), choices=True, warmup=True), episodes=2))
    assert [one.promise for one in report.verdicts if one.outcome is Outcome.FAILED] == []
