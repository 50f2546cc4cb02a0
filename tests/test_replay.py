"""Replay: a recorded episode goes the same way in the same world, and where the world has changed it is told."""

from __future__ import annotations

import shutil
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from played_run import SUMS, TOY, Made, Script, replayed
from typer.testing import CliRunner

from sojourn.agents.plain import Plain, PlainSeat
from sojourn.cli import app
from sojourn.errors import ActionError, ConfigError
from sojourn.record.episodes.episode_row import EpisodeRow
from sojourn.record.episodes.store import EpisodeStore
from sojourn.record.run import RunFolder
from sojourn.replay import Verdict
from sojourn.types import Ending, Episode, Group, Message, Observation, Role, Task, Trajectory


def rewritten(path: Path, change) -> Path:
    """Another run folder, with each episode changed."""
    other = path.with_name(f"{path.name}-rewritten")
    with EpisodeStore(path) as store:
        groups = list(store.groups("rl"))
    changed = [Group(g.slot, g.task, tuple(change(episode) for episode in g.episodes)) for g in groups]
    run = RunFolder.read(path)
    text = (path / "config.toml").read_text()
    with RunFolder.create(other, text, seeds=run.seeds), EpisodeStore(other, write=True) as store:
        store.append("rl", 0, changed)
    return other


def of_turn(number: int, **fields):
    """A change of one turn of the first seat."""

    def change(episode: Episode) -> Episode:
        first, *others = episode.trajectories
        turns = list(first.turns)
        turns[number] = replace(turns[number], **fields)
        return replace(episode, trajectories=(replace(first, turns=tuple(turns)), *others))

    return change


SHOWN = (Message(Role.USER, "You stand in a hall of mirrors."),)
MIXED = Script(["go north", "dance", "take the", "<tool_call>never closed", "go south", "look"])
PLAYS = {
    "an expert": Made(TOY, turns=20),
    "malformed, told": Made(TOY, MIXED),
    "malformed, ended": Made(TOY, MIXED, Plain(malformed="end")),
    "pages": Made(TOY, MIXED, Plain(history="page")),
    "windows": Made(TOY, MIXED, Plain(history="window", turns=1)),
    "tools": Made(SUMS),
    "refused by a tool": Made(SUMS, Script(["submit(answer=-1)", "add(x=1, y=1)", "submit(answer=2)"])),
    "two seats": Made({"name": "matrix", "opponent": "self", "rounds": 3}, Script(["cooperate", "defect", "what"])),
    "several worlds": Made({"name": "mixed", "worlds": [TOY, {"name": "frozenlake"}]}, Script(["go north", "left"])),
}


@pytest.mark.parametrize("name", PLAYS)
def test_what_was_played_goes_the_same_way(tmp_path: Path, name: str):
    found = replayed(PLAYS[name].run(tmp_path / "run"))
    assert [done.difference for done in found] == [""] * 4
    assert all(done.verdict is Verdict.SAME and done.turns > 0 for done in found)


def test_a_world_that_changed_is_told_with_the_first_difference(tmp_path: Path):
    sums = Made(SUMS).run(tmp_path / "tools")
    config = sums / "config.toml"
    config.write_text(config.read_text().replace("played_run:Sums", "test_replay:Doubled"))
    found = replayed(sums)
    assert {done.verdict for done in found} == {Verdict.DIFFERS}
    assert "turn 2 of agent: what is shown is " in found[0].difference
    assert ", but it was " in found[0].difference


class Doubled:
    """Add the numbers, then submit the sum."""

    def __init__(self, seed: int) -> None:
        self.numbers = (seed % 7, seed % 5)

    def goal(self) -> str:
        return f"What is {self.numbers[0]} + {self.numbers[1]}?"

    def add(self, x: int, y: int) -> int:
        """The sum of two numbers."""
        return 2 * (x + y) + 1

    def submit(self, answer: int) -> None:
        """Say the answer."""

    def reward(self) -> float | None:
        return None


@dataclass(frozen=True, kw_only=True)
class Counting:
    """An agent that tells the model in which turn it is."""

    def seat(self, context):
        return CountingSeat(Plain(), context)


class CountingSeat(PlainSeat):
    async def act(self, observation, state=None):
        note = Message(Role.USER, f"turn {len(self.turns)}")
        return await super().act(replace(observation, messages=(note, *observation.messages)), state)


@dataclass(frozen=True, kw_only=True)
class Drafts:
    """An agent that samples a draft and then its action; both drafts and refused actions are in its context."""

    def seat(self, context):
        return DraftSeat(Plain(), context)


class DraftSeat(PlainSeat):
    async def act(self, observation, state=None):
        with suppress(ActionError):
            await super().act(observation, state)
        return await super().act(Observation((Message(Role.USER, "Now act."),)), state)


