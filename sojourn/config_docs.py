"""Makes the reference of the configuration: every table and key of a recipe, with type, default, range and meaning.

All of it is read from the components, so that it cannot differ from them. The meaning of a key is what
`sojourn.key_meanings` says; for all other keys, it is the sentences of the class's docstring that name the key, or the
comment at its line.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from functools import cache
from typing import Annotated, Any, Literal, NamedTuple, Union

from sojourn.agents.sub_agent import SubAgent
from sojourn.agents.workflow import WorkflowRole
from sojourn.backends.ray.processes import EnvWorkers, ModelProcesses, ModelRanks, TrainerRanks
from sojourn.backends.ray.sampler_engines import Samplers
from sojourn.batch.weigh import Aggregate
from sojourn.config.components import COMPONENTS
from sojourn.config.fields import Kind, Range, Text
from sojourn.config.lookup import find, names
from sojourn.config.registry import as_toml
from sojourn.key_meanings import OF_CLASS, OF_NAME
from sojourn.live.gate import Gate
from sojourn.method_docs import with_links
from sojourn.models.spec import Critic, FrozenModel, Lora, Model, Sampling, ServedModel, Snapshots
from sojourn.optim import Lookahead, Optim
from sojourn.rewards.judge import Criterion
from sojourn.rewards.proofs import Proof
from sojourn.rollout.limits import Limits
from sojourn.rollout.runner import Rollout
from sojourn.searchers.critique import Critique
from sojourn.train.early_stop import EarlyStop
from sojourn.train.recipe import Evaluation, LearnerConfig, Recipe, Record, Stage
from sojourn.train.repeats import Repeat
from sojourn.train.seating import Seats
from sojourn.train.steered import SteeredBy

RUN: Mapping[str, type] = {
    "a recipe": Recipe,
    "model": Model,
    "lora": Lora,
    "critic": Critic,
    "models": FrozenModel,
    "endpoint": ServedModel,
    "snapshots": Snapshots,
    "seats": Seats,
    "sampling": Sampling,
    "rollout": Rollout,
    "limits": Limits,
    "evaluation": Evaluation,
    "steering": SteeredBy,
    "record": Record,
    "release": Gate,
}
STAGES: Mapping[str, type] = {
    "stages": Stage,
    "learners": LearnerConfig,
    "aggregate": Aggregate,
    "optim": Optim,
    "lookahead": Lookahead,
    "early_stop": EarlyStop,
    "repeats": Repeat,
}
PARTS: Mapping[str, Mapping[str, type]] = {  # tables of components, by their kind
    "agent": {"critique": Critique, "sub_agents": SubAgent, "roles": WorkflowRole},
    "reward": {"criteria": Criterion, "proof": Proof},
    "backend": {
        "samplers": Samplers,
        "trainer": TrainerRanks,
        "envs": EnvWorkers,
        "models": ModelProcesses,
        "trainer_of_a_model": ModelRanks,
    },
}
PAGES: Mapping[str, Mapping[str, type]] = {"run": RUN, "stages": STAGES, **PARTS}
PAGE_OF: dict[Any, str] = {cls: page for page, tables in PAGES.items() for cls in tables.values()}
TABLE_OF: dict[Any, str] = {cls: table for tables in PAGES.values() for table, cls in tables.items()}
SENTENCE = re.compile(r"(?<=\.)(?<!Dr\.)\s+(?=[A-Z`\"])")  # "Dr. GRPO" ends none
SPECIAL = re.compile(r"(\*\w+\*)|([<*\[])")  # emphasis, which stays, or a character that Markdown takes for its own
COMMENT = re.compile(r"    (\w+): .*?  # (.*)$", re.MULTILINE)
LONGEST_DEFAULT = 60  # characters
SCALARS = {int: "whole number", float: "number", bool: "true or false", str: "text", Any: "any value"}
PLURALS = {"whole number": "whole numbers", "number": "numbers", "text": "texts"}
MADE = "Made by `make reference` from the components themselves."


class Key(NamedTuple):
    """A row of the reference, in Markdown."""

    name: str
    type: str
    default: str
    range: str
    meaning: str


def pages() -> dict[str, str]:
    """Returns the text of each page of the reference by its name, without the extension."""
    fixed = {"run": ("A run", RUN), "stages": ("Stages", STAGES)}
    found = {name: _page(title, tables) for name, (title, tables) in fixed.items()}
    for kind in COMPONENTS:
        components = {name: find(kind, name) for name in names(kind)}
        found[kind] = _page(_title(kind), {**components, **PARTS.get(kind, {})}, kind)
    return found


def keys(cls: type) -> list[Key]:
    """Returns the keys of a table, in the order of the fields of its class."""
    hints = typing.get_type_hints(cls, include_extras=True)
    own = [f for f in dataclasses.fields(cls) if f.init and not f.name.startswith("_")]
    return [Key(f.name, _type(hints[f.name]), _default(f), _range(hints[f.name]), meaning(cls, f.name)) for f in own]


def meaning(cls: type, key: str) -> str:
    """Returns what a key of a table does; empty where nothing says so."""
    declaring = [owner for owner in cls.__mro__ if key in vars(owner).get("__annotations__", {})]
    for owner in dict.fromkeys((cls, *declaring)):
        if text := OF_CLASS.get(f"{owner.__name__}.{key}"):
            return text
    for owner in dict.fromkeys((cls, *declaring)):
        if text := _sentences(owner, key):
            return text
    for owner in declaring:
        if text := _comments(owner).get(key, ""):
            return f"{text[0].upper()}{text[1:]}"
    return OF_NAME.get(key, "")


def _sentences(cls: type, key: str) -> str:
    """Returns the sentences of a class's docstring that name a key."""
    text = " ".join(inspect.cleandoc(cls.__doc__ or "").split())
    named = re.compile(rf"`{key}\b[^`]*`")
    return " ".join(sentence for sentence in SENTENCE.split(text) if named.search(sentence))


