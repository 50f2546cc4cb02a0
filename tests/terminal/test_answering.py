"""`sojourn answer`: open questions one by one, or as JSON, and what is said where there is nothing to answer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sojourn.cli import app
from sojourn.errors import RecordError
from sojourn.models.questions import Questions
from sojourn.record.run import RunFolder
from sojourn.types import Message, Role

CONFIG = "name = 'asks'\nseed = 1\nmodel.name = 'tiny'\n"


def run_with(folder: Path, *asked: str) -> Questions:
    RunFolder.create(folder, CONFIG).close()
    questions = Questions(folder)
    for number, text in enumerate(asked):
        said = [Message(Role.SYSTEM, "Play."), Message(Role.USER, f"Door {number}."), Message(Role.ASSISTANT, text)]
        questions.put(f"key{number}", f"rl/0/0/{number}-x", said, 600.0)
    return questions


def answer(folder: Path, *options: str, typed: str = "") -> str:
    done = CliRunner().invoke(app, ["answer", str(folder), *options], input=typed)
    if done.exception is not None:
        raise done.exception
    return done.output


def test_each_question_is_shown_with_its_episode_and_a_line_is_read(tmp_path):
    questions = run_with(tmp_path / "run", "ask: Which way?", "ask: And \x1b[31mnow\x1b[0m?")
    said = answer(tmp_path / "run", typed="North.\n\n")
    for shown in ("rl/0/0/0-x", "Play.", "Door 0.", "ask: Which way?", "Door 1.", "answered: 1", "does not go on"):
        assert shown in said
    assert "\x1b" not in said
    assert r"\x1b[31mnow" in said
    assert questions.reply("key0") == ("North.", True)
    assert [one.key for one in questions.open()] == ["key1"]  # an empty line leaves it open


def test_the_end_of_the_input_leaves(tmp_path):
    questions = run_with(tmp_path / "run", "ask: Which way?")
    assert "answered" not in answer(tmp_path / "run")
    assert len(questions.open()) == 1


def test_an_answer_that_cannot_be_taken_is_said_and_the_next_one_is_asked(tmp_path):
    questions = run_with(tmp_path / "run", "ask: Which way?", "ask: And now?")
    said = answer(tmp_path / "run", typed="x" * 5000 + "\nSouth.\n")
    assert "expected at least one and at most" in " ".join(said.split())
    assert questions.reply("key1") == ("South.", True)


def test_json_names_the_questions_and_answers_none(tmp_path):
    questions = run_with(tmp_path / "run", "ask: Which way?")
    [one] = json.loads(answer(tmp_path / "run", "--json"))
    assert (one["key"], one["episode"], one["question"]) == ("key0", "rl/0/0/0-x", "ask: Which way?")
    assert [message["role"] for message in one["conversation"]] == ["system", "user", "assistant"]
    assert len(questions.open()) == 1


def test_where_nothing_is_asked_one_sentence_says_so(tmp_path):
    questions = run_with(tmp_path / "run")
    assert "no question is open" in answer(tmp_path / "run")
    questions.put("k", "e", [Message(Role.ASSISTANT, "ask: ?")], 600.0)
    questions.close("k", "Nobody is there.")
    assert "0 answered by people, 1 by nobody in time" in " ".join(answer(tmp_path / "run").split())
    assert json.loads(answer(tmp_path / "run", "--json")) == []
    with pytest.raises(RecordError):
        answer(tmp_path / "elsewhere")
