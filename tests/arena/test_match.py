"""Lock-step, failures that stay their own, seats, and what is the same under the same seed."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from sojourn.agents.text_seat import TextReply, TextSeat
from sojourn.arena.lockstep import OperatorTurn
from sojourn.arena.match import Match, ObservedFamily
from sojourn.arena.operators import ExpertOperator, RandomOperator, StatelessOperator
from sojourn.envs.expert import expert_action
from sojourn.envs.toy import Toy
from sojourn.errors import ActionError, ConfigError, InfrastructureError
from sojourn.protocols import AgentContext
from sojourn.rollout.limits import Limits
from sojourn.types import Message, Role, Task
from sojourn_worlds.matrix import Matrix

TOY = Toy(choices=True)


@dataclass
class Watching:
    """Records the calls that it receives."""

    calls: list[tuple[str, int, list[str]]] = field(default_factory=list)
    rows: list[OperatorTurn] = field(default_factory=list)

    def show_observations(self, number: int, turns: Sequence[OperatorTurn]) -> None:
        self.calls.append(("seen", number, [turn.name for turn in turns]))

    def show_actions(self, number: int, turns: Sequence[OperatorTurn]) -> None:
        self.calls.append(("acted", number, [turn.name for turn in turns]))
        self.rows += turns


@dataclass
class Scripted(StatelessOperator):
    """Says its lines one after another, an error among them is raised; `waits` is how long it thinks."""

    lines: list[Any]
    waits: int = 0
    log: list[tuple[str, int]] = field(default_factory=list)

    def seat(self, context: AgentContext, env: Any) -> TextSeat:
        return TextSeat(context.name, Lines(self, env), context.trainable)


@dataclass
class Lines:
    operator: Scripted
    env: Any
    turn: int = 0

    async def reply(self, observation: Any) -> TextReply:
        self.turn += 1
        self.operator.log.append((self.operator.name, self.turn))
        for _ in range(self.operator.waits):
            await asyncio.sleep(0)
        line = self.operator.lines[min(self.turn, len(self.operator.lines)) - 1]
        if isinstance(line, BaseException):
            raise line
        action = await expert_action(self.env) if line == "expert" else line
        return TextReply(Message(Role.ASSISTANT, action))


def bout(*operators: Any, family: Any = TOY, watcher: Any = None, turns: int = 6, **options: Any) -> Any:
    made = Match(family, operators, Limits(turns=turns), watcher or Watching(), **options)
    made.check([family.tasks("test")[0]])
    return asyncio.run(made.play_task(0, family.tasks("test")[0]))


def test_a_turn_starts_when_all_operators_have_finished_the_last() -> None:
    log: list[tuple[str, int]] = []
    quick, slow = Scripted("quick", ["expert"], 0, log), Scripted("slow", ["expert"], 40, log)
    watcher = Watching()
    bout(quick, slow, Scripted("third", ["expert"], 3, log), watcher=watcher)
    assert [turn for _, turn in log] == sorted(turn for _, turn in log)
    assert {name for name, turn in log if turn == 2} == {"quick", "slow", "third"}
    turns = max(turn for _, turn, _ in watcher.calls)
    calls = [(what, turn) for what, turn, _ in watcher.calls]
    assert calls == [("acted", 0), *[(what, turn) for turn in range(1, turns + 1) for what in ("seen", "acted")]]


def test_a_finished_operator_is_not_waited_for() -> None:
    watcher = Watching()
    played = bout(Scripted("never", ["nonsense"]), ExpertOperator("expert"), watcher=watcher, turns=16)
    assert [episode.trajectories[0].success for episode in played.episodes] == [False, True]
    lengths = [len(episode.trajectories[0].turns) for episode in played.episodes]
    assert lengths[0] == 16 > lengths[1]
    assert watcher.calls[-1] == ("acted", 16, ["never"])


@pytest.mark.parametrize("failure", [InfrastructureError("the server is gone"), KeyError("x"), SystemExit(1)])
def test_a_failure_ends_the_episode_of_its_operator_alone(failure: BaseException) -> None:
    watcher = Watching()
    played = bout(Scripted("broken", ["expert", failure]), ExpertOperator("expert"), watcher=watcher)
    broken, expert = played.episodes
    assert broken.error == f"{type(failure).__name__}: {failure}"
    assert expert.error is None
    assert played.scores[0] == []
    row = next(row for row in watcher.rows if row.failed)
    assert (row.name, row.ended) == ("broken", broken.error)


def test_a_refused_action_costs_its_operator_a_turn() -> None:
    watcher = Watching()
    played = bout(Scripted("wrong", ["dance", "expert"]), ExpertOperator("expert"), watcher=watcher)
    turns = played.episodes[0].trajectories[0].turns
    assert played.episodes[0].error is None
    assert turns[0].info["malformed"] == 1.0
    assert "dance" in turns[1].observed[0].text
    assert "dance" in next(row.refused for row in watcher.rows if row.name == "wrong")
    assert not any(row.failed for row in watcher.rows)


def test_an_error_of_a_watcher_is_charged_to_no_operator() -> None:
    class Gone(Watching):
        def show_observations(self, number: int, turns: Sequence[OperatorTurn]) -> None:
            raise BrokenPipeError("nobody reads")

    with pytest.raises(ExceptionGroup, match="TaskGroup") as raised:
        bout(ExpertOperator("expert"), ExpertOperator("other"), watcher=Gone())
    assert isinstance(raised.value.exceptions[0], BrokenPipeError)


def test_a_broken_setting_stops_the_match() -> None:
    with pytest.raises(ExceptionGroup) as raised:
        bout(RandomOperator("random"), ExpertOperator("expert"), family=Toy())
    assert "choices=true" in str(raised.value.exceptions[0])


def said(played: Any, at: int) -> list[str]:
    return [turn.message.text for turn in played.episodes[at].trajectories[0].turns]


def test_equal_seeds_play_alike_and_other_seeds_differ() -> None:
    once, again = (bout(RandomOperator("a"), RandomOperator("b"), seed=3) for _ in range(2))
    assert [said(once, at) for at in (0, 1)] == [said(again, at) for at in (0, 1)]
    assert said(once, 0) == said(once, 1), "operators have the same seeds too"
    assert any(said(bout(RandomOperator("a"), seed=seed), 0) != said(once, 0) for seed in (4, 5, 6))


def test_operators_take_one_seat_of_several() -> None:
    game = Matrix(opponent="self", choices=True)
    assert (
        inspect.getattr_static(ObservedFamily(game), "seats") == game.seats
    )  # as newer Pythons look where `isinstance` asks
    played = bout(
        RandomOperator("one"), RandomOperator("two"), family=game, seat="column", others=RandomOperator("random")
    )
    for episode in played.episodes:
        sides = {trajectory.agent: trajectory for trajectory in episode.trajectories}
        assert sides["column"].trainable
        assert not sides["row"].trainable
        assert sides["row"].turns
    with pytest.raises(ConfigError, match="--seat row"):
        bout(RandomOperator("one"), family=game)
    with pytest.raises(ConfigError, match="has the seats row, column"):
        bout(RandomOperator("one"), family=game, seat="middle", others=RandomOperator("random"))
    with pytest.raises(ConfigError, match="only one seat"):
        bout(RandomOperator("one"), others=RandomOperator("random"))


def test_more_operators_than_a_world_can_hold_are_refused() -> None:
    class Small:
        capacity = 1

        def tasks(self, split: str) -> Sequence[Task]:
            return TOY.tasks(split)

        def make(self, task: Task) -> Any:
            return TOY.make(task)

    with pytest.raises(ConfigError, match="2 operators need as many environments at once, but this one allows 1"):
        bout(ExpertOperator("a"), ExpertOperator("b"), family=Small())


def test_an_unreadable_reply_is_refused_with_its_reason() -> None:
    class Mute:
        async def reply(self, observation: Any) -> TextReply:
            return TextReply(None, fault="not JSON")

    seat = TextSeat("agent", Mute())
    observation = asyncio.run(TOY.make(TOY.tasks("test")[0]).start())
    with pytest.raises(ActionError, match="not JSON"):
        asyncio.run(seat.act(observation))
    assert seat.turns[0].message is None