DRAFTED = ["I go north", "go north", "<tool_call>never closed", "dance", "hm", "<tool_call>nor this", "so", "look"]
OWN = {
    "adds a message": Made(
        TOY, Script(["go north", "dance", "take the", "look"]), Counting(), agent_name="test_replay:Counting"
    ),
    "samples twice": Made(TOY, Script(DRAFTED), Drafts(), agent_name="test_replay:Drafts"),
}


@pytest.mark.parametrize("name", OWN)
def test_what_the_agent_adds_is_no_difference_and_what_the_world_changes_is(tmp_path: Path, name: str):
    run = OWN[name].run(tmp_path / "run")
    assert [done.difference for done in replayed(run)] == [""] * 4
    shown = "what is shown is "
    for change, sentence in (
        (of_turn(0, observed=SHOWN), f"turn 1 of agent: {shown}"),
        (of_turn(0, reward=0.5), "turn 1 of agent: the reward is 0, but it was 0.5"),
        (of_turn(0, state="elsewhere"), "turn 1 of agent: the state is "),
        (of_turn(-1, observed=()), "the world shows too "),
    ):
        found = replayed(rewritten(run, change))
        assert {done.verdict for done in found} == {Verdict.DIFFERS}
        assert sentence in found[0].difference
        shutil.rmtree(run.with_name("run-rewritten"))


def test_an_agent_that_is_not_here_is_told_in_one_sentence(tmp_path: Path):
    run = Made(TOY, Script(MIXED.texts), Counting(), agent_name="gone:Away").run(tmp_path / "run")
    with pytest.raises(ConfigError, match=r"the agent of .* cannot be built here: agent 'gone:Away'"):
        replayed(run)


def shortened(trajectory: Trajectory) -> Trajectory:
    return replace(trajectory, turns=trajectory.turns[:-1])


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (of_turn(1, observed=SHOWN), "turn 2 of agent: what is shown is "),
        (of_turn(1, observed=(*SHOWN, *SHOWN)), "turn 2 of agent: what is shown is "),
        (of_turn(1, observed=()), "turn 2 of agent: the world shows too "),
        (of_turn(0, reward=0.5), "turn 1 of agent: the reward is 0, but it was 0.5"),
        (of_turn(-1, info={"success": 0.0}), "success is 1, but it was 0"),
        (of_turn(0, info={"malformed": 1.0}), "turn 1 of agent: malformed is not said, but it was 1"),
        (of_turn(0, state="elsewhere"), "turn 1 of agent: the state is "),
        (of_turn(0, message=Message(Role.ASSISTANT, "dance")), "turn 1 of agent: the world refuses now what was"),
        (lambda e: replace(e, trajectories=(replace(e.trajectories[0], ending=Ending.TURNS),)), "the world is done"),
        (lambda e: replace(e, trajectories=(shortened(e.trajectories[0]),)), "goes on"),
        (lambda e: replace(e, task=Task("toy", {**e.task.data, "rooms": 3}, e.task.seed, "train")), "turn 1 of agent"),
        (lambda e: replace(e, trajectories=(replace(e.trajectories[0], agent="rival"),)), "for seat 'agent'"),
        (lambda e: replace(e, task=Task("toy", {}, 0, "train")), "the world fails now: "),
    ],
)  # fmt: skip
def test_each_part_of_the_record_counts(tmp_path: Path, change, sentence: str):
    run = rewritten(Made(TOY, turns=20, tasks=1, episodes=1).run(tmp_path / "run"), change)
    (found,) = replayed(run)
    assert found.verdict is Verdict.DIFFERS
    assert sentence in found.difference


def test_a_refusal_in_other_words_is_told(tmp_path: Path):
    run = Made(TOY, MIXED, tasks=1, episodes=1).run(tmp_path / "run")
    (found,) = replayed(rewritten(run, of_turn(2, observed=(Message(Role.USER, "No."),))))
    assert found.difference.startswith("turn 3 of agent: the refusal is ")
    run = Made(TOY, MIXED, Plain(history="page"), tasks=1, episodes=1).run(tmp_path / "pages")
    told = next(EpisodeStore(run).groups("rl")).episodes[0].trajectories[0].turns[2].observed[0]
    (found,) = replayed(rewritten(run, of_turn(2, observed=(told, *SHOWN))))
    assert found.difference.startswith("turn 3 of agent: what is shown is ")  # the page that is shown again with it


