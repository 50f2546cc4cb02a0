import random
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made import sample

from sojourn.envs.toy import COLOURS, OBJECTS, ROOMS, Toy, goal_of, layout
from sojourn.envs.toy_layouts import expert_turns
from sojourn.errors import ActionError, ConfigError, InfrastructureError
from sojourn.types import Ending, Episode, Message, Role, Task, Trajectory, Turn

HARD = {"rooms": 8, "side_rooms": 6, "doors": 5, "decoys": 2, "objects": 4}


def say(text: str) -> Message:
    return Message(Role.ASSISTANT, text)


async def play_expert(family: Toy, index: int, split: str = "train"):
    env = family.make(family.tasks(split)[index])
    observation = (await env.start()).messages[0].text
    texts, actions = [observation], []
    while True:
        actions.append(env.expert())
        step = await env.step("agent", say(actions[-1]))
        if step.observation is None:
            return step, texts, actions
        texts.append(step.observation.messages[0].text)


async def random_success(family: Toy, turns: int, plays: int) -> float:
    rng, won = random.Random(0), 0
    for index in range(plays):
        env = family.make(family.tasks("train")[index])
        observation = await env.start()
        for _ in range(turns):
            step = await env.step("agent", say(rng.choice(observation.choices)))
            if step.observation is None:
                won += 1
                break
            observation = step.observation
    return won / plays


async def test_levels_grow_from_two_rooms_to_the_given_difficulty():
    family = Toy(rooms=8, side_rooms=6, doors=5, decoys=2, objects=4, levels=4, choices=True)
    for split in ("train", "test"):
        tasks = family.tasks(split)[4:8]
        assert [task.tags for task in tasks] == [(f"level-{level}",) for level in range(4)]
        assert [task.data["rooms"] for task in tasks] == [2, 4, 6, 8]
        assert [task.data["doors"] for task in tasks] == [0, 2, 3, 5]  # 5/3 and 10/3, rounded
        assert [task.data["objects"] for task in tasks] == [0, 1, 3, 4]
        assert all(task.data["choices"] for task in tasks)
        assert tasks[3].data == Toy(**HARD, choices=True).tasks(split)[7].data
    lengths = [len(layout(task).plan(family.make(task).state)) for task in family.tasks("train")[:4]]
    assert lengths == sorted(lengths)
    assert lengths[0] <= 2 < 15 < lengths[3]


@given(st.integers(2, 12), st.integers(0, 8), st.integers(2, 9))
def test_every_level_can_be_built(rooms, doors, levels):
    family = Toy(rooms=rooms, side_rooms=0, doors=min(doors, rooms - 1), decoys=0, levels=levels)
    for task in family.tasks("train")[:levels]:
        Toy(**{name: task.data[name] for name in HARD})


@pytest.mark.parametrize(("sizes", "shortest", "longest"), [({}, 5, 9), (HARD, 18, 28)])
async def test_the_difficulty_decides_how_many_actions_are_needed(sizes, shortest, longest):
    family, lengths = Toy(**sizes), []
    for index in range(40):
        env = family.make(family.tasks("train")[index])
        lengths.append(len(env.layout.plan(env.state)))
        step, _, actions = await play_expert(family, index)
        assert step.done
        assert step.success
        assert step.rewards == {"agent": 1.0}
        assert lengths[-1] <= len(actions) <= 1.5 * longest
    assert shortest <= min(lengths)
    assert max(lengths) <= longest
    assert len(set(lengths)) > 1


async def test_the_expert_knows_no_more_than_it_was_shown():
    """It acts alike in two worlds that have looked alike so far, whatever is behind the other doors."""
    said = {}
    for index in range(300):
        _, texts, actions = await play_expert(Toy(rooms=2, side_rooms=2, decoys=0, objects=0), index)
        for turn, action in enumerate(actions):
            assert said.setdefault(tuple(texts[: turn + 1]), action) == action


async def test_the_expert_wins_from_wherever_a_random_walk_leads():
    family, rng = Toy(choices=True, **HARD), random.Random(1)
    for index in range(10):
        env = family.make(family.tasks("train")[index])
        observation = await env.start()
        for _ in range(30):
            step = await env.step("agent", say(rng.choice(observation.choices)))
            observation = step.observation or observation
            if step.done:
                break
        while not env.done:
            step = await env.step("agent", say(env.expert()))
        assert step.success


async def test_the_plan_is_shortest():
    """No play of the possible actions, however chosen, is over sooner: all states within a plan's length are tried."""
    for index in range(10):
        world = layout(Toy().tasks("train")[index])
        env = Toy().make(Toy().tasks("train")[index])
        length, frontier = len(world.plan(env.state)), {env.state}
        for _ in range(length - 1):
            frontier = {then for state in frontier for then in world.moves(state).values()}
            assert not any("treasure" in state.carried for state in frontier)


async def test_a_random_policy_rarely_wins():
    assert await random_success(Toy(choices=True), turns=10, plays=400) < 0.25
    assert await random_success(Toy(choices=True, rooms=2, side_rooms=1, decoys=0, objects=0), 6, 400) < 0.25


