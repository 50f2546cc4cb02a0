"""Describes the methods (estimators, losses, streams, filters, rewards, curricula and sources of groups): their papers,
what they need, and what they can be combined with.

Everything is read from the components themselves, so that the descriptions cannot differ from the code.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from sojourn.abilities import BindsWorld, Learns, Unverified, env_needs, provided, reads_critic, task_data, valid_for
from sojourn.config.components import COMPONENTS
from sojourn.config.lookup import find, is_registered, names, nearest
from sojourn.config.registry import build
from sojourn.errors import ConfigError, MissingExtraError
from sojourn.protocols import Stateful
from sojourn.train.recipe import Recipe

KINDS = ("estimator", "loss", "stream", "filter", "reward", "curriculum", "groups", "branching")
PLURALS = {  # of the others: with an s
    "loss": "losses",
    "curriculum": "curricula",
    "groups": "sources of groups",
    "branching": "branching rules",
}
SOURCE = re.compile(r"\(((?:[^()]|\([^()]*\))*(?:arXiv:\d{4}\.\d{4,5}|\b(?:19|20)\d\d\b)(?:[^()]|\([^()]*\))*)\)")
NEEDS_IN_WORDS = {  # what a loss reads of the trainer's forward pass, in words
    "entropy": "the entropy of its own forward pass",
    "critic": "a critic",
    "top_logprob": "the likeliest tokens of its own forward pass",
    "reverse_kl": "the teacher's distribution in the place of each token",
    "targets": "an estimator that gives the targets of a critic",
}
UNVERIFIED_RECIPES = {  # by the name of a preset whose method is no component: the text that was read of its source
    "eva": "the paper's abstract and accounts of it were read, not its text",
    "gui_owl": "the paper's abstract and accounts of it were read, not its equations",
    "masksearch": "the paper's abstract, its authors' page and accounts of it were read, not its text nor its rewards",
    "moorl": "the paper's abstract, a reprint of its algorithm and a review were read, not its text",
    "step_masking": "the paper's abstract and accounts of it were read, not its text",
}
UNKNOWN = "known once its package is installed: pip install 'sojourn[torch]'"
ARXIV = re.compile(r"arXiv:(\d{4}\.\d{4,5})")


@dataclass(frozen=True)
class Method:
    kind: str
    name: str
    summary: str  # the first sentence of its docstring, without the source
    sources: tuple[str, ...]
    needs: tuple[str, ...]  # with the default values of its fields
    goes_with: str  # what it can be combined with
    unverified: str  # the text that was read in place of its source; empty where the source was read
    text: str  # its docstring

    @property
    def origin(self) -> str:
        """Returns its sources and, where nobody read them, the text that was read instead."""
        return "; ".join((*self.sources, *([f"unverified: {self.unverified}"] if self.unverified else [])))


class Summary(NamedTuple):
    text: str
    sources: tuple[str, ...]


def methods(kind: str = "") -> list[Method]:
    """Returns the methods of a kind, or of all kinds. Raises `ConfigError` for a kind that has no methods."""
    if kind and kind not in KINDS:
        raise ConfigError(f"'{kind}' is no kind of method: {nearest(kind, KINDS)}")
    return [_known(k, name) for k in ([kind] if kind else KINDS) for name in names(k)]


def of_name(name: str) -> list[Method]:
    """Returns the methods of a name, of any kind. Raises `ConfigError` where there is none."""
    matches = [_known(kind, name) for kind in KINDS if is_registered(kind, name)]
    if not matches:
        known = [*KINDS, *(known for kind in KINDS for known in names(kind))]
        raise ConfigError(f"'{name}' is neither a method nor a kind of method: {nearest(name, known)}")
    return matches


def unverified(value: Any) -> Iterator[str]:
    """Yields a sentence for each component inside a recipe, or any value, whose source nobody has read."""
    if isinstance(value, tuple | list):
        for item in value:
            yield from unverified(item)
    if not is_dataclass(value) or isinstance(value, type):
        return
    if isinstance(value, Recipe) and value.name in UNVERIFIED_RECIPES:
        yield f"the recipe '{value.name}' is unverified: {UNVERIFIED_RECIPES[value.name]}"
    if isinstance(value, Unverified) and value.unverified:
        yield f"{_kind_and_name(value)} is unverified: {value.unverified}"
    for each in fields(value):
        yield from unverified(getattr(value, each.name))


def _kind_and_name(value: Any) -> str:
    """Returns the kind and the name of a component, as a config has them."""
    target = f"{type(value).__module__}:{type(value).__qualname__}"
    registered = [(kind, name) for kind in KINDS for name, known in COMPONENTS[kind].items() if known == target]
    kind, name = registered[0] if registered else (type(value).__name__.lower(), getattr(value, "name", target))
    return f"the {kind} '{name}'"


def markdown() -> str:
    """Returns the page of the documentation, in Markdown."""
    return "\n".join(_page()) + "\n"


def _page() -> Iterator[str]:
    yield "# Methods"
    yield ""
    yield 'Made by `sojourn methods --markdown`. A recipe names them: `estimator = { name = "grpo" }`,'
    yield '`losses = [{ name = "ppo" }]`, `groups = { name = "dagger" }`; what does not go together is refused'
    yield "before a run begins. `sojourn check NAME` checks any of them, or your own. *Unverified* marks a method whose"
    yield "source nobody could read: the text that was read instead follows, and a run prints a note at its start."
    for kind in KINDS:
        yield ""
        yield f"## {PLURALS.get(kind, f'{kind}s').capitalize()}"
        yield ""
        yield "| name | what it is | from | needs | goes with |"
        yield "|---|---|---|---|---|"
        for method in methods(kind):
            cells = (
                f"`{method.name}`",
                method.summary,
                with_links(method.origin).replace("unverified:", "*unverified*:"),
            )
            cells += (", ".join(method.needs), method.goes_with)
            yield "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"


def with_links(source: str) -> str:
    """Returns a text in Markdown whose arXiv numbers are links."""
    return ARXIV.sub(r"[arXiv:\1](https://arxiv.org/abs/\1)", source)


def _known(kind: str, name: str) -> Method:
    """Describes a method; one that needs a package that is not installed is described by its docstring alone."""
    try:
        return _method(kind, name)
    except MissingExtraError:
        if name not in COMPONENTS[kind]:
            raise
        text = _docstring(*COMPONENTS[kind][name].split(":"))
        return Method(kind, name, *_summary_and_sources(text), (), UNKNOWN, "", text)


def _docstring(module: str, name: str) -> str:
    """Returns the docstring of a class, which is read from its file, as its module cannot be imported."""
    spec = find_spec(module)
    file = spec.origin if spec is not None else None
    assert file is not None, f"{module} is registered, but has no file"
    classes = ast.walk(ast.parse(Path(file).read_text(encoding="utf-8")))
    return next(ast.get_docstring(c) or "" for c in classes if isinstance(c, ast.ClassDef) and c.name == name)


def _method(kind: str, name: str) -> Method:
    cls = find(kind, name)
    # Many sources of groups have fields without a default, and all that is said of them is in the class.
    component = cls if kind == "groups" else build(kind, {"name": name}).value
    own = NEEDS_IN_WORDS if kind == "loss" else {}
    needs = tuple(own.get(need) or need for need in sorted(component.needs if kind in ("estimator", "loss") else ()))
    needs += ("a critic",) if reads_critic(component) else ()
    text = inspect.cleandoc(cls.__doc__ or "")
    unread = component.unverified if isinstance(component, Unverified) else ""
    return Method(kind, name, *_summary_and_sources(text), needs, _goes_with(kind, component), unread, text)


def _summary_and_sources(text: str) -> Summary:
    """Returns the first sentence of a docstring without its sources, and every source in the docstring."""
    sources = tuple(dict.fromkeys(match.group(1) for match in SOURCE.finditer(" ".join(text.split()))))
    paragraph = SOURCE.sub("", " ".join(text.partition("\n\n")[0].split()))
    first = re.split(r"\.(?=\s|$)", re.sub(r"\s+([.,:;])", r"\1", paragraph), maxsplit=1)[0]
    return Summary(" ".join(first.split()), sources)


def _goes_with(kind: str, component: Any) -> str:
    """Returns what a component can be combined with, and what holds for it in a run."""
    everything = {"estimator": "any loss", "loss": "any estimator", "filter": "any estimator"}
    everything |= {"reward": "any world", "curriculum": "any world", "groups": "any world"}
    everything |= {"branching": "agents whose seats fork"}
    facts = []
    if kind == "stream":
        everything["stream"] = "any estimator or loss"
        if wanted := sorted(task_data(component)):
            facts.append(f"worlds whose tasks have {' and '.join(f'`{key}`' for key in wanted)} in their data")
        facts += ["a reference kept from the stage's beginning"] * component.reference
        facts += ["is trained beside the policy"] * isinstance(component, Learns)
    facts += ["gives the targets of a critic"] * ("targets" in provided(component))
    if based := any(field.name == "base" for field in fields(component)):
        facts.append(f"any {'source' if kind == 'groups' else kind}, as its base")
    facts += ["worlds that make tasks of data"] * isinstance(component, BindsWorld)
    facts += [f"worlds that offer `{wanted}()`" for wanted in sorted(env_needs(component))]
    if isinstance(component, Stateful) and not based:
        facts.append("resumes with its memory")
    valid = valid_for(component)
    if kind == "loss" and not valid >= {"lag", "updates"}:
        facts.append("samples of the current weights only" if not valid else "one update per step")
    return "; ".join(facts) or everything[kind]
