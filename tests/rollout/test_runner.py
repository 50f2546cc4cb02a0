"""What the world does wrong is told apart from what the policy does wrong, and never becomes a reward."""

import asyncio
import os
import subprocess
import sys
from dataclasses import dataclass, field

import numpy as np
import pytest
from made_world import Says, renderer

from sojourn import event_loop
from sojourn.agents.plain import Plain
from sojourn.errors import ActionError, ConfigError, InfrastructureError, WorldError
from sojourn.rewards.native import Native
from sojourn.rollout.limits import Limits
from sojourn.rollout.runner import Rollout, Runner
from sojourn.sources.experts import expert_sampler
from sojourn.types import Ending, Message, Observation, Role, SamplingParams, Step, Task

TASK = Task("made", {}, 0, "train")


class Sound:
    """Pays every action but the last; three actions end it. `number` counts the plays of its family from 0."""

    def __init__(self, number: int):
        self.number, self.count, self.closed = number, 0, 0

    async def start(self) -> Observation:
        return Observation((Message(Role.USER, "Say yes."),))

    async def step(self, agent: str, action: Message) -> Step:
        self.count += 1
        if self.count == 3:
            return Step(None, {agent: 0.0}, done=True, success=True)
        return Step(Observation((Message(Role.USER, "Again."),)), {agent: 0.5})

    async def close(self) -> None:
        self.closed += 1


class Refuses(Sound):
    """Takes no other action than a no."""

    async def step(self, agent: str, action: Message) -> Step:
        if action.text != "no":
            raise ActionError("say no")
        return await super().step(agent, action)


class Raises(Sound):
    """Breaks at its second action, when the first has been paid."""

    async def step(self, agent: str, action: Message) -> Step:
        return await self.fail() if self.count == 1 else await super().step(agent, action)

    async def fail(self) -> Step:
        raise ZeroDivisionError("the world is wrong")


class RaisesItself(Raises):
    async def fail(self) -> Step:
        raise InfrastructureError("the database is gone")


class Stalls(Raises):
    async def fail(self) -> Step:
        await asyncio.sleep(3600)
        raise AssertionError("unreachable")


class TimesOut(Raises):
    async def fail(self) -> Step:
        raise TimeoutError("a request took too long")


class CancelsItself(Raises):
    """Waits for what it has cancelled."""

    async def fail(self) -> Step:
        task = asyncio.ensure_future(asyncio.sleep(3600))
        task.cancel()
        await task
        raise AssertionError("unreachable")


class Exits(Raises):
    async def fail(self) -> Step:
        sys.exit(3)


class LosesItsChild(Raises):
    """Lives in another process, which is killed."""

    async def fail(self) -> Step:
        child = await asyncio.create_subprocess_exec(sys.executable, "-c", "input()", stdin=-1, stdout=-1)
        assert child.stdout is not None
        os.kill(child.pid, 9)
        try:
            await child.stdout.readexactly(1)
        finally:
            await child.wait()
        raise AssertionError("unreachable")


class Interrupted(Raises):
    """Runs a program that fails."""

    async def fail(self) -> Step:
        await asyncio.to_thread(subprocess.run, ["false"], check=True)
        raise AssertionError("unreachable")


class NoStart(Raises):
    async def start(self) -> Observation:
        raise RuntimeError("no such server")


class NoClose(Sound):
    async def close(self) -> None:
        await super().close()
        raise RuntimeError("it does not go away")


@dataclass
class World:
    """Plays of `broken`, and of a sound world after the first `failures` of them."""

    broken: type[Sound]
    failures: int = 10**9
    made: list[Sound] = field(default_factory=list)

    def tasks(self, split: str) -> list[Task]:
        return [TASK]

    def make(self, task: Task) -> Sound:
        kind = self.broken if len(self.made) < self.failures else Sound
        self.made.append(kind(len(self.made)))
        return self.made[-1]


def runner(world: World, agent: Plain | None = None, **rollout) -> Runner:
    starts_programs = issubclass(world.broken, (LosesItsChild, Interrupted))  # which takes a while on a busy machine
    limits = Limits(turns=5, stall_s=60.0 if starts_programs else 0.3)
    config = Rollout(limits=limits, **rollout)
    return Runner(config, world, agent or Plain(), renderer(), Says(), 512, 0)


