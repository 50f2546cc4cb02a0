"""The published tasks: from the packages, from a checkout of tau2-bench, or from one of the first tau-bench."""

from __future__ import annotations

import ast
import hashlib
import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from sojourn.errors import ActionError, ConfigError
from sojourn_worlds.tau import calls
from sojourn_worlds.tau.tables import Tables

TABLES = {"retail": ("products", "users", "orders"), "airline": ("flights", "users", "reservations")}
Database = Mapping[str, Mapping[str, Any]]


class Action(NamedTuple):
    name: str
    arguments: Mapping[str, Any]

    def said(self) -> str:
        return f"{self.name}({', '.join(f'{key}={value!r}' for key, value in self.arguments.items())})"


@dataclass(frozen=True)
class Problem:
    """A published task: what a customer wants and knows, what should be done, and what they must be told."""

    id: str
    reason: str
    known: str
    unknown: str
    manner: str
    actions: tuple[Action, ...]
    facts: tuple[str, ...]
    split: str

    @property
    def notes(self) -> str:
        """Returns all that is known of the customer and of what they want."""
        return "\n".join(filter(None, (self.reason, self.known, self.unknown, self.manner)))


@dataclass(frozen=True)
class Source:
    domain: str
    database: Database
    policy: str
    problems: Mapping[str, Problem]

    def customer(self, problem: Problem) -> str:
        """Returns the id of the caller: the one user whom the notes name by id, or by name and zip code.

        Returns an empty string where the notes name none or several.
        """
        words = set(re.findall(r"\w+", problem.notes.lower()))
        users = [user for user, facts in self.database["users"].items() if user in words or _named(facts, words)]
        return users[0] if len(users) == 1 else ""

    def replay(self, problem: Problem) -> tuple[Tables, list[Action]]:
        """Returns the database after the right actions, and those of them that the tools accept."""
        tables, taken = Tables.of(self.database), []
        for action in problem.actions:
            try:
                arguments = calls.methods(self.domain)[action.name].arguments(action.arguments)
                tables, _ = calls.call(self.domain, tables, action.name, arguments)
            except (ValueError, ActionError):  # some published ones cannot be taken, there either
                continue
            taken.append(action)
        return tables, taken


@lru_cache(4)
def load(domain: str, folder: str) -> Source:
    """Returns the tasks and database of a domain; `folder` is empty for the data of the packages."""
    packaged = Path(str(calls.server(domain).__file__)).parent / "data"
    root = Path(folder) if folder else packaged
    inner = ("", "domains", "tau2/domains", "data/tau2/domains", "envs", "tau_bench/envs")
    for place in (root / way / domain for way in inner):
        if (place / "tasks.json").is_file():
            return _second(domain, place, packaged / "tau2" / "domains" / domain)
        if (place / "tasks_test.py").is_file():
            return _first(domain, place)
    raise ConfigError(
        f'tau: data = "{folder}" holds neither tasks.json nor tasks_test.py of {domain}: give the folder of a checkout '
        "of tau2-bench or tau-bench"
    )


def _second(domain: str, place: Path, packaged: Path) -> Source:
    """Reads the form of tau2-bench; a database that the checkout lacks comes from the package."""
    database = place / "db.json" if (place / "db.json").is_file() else packaged / "db.json"
    split = place / "split_tasks.json"
    splits = json.loads(split.read_text("utf-8")) if split.is_file() else {}
    problems = [_problem(domain, task, splits) for task in json.loads((place / "tasks.json").read_text("utf-8"))]
    policy = (place / "policy.md").read_text("utf-8")
    return Source(domain, json.loads(database.read_text("utf-8")), policy, {p.id: p for p in problems})


def _problem(domain: str, task: Mapping[str, Any], splits: Mapping[str, Sequence[str]]) -> Problem:
    asked, judged = task["user_scenario"]["instructions"], task["evaluation_criteria"]
    actions = [Action(action["name"], action["arguments"]) for action in judged["actions"] or ()]
    communicates = "COMMUNICATE" in judged.get("reward_basis", ())
    name = str(task["id"])
    return Problem(
        name,
        *(str(asked.get(key) or "").strip() for key in ("reason_for_call", "known_info", "unknown_info")),
        manner=str(asked.get("task_instructions") or "").strip(". \n"),
        actions=_callable(domain, actions),
        facts=tuple(judged.get("communicate_info") or ()) if communicates else (),
        split=_split(name, splits),
    )


def _first(domain: str, place: Path) -> Source:
    """Reads the form of tau-bench: tasks are calls in Python files, of which only literals are read."""
    database = {name: json.loads((place / "data" / f"{name}.json").read_text("utf-8")) for name in TABLES[domain]}
    for user, facts in database["users"].items():
        facts.setdefault("user_id", user)
    splits = [name for name in ("train", "test") if (place / f"tasks_{name}.py").is_file()]
    problems = []
    for split in splits:
        for number, task in enumerate(_tasks(place / f"tasks_{split}.py")):
            actions = [Action(action["name"], action["kwargs"]) for action in task["actions"]]
            problems.append(
                Problem(
                    f"{split}-{number}",
                    *(task["instruction"], "", "", ""),
                    actions=_callable(domain, actions),
                    facts=tuple(map(str, task["outputs"])),
                    split=split if len(splits) == 2 else _split(f"{split}-{number}", {}),
                )
            )
    return Source(domain, database, (place / "wiki.md").read_text("utf-8"), {p.id: p for p in problems})


def _tasks(path: Path) -> list[dict[str, Any]]:
    """Returns the keyword arguments of every `Task(...)` of a file."""
    nodes = ast.walk(ast.parse(path.read_text("utf-8")))
    return [_value(node) for node in nodes if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Task"]


def _value(node: ast.expr) -> Any:
    if isinstance(node, ast.Call):
        return {"outputs": [], **{str(keyword.arg): _value(keyword.value) for keyword in node.keywords}}
    if isinstance(node, ast.List):
        return [_value(item) for item in node.elts]
    return ast.literal_eval(node)


def _callable(domain: str, actions: Sequence[Action]) -> tuple[Action, ...]:
    """Returns the actions without those that are no tools here, such as `think`."""
    return tuple(action for action in actions if action.name in calls.methods(domain))


def _named(facts: Mapping[str, Any], words: Collection[str]) -> bool:
    """Returns whether words contain the first name, the last name and the zip code of a user."""
    name, place = facts.get("name") or {}, facts.get("address") or {}
    identity = (name.get("first_name"), name.get("last_name"), place.get("zip"))
    return all(part and str(part).lower() in words for part in identity)


def _split(name: str, splits: Mapping[str, Sequence[str]]) -> str:
    """Returns the published split; without one, every fifth task, by its hash, is for testing."""
    if published := [split for split in ("train", "test") if name in splits.get(split, ())]:
        return published[0]
    return "test" if int(hashlib.sha256(name.encode()).hexdigest(), 16) % 5 == 4 else "train"