async def test_the_vocabulary_is_small_and_the_sentences_are_short():
    words, longest = set(), 0
    for index in range(150):
        for text in (await play_expert(Toy(**HARD), index))[1]:
            found = re.findall(r"\w+", text.lower())
            words |= set(found)
            longest = max(longest, len(found))
    assert len(words) <= 80
    assert longest <= 45
    assert words > set(ROOMS) | set(COLOURS)
    assert words & set(OBJECTS)
    assert not any(word.isdigit() for word in words)


def test_layouts_vary_and_no_layout_is_in_both_splits():
    seen = {split: {layout(Toy().tasks(split)[i]).digest for i in range(1_000)} for split in ("train", "test")}
    assert len(seen["train"]) > 990
    assert not seen["train"] & seen["test"]
    tiny = Toy(rooms=2, side_rooms=0, doors=0, decoys=0, objects=0)
    few = {split: {layout(tiny.tasks(split)[i]).digest for i in range(1_000)} for split in ("train", "test")}
    assert not few["train"] & few["test"]


def test_a_task_carries_its_difficulty_and_is_always_the_same_world():
    task = Toy(rooms=4, doors=2).tasks("train")[7]
    assert Toy().make(task).layout == Toy(rooms=4, doors=2).make(task).layout
    assert task.id == Toy(rooms=4, doors=2).tasks("train")[7].id
    assert task.id != Toy(rooms=5, doors=2).tasks("train")[7].id


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("", "is no action"),
        ("dance", "is no action"),
        ("go up", "is no action"),
        ("go", "is no action"),
        ("take moon", "There is no moon here."),
        ("open pink door", "is no action"),
        ("x" * 5_000, "is no action"),
        ("go north " * 1_000, "is no action"),
        ("go\u202enorth", "is no action"),
    ],
)
async def test_what_cannot_be_done_is_refused_and_changes_nothing(said, told):
    env = Toy().make(Toy().tasks("train")[0])
    await env.start()
    before = env.state_key()
    with pytest.raises(ActionError, match=re.escape(told)):
        await env.step("agent", say(said))
    assert env.state_key() == before


async def test_doors_refuse_until_they_are_opened_with_their_key():
    """Every door of many worlds: shut before it is opened, `go` refused, the key asked for."""
    refused = set()
    for index in range(30):
        env = Toy().make(Toy().tasks("train")[index])
        await env.start()
        while not env.done:
            for way, colour in env.layout.shut(env.state).items():
                with pytest.raises(ActionError, match=f"The {colour} door is shut"):
                    await env.step("agent", say(f"go {way}"))
                if f"{colour} key" not in env.state.carried:
                    with pytest.raises(ActionError, match=f"You need the {colour} key"):
                        await env.step("agent", say(f"open {colour} door"))
                    refused.add("key")
                refused.add("way")
            await env.step("agent", say(env.expert()))
    assert refused == {"key", "way"}


async def test_capitals_and_spaces_do_not_matter():
    env = Toy().make(Toy().tasks("train")[0])
    await env.start()
    step = await env.step("agent", say(f"  {env.expert().upper()} \n"))
    assert step.observation


async def test_the_world_ends_lost_when_its_turns_are_used_up():
    family = Toy(turns=3, choices=True)
    env = family.make(family.tasks("train")[0])
    observation = await env.start()
    for turn in range(3):
        step = await env.step("agent", say(observation.choices[0]))
        assert step.done == (turn == 2)
        observation = step.observation or observation
    assert step.success is False
    assert step.rewards == {"agent": 0.0}
    with pytest.raises(InfrastructureError):
        await env.step("agent", say(observation.choices[0]))


async def test_a_fork_goes_its_own_way():
    env = Toy(choices=True).make(Toy(choices=True).tasks("train")[3])
    await env.start()
    twin = await env.fork()
    assert twin.state_key() == env.state_key()
    await twin.step("agent", say(twin.expert()))
    assert twin.state_key() != env.state_key()


@pytest.mark.parametrize("wrong", [{"rooms": 1}, {"doors": 3}, {"side_rooms": 30}, {"decoys": 9}, {"turns": -1}])
def test_impossible_sizes_are_refused_with_their_limits(wrong):
    with pytest.raises(ConfigError, match=f"toy: {next(iter(wrong))} = .* from"):
        Toy(**wrong)


def test_an_unknown_split_is_refused():
    with pytest.raises(ConfigError, match='"valid"'):
        Toy().tasks("valid")


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_every_size_allowed_gives_worlds_that_can_be_won(data):
    rooms = data.draw(st.integers(2, 9))
    doors = data.draw(st.integers(0, min(rooms - 1, 6)))
    family = Toy(
        rooms=rooms,
        doors=doors,
        side_rooms=data.draw(st.integers(0, 6)),
        decoys=data.draw(st.integers(0, 8 - doors)),
        objects=data.draw(st.integers(0, 12)),
    )
    env = family.make(family.tasks("test")[data.draw(st.integers(0, 999))])
    plan = env.layout.plan(env.state)
    assert len(plan) >= rooms + 2 * doors  # each step between rooms, each key, each door, the treasure


