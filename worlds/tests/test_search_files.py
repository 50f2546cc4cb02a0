"""The world `search` over the user's files: passages, questions that bring their own, and what cannot be read."""

from __future__ import annotations

import json

import pytest
from people_at_play import say
from search_play import follow

from sojourn.checks.env import check_env
from sojourn.errors import ConfigError
from sojourn_worlds.search import Search
from sojourn_worlds.search.files import load
from sojourn_worlds.search.splits import split_of

HOTPOT = {
    "question": "Who built the tower?",
    "answer": "Ada Stone",
    "supporting_facts": [["Tower", 0], ["Ada Stone", 1]],
    "context": [["Tower", ["It was built", "by A. Stone."]], ["Ada Stone", ["A builder."]], ["Lake", ["Deep."]]],
}
MUSIQUE = {
    "question": "Where is the lake?",
    "answer": "Norland",
    "answer_aliases": ["Nordland"],
    "paragraphs": [
        {"idx": 0, "title": "Lake", "paragraph_text": "It lies in Norland.", "is_supporting": True},
        {"idx": 1, "title": "Lake", "paragraph_text": "Fish live there.", "is_supporting": False},
    ],
}


async def test_questions_bring_their_own_passages(tmp_path) -> None:
    path = tmp_path / "asked.jsonl"
    path.write_text("\n".join(json.dumps(record) for record in (HOTPOT, MUSIQUE)))
    family = Search(corpus="", questions=str(path), marking="evidence")
    tasks = [task for split in ("train", "test") for task in family.tasks(split)]
    assert sorted(task.data["question"] for task in tasks) == ["Where is the lake?", "Who built the tower?"]
    assert [len(family.tasks(split)) for split in ("train", "test")] == [1, 1]
    by_answer = {task.data["answer"]: task for task in tasks}
    texts = [family.corpus_at(tasks[0].seed).by_id[id].text for id in by_answer["Norland"].data["evidence"]]
    assert texts == ["It lies in Norland."]
    assert len(by_answer["Ada Stone"].data["evidence"]) == 2
    for task in tasks:
        assert (await follow(family.make(task)))[-1][1].rewards == {"agent": 1.0}
    play = family.make(by_answer["Norland"])
    await play.start()
    assert (await play.step("agent", say("answer[Nordland]"))).success
    report = await check_env(family)
    assert report.passed, report.failed


def test_passages_may_have_the_id_0_and_separators_of_lines_in_their_text(tmp_path) -> None:
    passages, asked = tmp_path / "passages.jsonl", tmp_path / "asked.jsonl"
    records = [{"id": 0, "title": "Tower", "text": "Ada\u2028built it."}, {"id": 1, "title": "Lake", "text": "Deep."}]
    passages.write_text("\n".join(json.dumps(one, ensure_ascii=False) for one in records), "utf-8")
    asked.write_text(json.dumps({"question": "Who built it?", "answer": "Ada", "evidence": [0]}))
    corpus, [question] = load(str(passages), str(asked))
    assert question.evidence == ("0",)
    assert corpus.by_id["0"].text == "Ada built it."


async def test_evidence_of_other_wording_is_found_by_its_title(tmp_path) -> None:
    """The passages of a question need not be those of the corpus that is searched."""
    (tmp_path / "own.jsonl").write_text(
        "\n".join(json.dumps({"title": title, "text": f"All about {title}."}) for title in ("Tower", "Ada Stone"))
    )
    unanswerable = MUSIQUE | {"answerable": False}
    (tmp_path / "asked.jsonl").write_text("\n".join(json.dumps(record) for record in (HOTPOT, unanswerable)))
    family = Search(corpus=str(tmp_path / "own.jsonl"), questions=str(tmp_path / "asked.jsonl"))
    tasks = [task for split in ("train", "test") for task in family.tasks(split)]
    assert [task.data["answer"] for task in tasks] == ["Ada Stone"]
    found = family.corpus_at(tasks[0].seed).by_id
    assert [found[id].title for id in tasks[0].data["evidence"]] == ["Tower", "Ada Stone"]


async def test_a_folder_of_texts_is_a_corpus(tmp_path) -> None:
    folder = tmp_path / "texts"
    (folder / "deep").mkdir(parents=True)
    (folder / "one.txt").write_text("The mill burnt down.\n\n" + "Long words. " * 120)
    (folder / "deep" / "two.md").write_text("# Owners\n\nThe mill was Bob's.\n\n## Later\n\nThen Eve's.")
    (folder / "three.jsonl").write_text('{"id": "x7", "title": "Mill", "text": "A mill grinds [corn]."}\n')
    (folder / "no.bin").write_bytes(b"\xff")
    asked = [
        {"question": f"Question {n}?", "answer": ["Bob", 7], "evidence": ["x7", "deep/two: Owners"]} for n in "abcd"
    ]
    (tmp_path / "asked.json").write_text(json.dumps(asked))
    family = Search(corpus=str(folder), questions=str(tmp_path / "asked.json"), marking="evidence")
    corpus = family.corpus_at(family.tasks("train")[0].seed)
    assert [passage.title for passage in corpus.passages] == [
        "deep/two: Owners",
        "deep/two: Later",
        "one",
        "one",
        "Mill",
    ]
    assert all(task.data["aliases"] == ["7"] for task in family.tasks("train"))
    for split in ("train", "test"):
        assert all(
            len(family.tasks(split)) < 4 or split_of(task.data["question"]) == split for task in family.tasks(split)
        )
        for task in family.tasks(split):
            assert (await follow(family.make(task)))[-1][1].rewards == {"agent": 1.0}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "is not .jsonl"),
        ("[1]", "list of records"),
        ('{"answer": "x"}', 'has no "question"'),
        ('{"question": "x?", "answer": ""}', "no question with an answer"),
        ('{"question": "x?", "answer": "y", "evidence": ["lost"], "context": [["T", ["y"]]]}', None),
        ('{"question": "x?", "answer": "y"}', "holds no passage"),
    ],
)
def test_unreadable_questions_are_refused(tmp_path, line: str, message: str | None) -> None:
    path = tmp_path / "asked.jsonl"
    path.write_text(line + "\n")
    family = Search(corpus="", questions=str(path))
    if message is None:
        assert len(family.tasks("train")) + len(family.tasks("test")) == 1
        return
    with pytest.raises(ConfigError, match=message):
        family.tasks("train")


def test_evidence_that_is_no_passage_is_refused(tmp_path) -> None:
    (tmp_path / "a.txt").write_text("Some text.")
    (tmp_path / "q.jsonl").write_text('{"question": "x?", "answer": "y", "evidence": ["lost"]}\n')
    with pytest.raises(ConfigError, match='evidence "lost"'):
        Search(corpus=str(tmp_path / "a.txt"), questions=str(tmp_path / "q.jsonl")).tasks("train")
