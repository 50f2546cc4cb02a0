"""Questions of the world `search` that are proposed as text."""

from __future__ import annotations

import asyncio

import pytest

from sojourn.envs.proposing import Proposing
from sojourn.errors import ActionError, ConfigError
from sojourn.types import Message, Role
from sojourn_worlds.search import Search

WORLD = Search()
LIKE = WORLD.tasks("train")[0]


def text(**changed: str) -> str:
    lines = {**dict(line.split(": ", 1) for line in WORLD.write_task(LIKE).splitlines()), **changed}
    return "\n".join(f"{name}: {value}" for name, value in lines.items())


def test_a_question_is_read_as_it_is_written():
    for like in WORLD.tasks("train")[:20]:
        made = WORLD.read_task(like, WORLD.write_task(like), 5)
        assert made is not None
        for key in ("question", "answer", "evidence", "place"):
            assert made.data[key] == like.data[key]


def test_a_proposer_is_shown_the_passages_of_the_question_in_whose_place_it_proposes():
    corpus = WORLD.corpus_at(LIKE.seed)
    for id in LIKE.data["evidence"]:
        assert corpus.by_id[id].text in WORLD.task_format(LIKE)


def test_another_question_about_the_same_world_is_a_task_that_is_judged():
    passage = WORLD.corpus_at(LIKE.seed).by_id[LIKE.data["evidence"][0]]
    answer = next(
        word for word in passage.text.split() if len(word) > 4 and word.isalpha() and word not in passage.names
    )
    made = WORLD.read_task(LIKE, text(question=f"What of {passage.names[0]}?", answer=answer, evidence=passage.id), 5)
    assert made is not None
    env = WORLD.make(made)
    asyncio.run(env.start())
    step = asyncio.run(env.step("agent", Message(Role.ASSISTANT, f"answer[{answer}]")))
    assert step.success


@pytest.mark.parametrize(
    "changed",
    [
        {"answer": "a word that no passage has"},
        {"evidence": "no-such-passage"},
        {"evidence": ", ".join([*LIKE.data["evidence"], "no-such-passage"])},
        {"question": f"Is it {LIKE.data['answer']}?"},
        {"question": "What is it?"},
        {"answer": "the"},
    ],
)
def test_a_question_whose_answer_cannot_be_reached_is_none(changed):
    assert WORLD.read_task(LIKE, text(**changed), 5) is None


@pytest.mark.parametrize(
    "written", ["", "a question?", "question: a?\nanswer: b", text() + "\nanswer: c", text(evidence="1, 2, 3, 4, 5")]
)
def test_malformed_text_is_no_question(written):
    with pytest.raises(ActionError):
        WORLD.read_task(LIKE, written, 5)


def test_texts_with_masks_cannot_be_proposed():
    world = Proposing(world=Search(masks=1))
    with pytest.raises(ConfigError, match="texts with masks cannot be proposed"):
        world.proposal(world.tasks("train")[0], [], 1)
