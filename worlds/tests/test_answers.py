"""Answers: one value in the words of an agent, and what is none."""

from __future__ import annotations

import pytest

from sojourn_worlds.answers import number_of, numbers_in, one_number, one_of, so_many_numbers

COLOURS = ("red", "dark red", "blue")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("It is red.", "red"),
        ("RED, and red again", "red"),
        ("\uff52\uff45\uff44", "red"),  # letters of full width
        ("You cannot have it. It is blue!", "blue"),
        ("red or blue", None),
        ("red/blue", None),
        ("It is not red.", None),
        ("It isn\u2019t red", None),
        ("It is not red, it is blue.", None),
        ("redder, infrared, red_1", None),
        ("r\u0435d", None),  # with a letter of another alphabet
        ("", None),
    ],
)
def test_one_of_several_values(text: str, said: str | None) -> None:
    assert one_of(text, ("red", "blue")) == said


def test_a_value_within_another_makes_two() -> None:
    assert one_of("dark red", COLOURS) is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("It is 40 dollars.", 40.0),
        ("$1,040.50 in all", 1040.5),
        ("40, I say 40.00", 40.0),
        ("-3", -3.0),
        ("40 or 41", None),
        ("40-41", None),
        ("1, 2, 3", None),
        ("It is not 40.", None),
        ("4e1 0x28 W40 40a nan inf", None),
        ("\u0664\u0660", None),
        ("forty", None),
    ],
)
def test_one_number(text: str, said: float | None) -> None:
    assert one_number(text) == said


def test_so_many_numbers_and_no_others() -> None:
    assert so_many_numbers("327 from the card, 1,000 from the voucher", 2) == [327.0, 1000.0]
    assert so_many_numbers("327, 1000 and 5", 2) is None
    assert so_many_numbers("327 and not 1000", 2) is None
    assert so_many_numbers("none", 0) == []
    assert numbers_in("9" * 400) == [float("inf")]  # longer than any that is asked for


@pytest.mark.parametrize(("text", "value"), [("$1,093.34", 1093.34), (" 4 ", 4.0), ("4 bags", None), ("nan", None)])
def test_what_is_a_number(text: str, value: float | None) -> None:
    assert number_of(text) == value
