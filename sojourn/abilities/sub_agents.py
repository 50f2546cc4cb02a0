"""What agents offer that call further agents, and the trajectories of all that acted in a play."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol, runtime_checkable

from sojourn.ability import Ability
from sojourn.protocols import Seat
from sojourn.types import Ending, Trajectory

MOVE = "move"  # in the info of a turn: its number in the episode, where several agents act in it


@runtime_checkable
class HasSubAgents(Ability, Protocol):
    """An agent whose seats call further agents, each of which has contexts and trajectories of its own.

    `sub_agent_models` are the models of the called agents by their names, "" where that is the model of the seat which
    calls. What wraps the seats of another agent knows nothing of these trajectories, and refuses such an agent.
    """

    @property
    def sub_agent_models(self) -> Mapping[str, str]: ...


@runtime_checkable
class CallsAgents(Ability, Protocol):
    """A seat that calls further agents: `called` returns the trajectories of those that acted, once a play is over."""

    def called(self, ending: Ending) -> tuple[Trajectory, ...]: ...


@runtime_checkable
class ReadsAllModels(Ability, Protocol):
    """An estimator that says whether the credit of a trajectory depends on trajectories of other models, so that it is
    given those of all models that learn. It reads no streams then."""

    @property
    def reads_all_models(self) -> bool: ...


def sub_agent_models(agent: object) -> Mapping[str, str]:
    """Returns the models of the agents that an agent calls, by the agents' names; mostly none."""
    return agent.sub_agent_models if isinstance(agent, HasSubAgents) else {}


def reads_all_models(estimator: object) -> bool:
    """Returns whether an estimator reads the trajectories of other models too; mostly not."""
    return isinstance(estimator, ReadsAllModels) and estimator.reads_all_models


def all_trajectories(seats: Iterable[Seat], ending: Ending) -> tuple[Trajectory, ...]:
    """Returns the trajectories of all seats of a play, and then those of the agents that they called, in the order in
    which these began to act."""
    seats = tuple(seats)
    own = [seat.finish(ending) for seat in seats]
    called = [one for seat in seats if isinstance(seat, CallsAgents) for one in seat.called(ending)]
    return (*own, *sorted(called, key=lambda one: one.turns[0].info.get(MOVE, 0.0)))
