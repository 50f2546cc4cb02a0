"""The menu of methods: what estimators, losses and streams are, where they are from, what they need and go with.

All of it is read from the components themselves, so that it cannot say anything else than they do.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from sojourn.config.registry import build, find, names, nearest
from sojourn.errors import ConfigError
from sojourn.protocols import Learns, env_needs, provided, reads_critic, task_data, valid_for

KINDS = ("estimator", "loss", "stream", "filter", "reward")
SOURCE = re.compile(r"\(((?:[^()]|\([^()]*\))*(?:arXiv:\d{4}\.\d{4,5}|\b(?:19|20)\d\d\b)(?:[^()]|\([^()]*\))*)\)")
OF_PASS = {
    "entropy": "entropy, of its own pass",
    "critic": "a critic",
    "top": "the likeliest tokens, of its own pass",
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


class Parts(NamedTuple):
    what: str
    sources: tuple[str, ...]


def methods(kind: str = "") -> list[Method]:
    """All of a kind, or all. Raises `ConfigError` for a kind that has no methods."""
    if kind and kind not in KINDS:
        raise ConfigError(f"'{kind}' is no kind of method: {nearest(kind, KINDS)}")
    return [_method(k, name) for k in ([kind] if kind else KINDS) for name in names(k)]


def markdown() -> str:
    """The documentation's page."""
    return "\n".join(_page()) + "\n"


def _page() -> Iterator[str]:
    yield "# Methods"
    yield ""
    yield 'Made by `sojourn methods --markdown`. A recipe names them: `estimator = { name = "grpo" }`,'
    yield '`losses = [{ name = "ppo" }]`, `streams = [{ name = "entropy" }]`; what does not go together is refused'
    yield "before a run begins. `sojourn check NAME` holds any of them, or your own, to what it promises."
    for kind in KINDS:
        yield ""
        yield f"## {kind.capitalize()}{'es' if kind == 'loss' else 's'}"
        yield ""
        yield "| name | what it is | from | needs | goes with |"
        yield "|---|---|---|---|---|"
        for method in methods(kind):
            cells = (f"`{method.name}`", method.what, "; ".join(map(_linked, method.sources)))
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
    return Method(kind, name, *_parts(inspect.cleandoc(cls.__doc__ or "")), needs, _composes(kind, made))


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