def test_images_are_compared_by_their_digests(tmp_path: Path):
    first = of_turn(0, observed=(Message(Role.USER, "A page.", images=("a" * 64,)),))
    (found,) = replayed(rewritten(Made(SUMS, tasks=1, episodes=1).run(tmp_path / "run"), first))
    assert found.verdict is Verdict.DIFFERS

    def pictured(episode: Episode) -> Episode:
        shown = episode.trajectories[0].turns[0].observed
        return of_turn(0, observed=(*shown[:-1], replace(shown[-1], images=("b" * 64,))))(episode)

    (found,) = replayed(rewritten(Made(SUMS, tasks=1, episodes=1).run(tmp_path / "again"), pictured))
    assert "images of what is shown is (), but it was ('bbb" in found.difference


def test_branches_are_played_path_by_path(tmp_path: Path):
    """After the first turn once the expert's way, and once another."""

    def forked(episode: Episode) -> Episode:
        (only,) = episode.trajectories
        count = len(only.turns)
        twin = [replace(turn, parent=0 if n == 0 else count + n - 1) for n, turn in enumerate(only.turns[1:])]
        return replace(episode, trajectories=(replace(only, turns=(*only.turns, *twin)),))

    def spoilt(episode: Episode) -> Episode:
        (only,) = forked(episode).trajectories
        last = replace(only.turns[-1], observed=SHOWN)
        return replace(episode, trajectories=(replace(only, turns=(*only.turns[:-1], last)),))

    run = Made(TOY, turns=20, tasks=1, episodes=1).run(tmp_path / "run")
    (found,) = replayed(rewritten(run, forked))
    assert found.verdict is Verdict.SAME, found.difference
    run = Made(TOY, turns=20, tasks=1, episodes=1).run(tmp_path / "other")
    (found,) = replayed(rewritten(run, spoilt))
    assert found.difference.startswith("path 2 of 2: turn ")


def test_what_cannot_be_played_again_says_why(tmp_path: Path):
    run = Made(TOY, tasks=1).run(tmp_path / "run")
    numbers = iter(range(2))

    def change(episode: Episode) -> Episode:
        failed = replace(episode, trajectories=(), error="OSError: gone")
        return failed if next(numbers) else replace(episode, trajectories=(Trajectory("agent", (), Ending.TOKENS),))

    found = replayed(rewritten(run, change))
    assert [done.verdict for done in found] == [Verdict.NOTHING] * 2
    assert [done.difference for done in found] == [
        "nobody acted in it", "its world failed when it was played: OSError: gone",
    ]  # fmt: skip


def test_worlds_that_are_not_here_are_refused_in_one_sentence(tmp_path: Path):
    run = Made(TOY, tasks=1).run(tmp_path / "run")
    config = run / "config.toml"
    told = config.read_text()
    config.write_text(told.replace('"toy"', '"gone:Away"'))
    with pytest.raises(ConfigError, match="cannot be built here: env 'gone:Away'"):
        replayed(run)


def command(*words: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, [str(word) for word in words])
    return done.exit_code, done.output + (str(done.exception) if done.exception else "")


def test_the_command_says_and_returns_what_came_of_it(tmp_path: Path):
    run = Made(TOY, MIXED, tasks=2).run(tmp_path / "run")
    with EpisodeStore(run) as store:
        entries: list[EpisodeRow] = list(store.query())
    code, said = command("replay", run, entries[0].id)
    assert (code, said) == (0, f"{entries[0].id}: same observations and rewards in 4 turns\n")
    assert command("replay", run, "--all") == (0, "4 of 4 episodes gave the same observations and rewards\n")
    assert command("replay", run, "--sample", 3, "--where", "stage:rl") == (
        0,
        "3 of 3 episodes gave the same observations and rewards\n",
    )
    other = rewritten(run, of_turn(1, observed=SHOWN))
    code, said = command("replay", other, "--all")
    assert code == 1
    assert said.count(": differs: turn 2 of agent") == 4
    assert "0 of 4 episodes gave the same observations and rewards" in said
    assert "choose the episodes to replay" in command("replay", run)[1]
    assert "no episode 'nobody'" in command("replay", run, "nobody")[1]
    assert "is not a run folder" in command("replay", tmp_path, "--all")[1]
    assert "leave one of them out" in command("replay", run, entries[0].id, "--where", "stage:rl")[1]


def test_a_damaged_record_is_told_and_the_others_are_played(tmp_path: Path):
    run = Made(TOY, tasks=2).run(tmp_path / "run")
    path = sorted((run / "tokens").glob("*.npz"))[0]
    path.write_bytes(path.read_bytes()[:100])
    found = replayed(run)
    assert [done.verdict for done in found] == [Verdict.NOTHING] * 2 + [Verdict.SAME] * 2
    assert "is damaged" in found[0].difference
    assert command("replay", run, "--all")[1].endswith(
        "2 of 2 episodes gave the same observations and rewards; 2 could not be replayed\n"
    )
    assert np.all([done.turns for done in found[2:]])
