"""What a user's own code does wrong is told in one sentence that names it and where; never a traceback."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import spawned

from sojourn.config.lookup import import_object
from sojourn.config.registry import build
from sojourn.errors import ConfigError, RecordError
from sojourn.record.blobs import Blobs
from sojourn.tasks.listed import check_task, listed
from sojourn.types import Task

WORLDS = '''
import os
from dataclasses import dataclass
from sojourn.types import Task


class Odd(BaseException):
    """No Exception."""


class Mute(Exception):
    def __str__(self):
        raise RuntimeError("no words")


@dataclass(frozen=True, kw_only=True)
class Made:
    how: str = ""

    def __post_init__(self):
        raise {"type": TypeError("post"), "odd": Odd("post"), "exit": SystemExit(3), "mute": Mute()}[self.how]

    def tasks(self, split): ...
    def make(self, task): ...


@dataclass(frozen=True, kw_only=True)
class Listing:
    def tasks(self, split):
        raise {"train": LookupError("in tasks"), "test": Odd("in tasks")}[split]

    def make(self, task): ...


@dataclass(frozen=True, kw_only=True)
class Tells:
    def tasks(self, split):
        raise LookupError("no entry with " + os.environ["MY_SERVICE_TOKEN"])

    def make(self, task): ...


@dataclass(frozen=True, kw_only=True)
class Nothing:
    def tasks(self, split): ...
    def make(self, task): ...


@dataclass(frozen=True, kw_only=True)
class Data:
    what: str = "data"

    def tasks(self, split):
        data = {"x": object()} if self.what == "data" else {}
        task = Task("data", data, 1, split, (7,) if self.what == "tags" else ())
        return [{"task": 1} if self.what == "dict" else task]

    def make(self, task): ...


@dataclass(frozen=True, kw_only=True)
class Asked:
    def __getattr__(self, name):
        raise RuntimeError("asked for " + name)


@dataclass(frozen=True, kw_only=True)
class Round:
    def __getattr__(self, name):
        return getattr(self, name + "_")
'''
CASES = {
    "play worlds:Made how=type": "TypeError: post (Made.__post_init__,",
    "play worlds:Made how=odd": "Odd: post (Made.__post_init__,",
    "play worlds:Made how=exit": "SystemExit: 3 (Made.__post_init__,",
    "play worlds:Made how=mute": "Mute: its text raises RuntimeError (Made.__post_init__,",
    "play worlds:Listing": "LookupError: in tasks (Listing.tasks,",
    "play worlds:Listing --split test": "Odd: in tasks (Listing.tasks,",
    "train r.toml env.name=worlds:Listing --dry": "LookupError: in tasks (Listing.tasks,",
    "play worlds:Nothing": "Nothing.tasks('train') gives a NoneType: expected a sequence",
    "play worlds:Data": "cannot be written as JSON (TypeError",
    "play worlds:Data what=tags": "has the tag 7: expected text",
    "play worlds:Data what=dict": "as a task: expected a sojourn.types.Task",
    "play worlds:Asked": "RuntimeError: asked for ",
    "check worlds:Round": "RecursionError: maximum recursion depth exceeded",
    "play leaves:World": "importing 'leaves' raises Gone: at import (",
    "play worlds:Missing": "module 'worlds' has no 'Missing'",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("own")
    (path / "worlds.py").write_text(WORLDS)
    (path / "leaves.py").write_text("class Gone(BaseException): ...\nraise Gone('at import')\n")
    (path / "r.toml").write_text(
        "name = 't'\nlosses = [{ name = 'ppo' }]\nmodel = { name = 'tiny' }\n[env]\nname = ''\n"
    )
    return path


def sojourn(folder: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return spawned.sojourn(folder, *words, environment=environment)


@pytest.mark.parametrize("command", CASES)
def test_it_is_one_sentence(folder, command):
    done = sojourn(folder, *command.split())
    assert CASES[command] in done.stderr
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "Traceback" not in done.stdout + done.stderr
    if CASES[command].endswith(","):
        assert f" {folder}/worlds.py:" in done.stderr  # where it was raised


@pytest.mark.parametrize(
    ("world", "told"),
    [
        ({"name": "worlds:Made", "how": "type"}, r"worlds:Made.*your code raises TypeError: post \(Made.__post_init__"),
        ({"name": "worlds:Made", "how": "odd"}, r"worlds:Made.*your code raises Odd: post"),
        ({"name": "leaves:World"}, r"Gone: at import"),
    ],
)
def test_whoever_builds_a_component_is_told_the_same(folder, monkeypatch, world, told):
    monkeypatch.syspath_prepend(folder)
    with pytest.raises(ConfigError, match=told):
        build("env", world)
    with pytest.raises(ConfigError, match=r'env.check = "leaves:gone" cannot be imported \(Gone: at import'):
        import_object("leaves:gone", "env.check")


def test_the_whole_traceback_is_there_for_whoever_asks(folder):
    done = sojourn(folder, "play", "worlds:Listing", SOJOURN_TRACEBACK="1")
    assert done.returncode == 2
    assert "Traceback (most recent call last)" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("sojourn: your code raises LookupError")


def test_a_key_in_an_error_is_said_by_its_name(folder):
    done = sojourn(folder, "play", "worlds:Tells", MY_SERVICE_TOKEN="Kq7canaryW3bird")
    assert "LookupError: no entry with ${MY_SERVICE_TOKEN} (Tells.tasks" in done.stderr
    assert "Kq7canary" not in done.stdout + done.stderr


def test_arguments_that_are_no_text_are_refused(folder):
    command = [sys.executable, "-m", "sojourn", "show", b"runs/\xff"]
    variables = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}
    done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, timeout=200)
    assert done.returncode == 2
    assert done.stderr == (
        "sojourn: argument 2 is 'runs/\\udcff', which is not UTF-8: rename the file, or name a parent folder\n"
    )


@pytest.mark.parametrize("found", [None, 7, "text", {"a": 1}, iter([])])
def test_tasks_are_a_sequence(found):
    class World:
        def tasks(self, split):
            return found

    with pytest.raises(ConfigError, match=r"World.tasks\('train'\) gives a .*: expected a sequence of tasks"):
        listed(World(), "train")


def test_tasks_that_records_can_hold_pass():
    task = Task("toy", {"x": [1, "a", None]}, 2**70, "train", ("easy",))
    check_task(task)
    with pytest.raises(ConfigError, match="as JSON"):
        check_task(Task("toy", {"x": {1, 2}}, 1, "train"))


def test_a_blob_is_bytes(tmp_path):
    with pytest.raises(RecordError, match=r"a blob that is a str: the entries of .Env.blobs. are bytes"):
        Blobs(tmp_path).keep({"a" * 64: "text"})  # type: ignore[dict-item]


@pytest.mark.parametrize(
    "value", [2**63, -(2**63) - 1, 10**300, int("f" * 5000, 16)], ids=["2^63", "-2^63-1", "big", "hex"]
)
def test_a_whole_number_has_64_bits(value):
    with pytest.raises(ConfigError) as refused:
        build("env", {"name": "toy", "rooms": value})
    assert "expected a whole number that 64 bits can hold" in str(refused.value)
    assert len(str(refused.value)) < 200


def test_a_huge_number_where_a_word_is_expected_is_short():
    with pytest.raises(ConfigError) as refused:
        build("env", {"name": "bandit", "kind": int("f" * 5000, 16)})
    assert len(str(refused.value)) < 200


def test_a_package_that_is_installed_elsewhere_is_not_the_users_code(tmp_path):
    """As with `pip install --target`, or a .pth file: where its command ends well, `SystemExit: 0` is no failure."""
    (folder := tmp_path / "lib" / "site-packages").mkdir(parents=True)
    (folder / "theirs.py").write_text("def end():\n    raise SystemExit(0)\n")
    code = "import theirs\nfrom sojourn.errors import raised_at\n"
    code += "try:\n    theirs.end()\nexcept SystemExit as error:\n    print(repr(raised_at(error)))"
    root = str(Path(__file__).parent.parent)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([root, str(folder)])}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "''\n"
