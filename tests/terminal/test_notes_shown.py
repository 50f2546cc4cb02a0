"""The notes of a turn in the terminal: who asked how, where history was rewritten, what a program printed last."""

import pytest
from rich.console import Group

from sojourn.terminal import episode, find
from sojourn.terminal.notes import notes_text
from tests import live_run
from tests.terminal.conftest import printed


@pytest.fixture
async def folder(tmp_path):
    await live_run.make(tmp_path / "support", frozen=False)
    return tmp_path / "support"


async def test_an_episode_says_who_asked_for_a_turn_and_where_the_history_was_rewritten(folder):
    text = printed(episode.transcript(*find.load_episode(folder, "live-first", False)), 200)
    _, *turns = text.split("turn ")
    assert all("asked over chat completions by python-httpx/" in turn for turn in turns[:3])
    assert "new context, rewritten: what came before our last reply was changed" in turns[2]
    assert "differs at message 1 of the user, from character 1 on" in turns[2]
    assert "as recorded: My parcel is late." in turns[2]
    assert "as sent: (summary) My parcel is late." in turns[2]
    assert "differs at" not in turns[0] + turns[1]
    assert '"messages"' not in text  # no body of a request


def test_of_what_a_program_printed_the_end_is_shown_unless_all_is_asked_for():
    notes = {
        "program": "it ended by itself, with exit code 3",
        "program's errors": "first\n" * 200 + "no lock\x1b[2J\n",
    }
    short, full = (printed(Group(notes_text(notes, limit)), 80) for limit in (2000, None))
    assert "program: it ended by itself, with exit code 3" in short
    assert "program's errors: [911 characters] " in short
    assert all("no lock\\x1b[2J" in text for text in (short, full))
    assert (short.count("first"), full.count("first")) == (48, 200)


@pytest.mark.parametrize("notes", [{}, {"request body": "{}", "request body shares": "0 1 2"}])
def test_a_turn_without_notes_that_are_shown_has_none(notes):
    assert notes_text(notes, 2000) is None


def test_what_was_streamed_to_a_client_without_a_name_says_so_and_long_differences_are_cut():
    notes = {
        "API": "messages",
        "client": "",
        "streamed": "yes",
        "new context": "side: its own",
        "history before": "a" * 999,
    }
    text = str(notes_text(notes, 2000))
    assert "asked over messages by a client that does not say its name, streamed" in text
    assert "699 more characters" in text
    assert "as sent: nothing, it ended here" in text
