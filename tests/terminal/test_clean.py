"""Nothing that a terminal obeys or hides gets through, and nothing that people write is lost."""

import shlex
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sojourn.terminal.clean import clean, escaped, one_line, shell_word
from sojourn.terminal.episode import play_again
from sojourn.types import Task


@given(st.text(alphabet=st.characters()))
def test_what_is_left_is_harmless(text):
    shown = clean(text, None)
    assert all(c in "\n\u200c\u200d" or not c.isascii() or c.isprintable() for c in shown)
    assert not {"\x1b", "\x07", "\x9b", "\u202e", "\u2066", "\ufeff", "\u2028"} & set(shown)
    shown.encode()  # no lone surrogates


@pytest.mark.parametrize("text", ["plain", "naïve 日本語", "👩‍🚀", "می‌خواهم", "two\nlines", "e\u0301", "１０　円"])
def test_what_people_write_stays(text):
    assert clean(text) == text


def test_a_path_is_one_word_of_a_command():
    assert shell_word("runs/toy-1") == "runs/toy-1"
    assert shell_word(Path("my runs") / "it's") == """'my runs/it'"'"'s'"""
    again = play_again(Path("my runs/x"), Task("toy", {}, 0, "train"))
    assert shlex.split(again)[:3] == ["sojourn", "play", "my runs/x"]


def test_escapes_are_spelled_out():
    assert escaped("\x1b[2J") == "\\x1b[2J"
    assert escaped("\u202egnp.exe") == "\\u202egnp.exe"
    assert escaped("\ud800") == "\\ud800"
    assert clean("a\tb\r\nc\rd") == "a   b\nc\\rd"


def test_marks_are_not_piled_up():
    assert escaped("e" + "\u0301" * 50).count("\u0301") == 3


def test_long_texts_say_how_much_is_left_out():
    assert clean("a" * 2_000_000, 100) == "a" * 100 + " … 1,999,900 more characters"
    assert clean("a" * 100, 100) == "a" * 100
    assert one_line("one\ntwo", 100) == "one two"
