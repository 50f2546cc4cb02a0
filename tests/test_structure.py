"""The structure that DESIGN promises: imports flow one way, `import sojourn` is light, names are what they say."""

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import sojourn
from sojourn.config.components import COMPONENTS
from sojourn.config.registry import find

ROOT = Path(__file__).parent.parent / "sojourn"
WORLDS = ROOT.parent / "worlds"
ORDER = [
    "types", "protocols", "secrets", "errors", "files", "threads", "event_loop", "timeline", "config", "composite",
    "schedules", "optim", "models", "tasks", "curricula", "record", "plot", "terminal", "envs", "render", "agents",
    "rollout", "rewards", "sources", "filters", "credit", "batch", "streams", "losses", "backends", "display", "train",
    "checks", "replay", "arena", "method_docs", "env_catalog", "view", "commands", "cli",
]  # fmt: skip
ENTRANCES = {"__init__", "__main__"}
LAZY = {("config", "envs")}  # a plain class becomes a world where a config names one


def layer(module: str) -> str:
    return module.split(".")[1] if "." in module else "types"


def imports(path: Path):
    """The sojourn modules that a file imports at run time, outside `if TYPE_CHECKING`."""
    tree = ast.parse(path.read_text())
    hidden = {
        child
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for child in ast.walk(node)
    }
    for node in ast.walk(tree):
        if node in hidden:
            continue
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("sojourn"):
            yield node.module if "." in node.module else f"{node.module}.{node.names[0].name}"
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.startswith("sojourn."))


def test_imports_flow_one_way():
    wrong = []
    for path in ROOT.rglob("*.py"):
        own = path.relative_to(ROOT).parts[0].removesuffix(".py")
        if own in ENTRANCES:
            continue
        for module in imports(path):
            other = layer(module)
            if other in ORDER and ORDER.index(other) > ORDER.index(own) and (own, other) not in LAZY:
                wrong.append(f"{path.relative_to(ROOT)} imports {module}")
    assert not wrong


def test_every_module_has_its_place():
    found = {p.name.removesuffix(".py") for p in ROOT.iterdir() if p.suffix == ".py" or (p / "__init__.py").exists()}
    assert found - ENTRANCES <= set(ORDER)


def test_sojourn_knows_the_worlds_of_the_other_distribution_by_entry_points_alone():
    registered = tomllib.loads((WORLDS / "pyproject.toml").read_text())["project"]["entry-points"]["sojourn.env"]
    assert len(registered) > 40
    assert COMPONENTS["env"].keys() == {"toy", "tools", "mixed"}
    assert [path for path in ROOT.rglob("*.py") if "sojourn_worlds" in path.read_text()] == []


def test_both_distributions_have_one_version_and_need_each_other_in_it():
    own, worlds = (
        tomllib.loads((folder / "pyproject.toml").read_text())["project"] for folder in (ROOT.parent, WORLDS)
    )
    assert worlds["version"] == own["version"] == sojourn.__version__
    assert f"sojourn=={own['version']}" in worlds["dependencies"]


def test_importing_sojourn_is_light():
    heavy = {"torch", "transformers", "playwright", "rich", "typer", "importlib.metadata"}
    code = f"import sys, sojourn; print(sorted({heavy} & set(sys.modules)))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "[]"


@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind, names in COMPONENTS.items() for name in names], ids=lambda x: x
)
def test_every_registered_name_is_a_documented_component(kind, name):
    cls = find(kind, name)
    assert cls.__doc__
    assert cls.__name__.lower() == name.replace("_", "")
