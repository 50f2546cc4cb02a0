"""Questions of one to four hops over facts, with their answers and the passages that they take.

A question names a thing by a path: a known name, a relation from it or back to it, the neighbour with the longest
border, the one country that borders on two, the larger of two, the largest among neighbours. Its hops are the passages
that such a path needs, as in MuSiQue (Trivedi et al. 2022, arXiv:2108.00573), where a hop is a paragraph; comparison
and intersection are kinds of HotpotQA (Yang et al. 2018, arXiv:1809.09600). The sentences are ours.

Every question is checked when it is made: each step has one outcome, nothing on the path comes twice, every passage
states what is taken from it, and the question does not give away the answer.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sojourn.errors import ConfigError
from sojourn_worlds.search.corpus import Border, Corpus, Facts, Measure
from sojourn_worlds.search.marking import normalised

MOST_HOPS = 4
NO_BORDER = Border("", 0.0)
MARGIN = 1.02  # how much larger the larger of two numbers is at least


class Step(NamedTuple):
    """One passage of the path, and the words that are taken from it."""

    passage: str
    says: str


@dataclass(frozen=True)
class Thing:
    """A thing that is named by a path from known names: `phrase` inside a sentence, `asked` as a question of its
    own."""

    name: str
    kind: str
    phrase: str
    asked: str
    ways: tuple[str, ...] = ()  # which kinds of step led here
    steps: tuple[Step, ...] = ()
    on_path: tuple[str, ...] = ()  # every name that was passed

    @property
    def hops(self) -> int:
        return len({step.passage for step in self.steps})


@dataclass(frozen=True)
class Question:
    text: str
    answer: str
    aliases: tuple[str, ...]
    evidence: tuple[str, ...]  # ids of passages, in the order in which they are needed
    kinds: tuple[str, ...]
    spans: tuple[tuple[str, ...], ...] = ()  # of a text with masks: what each hides, and other right ways to say it


def ask(rng: random.Random, corpus: Corpus, hops: int, accept: Callable[[Question], bool] | None = None) -> Question:
    """Returns a question of so many hops that has no flaw and that `accepted` accepts."""
    facts = corpus.facts
    if facts is None:
        raise ConfigError("questions are made from facts, and this corpus has none: give questions of your own")
    for _ in range(10_000):
        thing = _path(rng, facts, hops)
        if thing is None or thing.hops != hops or len(thing.steps) != hops or flaw(thing, corpus):
            continue
        evidence = tuple(step.passage for step in thing.steps)
        question = Question(thing.asked, thing.name, facts.aliases.get(thing.name, ()), evidence, thing.ways)
        if accept is None or accept(question):
            return question
    raise ConfigError(f"no question of {hops} hops was found in 10000 attempts: use more countries or fewer hops")


def flaw(thing: Thing, corpus: Corpus) -> str:
    """Returns why a question would be unfair; empty where it is not."""
    if len(set(map(str.lower, thing.on_path))) < len(thing.on_path):
        return "its path passes something twice"
    for step in thing.steps:
        passage = corpus.by_id[step.passage]
        if f" {normalised(step.says)} " not in f" {normalised(f'{passage.title} {passage.text}')} ":
            return f"passage {step.passage} does not say {step.says}"
    compared = {"comparison", "superlative"} & set(thing.ways[-1:])
    if not compared and f" {normalised(thing.name)} " in f" {normalised(thing.asked)} ":
        return "it gives its answer away"
    return ""


def _path(rng: random.Random, facts: Facts, hops: int) -> Thing | None:
    starts = [_named, _inverse, _compared, _shared, _most]
    thing = rng.choice(starts[: 2 if hops == 1 else None])(rng, facts)
    while thing is not None and thing.hops < hops:
        thing = _further(rng, facts, thing)
    return thing


def _named(rng: random.Random, facts: Facts) -> Thing | None:
    relation = rng.choice([*facts.relations, None])
    if relation is None:
        name, kind = rng.choice(list(facts.borders)), "country"
    else:
        name, kind = rng.choice(list(facts.links[relation.name])), relation.of
    return Thing(name, kind, name, "", on_path=(name,))


def _inverse(rng: random.Random, facts: Facts) -> Thing | None:
    relation = rng.choice(facts.relations)
    backwards = facts.inverse[relation.name]
    if not backwards:
        return None
    value = rng.choice(list(backwards))
    link, phrase = backwards[value], relation.inverse.format(value)
    return _reached(link.value, relation.of, phrase, "inverse", Step(link.passage, value), (value, link.value))


def _reached(name: str, kind: str, phrase: str, way: str, step: Step, on_path: tuple[str, ...]) -> Thing:
    return Thing(name, kind, phrase, _question(kind, phrase), (way,), (step,), on_path)


def _question(kind: str, phrase: str) -> str:
    return f"{'Who' if kind == 'person' else 'What'} is {phrase}?"


def _compared(rng: random.Random, facts: Facts) -> Thing | None:
    measure = rng.choice(facts.measures)
    one, other = rng.sample(list(facts.figures[measure.name]), 2)
    winner = _winner(facts, measure, [one, other])
    if winner is None:
        return None
    steps = tuple(Step(facts.figures[measure.name][name].passage, name) for name in (one, other))
    phrase, asked = f"whichever of {one} and {other} has {measure.more}", f"Which has {measure.more}, {one} or {other}?"
    return Thing(winner, measure.of, phrase, asked, ("comparison",), steps, (one, other))


def _winner(facts: Facts, measure: Measure, names: Sequence[str]) -> str | None:
    """Returns the one with the largest figure; None where another comes close, or a figure is not known."""
    known = facts.figures[measure.name]
    if len(names) < 2 or any(name not in known for name in names):
        return None
    second, first = sorted(names, key=lambda name: known[name].value)[-2:]
    return first if known[first].value > MARGIN * max(0.0, known[second].value) else None


def _shared(rng: random.Random, facts: Facts) -> Thing | None:
    """Returns the one country that borders on two others, as both of their passages say."""
    between = rng.choice(list(facts.borders))
    around = [border.neighbour for border in facts.borders[between].all if border.neighbour in facts.borders]
    if len(around) < 2:
        return None
    one, other = rng.sample(around, 2)
    both = set.intersection(*({border.neighbour for border in facts.borders[name].all} for name in (one, other)))
    if both != {between}:
        return None
    steps = tuple(Step(facts.borders[name].passage, between) for name in (one, other))
    phrase = f"the country that borders on both {one} and {other}"
    return Thing(between, "country", phrase, _question("country", phrase), ("both",), steps, (one, other, between))


def _most(rng: random.Random, facts: Facts) -> Thing | None:
    """Returns the neighbour with the largest figure."""
    start, measure = rng.choice(list(facts.borders)), rng.choice(facts.measures)
    around = [border.neighbour for border in facts.borders[start].all]
    winner = _winner(facts, measure, around) if len(around) < MOST_HOPS else None
    if winner is None or measure.of != "country":
        return None
    steps = (
        Step(facts.borders[start].passage, winner),
        *(Step(facts.figures[measure.name][name].passage, name) for name in around),
    )
    phrase = f"the neighbour of {start} with {measure.most}"
    return Thing(winner, "country", phrase, f"Which is {phrase}?", ("superlative",), steps, (start, *around))


def _further(rng: random.Random, facts: Facts, thing: Thing) -> Thing | None:
    """Extends a path by one step, a relation or the longest border; None where none is possible."""
    options = list(_onward(facts, thing))
    return rng.choice(options) if options else None


def _onward(facts: Facts, thing: Thing) -> Iterator[Thing]:
    for relation in facts.relations:
        link = facts.links[relation.name].get(thing.name)
        if link is not None and relation.of == thing.kind:
            phrase, step = relation.phrase.format(thing.phrase), Step(link.passage, link.value)
            yield _extended(thing, link.value, relation.to, phrase, "relation", step)
    if thing.kind == "country" and (borders := facts.borders.get(thing.name)) and borders.all:
        *_, second, first = (NO_BORDER, *sorted(borders.all, key=lambda border: border.length))
        if first.length > second.length:
            phrase = f"the country that has the longest border with {thing.phrase}"
            step = Step(borders.passage, first.neighbour)
            yield _extended(thing, first.neighbour, "country", phrase, "border", step)


def _extended(thing: Thing, name: str, kind: str, phrase: str, way: str, step: Step) -> Thing:
    path = (*thing.on_path, name)
    return Thing(name, kind, phrase, _question(kind, phrase), (*thing.ways, way), (*thing.steps, step), path)
