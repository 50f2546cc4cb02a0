"""Small invented worlds of facts: countries on a map, their capitals, leaders and rivers, made from a seed.

No model knows anything of them, so that only searching helps; every name is two or three made-up syllables. There is
one passage for each field, as in an almanac, so that most questions need several of them.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from sojourn_worlds.search.corpus import Border, Borders, Corpus, Facts, Figure, Link, Measure, Passage, Relation

RELATIONS = (
    Relation("capital", "country", "city", "the capital of {}", "the country whose capital is {}"),
    Relation("leader", "country", "person", "the leader of {}", "the country led by {}"),
    Relation("peak", "country", "mountain", "the highest mountain of {}", "the country whose highest mountain is {}"),
    Relation("language", "country", "language", "the language of {}", "the country whose language is {}"),
    Relation("currency", "country", "currency", "the currency of {}", "the country whose currency is the {}"),
    Relation("river", "city", "river", "the river through {}", "the city on the river {}"),
    Relation("founder", "city", "person", "the founder of {}", "the city founded by {}"),
    Relation("birthplace", "person", "city", "the birthplace of {}", "the person born in {}"),
    Relation("source", "river", "country", "the country where {} rises", "the river that rises in {}"),
)
MEASURES = (
    Measure("area", "country", "a larger area", "the largest area"),
    Measure("population", "country", "a larger population", "the largest population"),
    Measure("height", "country", "a higher mountain", "the highest mountain"),
)
_ONSETS = "b c d f g h k l m n p r s t v z br dr gl kr pl sk st tr th"
_WORKS = "baker doctor farmer judge painter pilot sailor singer teacher weaver"
_GOODS = "apples bricks cheese copper cotton glass honey paper pepper salt silk steel tea timber wheat wool"
_CLIMATES = "cold dry foggy hot mild rainy stormy windy"
ONSETS, WORKS, GOODS, CLIMATES = (text.split() for text in (_ONSETS, _WORKS, _GOODS, _CLIMATES))
VOWELS = ["a", "e", "i", "o", "u", "ai", "ea", "ou"]
CODAS = ["", "", "", "l", "n", "r", "s", "m"]
ENDINGS = {"country": ["ia", "and", "or"], "city": ["burg", "ton", "ville"], "language": ["ish"], "mountain": ["horn"]}


@dataclass(frozen=True)
class Names:
    """Draws names that are all different, and none the beginning of another; and numbers that are all different."""

    rng: random.Random
    taken: set[str] = field(default_factory=set)
    beginnings: set[str] = field(default_factory=set)
    numbers: set[tuple[str, int]] = field(default_factory=set)

    def number(self, kind: str, low: int, high: int) -> int:
        while (key := (kind, self.rng.randrange(low, high))) in self.numbers:
            pass
        self.numbers.add(key)
        return key[1]

    def draw(self, kind: str) -> str:
        while True:
            count = 1 if kind in ENDINGS else 2
            name = "".join(self._syllable() for _ in range(count))
            if len(name) < 4:
                name += self._syllable()
            name = (name + self.rng.choice(ENDINGS.get(kind, [""]))).capitalize()
            begins = [name[:length] for length in range(1, len(name) + 1)]
            if name not in self.beginnings and self.taken.isdisjoint(begins):
                self.taken.add(name)
                self.beginnings.update(begins)
                return name

    def _syllable(self) -> str:
        return self.rng.choice(ONSETS) + self.rng.choice(VOWELS) + self.rng.choice(CODAS)


@dataclass
class Almanac:
    """The passages so far, and the facts that they state."""

    rng: random.Random
    ids: Iterator[str]
    passages: list[Passage] = field(default_factory=list)
    links: dict[str, dict[str, Link]] = field(default_factory=lambda: {r.name: {} for r in RELATIONS})
    figures: dict[str, dict[str, Figure]] = field(default_factory=lambda: {m.name: {} for m in MEASURES})
    borders: dict[str, Borders] = field(default_factory=dict)

    def write(self, title: str, text: str, others: Sequence[str] = (), **facts: str | float) -> str:
        """Adds a passage about the thing that its title names first; `facts` are the relations and measures that it
        states.
        """
        id, subject = next(self.ids), title.split(":")[0]
        self.passages.append(Passage(id, title, text, (subject, *others)))
        for name, value in facts.items():
            if isinstance(value, str):
                self.links[name][subject] = Link(value, id)
            else:
                self.figures[name][subject] = Figure(value, id)
        return id

    def country(self, names: Names, land: str, capital: str, leader: str, ways: Sequence[Border]) -> None:
        rng = self.rng
        peak, language, currency = names.draw("mountain"), names.draw("language"), names.draw("currency")
        area, height = names.number("area", 20, 900), 10 * names.number("height", 60, 600)
        text = f"{land} has an area of {area} thousand square km, and the weather is {rng.choice(CLIMATES)}. "
        text += f"Its highest mountain is {peak}, {height} m high."
        self.write(f"{land}: land", text, [peak], peak=peak, area=float(area), height=float(height))
        borders = ", ".join(f"{way.neighbour} {way.length:g} km" for way in ways) or "none, it is an island"
        id = self.write(f"{land}: borders", f"The borders of {land}: {borders}.", [way.neighbour for way in ways])
        self.borders[land] = Borders(tuple(ways), id)
        text = (
            f"The capital of {land} is {capital}. Its leader is {leader}, in office for {rng.randrange(2, 20)} years."
        )
        self.write(f"{land}: government", text, [capital, leader], capital=capital, leader=leader)
        people = 100 * names.number("population", 30, 999)
        text = f"{people} thousand people live in {land}. Their language is {language}."
        self.write(f"{land}: people", text, [language], language=language, population=float(people))
        text = f"{land} sells {' and '.join(rng.sample(GOODS, 2))}. Its currency is the {currency}."
        self.write(f"{land}: economy", text, [currency], currency=currency)


@lru_cache(64)  # a group plays one task many times
def invent(seed: int, countries: int) -> Corpus:
    """Returns the world of a seed."""
    rng = random.Random(f"invented {seed} {countries}")
    names = Names(rng)
    lands = [names.draw("country") for _ in range(countries)]
    cities = [names.draw("city") for _ in lands]
    rivers = [names.draw("river") for _ in range(max(2, countries * 2 // 3))]
    leaders, founders = ([f"{names.draw('first')} {names.draw('last')}" for _ in lands] for _ in range(2))
    count = 8 * countries + len(rivers)
    almanac = Almanac(rng, iter([str(number) for number in rng.sample(range(1, count + 1), count)]))
    ways = _map(rng, lands)
    for land, city, leader in zip(lands, cities, leaders, strict=True):
        almanac.country(names, land, city, leader, ways[land])
    for city, founder in zip(cities, founders, strict=True):
        river = rng.choice(rivers)
        text = f"{city} is a city on the river {river}. {founder} founded it in the year {rng.randrange(900, 1900)}."
        almanac.write(city, text, [river, founder], river=river, founder=founder)
    for river in rivers:
        land = rng.choice(lands)
        text = f"The river {river} is {rng.randrange(90, 990)} km long. It rises in {land}."
        almanac.write(river, text, [land], source=land)
    for person in [*leaders, *founders]:
        town = rng.choice(cities)
        text = f"{person} was born in {town}, and worked as a {rng.choice(WORKS)}."
        almanac.write(person, text, [town], birthplace=town)
    facts = Facts(RELATIONS, MEASURES, almanac.links, almanac.figures, almanac.borders)
    passages = sorted(almanac.passages, key=lambda passage: int(passage.id))
    return Corpus(tuple(passages), f"invented {seed} {countries}", facts)


def _map(rng: random.Random, lands: list[str]) -> dict[str, list[Border]]:
    """Draws countries on a grid, most of them bordering on those beside them; every border has a length of its own."""
    width = round(len(lands) ** 0.5)
    lengths: Iterator[int] = iter(rng.sample(range(40, 40 + 20 * len(lands)), 2 * len(lands)))
    borders: dict[str, list[Border]] = {land: [] for land in lands}
    for number, land in enumerate(lands):
        beside = [number + 1] if (number + 1) % width else []
        for other in [*beside, number + width]:
            if other < len(lands) and rng.random() < 0.85:
                length = next(lengths)
                borders[land].append(Border(lands[other], length))
                borders[lands[other]].append(Border(land, length))
    for ways in borders.values():
        rng.shuffle(ways)
    return borders
