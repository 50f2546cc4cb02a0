"""Components of other distributions are found by their entry points, and what is wrong with one is said clearly."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest

from sojourn import env_catalog
from sojourn.config import plugins
from sojourn.config.lookup import find, names
from sojourn.config.registry import as_toml, build
from sojourn.errors import ConfigError

MAZE = """
    from dataclasses import dataclass
    from typing import Annotated

    from sojourn.envs.about import About
    from sojourn.config.fields import Range

    @dataclass(frozen=True, kw_only=True)
    class Maze:
        '''A maze of so many rooms.'''

        about = About(source="ours", licence="MIT", extra="torch")
        rooms: Annotated[int, Range(1)] = 3

        def tasks(self, split): return []
        def make(self, task): ...
"""


@pytest.fixture(autouse=True)
def read_anew() -> Iterator[None]:
    """What is cached is forgotten before and after."""
    caches = (
        plugins.plugins,
        plugins.distributions,
        plugins.folders,
        plugins.distribution_of,
        env_catalog.measurements,
    )
    for cached in caches:
        cached.cache_clear()
    yield
    for cached in caches:
        cached.cache_clear()


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder of installed packages, the first on the path."""
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def install(site: Path, name: str, points: dict[str, str], kind: str = "env") -> None:
    """Puts a distribution's metadata there, as pip would."""
    folder = site / f"{name.replace('-', '_')}-1.2.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n")
    lines = "\n".join(f"{key} = {value}" for key, value in points.items())
    (folder / "entry_points.txt").write_text(f"[console_scripts]\nx = x:x\n\n[sojourn.{kind}]\n{lines}\n")


def package(site: Path, name: str, source: str) -> None:
    (site / name).mkdir()
    (site / name / "__init__.py").write_text(dedent(source))


def refused(kind: str, name: str) -> str:
    with pytest.raises(ConfigError) as caught:
        find(kind, name)
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)


def test_a_strangers_world_is_a_world_like_ours(site: Path):
    package(site, "strange_mazes", MAZE)
    install(site, "strange-mazes", {"maze": "strange_mazes:Maze"})
    built = build("env", {"name": "maze", "rooms": 5})
    assert built.table == {"name": "maze", "rooms": 5}
    assert as_toml(built.value) == {"name": "maze", "rooms": 5}
    assert names("env")[:3] == ["toy", "tools", "mixed"]
    assert "maze" in names("env")
    assert "maze" not in names("loss")
    assert plugins.distributions()["strange-mazes"] == "1.2"
    assert (site / "strange_mazes").resolve() in plugins.folders()
    with pytest.raises(ConfigError, match=r"unknown key 'env.room': did you mean 'rooms'\?"):
        build("env", {"name": "maze", "room": 5})
    assert refused("env", "mazy").endswith("did you mean 'maze'? (or your own 'module:Class')")


def test_what_was_measured_of_it_lies_in_its_package(site: Path):
    package(site, "measured_mazes", MAZE)
    install(site, "measured-mazes", {"maze": "measured_mazes:Maze"})
    known = json.loads((Path(env_catalog.__file__).parent / env_catalog.MEASURED).read_text())
    (site / "measured_mazes" / env_catalog.MEASURED).write_text(json.dumps({"maze": known["toy"]}))
    entry = env_catalog.describe("maze", find("env", "maze"))
    assert entry.measured == env_catalog.describe("toy", find("env", "toy")).measured
    assert dict(env_catalog.details(entry, find("env", "maze")))["needs"] == "pip install 'measured-mazes[torch]'"


def test_a_name_that_two_distributions_register_is_refused_where_it_is_used(site: Path):
    package(site, "mazes_a", MAZE)
    install(site, "mazes-a", {"maze": "mazes_a:Maze", "cave": "mazes_a:Maze"})
    install(site, "mazes-b", {"maze": "mazes_b:Maze"})
    told = refused("env", "maze")
    assert told.startswith("env 'maze' is registered by 'mazes-a' (mazes_a:Maze) and 'mazes-b' (mazes_b:Maze): ")
    assert find("env", "cave").__name__ == "Maze"


def test_a_name_of_ours_is_nobody_elses(site: Path):
    install(site, "greedy", {"grpo": "greedy:GRPO"}, kind="estimator")
    assert find("estimator", "grpo").__module__ == "sojourn.credit.grpo"
    with pytest.raises(ConfigError, match=r"'greedy' registers the estimator 'grpo', which is the name of one of Soj"):
        names("estimator")


@pytest.mark.parametrize(
    ("target", "told"),
    [
        ("nowhere.mazes:Maze", "env 'maze' of the distribution 'broken': no module 'nowhere' to import"),
        ("broken_mazes:Cave", "env 'maze' of the distribution 'broken': module 'broken_mazes' has no 'Cave'"),
        ("broken_mazes", "env 'maze' of the distribution 'broken' is registered as 'broken_mazes': expected"),
        ("raising_mazes:Maze", "importing 'raising_mazes' raises ZeroDivisionError"),
    ],
)
def test_an_entry_point_that_cannot_be_used_says_whose_it_is(site: Path, target: str, told: str):
    package(site, "broken_mazes", MAZE)
    package(site, "raising_mazes", "1 / 0")
    install(site, "broken", {"maze": target})
    assert told in refused("env", "maze")


def test_a_distribution_that_is_found_twice_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        install(tmp_path / folder, "mazes", {"maze": f"mazes_{folder}:Maze"})
        monkeypatch.syspath_prepend(tmp_path / folder)
    assert [plugin.target for plugin in plugins.plugins()["env"]["maze"]] == ["mazes_b:Maze"]


def test_without_the_worlds_a_message_says_where_they_come_from(monkeypatch: pytest.MonkeyPatch):
    told = refused("env", "miniwobb")
    assert told == "unknown env 'miniwobb': did you mean 'miniwob'? (or your own 'module:Class')"
    monkeypatch.setattr(plugins, "plugins", dict)
    plugins.distributions.cache_clear()
    assert refused("env", "miniwob") == (
        "unknown env 'miniwob': use one of mixed, proposing, recorded, tools, toy (or your own 'module:Class'; more "
        "come with: pip install sojourn-worlds)"
    )
    assert "sojourn-worlds" not in refused("loss", "miniwob")


@pytest.mark.parametrize("what", ["find('env', 'toy')", "build('loss', {'name': 'ppo'})", "find('env', 'made:World')"])
def test_entry_points_are_read_only_where_a_name_is_not_ours(site: Path, what: str):
    package(site, "made", "class World: ...")
    code = "from sojourn.config.lookup import find\nfrom sojourn.config.registry import build\n"
    code += f"{what}\nfrom sojourn.config import plugins\nprint(plugins.plugins.cache_info().currsize)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(site), str(Path(__file__).parents[2])))}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.strip() == "0"
