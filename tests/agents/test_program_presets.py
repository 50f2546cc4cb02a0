"""Presets of programs: what they are started with, what goes before it, and what is refused where they are not here."""

import json
import os
import re
import tomllib

import pytest
import tomli_w

from sojourn.agents.program import Program
from sojourn.agents.programs.presets import PRESETS
from sojourn.agents.programs.site import Job
from sojourn.config.registry import build
from sojourn.config.toml import Tables
from sojourn.errors import ConfigError, MissingExtraError
from sojourn.train.resolve import resolve
from sojourn.types import Message, Observation, Role
from tests.agents.test_program_recipes import TABLE

TASK = "--help {url}"
JOB = Job(url="http://h:1/s/k", key="k", model="policy", observation=Observation((Message(Role.USER, TASK),)))


def filled(agent):
    """Returns the command, the variables and the files as a program gets them."""
    command, variables, files = agent.started
    texts = [{name: JOB.filled(text, folder="/task") for name, text in one.items()} for one in (variables, files)]
    return [JOB.filled(part, folder="/task") for part in command], *texts


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_a_preset_tells_its_program_the_task_and_the_model(name):
    command, variables, files = filled(Program(preset=name))
    assert command[0] == name
    assert command[-1].removeprefix("--task=") == TASK  # with the braces of the task as they are
    assert variables["HOME"] == "/task"
    told = "".join([*command, *variables.values(), *files.values()])
    assert "policy" in told
    for path, text in files.items():
        assert json.loads(text) if path.endswith(".json") else tomllib.loads(text)


@pytest.mark.parametrize("name", ["claude", "codex", "opencode"])
def test_those_that_speak_mcp_have_the_tools_of_the_world(name):
    command, _, files = filled(Program(preset=name))
    assert "http://h:1/s/k/mcp" in "".join([*command, *files.values()])


def test_what_the_user_gives_goes_before_the_preset():
    agent = Program(
        preset="claude",
        command=("/opt/claude", "--tools", "Bash"),
        variables={"IS_SANDBOX": "0", "MORE": "1"},
        files={"CLAUDE.md": "Be brief."},
    )
    command, variables, files = filled(agent)
    assert command[0] == "/opt/claude"
    assert command[-5:] == ["--tools", "Bash", "-p", "--", TASK]
    assert (variables["IS_SANDBOX"], variables["MORE"], files["CLAUDE.md"]) == ("0", "1", "Be brief.")
    assert variables["ANTHROPIC_MODEL"] == "policy"
    own = Program(preset="pi", files={".agent/models.json": "{}"})
    assert filled(own)[2] == {".agent/models.json": "{}"}


def test_a_program_without_a_preset_is_started_as_it_is():
    agent = Program(command=("a", "{task}"), variables={"X": "{key}"})
    assert filled(agent) == (["a", TASK], {"X": "k"}, {})
    agent.require_installed()  # it may be in the sandbox alone


def test_a_program_that_is_not_here_is_refused_when_the_recipe_is_built(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    words = "agent.preset = 'pi' needs the program 'pi': install it (npm install -g @earendil-works/pi-coding-agent)"
    with pytest.raises(MissingExtraError, match=re.escape(words)):
        resolve(Tables({**TABLE, "agent": {"name": "program", "preset": "pi"}}))
    (tmp_path / "pi").write_text("")
    (tmp_path / "pi").chmod(0o755)
    with pytest.raises(MissingExtraError, match="/pi, but its sandbox shows /usr alone: add the folder"):
        resolve(Tables({**TABLE, "agent": {"name": "program", "preset": "pi"}}))
    for more in ({"sandbox": False}, {"read": [str(tmp_path)]}):
        resolve(Tables({**TABLE, "agent": {"name": "program", "preset": "pi", **more}}))


def test_a_link_out_of_what_the_sandbox_shows_is_refused(monkeypatch, tmp_path):
    for name in ("bin", "lib"):
        (tmp_path / name).mkdir()
    (tmp_path / "lib" / "codex.js").write_text("")
    (tmp_path / "lib" / "codex.js").chmod(0o755)
    os.symlink(tmp_path / "lib" / "codex.js", tmp_path / "bin" / "codex")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    with pytest.raises(MissingExtraError, match=r"lib/codex\.js"):
        Program(preset="codex", read=(str(tmp_path / "bin"),)).require_installed()
    Program(preset="codex", read=(str(tmp_path),)).require_installed()


def test_an_unknown_preset_is_refused_by_its_name():
    table = tomli_w.dumps({"name": "program", "preset": "claud"})
    with pytest.raises(ConfigError, match="'claude'"):
        build("agent", tomllib.loads(table))
    with pytest.raises(ConfigError, match="or a preset"):
        build("agent", {"name": "program"})