@cache
def _comments(cls: type) -> Mapping[str, str]:
    """Returns the comments at the lines of a class's fields."""
    return {key: text for key, text in COMMENT.findall(inspect.getsource(cls)) if not text.startswith(("type:", "fmt"))}


def _title(kind: str) -> str:
    titles = {
        "env": "Worlds",
        "groups": "Group sources",
        "branching": "Branching rules",
        "loss": "Losses",
        "curriculum": "Curricula",
    }
    return titles.get(kind, f"{kind.capitalize()}s")


def _page(title: str, tables: Mapping[str, type], kind: str = "") -> str:
    lines = [f"# {title}", "", MADE, ""]
    if kind:
        role = {"env": "world", "groups": "source"}.get(kind, kind)
        lines += [f"What is common to all of them is [the role](../roles/{role}.md).", ""]
    for table, cls in tables.items():
        lines += [f"## {table}", "", *_described(cls), *_table(keys(cls)), ""]
    return "\n".join(lines).rstrip() + "\n"


def _described(cls: type) -> Iterator[str]:
    """Yields the docstring, which may hold indented code, as Markdown."""
    text = cls.__doc__ or ""
    generated = text.startswith(f"{cls.__name__}(")  # by dataclass
    for paragraph in inspect.cleandoc("" if generated else text).split("\n\n"):
        code = paragraph.startswith("    ")
        yield paragraph if code else with_links(_escaped(" ".join(paragraph.split())))
        yield ""


def _table(rows: Sequence[Key]) -> Iterator[str]:
    if not rows:
        yield "It has no keys."
        return
    yield "| key | type | default | range | what it does |"
    yield "|---|---|---|---|---|"
    for row in rows:
        cells = (f"`{row.name}`", row.type, row.default, row.range, with_links(_escaped(row.meaning)))
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _escaped(text: str) -> str:
    """Returns a text whose characters `<`, `*` and `[` stand for themselves, outside of backticks and `*emphasis*`."""
    parts = text.split("`")
    return "`".join(
        part if number % 2 else SPECIAL.sub(lambda found: found[1] or f"\\{found[2]}", part)
        for number, part in enumerate(parts)
    )


def _default(field: dataclasses.Field[Any]) -> str:
    """Returns a default as TOML would have it."""
    if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
        return "*required*"
    made = field.default_factory is not dataclasses.MISSING
    value = field.default_factory() if made else field.default  # type: ignore[misc]
    if value is None:
        return ""
    plain = as_toml(value)
    if isinstance(plain, Mapping):
        named = isinstance(plain.get("name"), str) and dataclasses.is_dataclass(value) and type(value) not in TABLE_OF
        return f'`{{ name = "{plain["name"]}" }}`' if named else "its own" if plain else "`{}`"
    text = json.dumps(plain, ensure_ascii=False)
    return f"`{text if len(text) <= LONGEST_DEFAULT else text[:LONGEST_DEFAULT] + ' ...'}`"


def _type(hint: Any) -> str:
    """Returns the type of a key in words, with a link to what its tables are."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        kinds = [extra.name for extra in arguments[1:] if isinstance(extra, Kind)]
        if not kinds:
            return _type(arguments[0])
        many = typing.get_origin(arguments[0]) is tuple
        return f"{'list of tables' if many else 'table'}: [{kinds[0]}]({kinds[0]}.md)"
    if origin in (Union, types.UnionType):
        return " or ".join(_type(option) for option in arguments if option is not type(None))
    if origin is Literal:
        return ", ".join(f"`{json.dumps(option)}`" for option in arguments)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return ", ".join(f"`{json.dumps(member.value)}`" for member in hint)
    if origin in (tuple, list, Sequence):
        return _list(arguments)
    if origin in (dict, Mapping) or hint in (dict, Mapping):
        return f"table of {_type(arguments[1])}" if len(arguments) == 2 else "table"
    if dataclasses.is_dataclass(hint):
        return f"table: [{TABLE_OF[hint]}]({PAGE_OF[hint]}.md#{TABLE_OF[hint]})"
    return SCALARS.get(hint, "text" if hint is type else str(getattr(hint, "__name__", hint)))


def _list(arguments: Sequence[Any]) -> str:
    many = len(arguments) == 2 and arguments[1] is Ellipsis
    if many or len(arguments) == 1:
        return f"list of {PLURALS.get(one := _type(arguments[0]), one)}"
    return f"list of {len(arguments)}: {', '.join(_type(one) for one in arguments)}"


def _range(hint: Any) -> str:
    """Returns the bounds of a number, or the rule of a text, in a few characters; nothing where all are allowed."""
    found = [_bounds(rule) if isinstance(rule, Range) else rule.description for rule in _rules(hint)]
    return ", ".join(dict.fromkeys(found))


def _rules(hint: Any) -> Iterator[Range | Text]:
    if typing.get_origin(hint) is Annotated:
        yield from (rule for rule in typing.get_args(hint)[1:] if isinstance(rule, Range | Text))
    for argument in typing.get_args(hint):
        if not isinstance(argument, Range | Text | Kind):
            yield from _rules(argument)


def _bounds(rule: Range) -> str:
    signs = {"≥": rule.min, ">": rule.above, "≤": rule.max, "<": rule.below}
    bounds = " ".join(f"{sign} {_short(bound)}" for sign, bound in signs.items() if abs(bound) != float("inf"))
    return f"0, or {bounds}" if rule.or_zero else bounds


def _short(bound: float) -> str:
    return "2^63" if bound == 2**63 else f"{bound:g}"
