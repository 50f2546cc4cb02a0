"""Whatever a world, a file or an error says, no command prints what a terminal obeys, markup, or megabytes."""

import io
import re
import shutil
import sys
from pathlib import Path

import pytest
from rich.console import Console
from rich.live import Live
from rich.panel import Panel
from rich.text import Text
from spawned import sojourn
from trained_run import RECIPE

from sojourn.terminal.output import CleanConsole, CleanStream

HOSTILE = "\x1b]0;taken\x07\x1b[2J\u202e\x9b31m[red]x[/red][link=http://x]y[/link]"
WORLD = """
from dataclasses import dataclass

from sojourn.types import Message, Observation, Role, Step, Task

HOSTILE = "\\x1b]0;taken\\x07\\x1b[2J\\u202e\\x9b31m[red]x[/red][link=http://x]y[/link]"


@dataclass(frozen=True, kw_only=True)
class World:
    breaks: bool = False
    page: str = "start"
    length: int = 1_000_000

    def tasks(self, split):
        return [Task("hostile" + HOSTILE, {}, seed, split, (HOSTILE,)) for seed in range(4)]

    def make(self, task):
        return Play(self, 1)


@dataclass
class Play:
    family: World
    left: int

    async def start(self):
        if self.family.breaks:
            raise RuntimeError(HOSTILE + "e" * 1_000_000)
        return self.page

    @property
    def page(self):
        told = Message(Role.USER, HOSTILE + "m" * self.family.length)
        return Observation((told,), choices=("go", HOSTILE))

    async def step(self, agent, action):
        self.left -= 1
        over = self.left < 0
        return Step(None if over else self.page, {agent: 1.0}, done=over, info={HOSTILE: 1.0})

    def expert(self):
        return HOSTILE

    async def close(self):
        pass
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("hostile")
    (path / "hostile.py").write_text(WORLD)
    (path / "r.toml").write_text(RECIPE.replace('name = "toy"\nrooms = 2\nchoices = true', 'name = "hostile:World"'))
    return path


def printed(folder: Path, *words: str) -> str:
    """All that a command prints, read as a terminal would get it; it is short and holds nothing to obey."""
    environment = {"COLUMNS": "100", "SOJOURN_TRACEBACK": "", "NO_COLOR": "1"}
    done = sojourn(folder, *words, environment=environment)
    text = done.stdout + done.stderr
    odd = {character for character in text if not (character in "\n\t" or character.isprintable())}
    assert not odd, (odd, text[:2000])
    assert len(text) < 100_000
    assert "Traceback" not in done.stderr
    return text


@pytest.mark.parametrize(
    "words",
    [
        ("play", "hostile:World", "--expert"),
        ("check", "hostile:World", "--episodes", "1"),
        ("check", "hostile:World", "breaks=true", "--episodes", "1"),
        ("arena", "hostile:World", "--operator", "expert", "--tasks", "1"),
        ("eval", "r.toml", "env.breaks=true"),
        ("eval", "r.toml", "--expert", "env.length=5"),
        ("train", "r.toml", "--dry", "env.page=\x1b[2J[red]x[/red]"),
        ("train", "r.toml", "env.p\x1b[2Jag=1"),
        ("show", "\x1b[2J", "y", "\x1b[2J"),
        ("runs", "\x1b[2J"),
    ],
    ids=lambda words: " ".join(words[:2] + words[-1:]).encode("unicode_escape").decode(),
)
def test_commands_print_nothing_that_a_terminal_obeys(folder, words):
    assert re.search(r"\\(x|u00)1b", printed(folder, *words))


def test_markup_of_a_world_is_printed_as_it_was_written(folder):
    text = printed(folder, "play", "hostile:World", "--expert")
    assert "[red]x[/red][link=http://x]y[/link]" in text
    assert "more characters" in text


@pytest.fixture(scope="module")
def recorded(trained, folder) -> Path:
    """A run in a folder of a hostile name."""
    path = folder / "run\x1b[2J"
    shutil.copytree(trained, path)
    return path


@pytest.mark.parametrize(
    "words",
    [("runs", "."), ("show", "run\x1b[2J"), ("replay", "run\x1b[2J", "nothing"), ("eval", "run\x1b[2J", "--expert")],
    ids=lambda words: words[0],
)
def test_names_of_folders_are_spelled_out(recorded, folder, words):
    printed(folder, *words)


def test_an_export_names_its_file_harmlessly(recorded, folder):
    assert "\\x1b" in printed(folder, "export", recorded.name, "--out", "o\x1b[2J.jsonl", "--format", "chat")


def test_a_console_keeps_its_own_styles_and_spells_out_the_rest():
    file = io.StringIO()
    CleanConsole(file=file, force_terminal=True, color_system="standard", width=80).print(HOSTILE, style="red")
    text = file.getvalue()
    assert text.startswith("\x1b[31m\\x1b]0;taken")
    assert "[red]x[/red]" in text
    assert text.count("\x1b") == 2  # the style on and off
    assert "\u202e" not in text


def test_a_text_that_is_made_for_a_console_is_spelled_out_too():
    file = io.StringIO()
    CleanConsole(file=file, width=200).print(Text(HOSTILE), Panel(Text(HOSTILE), title=Text(HOSTILE)))
    assert file.getvalue().count("\\x1b]0;taken") == 3
    assert "\x1b" not in file.getvalue()
    assert "\u202e" not in file.getvalue()


def test_a_stream_spells_out_all_and_cuts_what_is_too_long():
    file = io.StringIO()
    stream = CleanStream(file, 100)
    assert stream.write("a\rb\t\x1b[2J\n") == len("a\rb\t\x1b[2J\n")
    assert file.getvalue() == "a\nb\t\\x1b[2J\n"
    file.truncate(0)
    stream.write("x" * 1_000_000 + "\n")
    assert "999,901 more characters\n" in file.getvalue()
    assert len(file.getvalue()) < 200


def test_a_live_display_keeps_its_own_and_spells_out_what_is_printed_meanwhile(monkeypatch):
    file = io.StringIO()
    monkeypatch.setattr(sys, "stdout", CleanStream(file))
    console = CleanConsole(force_terminal=True, color_system="standard", width=40)
    with Live(Text("progress", "red"), console=console, auto_refresh=False):
        print("said\x1b]0;taken\x07")
    text = file.getvalue()
    assert "\x1b[31mprogress\x1b[0m" in text
    assert "\\x1b[31m" not in text
    assert "said" in text
    assert "\x1b]0;" not in text
    assert "\x07" not in text


def test_rich_writes_its_styles_past_the_stream(monkeypatch):
    file = io.StringIO()
    monkeypatch.setattr(sys, "stdout", CleanStream(file))
    Console(force_terminal=True, color_system="standard").print("red", style="red")
    assert file.getvalue() == "\x1b[31mred\x1b[0m\n"
