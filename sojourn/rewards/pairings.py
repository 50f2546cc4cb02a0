"""Asks a judge which of two trajectories is better, in both orders, and counts who wins."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import combinations
from statistics import fmean
from typing import NamedTuple

from sojourn.rewards.judgements import ENDING, Bench, Judgement, Question, alike, together

POINTS = {"first": 1.0, "second": 0.0, "tie": 0.5}


class Result(NamedTuple):
    """The points of the first of a pair, 1 for a win, and whether it depended on the order in which they were shown."""

    points: float
    swapped: bool


Meet = Callable[[Bench, Sequence[int], Sequence[int]], Awaitable[Result]]


async def compared(bench: Bench) -> dict[int, Judgement]:
    """Returns for each trajectory its mean points against those that it meets, by what the judge writes of each pair:
    1 for a win, 1/2 for a tie. One that meets none has 1/2."""
    return await met_by(bench, _result)


async def met_by(bench: Bench, meet: Meet) -> dict[int, Judgement]:
    """Returns for each trajectory its mean points against those that it meets, where `meet` gives the result of each
    pair. One that meets none has 1/2."""
    found: dict[int, Judgement] = {}
    for seat in alike(bench):
        pairs = _pairs(len(seat), bench.config.neighbours)
        results = await together([meet(bench, seat[a], seat[b]) for a, b in pairs])
        met = dict(zip(pairs, results, strict=True))
        for place, same in enumerate(seat):
            found |= dict.fromkeys(same, _judgement(place, [len(one) for one in seat], met))
    return found


def _pairs(count: int, neighbours: int) -> list[tuple[int, int]]:
    """Returns the pairs that meet: all or, in a ring, those that are at most `neighbours` apart."""
    pairs = combinations(range(count), 2)
    return [(a, b) for a, b in pairs if not neighbours or min(b - a, count - b + a) <= neighbours]


def _judgement(place: int, sizes: Sequence[int], met: Mapping[tuple[int, int], Result]) -> Judgement:
    """Returns the mean points of each trajectory at a place; those that look the same as it tie with it."""
    points, weights, swapped = [0.5], [sizes[place] - 1], [0.0]
    for (a, b), result in met.items():
        if place in (a, b):
            points.append(result.points if place == a else 1 - result.points)
            weights.append(sizes[b if place == a else a])
            swapped.append(float(result.swapped))
    if not sum(weights):
        return Judgement(0.5)
    return Judgement(fmean(points, weights), {"judge_swapped": fmean(swapped[1:])} if len(swapped) > 1 else {})


async def _result(bench: Bench, a: Sequence[int], b: Sequence[int]) -> Result:
    """Asks in both orders, and returns the result of the first: a win only where both say so."""
    forth, back = await together([_points(bench, a, b), _points(bench, b, a)])
    points = forth if forth == 1 - back else 0.5
    return Result(points, forth != 1 - back)


async def _points(bench: Bench, first: Sequence[int], second: Sequence[int]) -> float:
    """Returns the points of what is shown first, by the most frequent of the answers."""
    verdicts = await bench.verdicts(pair(bench, first, second, "Say tie where neither did."))
    counts = Counter(verdict["better"] for verdict in verdicts).most_common()
    leading = [word for word, count in counts if count == counts[0][1]]
    return POINTS[leading[0]] if len(leading) == 1 else 0.5


def pair(bench: Bench, first: Sequence[int], second: Sequence[int], more: str = "", ending: str = ENDING) -> Question:
    """Returns the question which of two trajectories did better, where the first is shown first."""
    shown = {"first record": bench.transcripts[first[0]], "second record": bench.transcripts[second[0]]}
    about = tuple(dict.fromkeys(bench.episodes[number] for number in (*first, *second)))
    asks = (
        f"{bench.config.rubric}\nTwo records of the same task are shown. Which did better, the first or the second? "
        f"Their order says nothing. {more}".strip()
    )
    names = [f"{bench.episodes[one[0]]}" for one in (first, second)]
    purpose = f"judge, {names[0]} first, {names[1]} second"
    return Question(asks, shown, bench.config.rules(), about, purpose, ending=ending)
