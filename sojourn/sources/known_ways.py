"""The ways to success that plays of earlier steps found, by the state from which they lead there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sojourn.call_text import action_text
from sojourn.types import Group, Trajectory

Ways = dict[str, tuple[str, ...]]  # actions by state key


@dataclass
class KnownWays:
    """Knows, for up to `capacity` states of tasks, the shortest actions after which a play succeeded that was there.

    States are told apart by the world's `state_key` and by their task. Where there are too many, the task whose states
    were found first is forgotten, if need be that of a group that was observed just now.
    """

    capacity: int
    ways: dict[str, Ways] = field(default_factory=dict[str, Ways])  # by task

    def of(self, task: str) -> Mapping[str, Sequence[str]]:
        return self.ways.get(task, {})

    def observe(self, groups: Sequence[Group]) -> None:
        """Learns from the plays of a single seat that succeeded."""
        for group in groups:
            for episode in group.episodes:
                if len(episode.trajectories) == 1 and episode.trajectories[0].success:
                    self._learn(group.task.id, episode.trajectories[0])
        while sum(map(len, self.ways.values())) > self.capacity:
            del self.ways[next(iter(self.ways))]

    def _learn(self, task: str, trajectory: Trajectory) -> None:
        for state, way in _ways(trajectory):
            known = self.ways.setdefault(task, {})
            if state not in known or len(way) < len(known[state]):
                known[state] = way

    def state(self) -> Mapping[str, Any]:
        return {task: {state: list(way) for state, way in known.items()} for task, known in self.ways.items()}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.ways = {task: {key: tuple(way) for key, way in known.items()} for task, known in state.items()}


def _ways(trajectory: Trajectory) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yields each state of a play with the actions that led on from there, ways back to a state left out; none where
    the world has no keys."""
    last = {turn.state: number for number, turn in enumerate(trajectory.turns)}
    for start in sorted(last.values()):
        actions, number = list[str](), start
        while number < len(trajectory.turns):
            turn = trajectory.turns[last[trajectory.turns[number].state]]
            if turn.state is None or turn.message is None:
                return
            actions.append(action_text(turn.message))
            number = last[turn.state] + 1
        yield str(trajectory.turns[start].state), tuple(actions)
