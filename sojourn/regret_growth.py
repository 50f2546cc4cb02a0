"""How the regret of players grows with the rounds of a play: whether it grows slower than they do.

Two tests of Park et al. 2024 ("Do LLM Agents Have Regret?", arXiv:2403.16843, section 3.2), written from memory: a sign
test of whether the regret per round falls, and a regression of its logarithm on that of the round.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from sojourn.abilities import MOVE
from sojourn.types import Episode, Group, Trajectory, Turn

LOG_OF_NONE = -10.0  # in place of the logarithm of a regret of 0 or less


@dataclass(frozen=True)
class RegretGrowth:
    """The mean regret after each of T rounds, and two tests of whether it grows slower than the rounds.

    `falls` counts the rounds after which the regret per round is smaller than before; `falls_p` is the probability of
    at least as many if each were tossed with a coin (a bound where it does not fall). `exponent` is the b of a
    regression of log regret on log round, regret = c t^b: below 1, it grows slower than the rounds; `exponent_p` is the
    p-value of b = 0.
    """

    regrets: tuple[float, ...]
    plays: int
    falls: int
    falls_p: float
    exponent: float
    exponent_p: float


def regret_growth(groups: Iterable[Group], info_key: str = "regret") -> dict[str, RegretGrowth]:
    """Returns the growth of the regret of each seat, in the trainable trajectories of complete plays that told one; of
    those with fewer rounds than the longest only the rounds that they have."""
    curves: dict[str, list[list[float]]] = defaultdict(list)
    for group in groups:
        for owner, trajectory in zip(group.owners, group.trajectories, strict=True):
            curves[trajectory.agent].append(regrets_so_far(trajectory, group.episodes[owner], info_key))
    return {seat: growth(told) for seat, of_seat in curves.items() if (told := [one for one in of_seat if one])}


def regrets_so_far(trajectory: Trajectory, episode: Episode, info_key: str = "regret") -> list[float]:
    """Returns the regret of a trajectory after each of its turns, as the world told it before its next turn; turns
    after which it told none are left out.

    It is the number `info_key` of the trajectory's own turns or, where any turn of the episode has it, SEAT_`info_key`.
    """
    of_seat = f"{trajectory.agent}_{info_key}"
    everyone = list(_in_order(episode))
    if not any(of_seat in turn.info for turn in everyone):
        return [turn.info[info_key] for turn in trajectory.turns if info_key in turn.info]
    found: list[float] = []
    moves = [turn.info.get(MOVE, 0.0) for turn in trajectory.turns]
    for first, end in zip(moves, [*moves[1:], math.inf], strict=True):
        told = [
            turn.info[of_seat] for turn in everyone if first <= turn.info.get(MOVE, 0.0) < end and of_seat in turn.info
        ]
        found += told[-1:]
    return found


def growth(curves: Sequence[Sequence[float]]) -> RegretGrowth:
    """Returns the growth of the mean of several plays' regrets by round."""
    rounds = max(map(len, curves))
    regrets = np.array([np.mean([curve[t] for curve in curves if len(curve) > t]) for t in range(rounds)])
    falls, falls_p = falling(regrets)
    exponent, exponent_p = fitted_exponent(regrets)
    return RegretGrowth(tuple(map(float, regrets)), len(curves), falls, falls_p, exponent, exponent_p)


def falling(regrets: Sequence[float] | np.ndarray) -> tuple[int, float]:
    """Returns after how many rounds the regret per round is smaller than before, and the p-value of a sign test."""
    per_round = np.asarray(regrets, dtype=np.float64) / np.arange(1, len(regrets) + 1)
    steps = len(per_round) - 1
    falls = int((per_round[1:] < per_round[:-1]).sum())
    return falls, sum(math.comb(steps, t) for t in range(falls, steps + 1)) / 2**steps if steps > 0 else 1.0


def fitted_exponent(regrets: Sequence[float] | np.ndarray) -> tuple[float, float]:
    """Returns the slope of log regret over log round, and the p-value of a slope of 0; NaN for fewer than 3 rounds."""
    values = np.asarray(regrets, dtype=np.float64)
    if len(values) < 3:
        return math.nan, math.nan
    from scipy.special import stdtr  # imported here, as it takes long

    at = np.log(np.arange(1, len(values) + 1))
    logs = np.where(values > 0, np.log(np.maximum(values, 1e-300)), LOG_OF_NONE)
    at, logs = at - at.mean(), logs - logs.mean()
    slope = float(at @ logs / (at @ at))
    error = math.sqrt(float(((logs - slope * at) ** 2).sum() / (len(at) - 2) / (at @ at)))
    return slope, 2 * float(stdtr(len(at) - 2, -abs(slope) / error)) if error else float(slope == 0)


def _in_order(episode: Episode) -> Iterator[Turn]:
    """Yields the turns of all seats of an episode in the order in which they were taken."""
    turns = [turn for trajectory in episode.trajectories for turn in trajectory.turns]
    yield from sorted(turns, key=lambda turn: turn.info.get(MOVE, 0.0))
