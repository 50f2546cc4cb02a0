"""One episode: search, open what was listed, answer.

The interface is that of search agents such as Search-R1 (Jin et al. 2025, arXiv:2503.09516), as calls of their own
rather than inside one long answer; opening what was listed is WebGPT's (Nakano et al. 2021, arXiv:2112.09332).
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from sojourn.errors import ActionError, InfrastructureError
from sojourn.types import Message, Observation, Role, Step, Task
from sojourn_worlds.search import ranking
from sojourn_worlds.search.corpus import Passage
from sojourn_worlds.search.index import Index, words
from sojourn_worlds.search.marking import Mark, gives_away, mark, mark_spans, normalised

SYSTEM_PROMPT = (
    "Answer the question from the passages. Say one action: {actions}. The answer is short, and one alone{looked}.\n"
    "Question: {question}"
)
MASKED_PROMPT = (
    "Find what the masks of the text hide, in the passages. Say one action: {actions}. The answer has what each mask "
    "hides, in the order of their numbers, with a semicolon between two.\n{question}"
)
LOOKED = "; a choice between what the question names counts only if the passages that decide it were listed"
ACTION = re.compile(r"(search|open|neighbours|answer)\[([^\n]*)\]", re.IGNORECASE)
LONGEST_ARGUMENT = 200


class Rules(NamedTuple):
    """The fields of the family that shape an episode."""

    results: int
    snippet: int
    graph: bool
    marking: str
    turns: int
    choices: bool
    candidates: int = 0

    @property
    def found(self) -> int:
        """Returns how many passages the engine finds for a query, of which `results` are shown."""
        return self.candidates or self.results


class State(NamedTuple):
    turns_taken: int = 0  # actions
    shown: tuple[str, ...] = ()  # ids of the passages in the last list, or of the one opened last
    listed: frozenset[str] = frozenset()
    opened: frozenset[str] = frozenset()
    last_query: str = ""
    candidates: tuple[str, ...] = ()  # ids of the passages that are to be ranked


@dataclass
class Play:
    index: Index
    task: Task
    rules: Rules
    state: State = field(default_factory=State)
    done: bool = False

    async def start(self) -> Observation:
        actions = ["search[words]", "open[id]", *(["neighbours[name]"] if self.rules.graph else []), "answer[text]"]
        looked, prompt = LOOKED if self._given_away() else "", MASKED_PROMPT if self._spans else SYSTEM_PROMPT
        text = prompt.format(actions=", ".join(actions), question=self.data["question"], looked=looked)
        count = len(self.index.corpus.passages)
        return self._observe(f"There are {count} passages to search.", (Message(Role.SYSTEM, text),))

    async def step(self, agent: str, action: Message) -> Step:
        if self.done:
            raise InfrastructureError("a search world was given an action after its end: play each world once")
        if (agent == ranking.SEAT) != bool(self.state.candidates):
            raise InfrastructureError(f"a search world was given an action of '{agent}' in another's turn")
        if self.state.candidates:
            return self._ranked(agent, action.text)
        verb, argument = self._parse(action.text)
        if verb == "answer":
            return self._end(agent, argument)
        if verb == "open":
            text = self._open(argument)
        else:
            passages = await self._find(verb, argument)
            if verb == "search" and self.rules.candidates and len(passages) > 1:
                return self._to_rank(agent, passages, argument)
            text = self._list(passages, argument)
        return self._go_on(agent, text)

    def _to_rank(self, agent: str, passages: tuple[Passage, ...], query: str) -> Step:
        """Returns the step after which the ranker is asked."""
        ids = tuple(passage.id for passage in passages)
        self.state = self.state._replace(
            turns_taken=self.state.turns_taken + 1, last_query=query, candidates=ids
        )  # fmt: skip
        if self.state.turns_taken >= self.rules.turns:
            return self._end(agent, None)
        count = min(self.rules.results, len(ids))
        told = ranking.SYSTEM_PROMPT.format(count=count, example=ranking.written(range(count)[::-1]))
        lines = [
            f"[{number}] {passage.title}: {snippet(passage.text, query, ranking.SHOWN_WORDS)}"
            for number, passage in enumerate(passages, 1)
        ]
        text = "\n".join([f"Question: {self.data['question']}", f"Search: {query}", *lines])
        choices = tuple(f"[{number}]" for number in range(1, len(ids) + 1)) if self.rules.choices else ()
        shown = Observation(
            (Message(Role.USER, text),), (Message(Role.SYSTEM, told),), choices=choices, agent=ranking.SEAT
        )
        return Step(shown, {agent: 0.0})

    def _ranked(self, agent: str, text: str) -> Step:
        """Returns the step that shows the first of the candidates in the order that the ranker says."""
        candidates = [self.index.corpus.by_id[id] for id in self.state.candidates]
        count = min(self.rules.results, len(candidates))
        places = ranking.ranked(text, len(candidates), count)
        best = tuple(candidates[place] for place in places or range(count))
        answerable = any(ranking.holds_answer(passage, self._accepted) for passage in candidates)
        hits = ranking.quality(best, self._accepted) if answerable else 0.0
        told = self._list(best, self.state.last_query)
        info = {"answerable": float(answerable), "search/hits": hits}
        return Step(self._observe(told), {agent: hits if places else ranking.FORMAT_PENALTY}, info=info)

    def _list(self, passages: tuple[Passage, ...], query: str) -> str:
        ids = tuple(passage.id for passage in passages)
        self.state = self.state._replace(
            shown=ids, listed=self.state.listed | set(ids), last_query=query, candidates=()
        )  # fmt: skip
        return "\n".join(self._line(passage, query) for passage in passages) or "Nothing found."

    def _go_on(self, agent: str, text: str) -> Step:
        self.state = self.state._replace(turns_taken=self.state.turns_taken + 1)
        if self.state.turns_taken >= self.rules.turns:
            return self._end(agent, None)
        return Step(self._observe(text), {agent: 0.0})

    async def close(self) -> None:
        pass

    async def fork(self) -> Play:
        return replace(self)  # all that changes is the frozen state and a flag

    def state_key(self) -> str:
        state = self.state
        known = (state.turns_taken, state.shown, sorted(state.listed), sorted(state.opened), state.last_query)
        known = (*known, state.candidates) if state.candidates else known
        return f"{self.task.id}/{hashlib.sha256(repr(known).encode()).hexdigest()[:24]}"

    def expert(self) -> str:
        """Finds and opens the evidence, in order, and answers; it answers at once where no turn is left for that. It
        ranks the evidence first."""
        if candidates := self.state.candidates:
            wanted = [id for id in self.data["evidence"] if id in candidates and id not in self.state.listed]
            order = [*wanted, *(id for id in candidates if id not in wanted)][: self.rules.results]
            return ranking.written([candidates.index(id) for id in order])
        missing = [id for id in self.data["evidence"] if id not in self.state.opened]
        left = self.rules.turns - self.state.turns_taken
        for id in missing if left > 1 else []:
            if id in self.state.listed:
                return f"open[{id}]"
            if query := self._query(self.index.corpus.by_id[id]):
                return f"search[{query}]"
        return f"answer[{self.data['answer']}]"

    @property
    def data(self) -> Mapping[str, Any]:
        return self.task.data

    def _parse(self, text: str) -> tuple[str, str]:
        match = ACTION.fullmatch(text.strip()) if len(text) < 1000 else None
        verb, argument = (match[1].lower(), " ".join(match[2].split())) if match else ("", "")
        if match is None or (verb == "neighbours" and not self.rules.graph):
            raise ActionError(f'"{text.strip()[:30]}" is no action, say search[words], open[id] or answer[text].')
        if len(argument) > LONGEST_ARGUMENT:
            raise ActionError(f"That is too long, use at most {LONGEST_ARGUMENT} letters.")
        if verb == "search" and not words(argument):
            raise ActionError("There are no words to search for, say search[words].")
        if verb == "answer" and not normalised(argument):
            raise ActionError("That answer is empty, say answer[text].")
        if verb == "neighbours" and argument.lower() not in self.index.corpus.naming:
            raise ActionError(f'Nothing is known of "{argument[:30]}", say neighbours[name] with a name of a passage.')
        if verb == "open" and argument not in self.state.listed:
            raise ActionError(f'No passage "{argument[:30]}" was listed, say open[id] with an id of a list.')
        return verb, argument

    async def _find(self, verb: str, argument: str) -> tuple[Passage, ...]:
        if verb == "neighbours":
            return tuple(self.index.corpus.naming[argument.lower()][: self.rules.results])
        if self.index.slow:
            return await asyncio.to_thread(self.index.search, argument, self.rules.found)
        return self.index.search(argument, self.rules.found)

    def _open(self, id: str) -> str:
        passage = self.index.corpus.by_id[id]
        self.state = self.state._replace(shown=(id,), opened=self.state.opened | {id}, last_query="")
        return f"{passage.title}\n{passage.text}"

    def _line(self, passage: Passage, query: str) -> str:
        cut = snippet(passage.text, query, self.rules.snippet)
        return f"{passage.id} {passage.title}" + (f" | {cut}" if cut else "")

    def _end(self, agent: str, answer: str | None) -> Step:
        """Returns the last step; running out of turns (without an answer) earns nothing."""
        self.done = True
        judged = self._mark(answer) if answer else Mark(0.0, 0.0, 0.0)
        info = {f"search/{name}": value for name, value in judged._asdict().items()}
        rewards = {agent: earned(judged, self.rules.marking)} | ({ranking.SEAT: 0.0} if self.rules.candidates else {})
        return Step(None, rewards, done=True, success=judged.exact == 1.0, info=info)

    @property
    def _answers(self) -> tuple[str, ...]:
        return (self.data["answer"], *self.data["aliases"])

    @property
    def _accepted(self) -> tuple[str, ...]:
        """Returns the answers that a passage may hold: those of all masks, where the task is a text with masks."""
        return tuple(answer for answers in self._spans for answer in answers) or self._answers

    @property
    def _spans(self) -> list[list[str]]:
        """Returns the accepted answers for each mask; none where the task is a question."""
        return self.data.get("spans", [])

    def _given_away(self) -> bool:
        """Returns whether a guess is likely to be right, so that the evidence must have been listed."""
        return not self._spans and bool(self.data["evidence"]) and gives_away(self.data["question"], self._answers)

    def _mark(self, answer: str) -> Mark:
        """Returns the mark of an answer; nothing for a choice that was not looked up."""
        evidence = self.data["evidence"]
        if self._spans:
            return mark_spans(answer, self._spans, evidence, self.state.opened, self.index.corpus.names_in)
        judged = mark(answer, self._answers, evidence, self.state.opened, self.index.corpus.names_in(answer))
        if self._given_away() and not self.state.listed >= set(evidence):
            return judged._replace(exact=0.0, f1=0.0)
        return judged

    def _observe(self, text: str, system: tuple[Message, ...] = ()) -> Observation:
        choices = tuple(self._choices()) if self.rules.choices else ()
        return Observation((Message(Role.USER, text),), system=system, choices=choices)

    def _choices(self) -> list[str]:
        """Lists opening what is listed, searching for names that were met and for the titles about them, and answering
        so.
        """
        names, listed = self._met(), sorted(self.state.listed)
        about = [p for name in names for p in self.index.corpus.naming[name.lower()] if p.names[0] == name]
        wanted = [*map(clean, names), *(clean(passage.title) for passage in about)]
        offered = [
            *(f"open[{id}]" for id in (*self.state.shown, *listed) if id not in self.state.opened),
            *(f"search[{name}]" for name in wanted if words(name)),
            *(f"answer[{clean(name)}]" for name in names if normalised(clean(name))),
        ]
        return [offer for offer in dict.fromkeys(offered) if len(offer) <= LONGEST_ARGUMENT]

    def _met(self) -> list[str]:
        """Returns the names that the question contains, and those of the passages that were opened."""
        corpus = self.index.corpus
        opened = [name for id in sorted(self.state.opened) for name in corpus.by_id[id].names]
        return list(dict.fromkeys([*corpus.names_in(self.data["question"]), *opened]))

    def _query(self, passage: Passage) -> str:
        """Returns words that list the passage: a met name that it mentions, its title, more and more of its text; empty
        where none do.
        """
        words_of_text = passage.text.split()
        met = [name for name in self._met() if name in passage.names]
        for wanted in (*met, passage.title, f"{passage.title} {' '.join(words_of_text[:8])}", " ".join(words_of_text)):
            query = clean(wanted)[:LONGEST_ARGUMENT]
            if passage in self.index.search(query, self.rules.found):
                return query
        return ""


def clean(text: str) -> str:
    """Returns a text that can stand between the brackets of an action."""
    return " ".join(text.replace("[", " ").replace("]", " ").split())


def earned(judged: Mark, marking: str) -> float:
    """Returns the reward of a mark: 1 for the right answer, with "evidence" also for having opened the evidence."""
    if marking == "exact":
        return judged.exact
    return judged.f1 if marking == "f1" else (judged.f1 + judged.evidence) / 2


def snippet(text: str, query: str, length: int) -> str:
    """Returns so many words of the text, from the first that the query contains or from the beginning."""
    if not length:
        return ""
    asked, text_words = set(words(query)), text.split()
    hits = [n for n, word in enumerate(text_words) if asked & set(re.findall(r"\w+", word.lower()))]
    start = max(0, min(hits[0] if hits else 0, len(text_words) - length))
    cut = " ".join(text_words[start : start + length])
    return ("... " if start else "") + cut + (" ..." if start + length < len(text_words) else "")
