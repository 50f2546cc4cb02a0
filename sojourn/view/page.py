"""How pages are made: templates whose every text is escaped, and the words that they share."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from sojourn.intervals import Estimate
from sojourn.record.search.query import quoted
from sojourn.terminal.clean import escaped
from sojourn.view.charts import number, spark
from sojourn.view.shelf import Shelf

Page = HTMLResponse
MARK = "sojourn.mark"


def finished(value: Any) -> Any:
    """What a template prints: text without what a browser would hide or reorder (escaping comes after)."""
    return escaped(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def interval(found: Estimate | None) -> str:
    """A rate with its 95% interval."""
    return "-" if found is None else found.percent


def ago(seconds: float) -> str:
    """How long ago a time was."""
    past = max(0.0, time.time() - seconds)
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if past >= 2 * length:
            return f"{past / length:.0f} {unit} ago"
    return f"{past:.0f} s ago"


def size(count: int) -> str:
    """Of a text that is left out."""
    for unit, length in (("M", 1_000_000), ("k", 1_000)):
        if count >= length:
            return f"{count / length:.3g}{unit}"
    return str(count)


def clip(text: str, longest: int) -> str:
    """The beginning of a text, and how much is left out."""
    return text if len(text) <= longest else f"{text[:longest]} … {size(len(text) - longest)} more characters"


def written(value: Any) -> str:
    """As JSON, with the letters of all scripts as they are."""
    return json.dumps(value, ensure_ascii=False, default=str)


def address(*parts: Any, **query: Any) -> str:
    """A path of the viewer, its parts quoted (an episode's own slashes stay), with what is asked of it."""
    path = "/" + "/".join(
        quote(str(part), safe="/" if at == len(parts) - 1 else "", errors="replace") for at, part in enumerate(parts)
    )
    asked = {key: value for key, value in query.items() if value not in (None, "", False)}
    return path + (f"?{urlencode(asked, doseq=True, errors='replace')}" if asked else "")


@cache
def static(name: str) -> str:
    """The address of one of the viewer's own files, which is another when the file is."""
    data = (Path(__file__).parent / "static" / name).read_bytes()
    return f"/static/{name}?v={hashlib.sha256(data).hexdigest()[:12]}"


def shelf(request: Request) -> Shelf:
    return request.app.state.shelf


def environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        finalize=finished,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"number": number, "interval": interval, "ago": ago, "size": size, "spark": spark}
    made.filters |= {"json": written, "clip": clip, "quoted": quoted}
    made.globals |= {"address": address, "static": static}
    return made


TEMPLATES = environment()


def render(
    request: Request, template: str, *, status_code: int = 200, missing: Iterable[str] = (), **values: Any
) -> Page:
    """A page; `run` is the key of the run that it is of, if any, `missing` says in sentences what it lacks."""
    given = {"run": "", "query": "", "missing": list(dict.fromkeys(missing)), "mark": request.scope.get(MARK, "")}
    text = TEMPLATES.get_template(template).render(**given | values)
    return HTMLResponse(text.encode(errors="backslashreplace"), status_code)


def marked(page: Callable[[Request], Response]) -> Callable[[Request], Response]:
    """The page with how its run stood before it was read: what changes after that is told by `/events`."""

    def answered(request: Request) -> Response:
        request.scope[MARK] = shelf(request).mark(request.path_params.get("run"))
        return page(request)

    return answered
