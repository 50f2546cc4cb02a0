"""Takes a judge's verdict from how probable its model finds each of some answers, instead of from what it writes."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from sojourn.rewards.judgements import CHOICE, Bench, Judgement, questions, right_answer, together
from sojourn.rewards.pairings import Result, met_by, pair
from sojourn.rewards.verdicts import Scale

FIRST, SECOND = ORDER = ("first", "second")


def expected(probabilities: Sequence[float]) -> float:
    """Returns the expected place, from 0 to 1, of answers that lie at equal distances from the worst to the best."""
    last = len(probabilities) - 1
    return sum(probability * place for place, probability in enumerate(probabilities)) / last


async def likely(bench: Bench, reference: str = "") -> dict[int, Judgement]:
    """Returns the expected verdict on each trajectory alone, by its number: for criteria, each asked about alone, the
    weighted mean."""
    config = bench.config
    if not config.criteria:
        places = await _places(bench, config.rubric, reference)
        return {n: Judgement(place) for n, place in zip(bench.transcripts, places, strict=True)}
    asked = [
        _places(bench, f"{config.rubric}\nJudge this alone: {one.name}. {one.text}".strip(), reference, one.name)
        for one in config.criteria
    ]
    found: dict[int, Judgement] = {}
    for n, fractions in zip(bench.transcripts, zip(*await together(asked), strict=True), strict=True):
        named = zip(config.criteria, fractions, strict=True)
        parts = {f"judge_{one.name}": Scale(one.low, one.high).value(fraction) for one, fraction in named}
        found[n] = Judgement(fmean(fractions, [one.weight for one in config.criteria]), parts)
    return found


async def likely_beside_reference(bench: Bench) -> dict[int, Judgement]:
    """Returns the expected verdict on each trajectory beside the right answer."""
    return await likely(bench, right_answer(bench))


async def _places(bench: Bench, asks: str, reference: str, name: str = "") -> list[float]:
    answers = bench.config.answers
    ending = CHOICE.format(answers=", ".join(answers))
    purpose = f", {name}" if name else ""
    asked = questions(bench, asks, reference, ending=ending, purpose=purpose)
    return [expected(found) for found in await together([bench.weighed(one, answers) for one in asked])]


async def preferred(bench: Bench) -> dict[int, Judgement]:
    """Returns for each trajectory how probable it is that it is said to be better, the mean over those that it
    meets."""
    return await met_by(bench, _result)


async def _result(bench: Bench, a: Sequence[int], b: Sequence[int]) -> Result:
    """Asks in both orders, and returns the mean, in which what the model gives to a position cancels out."""
    forth, back = await together([_first(bench, a, b), _first(bench, b, a)])
    return Result((forth + 1 - back) / 2, (forth - 0.5) * (back - 0.5) > 0)


async def _first(bench: Bench, first: Sequence[int], second: Sequence[int]) -> float:
    """Returns how probable it is that what is shown first is said to be better."""
    question = pair(bench, first, second, ending=f"Answer with one word alone: {FIRST} or {SECOND}.")
    return (await bench.weighed(question, ORDER))[0]
