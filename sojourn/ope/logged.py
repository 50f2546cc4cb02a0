"""Recorded episodes as off-policy evaluation reads them: ratios of probabilities, outcomes, and features of states."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from sojourn.credit.relative import Values
from sojourn.errors import ConfigError
from sojourn.protocols import Trainer, TurnStates
from sojourn.record.episodes.group import GroupRecord
from sojourn.search_cost import PLANNED
from sojourn.sources.context import unsampled
from sojourn.streams.trainer_passes import TrainerPasses
from sojourn.types import FloatArray, Group, Score, Trajectory

Outcome = Literal["success", "reward"]
GROUPS_PER_PASS = 16  # so that memory does not grow with the number of episodes


@dataclass(frozen=True)
class LoggedEpisode:
    """The turns of one recorded episode that have tokens: T turns, H features of a state.

    `log_ratios` are the logarithms of how much likelier the candidate is to say what was said than the policy that said
    it. `states` are features of the state before each turn.
    """

    task: str
    log_ratios: Values  # (T,)
    rewards: Values  # (T,)
    states: FloatArray  # (T, H)


async def logged(records: Sequence[GroupRecord], trainer: Trainer, outcome: Outcome = "success") -> list[LoggedEpisode]:
    """Returns the recorded episodes, with the ratios and hidden states of the weights that the trainer holds.

    The reward of a turn is the recorded one, or with the outcome "success" 1 for the last turn of a success, and else
    0. Episodes that failed or sampled nothing are left out. Raises `ConfigError` for episodes that no model sampled, in
    which several seats were trained, or that branching or a search chose.
    """
    _check(records)
    found: list[LoggedEpisode] = []
    for start in range(0, len(records), GROUPS_PER_PASS):
        part = records[start : start + GROUPS_PER_PASS]
        passes = TrainerPasses([record.group for record in part], [record.scores for record in part], trainer)
        logprobs, states = await passes.read(lambda forward: forward.logprobs), await passes.states()
        found += [
            _episode(record.group.task.id, trajectory, score, of_turns, around, outcome)
            for record, of_group, of_states in zip(part, logprobs, states, strict=True)
            for trajectory, score, of_turns, around in zip(
                record.group.trajectories, record.scores, of_group, of_states, strict=True
            )
            if around.turns
        ]
    return found


def _check(records: Sequence[GroupRecord]) -> None:
    for record in records:
        if unsampled(record.group):
            raise ConfigError(
                f"stage '{record.stage}', step {record.step} has turns that no model sampled, so that their "
                "probabilities are not known: name a stage whose episodes a policy played"
            )
        if chosen := _chosen_by_outcome(record.group):
            raise ConfigError(
                f"stage '{record.stage}', step {record.step} has {chosen}, which are there because of how plays went "
                "on, so that their outcomes say too much or too little of the policy: expected plays of the policy "
                "alone; name a stage without branching and search, such as an evaluation without them"
            )
        owners = record.group.owners
        if len(set(owners)) < len(owners):
            raise ConfigError(
                f"stage '{record.stage}', step {record.step} has episodes in which several seats were trained: "
                "off-policy evaluation is for episodes of one"
            )


def _chosen_by_outcome(group: Group) -> str:
    """Returns in words what of a group was not played as a policy alone plays; empty where all was."""
    if any(episode.branch is not None for episode in group.episodes):
        return "branches of plays"
    planned = any(turn.info.get(PLANNED) for trajectory in group.trajectories for turn in trajectory.turns)
    return "turns that a search found" if planned else ""


def _episode(
    task: str,
    trajectory: Trajectory,
    score: Score,
    logprobs: Sequence[FloatArray],
    states: TurnStates,
    outcome: Outcome,
) -> LoggedEpisode:
    turns = [trajectory.turns[number] for number in states.turns]
    new = np.array([float(logprobs[number].sum(dtype=np.float64)) for number in states.turns])
    old = np.array([float(turn.sample.logprobs.sum(dtype=np.float64)) for turn in turns])
    rewards = np.zeros(len(turns))
    if outcome == "success":
        rewards[-1] = trajectory.success
    else:  # the reward of a turn without tokens goes to the turn before it
        at = np.searchsorted(states.turns, range(len(score.turns)), "right")
        np.add.at(rewards, np.maximum(at - 1, 0), score.turns)
    return LoggedEpisode(task, new - old, rewards, states.before)
