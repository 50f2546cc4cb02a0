"""How pages are made: templates whose every text is escaped, and the words that they share."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import HTMLResponse

from sojourn.record.intervals import Estimate
from sojourn.terminal.clean import escaped
from sojourn.view.charts import number, spark
from sojourn.view.library import Library

Page = HTMLResponse


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


def address(*parts: Any, **query: Any) -> str:
    """A path of the viewer, its parts quoted (an episode's own slashes stay), with what is asked of it."""
    path = "/" + "/".join(quote(str(part), safe="/" if at == len(parts) - 1 else "") for at, part in enumerate(parts))
    asked = {key: value for key, value in query.items() if value not in (None, "", False)}
    return path + (f"?{urlencode(asked, doseq=True)}" if asked else "")


def library(request: Request) -> Library:
    return request.app.state.library


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
    made.globals |= {"address": address}
    return made


TEMPLATES = environment()


def render(request: Request, template: str, *, status_code: int = 200, **values: Any) -> Page:
    """A page; `run` is the key of the run that it is of, if any."""
    text = TEMPLATES.get_template(template).render(**{"run": "", "query": ""} | values)
    return HTMLResponse(text, status_code)