FAILURES = {
    Raises: "ZeroDivisionError: the world is wrong",
    RaisesItself: "InfrastructureError: the database is gone",
    Stalls: "InfrastructureError: the world did not answer within 0.3 s (rollout.limits.stall_s)",
    TimesOut: "TimeoutError: a request took too long",
    CancelsItself: "CancelledError: ",
    Exits: "SystemExit: 3",
    LosesItsChild: "IncompleteReadError: 0 bytes read on a total of 1 expected bytes",
    Interrupted: "CalledProcessError: Command '['false']' returned non-zero exit status 1.",
    NoStart: "RuntimeError: no such server",
}


@pytest.mark.parametrize("broken", FAILURES, ids=lambda broken: broken.__name__)
async def test_a_failure_of_the_world_is_an_error_and_no_reward(broken) -> None:
    world = World(broken)
    group = await runner(world, retries=1).play_group(TASK, 0, 2, SamplingParams(8), "x")
    assert [episode.error for episode in group.episodes] == [FAILURES[broken]] * 2
    kept = [trajectory for episode in group.episodes for trajectory in episode.trajectories]
    assert [t.ending for t in kept] == [Ending.FAILED] * 2
    assert [len(t.turns) for t in kept] == [0 if broken is NoStart else 2] * 2  # to look at, and nothing is trained
    assert all(FAILURES[broken].partition(":")[0] in str(episode.traceback) for episode in group.episodes)
    assert group.trajectories == ()
    assert await Native(malformed=-1.0, truncated=-1.0)(group) == []
    assert [env.closed for env in world.made] == [1] * 4  # two plays, each tried again once


@pytest.mark.parametrize("broken", [Raises, Stalls, Exits, LosesItsChild], ids=lambda broken: broken.__name__)
async def test_a_play_that_is_tried_again_holds_nothing_of_the_failed_one(broken) -> None:
    world = World(broken, failures=1)
    [episode] = (await runner(world, retries=1).play_group(TASK, 0, 1, SamplingParams(8), "x")).episodes
    [sound] = (await runner(World(Sound)).play_group(TASK, 0, 1, SamplingParams(8), "x")).episodes
    assert episode.error is None
    assert [env.closed for env in world.made] == [1, 1]
    [again], [first] = episode.trajectories, sound.trajectories
    assert [turn.reward for turn in again.turns] == [turn.reward for turn in first.turns] == [0.5, 0.5, 0.0]
    for mine, theirs in zip(again.turns, first.turns, strict=True):
        np.testing.assert_array_equal(mine.sample.tokens, theirs.sample.tokens)


@pytest.mark.parametrize(("malformed", "turns", "ending"), [("tell", 5, Ending.TURNS), ("end", 1, Ending.MALFORMED)])
async def test_a_failure_of_the_policy_is_trained_on_and_is_no_error(malformed, turns, ending) -> None:
    world = World(Refuses)
    group = await runner(world, Plain(malformed=malformed)).play_group(TASK, 0, 1, SamplingParams(8), "x")
    [trajectory] = group.trajectories
    assert group.episodes[0].error is None
    assert trajectory.ending is ending
    assert [(turn.reward, turn.info) for turn in trajectory.turns] == [(0.0, {"malformed": 1.0})] * turns
    assert len(world.made) == world.made[0].closed == 1  # not tried again
    [score] = await Native(malformed=-0.25)(group)
    assert score.total == -0.25 * turns


async def test_a_config_that_cannot_be_played_is_neither() -> None:
    class Unplayable(Sound):
        async def start(self) -> Observation:
            raise ConfigError("rooms = 0: use at least 1")

    world = World(Unplayable)
    with pytest.raises(ConfigError, match="rooms = 0"):
        await runner(world).play_episode(TASK, SamplingParams(8), "x")
    assert [env.closed for env in world.made] == [1]


async def test_a_cancelled_play_is_closed_and_recorded_as_nothing() -> None:
    reached = asyncio.Event()

    class Waits(Raises):
        async def fail(self) -> Step:
            reached.set()
            return await asyncio.Future()

    world, episodes = World(Waits), []
    playing = runner(world)
    playing.on_episode = episodes.append
    task = asyncio.ensure_future(playing.play_episode(TASK, SamplingParams(8), "x"))
    await reached.wait()
    task.cancel()
    await asyncio.wait({task})
    assert task.cancelled()
    assert [env.closed for env in world.made] == [1]
    assert (episodes, playing.errors) == ([], 0)


