"""A folder appears whole or not at all."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from sojourn.record.atomic import new_folder


def fill(folder: Path, text: str) -> None:
    (folder / "inner").mkdir()
    (folder / "inner" / "file").write_text(text)


def test_a_folder_appears_at_the_end_of_the_block_and_nothing_else_is_left(tmp_path: Path):
    with new_folder(tmp_path / "absent" / "made") as temporary:
        fill(temporary, "a")
        assert not (tmp_path / "absent" / "made").exists()
    assert (tmp_path / "absent" / "made" / "inner" / "file").read_text() == "a"
    assert os.listdir(tmp_path / "absent") == ["made"]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_nothing_is_left_where_the_block_raises(tmp_path: Path, error: type[BaseException]):
    def broken() -> None:
        with new_folder(tmp_path / "made") as temporary:
            fill(temporary, "a")
            raise error

    with pytest.raises(error):
        broken()
    assert os.listdir(tmp_path) == []


def test_content_is_replaced_only_where_that_is_asked_for(tmp_path: Path):
    made = tmp_path / "made"
    for text in ("a", "b"):
        with new_folder(made, replace=True) as temporary:
            fill(temporary, text)
    with pytest.raises(OSError, match="not empty"), new_folder(made) as temporary:
        fill(temporary, "c")
    assert (made / "inner" / "file").read_text() == "b"
    assert os.listdir(tmp_path) == ["made"]


def test_what_two_write_at_once_is_of_one_of_them(tmp_path: Path):
    def two() -> None:
        with new_folder(tmp_path / "made") as first:
            fill(first, "a")
            with new_folder(tmp_path / "made") as second:
                fill(second, "b")

    with pytest.raises(OSError, match="not empty"):
        two()
    assert (tmp_path / "made" / "inner" / "file").read_text() == "b"
    assert os.listdir(tmp_path) == ["made"]


@pytest.mark.parametrize(("parent", "folder", "file"), [(0o755, 0o755, 0o644), (0o700, 0o700, 0o600)])
def test_the_umask_decides_who_may_read_it_except_in_a_private_folder(tmp_path, parent: int, folder: int, file: int):
    tmp_path.chmod(parent)
    before = os.umask(0o022)
    try:
        with new_folder(tmp_path / "made") as temporary:
            fill(temporary, "a")
    finally:
        os.umask(before)
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "made", tmp_path / "made" / "inner" / "file")]
    assert modes == [folder, file]
