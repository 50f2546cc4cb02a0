"""The structure that DESIGN promises: imports flow one way, `import sojourn` is light, names are what they say."""

import ast
import inspect
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import sojourn
from sojourn import abilities, protocols
from sojourn.config.components import COMPONENTS
from sojourn.config.lookup import find
from sojourn.envs import about, plain_class

ROOT = Path(__file__).parent.parent / "sojourn"
WORLDS = ROOT.parent / "worlds"
ORDER = [
    "version", "activation_steering", "types", "search_cost", "finite", "call_text", "same_action", "secrets",
    "errors", "verdict", "ability", "codec", "seeds", "files", "threads", "event_loop", "timeline", "gauge", "config",
    "schedules", "optim", "models", "protocols", "composite", "abilities", "places", "failures", "blame",
    "world_answers", "whole_plays", "intervals", "regret_growth", "tasks", "curricula", "record", "plot",
    "plot_recipes", "plot_search", "terminal", "envs", "render", "gateway", "agents", "rollout", "live", "rewards",
    "searchers", "branching", "sources", "filters", "credit", "batch", "streams", "losses", "backends", "display",
    "train", "ope", "steering", "checks", "replay", "arena", "method_docs", "env_catalog", "model_export", "serving",
    "sweep", "key_meanings", "config_docs", "doctor", "view", "commands", "api", "cli",
]  # fmt: skip
ENTRANCES = {"__init__", "__main__"}
MODULES = {
    ".".join(path.relative_to(home).with_suffix("").parts).removesuffix(".__init__"): path
    for home in (ROOT.parent, WORLDS)
    for path in (home / ("sojourn" if home == ROOT.parent else "sojourn_worlds")).rglob("*.py")
}


def imports(name: str) -> set[str]:
    """Returns the modules of both distributions that one imports, inside functions and for types alone included."""
    found = set()
    for node in ast.walk(ast.parse(MODULES[name].read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            full = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {module if module in MODULES else node.module for module in full}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return {module for module in found if module in MODULES and module != name}


def test_imports_flow_one_way():
    wrong = []
    for name in MODULES:
        own = name.split(".")[1] if name.startswith("sojourn.") else "__main__"
        if own in ENTRANCES:
            continue
        others = {module for module in imports(name) if module.startswith("sojourn.")}
        wrong += [f"{name} imports {m}" for m in others if ORDER.index(m.split(".")[1]) > ORDER.index(own)]
    assert not wrong


def test_no_imports_go_in_a_circle():
    left = {name: imports(name) for name in MODULES}
    while done := {name for name, needs in left.items() if not needs & left.keys()}:
        left = {name: needs for name, needs in left.items() if name not in done}
    assert not left, "these import each other, or what does"


def test_every_module_has_its_place():
    found = {p.name.removesuffix(".py") for p in ROOT.iterdir() if p.suffix == ".py" or (p / "__init__.py").exists()}
    assert found - ENTRANCES <= set(ORDER)


def test_methods_of_single_papers_are_known_by_their_names_alone():
    papers = {name for name in MODULES if ".papers" in name}
    assert len(papers) > 20
    assert [(name, module) for name in MODULES for module in imports(name) & papers] == []


MEMBERS = {  # of all roles and abilities
    name
    for module in (protocols, abilities, about, plain_class)
    for role in vars(module).values()
    if getattr(role, "_is_protocol", False)
    for name in (*vars(role), *inspect.get_annotations(role))
    if not name.startswith("_")
}
KNOWS_CLASSES_BY_THEIR_MEMBERS = "sojourn.commands.check"  # which kind of component one's own class is


def test_no_ability_is_asked_for_by_a_string():
    assert {"expert", "close", "about", "success", "columns"} <= MEMBERS
    asked = {
        (module, node.args[1].value)
        for module, path in MODULES.items()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in ("getattr", "hasattr")
        and isinstance(node.args[1], ast.Constant)
    }
    found = {(module, name) for module, name in asked if name in MEMBERS and module != KNOWS_CLASSES_BY_THEIR_MEMBERS}
    assert not found, "ask with isinstance"


def test_sojourn_knows_the_worlds_of_the_other_distribution_by_entry_points_alone():
    registered = tomllib.loads((WORLDS / "pyproject.toml").read_text())["project"]["entry-points"]["sojourn.env"]
    assert len(registered) > 40
    assert COMPONENTS["env"].keys() == {"toy", "tools", "mixed", "proposing", "recorded"}
    assert [path for path in ROOT.rglob("*.py") if "sojourn_worlds" in path.read_text()] == []


def test_both_distributions_have_one_version_and_need_each_other_in_it():
    own, worlds = (
        tomllib.loads((folder / "pyproject.toml").read_text())["project"] for folder in (ROOT.parent, WORLDS)
    )
    assert worlds["version"] == own["version"] == sojourn.__version__
    assert f"sojourn=={own['version']}" in worlds["dependencies"]


def test_importing_sojourn_is_light():
    heavy = {"torch", "transformers", "playwright", "rich", "typer", "httpx", "importlib.metadata", "scipy"}
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


def test_what_is_typed_strictly_is_there():
    """A path that is not there is none to pyright, which then checks less in silence."""
    strict = tomllib.loads((ROOT.parent / "pyproject.toml").read_text())["tool"]["pyright"]["strict"]
    assert len(strict) > 5
    assert [path for path in strict if not (ROOT.parent / path).exists()] == []


def test_no_two_files_of_tests_have_the_same_name():
    """Python would take one for the other, and pytest collects neither."""
    found = [path.name for home in (ROOT.parent, WORLDS) for path in (home / "tests").rglob("test_*.py")]
    assert sorted(name for name in set(found) if found.count(name) > 1) == []