@pytest.mark.parametrize("method", ["start", "step", "close"])
async def test_a_world_that_ignores_its_cancellation_is_given_up(method) -> None:
    let_go = asyncio.Event()

    class Deaf(Sound):
        async def stay(self, *_: object) -> Step:
            while not let_go.is_set():
                try:
                    await let_go.wait()
                except BaseException:
                    continue
            raise RuntimeError("let go")

    setattr(Deaf, method, Deaf.stay)
    asyncio.get_running_loop().call_later(20, let_go.set)  # where it is not given up, this test is to end
    playing = runner(World(Deaf), retries=0)
    episode = await playing.play_episode(TASK, SamplingParams(8), "x")
    failure = episode.close_error if method == "close" else episode.error
    assert "Deaf.stay() does not end and ignores its cancellation" in str(failure)
    assert bool(episode.trajectories) == (method == "close")
    assert playing.errors == 1
    [left] = event_loop._abandoned
    assert left not in asyncio.all_tasks()  # so that no end of an event loop waits for it
    let_go.set()
    await asyncio.wait({left})
    assert not event_loop._abandoned


async def test_the_error_of_a_world_is_recorded_without_keys(monkeypatch) -> None:
    monkeypatch.setenv("MY_SERVICE_TOKEN", "Kq7canaryW3bird")

    class Tells(Sound):
        async def start(self) -> Observation:
            raise RuntimeError("no entry with Kq7canaryW3bird")

    episode = await runner(World(Tells), retries=0).play_episode(TASK, SamplingParams(8), "x")
    assert episode.error == "RuntimeError: no entry with ${MY_SERVICE_TOKEN}"


async def test_too_many_failures_stop_the_run_with_the_last_cause() -> None:
    told = r"4 of the last 4 episodes failed.*max_error_rate.*ZeroDivisionError: the world is wrong"
    playing = runner(World(Raises), retries=0)
    for number in range(3):
        await playing.play_episode(TASK, SamplingParams(8), str(number))
    with pytest.raises(InfrastructureError, match=told):
        await playing.play_episode(TASK, SamplingParams(8), "3")
    assert playing.errors == 4


class Spoilt:
    """Breaks as `broken` does in tasks of odd seeds, but for its plays of these numbers; others are sound."""

    def __init__(self, broken: type[Sound], sound: tuple[int, ...] = ()):
        self.broken, self.sound, self.made = broken, sound, []

    def make(self, task: Task) -> Sound:
        number = len(self.made)
        kind = self.broken if task.seed % 2 and number not in self.sound else Sound
        self.made.append(kind(number))
        return self.made[-1]


ODD = Task("made", {}, 1, "train")
BROKEN_BY_ACTIONS = [Raises, RaisesItself, Stalls, TimesOut, CancelsItself, Exits, LosesItsChild, Interrupted]


@pytest.mark.parametrize("broken", BROKEN_BY_ACTIONS, ids=lambda broken: broken.__name__)
async def test_an_action_that_breaks_the_world_again_is_lost_and_trained_on(broken) -> None:
    world = Spoilt(broken)
    playing = runner(world, retries=0)
    assert (await playing.play_episode(TASK, SamplingParams(8), "sound")).error is None
    episode = await playing.play_episode(ODD, SamplingParams(8), "broken")
    [trajectory] = episode.trajectories
    assert episode.error is None
    assert [turn.reward for turn in trajectory.turns] == [0.5, -1.0]
    assert trajectory.turns[-1].info == {"lost": 1.0, "success": 0.0}
    assert trajectory.ending is Ending.DONE
    assert FAILURES[broken].partition(":")[0] in str(episode.traceback)  # which may be an error of the world's author
    assert [env.closed for env in world.made] == [1, 1, 1]


async def test_a_world_says_what_its_lost_plays_pay() -> None:
    world = Spoilt(Raises)
    world.lowest_reward = -10.0
    playing = runner(world)
    await playing.play_episode(TASK, SamplingParams(8), "sound")
    [trajectory] = (await playing.play_episode(ODD, SamplingParams(8), "broken")).trajectories
    assert trajectory.turns[-1].reward == -10.0


async def test_what_does_not_break_again_is_the_infrastructures() -> None:
    """The second play breaks, the third, which tries it, does not, and the fourth is the episode tried again."""
    world = Spoilt(Raises, sound=(2, 3))
    playing = runner(world, retries=1)
    await playing.play_episode(TASK, SamplingParams(8), "sound")
    episode = await playing.play_episode(ODD, SamplingParams(8), "broken")
    assert [turn.reward for turn in episode.trajectories[0].turns] == [0.5, 0.5, 0.0]
    assert [env.closed for env in world.made] == [1, 1, 1, 1]