def episode_of(task: Task, *texts: str) -> Episode:
    turns = tuple(Turn(-1, np.zeros(0, dtype=np.int64), sample([1]), say(text)) for text in texts)
    return Episode("one", task, (Trajectory("agent", turns, Ending.TURNS),))


async def play(family: Toy, task: Task, *texts: str) -> list[bool | None]:
    """Whether each of some actions won; what is refused is passed over."""
    env, won = family.make(task), []
    await env.start()
    for text in texts:
        try:
            won.append((await env.step("agent", say(text))).success)
        except ActionError:
            continue
    return won


async def test_what_an_episode_reached_are_tasks_that_it_solves():
    """From the bakery north to the cave with a yellow key, and east to the chapel; two actions are refused."""
    family = Toy()
    task = family.tasks("test")[0]
    texts = ["go west", "GO  north", "take yellow key", "jump", "go south", "go north", "go east"]
    tasks = family.relabelled(episode_of(task, *texts))
    assert [other.data for other in tasks] == [task.data | {"goal": g} for g in ("cave", "yellow key", "chapel")]
    assert [other.split for other in tasks] == ["test"] * 3
    assert len({other.id for other in (task, *tasks)}) == 4
    told = [(await family.make(other).start()).system[0].text.partition(". ")[0] for other in (task, *tasks)]
    assert told == ["Take the treasure", "Go to the cave", "Take the yellow key", "Go to the chapel"]
    assert await play(family, tasks[0], "go north") == [True]
    assert await play(family, tasks[1], *texts[:3]) == [None, True]
    assert await play(family, tasks[2], *texts) == [None, None, None, None, True]
    again = family.relabelled(episode_of(tasks[1], *texts))
    assert [other.data["goal"] for other in again] == ["cave", "chapel"]


@pytest.mark.parametrize("index", range(12))
async def test_the_expert_does_what_another_task_asks_for(index: int):
    """Everything but the treasure is reached on the way to it, and can be asked for."""
    family = Toy(**HARD)
    task = family.tasks("train")[index]
    _, _, actions = await play_expert(family, index)
    plan = layout(task).plan(family.make(task).state)
    tasks = family.relabelled(episode_of(task, *plan[:-1], *actions))
    assert "treasure" not in [other.data["goal"] for other in tasks]
    thing = next(item for items in layout(task).items.values() for item in items if item in OBJECTS)
    for other in (*tasks, replace(task, data={**task.data, "goal": thing})):
        env, step = family.make(other), None
        await env.start()
        fork = await env.fork()
        for _ in range(200):
            step = await env.step("agent", say(env.expert()))
            if step.done:
                break
        assert step is not None
        assert step.success
        assert env.state_key() != fork.state_key()
        assert fork.goal == env.goal == other.data["goal"]


async def test_with_goals_tasks_ask_for_any_room_and_item():
    family, plain = Toy(goals=True), Toy()
    for split in ("train", "test"):
        tasks = family.tasks(split)[:100]
        goals = [goal_of(task) for task in tasks]
        assert all(
            layout(one).digest == layout(two).digest for one, two in zip(tasks, plain.tasks(split), strict=False)
        )
        assert {"treasure"} < set(goals)
        assert len(set(goals) & set(ROOMS)) > 10
        assert len(set(goals) & set(OBJECTS)) > 3
        for task, goal in zip(tasks, goals, strict=True):
            env = family.make(task)
            text = (await env.start()).system[0].text
            assert text.startswith((f"Take the {goal}. A key", f"Go to the {goal}. A key"))
            assert not env.done
            turns = expert_turns(layout(task), goal, 50)
            for turn in range(1, turns + 1):
                step = await env.step("agent", say(env.expert()))
                assert step.done == (turn == turns)
            assert step.success
    assert "goals" not in plain.tasks("train")[0].data
    assert Toy(goals=True, levels=2).tasks("train")[0].data["goals"]


async def test_the_expert_goes_back_for_an_object_that_is_asked_for_and_was_left():
    """Whoever has seen every room and has every key may still have left a bowl where it lay."""
    family, tried = Toy(goals=True, choices=True), 0
    for task in family.tasks("train")[:100]:
        if (goal := goal_of(task)) not in OBJECTS:
            continue
        env, rng = family.make(task), random.Random(0)
        choices = (await env.start()).choices
        for _ in range(300):
            wanted = rng.choice([choice for choice in choices if choice != f"take {goal}"])
            seen = (await env.step("agent", say(wanted))).observation
            assert seen is not None
            choices = seen.choices
        if len(env.seen) == len(env.layout.exits):
            tried += 1
            step = await env.step("agent", say(env.expert()))
            for _ in range(20):
                step = step if step.done else await env.step("agent", say(env.expert()))
            assert step.success
    assert tried > 3


def test_a_task_is_only_made_where_the_expert_has_turns_enough_for_its_goal():
    family = Toy(goals=True, turns=3)
    for index in range(30):
        like = family.tasks("train")[index]
        made = family.make_task(like, like.data, like.seed)
        assert (made is None) == (expert_turns(layout(like), goal_of(like), 3) > 3)
