"""Makes text of agents and environments safe to print, and limits its length.

Characters that a terminal would interpret or hide (control characters, escape sequences, changes of direction, lone
surrogates) are replaced by Python's escape sequences. Line ends stay.
"""

from __future__ import annotations

import re
import shlex
import unicodedata

JOINERS = "\u200c\u200d"  # needed by some scripts and by emoji; they have no width and change no order
KEPT = frozenset("\n" + JOINERS)
HIDDEN = frozenset(("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"))
MARKS = re.compile(r"([\u0300-\u036f\u0483-\u0489\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f]{3})"
                   r"([\u0300-\u036f\u0483-\u0489\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f]+)")  # fmt: skip
LIMIT = 2000  # characters of one message that are shown


def clean(text: str, limit: int | None = LIMIT) -> str:
    """Returns a text that is safe to print. Of a longer text, `limit` characters and the number of the others (None:
    all).
    """
    printed = text if limit is None else text[:limit]
    printed = escaped(printed.replace("\r\n", "\n").expandtabs(4))
    if limit is None or len(text) <= limit:
        return printed
    return f"{printed} … {len(text) - limit:,} more characters"


def one_line(text: str, limit: int = 200) -> str:
    """Returns a safe text on one line."""
    return clean(text, limit).replace("\n", " ")


def shell_word(text: object) -> str:
    """Returns a text, such as a path, as one word of a command that is printed to be copied into a shell."""
    return shlex.quote(one_line(str(text), LIMIT))


def escaped(text: str) -> str:
    """Returns the text with unsafe characters replaced by their escape sequences."""
    if text.replace("\n", "").isprintable():
        return _limit_marks(text)
    return _limit_marks("".join(character if _is_safe(character) else _escape(character) for character in text))


def _is_safe(character: str) -> bool:
    return character in KEPT or unicodedata.category(character) not in HIDDEN


def _escape(character: str) -> str:
    return character.encode("unicode_escape", "surrogatepass").decode("ascii")


def _limit_marks(text: str) -> str:
    """Keeps at most three combining marks on a letter, because more of them would cover other lines."""
    return text if text.isascii() else MARKS.sub(lambda match: match[1] + "".join(map(_mark_name, match[2])), text)


def _mark_name(mark: str) -> str:
    return f"\\u{ord(mark):04x}"
