"""Finds the code blocks of a Markdown page, and runs each in the way that its language asks for."""

from __future__ import annotations

import re
import shlex
import subprocess
import tomllib
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import typer
from spawned import PYTHON, sojourn, variables_of

from sojourn.cli import app
from sojourn.config import toml
from sojourn.train.resolve import resolve

ROOT = Path(__file__).parent.parent
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"# ([\w/]+\.(?:py|toml))\n")
NEEDS = re.compile(r"# needs (\w+)")
BASE = 'name = "page"\nenv = { name = "toy" }\nlosses = [{ name = "ppo" }]\n[model]\nname = "tiny"\n'
ALONE = {"project", "tool"}  # tables of a pyproject.toml, not of a recipe


class Block(NamedTuple):
    line: int
    language: str
    text: str


def blocks(page: Path) -> Iterator[Block]:
    text = page.read_text()
    for match in FENCE.finditer(text):
        yield Block(text[: match.start()].count("\n") + 1, match[1], match[2])


def run(block: Block, folder: Path, names: dict[str, Any]) -> None:
    """Runs a block in the page's folder. A first line `# name.py` or `# name.toml` says the file that it is.

    With `# needs name` a block is only compiled where that module is not installed.
    """
    if named := FILE.match(block.text):
        (folder / named[1]).parent.mkdir(parents=True, exist_ok=True)
        (folder / named[1]).write_text(block.text)
    if block.language == "python":
        program = compile(block.text, f"line {block.line}", "exec")
        needed = NEEDS.match(block.text)
        if needed is None or find_spec(needed[1]):
            exec(program, names)
    elif block.language == "toml":
        build_recipe(block, folder)
    elif block.language == "json":
        raise AssertionError("say what the JSON is a file of, or fence it as text")
    elif block.language == "console":
        for command in commands(block.text, "$ "):
            _execute(command, folder)
    elif block.language in ("", "sh"):
        for command in commands(block.text):
            check_command(command)
    else:
        assert block.language in ("text", "bibtex", "yaml"), f"nothing runs blocks of '{block.language}'"


def build_recipe(block: Block, folder: Path) -> None:
    """Builds a recipe without training; keys that are no whole recipe are laid over a small one."""
    table = tomllib.loads(block.text)
    if ALONE & table.keys():
        return
    whole = "extends" in table or {"name", "env"} <= table.keys()
    file = folder / "recipes" / f"block_{block.line}.toml"
    file.parent.mkdir(exist_ok=True)
    file.write_text(block.text)
    tables = toml.Tables()
    if not whole:
        tables.merge(tomllib.loads(BASE), "base")
    for key, value in toml.read(file).data.items():
        tables.merge({key: value}, str(file))
    resolve(tables)


def commands(text: str, prompt: str = "") -> Iterator[list[str]]:
    """Yields the words of each command; lines that go on end in a backslash, and comments are left out."""
    for line in text.replace("\\\n", " ").splitlines():
        if line.startswith(prompt) and (words := shlex.split(line.removeprefix(prompt), comments=True)):
            yield words


def check_command(words: list[str]) -> None:
    """Parses a command of ours as the program would, and looks for the targets and files that others name."""
    if words[0] == "sojourn":
        _parse(words[1:])
    elif words[0] == "make":
        known = (ROOT / "Makefile").read_text()
        assert all(re.search(rf"^{word}:", known, re.MULTILINE) for word in words[1:] if "=" not in word), words
    elif words[0] in ("python", "python3"):
        assert not words[1].endswith(".py") or (ROOT / words[1]).is_file(), words
    elif words[0] == "pip":
        named = [words[number + 1] for number, word in enumerate(words[:-1]) if word == "-r"]
        assert all((ROOT / file).is_file() for file in named), words
    elif words[0] in ("docker", "kubectl", "ray", "sbatch"):
        assert all((ROOT / word).is_file() for word in words[1:] if word.startswith("deploy/")), words
    else:
        raise AssertionError(f"nothing checks the program '{words[0]}'")


def _parse(words: list[str]) -> None:
    group: Any = typer.main.get_command(app)
    assert words, "sojourn without a command"
    if words[0].startswith("-"):
        return
    assert words[0] in group.commands, f"there is no command '{words[0]}'"
    if "--help" not in words:
        group.commands[words[0]].make_context(words[0], words[1:])


def _execute(words: list[str], folder: Path) -> None:
    if words[0] not in ("sojourn", "python"):
        return check_command(words)
    if words[0] == "sojourn":
        done = sojourn(folder, *words[1:], environment={"SOJOURN_TRACEBACK": "1"}, timeout=600)
    else:
        words = [*PYTHON, *words[1:]]
        done = subprocess.run(words, cwd=folder, env=variables_of(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(words)}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
