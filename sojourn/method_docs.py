"""The menu of methods: what estimators, losses and streams are, where they are from, what they need and go with.

All of it is read from the components themselves, so that it cannot say anything else than they do.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, NamedTuple

from sojourn.abilities import Learns, Unverified, env_needs, provided, reads_critic, task_data, valid_for
from sojourn.config.components import COMPONENTS
from sojourn.config.registry import build, find, names, nearest
from sojourn.errors import ConfigError

KINDS = ("estimator", "loss", "stream", "filter", "reward")
SOURCE = re.compile(r"\(((?:[^()]|\([^()]*\))*(?:arXiv:\d{4}\.\d{4,5}|\b(?:19|20)\d\d\b)(?:[^()]|\([^()]*\))*)\)")
OF_PASS = {
    "entropy": "entropy, of its own pass",
    "critic": "a critic",
    "top_logprob": "the likeliest tokens, of its own pass",
    "targets": "an estimator that says what a critic learns",
}
ARXIV = re.compile(r"arXiv:(\d{4}\.\d{4,5})")


@dataclass(frozen=True)
class Method:
    kind: str
    name: str
    what: str  # the first sentence of its docstring, without the source
    sources: tuple[str, ...]
    needs: tuple[str, ...]  # as it comes
    composes: str
    unverified: str  # what could be read in place of its source; empty where the source was read
    text: str  # its docstring

    @property
    def origin(self) -> str:
        """Its sources, and whether they were read."""
        return "; ".join((*self.sources, *([f"unverified: {self.unverified}"] if self.unverified else [])))


class Parts(NamedTuple):
    what: str
    sources: tuple[str, ...]


def methods(kind: str = "") -> list[Method]:
    """All of a kind, or all. Raises `ConfigError` for a kind that has no methods."""
    if kind and kind not in KINDS:
        raise ConfigError(f"'{kind}' is no kind of method: {nearest(kind, KINDS)}")
    return [_method(k, name) for k in ([kind] if kind else KINDS) for name in names(k)]


def of_name(name: str) -> list[Method]:
    """The methods of a name, of any kind. Raises `ConfigError` where there is none."""
    found = [_method(kind, name) for kind in KINDS if name in names(kind)]
    if not found:
        known = [*KINDS, *(known for kind in KINDS for known in names(kind))]
        raise ConfigError(f"'{name}' is neither a method nor a kind of method: {nearest(name, known)}")
    return found


def unverified(value: Any) -> Iterator[str]:
    """One sentence for each component within a recipe, or any value, whose source nobody has read."""
    if isinstance(value, tuple | list):
        for item in value:
            yield from unverified(item)
    if not is_dataclass(value) or isinstance(value, type):
        return
    if isinstance(value, Unverified) and value.unverified:
        yield f"{_called(value)} is unverified: {value.unverified}"
    for each in fields(value):
        yield from unverified(getattr(value, each.name))


def _called(value: Any) -> str:
    """What a component is called in a config, with its kind; a recipe is called by its own name."""
    target = f"{type(value).__module__}:{type(value).__qualname__}"
    found = [(kind, name) for kind in KINDS for name, known in COMPONENTS[kind].items() if known == target]
    kind, name = found[0] if found else (type(value).__name__.lower(), getattr(value, "name", target))
    return f"the {kind} '{name}'"


def markdown() -> str:
    """The documentation's page."""
    return "\n".join(_page()) + "\n"


def _page() -> Iterator[str]:
    yield "# Methods"
    yield ""
    yield 'Made by `sojourn methods --markdown`. A recipe names them: `estimator = { name = "grpo" }`,'
    yield '`losses = [{ name = "ppo" }]`, `streams = [{ name = "entropy" }]`; what does not go together is refused'
    yield "before a run begins. `sojourn check NAME` holds any of them, or your own, to what it promises. Where it says"
    yield "*unverified*, nobody could read the source: what was read instead follows, and a run says so at its start."
    for kind in KINDS:
        yield ""
        yield f"## {kind.capitalize()}{'es' if kind == 'loss' else 's'}"
        yield ""
        yield "| name | what it is | from | needs | goes with |"
        yield "|---|---|---|---|---|"
        for method in methods(kind):
            cells = (f"`{method.name}`", method.what, _linked(method.origin).replace("unverified:", "*unverified*:"))
            cells += (", ".join(method.needs), method.composes)
            yield "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"


def _linked(source: str) -> str:
    return ARXIV.sub(r"[arXiv:\1](https://arxiv.org/abs/\1)", source)


def _method(kind: str, name: str) -> Method:
    cls = find(kind, name)
    made = build(kind, {"name": name}).value
    own = OF_PASS if kind == "loss" else {}
    needs = tuple(own.get(need) or need for need in sorted(getattr(made, "needs", ())))
    needs += ("a critic",) if reads_critic(made) else ()
    text = inspect.cleandoc(cls.__doc__ or "")
    unread = made.unverified if isinstance(made, Unverified) else ""
    return Method(kind, name, *_parts(text), needs, _composes(kind, made), unread, text)


def _parts(text: str) -> Parts:
    """The first sentence without what is in brackets, and every source in the text."""
    sources = tuple(dict.fromkeys(found.group(1) for found in SOURCE.finditer(" ".join(text.split()))))
    paragraph = SOURCE.sub("", " ".join(text.partition("\n\n")[0].split()))
    first = re.split(r"\.(?=\s|$)", re.sub(r"\s+([.,:;])", r"\1", paragraph), maxsplit=1)[0]
    return Parts(" ".join(first.split()), sources)


def _composes(kind: str, made: Any) -> str:
    everything = {"estimator": "any loss", "loss": "any estimator", "filter": "any estimator", "reward": "any world"}
    said = []
    if kind == "stream":
        everything["stream"] = "any weights"
        if wanted := sorted(task_data(made)):
            said.append(f"worlds whose tasks have {' and '.join(f'`{key}`' for key in wanted)} in their data")
        said += ["a reference kept from the stage's beginning"] * made.reference
        said += ["learns beside the policy"] * isinstance(made, Learns)
    said += ["says what a critic learns"] * ("targets" in provided(made))
    if based := any(field.name == "base" for field in fields(made)):
        said.append(f"any {kind}, as its base")
    said += [f"worlds that offer `{wanted}()`" for wanted in sorted(env_needs(made))]
    if hasattr(made, "state") and not based:
        said.append("resumes with its memory")
    right_for = valid_for(made)
    if kind == "loss" and not right_for >= {"lag", "updates"}:
        said.append("samples of the present weights alone" if not right_for else "one update a step")
    return "; ".join(said) or everything[kind]