async def test_a_world_that_breaks_without_an_action_is_the_infrastructures() -> None:
    playing = runner(Spoilt(NoStart), retries=0)
    await playing.play_episode(TASK, SamplingParams(8), "sound")
    assert (await playing.play_episode(ODD, SamplingParams(8), "broken")).error == FAILURES[NoStart]


class NeverCloses(Sound):
    async def close(self) -> None:
        await super().close()
        await asyncio.sleep(3600)


@pytest.mark.parametrize(
    ("broken", "cause"),
    [(NoClose, "RuntimeError: it does not go away"), (NeverCloses, "InfrastructureError: the world")],
)
async def test_an_episode_that_was_complete_outlives_a_world_that_fails_to_close(broken, cause) -> None:
    """Its rewards are known, and no retry mends what was left behind; the failure counts as one of the world."""
    world = World(broken)
    playing = runner(world, retries=2)
    episode = await playing.play_episode(TASK, SamplingParams(8), "x")
    assert episode.error is None
    assert str(episode.close_error).startswith(cause)
    assert [turn.reward for turn in episode.trajectories[0].turns] == [0.5, 0.5, 0.0]
    assert [env.closed for env in world.made] == [1]  # and it is not played again
    assert playing.errors == 1


async def test_worlds_that_fail_to_close_stop_the_run_too() -> None:
    playing = runner(World(NoClose), retries=0)
    for number in range(3):
        await playing.play_episode(TASK, SamplingParams(8), str(number))
    with pytest.raises(InfrastructureError, match=r"4 of the last 4 episodes failed.*it does not go away"):
        await playing.play_episode(TASK, SamplingParams(8), "3")


async def test_a_failure_to_close_does_not_hide_why_the_play_failed() -> None:
    class Both(Raises, NoClose):
        pass

    episode = await runner(World(Both), retries=0).play_episode(TASK, SamplingParams(8), "x")
    assert (episode.error, episode.close_error) == (FAILURES[Raises], None)


class SaysItIsBroken(Raises):
    async def fail(self) -> Step:
        raise WorldError("the world 'made' has no rule for this")


async def test_a_world_that_says_it_is_at_fault_stops_the_run_and_blames_no_action() -> None:
    playing = runner(Spoilt(SaysItIsBroken), retries=1)
    await playing.play_episode(TASK, SamplingParams(8), "sound")
    with pytest.raises(WorldError, match="has no rule for this"):
        await playing.play_episode(ODD, SamplingParams(8), "broken")


@pytest.mark.parametrize("error", [WorldError, ConfigError])
async def test_a_second_play_in_which_the_world_is_at_fault_blames_no_action(error) -> None:
    class Later(Raises):
        async def fail(self) -> Step:
            raise ZeroDivisionError if self.number == 1 else error("the world cannot be played again")

    playing = runner(Spoilt(Later), retries=0)
    await playing.play_episode(TASK, SamplingParams(8), "sound")
    with pytest.raises(error, match="cannot be played again"):
        await playing.play_episode(ODD, SamplingParams(8), "broken")


async def test_a_world_of_which_no_more_ends_than_breaks_is_the_infrastructures() -> None:
    """A service that is down fails again, too."""
    playing = runner(Spoilt(Raises), retries=0)
    await playing.play_episode(TASK, SamplingParams(8), "sound")
    errors = [(await playing.play_episode(ODD, SamplingParams(8), str(n))).error for n in range(3)]
    assert errors == [None, FAILURES[Raises], FAILURES[Raises]]


async def test_an_expert_that_breaks_its_world_has_an_error() -> None:
    class Expert(Raises):
        def expert(self) -> str:
            return "yes"

    world = Spoilt(Expert)
    playing = runner(world, retries=0)
    await playing.play_episode(TASK, SamplingParams(8), "sound")
    episode = await playing.play_episode(
        ODD, SamplingParams(8), "broken", expert_sampler(playing.renderer, playing.agent), blame=False
    )
    assert episode.error == FAILURES[Raises]


async def test_the_error_of_a_world_is_recorded_at_its_ends() -> None:
    class Tells(Sound):
        async def start(self) -> Observation:
            raise RuntimeError(f"first {'x' * 10**7} last")

    episode = await runner(World(Tells), retries=0).play_episode(TASK, SamplingParams(8), "x")
    assert episode.error is not None
    assert len(episode.error) < 5_000
    assert episode.error.startswith("RuntimeError: first x")
    assert "characters left out" in episode.error
    assert episode.error.endswith("x last")
