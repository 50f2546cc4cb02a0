"""Every registered component offers what its role names, with the parameters by which it is called."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sojourn import abilities, protocols
from sojourn.branching.rule import Branching
from sojourn.config.components import COMPONENTS
from sojourn.config.lookup import find, names
from sojourn.curricula.proposer import Proposer
from sojourn.record.metrics import SinkConfig

ROLES: dict[str, Any] = {
    "env": protocols.EnvFamily, "renderer": protocols.RendererConfig, "agent": protocols.Agent,
    "reward": protocols.Reward, "curriculum": protocols.CurriculumConfig, "groups": protocols.SourceConfig,
    "filter": protocols.Filter, "estimator": protocols.Estimator, "loss": protocols.Loss, "stream": protocols.Stream,
    "backend": protocols.Backend, "sink": SinkConfig, "proposer": Proposer,
    "branching": Branching,
}  # fmt: skip
OPTIONAL = [kind for kind in vars(abilities).values() if getattr(kind, "_is_protocol", False)]
ASKED_OF = {
    abilities.Opens: "env",
    abilities.Closes: "env",
    abilities.ClosableSeat: "seat",
    abilities.ReleasesResources: "stream",
    abilities.Checks: "groups",
}
COMPONENT_NAMES = [(kind, name) for kind in ROLES for name in sorted(names(kind))]


def members(role: Any) -> dict[str, Any]:
    """Returns what a role names: its methods, and None for attributes and properties."""
    found: dict[str, Any] = {}
    for base in reversed(role.__mro__):
        if getattr(base, "_is_protocol", False):
            found |= dict.fromkeys(inspect.get_annotations(base))
            found |= {n: v if inspect.isfunction(v) else None for n, v in vars(base).items() if _is_named(n, v)}
    return found


def _is_named(name: str, value: Any) -> bool:
    return (not name.startswith("_") or name == "__call__") and (
        inspect.isfunction(value) or isinstance(value, property)
    )


def faults(component: Any, role: Any) -> list[str]:
    """Returns what keeps a class from its role: what is missing, and methods that cannot be called as the role says."""
    found = []
    for name, method in members(role).items():
        own = inspect.getattr_static(component, name, None)
        if own is None:
            if name not in getattr(component, "__dataclass_fields__", {}):
                found.append(f"{name} is missing")
        elif method is not None and (fault := _unlike(inspect.unwrap(getattr(component, name)), method)):
            found.append(f"{name} {fault}")
    return found


def _unlike(own: Any, method: Any) -> str:
    if inspect.iscoroutinefunction(own) != inspect.iscoroutinefunction(method):
        return "differs in being a coroutine"
    called = list(inspect.signature(method).parameters.values())
    positional = [p for p in called if p.kind is not p.KEYWORD_ONLY]
    keywords = {p.name: None for p in called if p.kind is p.KEYWORD_ONLY}
    for count in {len(positional), sum(p.default is p.empty for p in positional)}:
        try:
            inspect.signature(own).bind(*positional[:count], **keywords)
        except TypeError as error:
            return f"cannot be called: {error}"
    return ""


@pytest.mark.parametrize(("kind", "name"), COMPONENT_NAMES)
def test_a_component_offers_what_its_role_names(kind: str, name: str) -> None:
    assert faults(find(kind, name), ROLES[kind]) == []


@pytest.mark.parametrize(("kind", "name"), COMPONENT_NAMES)
def test_an_ability_is_offered_as_it_is_called(kind: str, name: str) -> None:
    """A class with the methods of an ability has them with the parameters by which they are called."""
    component = find(kind, name)
    for ability in OPTIONAL:
        methods = [name for name, method in members(ability).items() if method is not None]
        has_all = all(inspect.isfunction(inspect.getattr_static(component, name, None)) for name in methods)
        if methods and has_all and ASKED_OF.get(ability, kind) == kind:
            assert faults(component, ability) == []


def test_every_kind_has_a_role() -> None:
    assert COMPONENTS.keys() - ROLES.keys() == {"schedule"}  # a function of two numbers


def test_what_does_not_fit_a_role_is_found() -> None:
    class Silent:
        needs: frozenset[str] = frozenset()

        def __call__(self, groups: Any) -> Any: ...

    assert faults(Silent, protocols.Estimator) == ["__call__ cannot be called: too many positional arguments"]
    assert faults(object, protocols.Agent) == ["seat is missing"]

    class Late:
        def __call__(self, group: Any) -> Any: ...

    assert faults(Late, protocols.Reward) == ["__call__ differs in being a coroutine"]


def test_the_type_checker_accepts_every_component_in_its_role(tmp_path: Path) -> None:
    lines = ["from sojourn import abilities, protocols"]
    lines.append("from sojourn.sources.context import SourceContext, StageContext")
    for number, (kind, name) in enumerate(COMPONENT_NAMES):
        component = find(kind, name)
        lines.append(f"from {component.__module__} import {component.__qualname__} as c{number}")
        given = "[SourceContext]" if kind == "groups" else ""
        module = ROLES[kind].__module__
        lines += [f"import {module}", f"r{number}: type[{module}.{ROLES[kind].__name__}{given}] = c{number}"]
        if kind == "groups" and issubclass(component, abilities.Checks):
            lines.append(f"k{number}: type[abilities.Checks[StageContext]] = c{number}")
    lines += ["class Unfit:", "    needs = frozenset[str]()", "unfit: type[protocols.Estimator] = Unfit"]
    lines += ["class Asks:", "    async def check(self, stage: SourceContext) -> None: ..."]
    lines += ["asks: type[abilities.Checks[StageContext]] = Asks"]
    (tmp_path / "roles.py").write_text("\n".join(lines) + "\n")
    repository = Path(__file__).parents[1]
    (tmp_path / "pyrightconfig.json").write_text(json.dumps({"extraPaths": [f"{repository}", f"{repository}/worlds"]}))
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "--outputjson"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=800)
    errors = [d for d in json.loads(done.stdout)["generalDiagnostics"] if d["severity"] == "error"]
    assert [error["message"].splitlines()[0] for error in errors] == [
        'Type "type[Unfit]" is not assignable to declared type "type[Estimator]"',
        'Type "type[Asks]" is not assignable to declared type "type[Checks[StageContext]]"',
    ]
