"""Identifies the code that makes a run: a digest of the installed source, and the commit if it is a checkout."""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from sojourn.version import PACKAGE

SUFFIXES = frozenset({".py", ".c", ".json", ".js", ".css", ".html"})


@cache
def revision() -> dict[str, str]:
    """Returns `source`, a digest of the package's files, and in a checkout `commit`.

    The commit ends in "+changed" if files differ from it.
    """
    package = PACKAGE
    identity = {"source": source_of(package)}
    commit = _git(package, "rev-parse", "HEAD")
    tracked = _git(package, "ls-files", "--error-unmatch", "__init__.py")
    if commit and tracked:  # a package that is installed inside another project's checkout has no commit of its own
        identity["commit"] = commit + ("+changed" if _git(package, "status", "--porcelain", "--", ".") else "")
    return identity


@cache
def source_of(package: Path) -> str:
    """Returns the digest of the files of a package."""
    return digest_of(sorted(path for path in package.rglob("*") if path.suffix in SUFFIXES and path.is_file()), package)


def digest_of(files: Iterable[Path], folder: Path) -> str:
    """Returns the SHA-256 of the names and digests of some files of a folder, in the given order."""
    lines = [f"{path.relative_to(folder).as_posix()} {digest_of_file(path)}\n" for path in files]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def digest_of_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _git(folder: Path, *words: str) -> str:
    """Returns the output of a git command; empty if there is no git, no checkout, or an error."""
    try:
        done = subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
