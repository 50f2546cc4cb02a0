"""Renders pages from templates in which every text is escaped, and holds the filters that templates share."""

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
from sojourn.record.summary import measure_names
from sojourn.terminal.clean import escaped
from sojourn.view.charts import number, spark
from sojourn.view.run_cache import RunCache

Page = HTMLResponse
FINGERPRINT = "sojourn.fingerprint"


def escape_invisible(value: Any) -> Any:
    """Spells out the characters of a text that a browser would hide or reorder; HTML escaping comes afterwards."""
    return escaped(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def interval(estimate: Estimate | None) -> str:
    """Returns a rate in percent with its 95% confidence interval."""
    return "-" if estimate is None else estimate.percent


def ago(seconds: float) -> str:
    """Returns how long ago a time (in seconds since the epoch) was, such as "3 h ago"."""
    past = max(0.0, time.time() - seconds)
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if past >= 2 * length:
            return f"{past / length:.0f} {unit} ago"
    return f"{past:.0f} s ago"


def size(count: int) -> str:
    """Returns a count with three digits and a unit, such as 12.3k."""
    for unit, length in (("G", 1_000_000_000), ("M", 1_000_000), ("k", 1_000)):
        if count >= 0.9995 * length:  # which is 1 of the unit in three digits
            return f"{count / length:.3g}{unit}"
    return str(count)


def clip(text: str, limit: int) -> str:
    """Returns the first `limit` characters of a text, followed by the number of characters that are left out."""
    return text if len(text) <= limit else f"{text[:limit]} … {size(len(text) - limit)} more characters"


def as_json(value: Any) -> str:
    """Returns a value as JSON, without escaping letters outside ASCII."""
    return json.dumps(value, ensure_ascii=False, default=str)


def address(*parts: Any, **query: Any) -> str:
    """Returns an address of the viewer: `parts` quoted and joined (the last may hold slashes), and the query.

    Query values that are None, empty or False are left out.
    """
    path = "/" + "/".join(
        quote(str(part), safe="/" if at == len(parts) - 1 else "", errors="replace") for at, part in enumerate(parts)
    )
    present = {key: value for key, value in query.items() if value not in (None, "", False)}
    return path + (f"?{urlencode(present, doseq=True, errors='replace')}" if present else "")


@cache
def static(name: str) -> str:
    """Returns the address of one of the viewer's static files, with a hash of its content so that caches notice
    changes."""
    data = (Path(__file__).parent / "static" / name).read_bytes()
    return f"/static/{name}?v={hashlib.sha256(data).hexdigest()[:12]}"


def run_cache(request: Request) -> RunCache:
    return request.app.state.run_cache


def make_environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        finalize=escape_invisible,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"number": number, "interval": interval, "ago": ago, "size": size, "spark": spark}
    environment.filters |= {"json": as_json, "clip": clip, "quoted": quoted, "measure_names": measure_names}
    environment.globals |= {"address": address, "static": static}
    return environment


TEMPLATES = make_environment()


def render(
    request: Request, template: str, *, status_code: int = 200, problems: Iterable[str] = (), **values: Any
) -> Page:
    """Renders a template. `problems` are sentences about what could not be read; in `values`, `run` is the key of the
    run that the page shows, if any."""
    fingerprint = request.scope.get(FINGERPRINT, "")
    shared = {"run": "", "query": "", "problems": list(dict.fromkeys(problems)), "fingerprint": fingerprint}
    text = TEMPLATES.get_template(template).render(**shared | values)
    return HTMLResponse(text.encode(errors="backslashreplace"), status_code)


def with_fingerprint(page: Callable[[Request], Response], live: bool = False) -> Callable[[Request], Response]:
    """Wraps a page so that it carries the run's fingerprint from before it was read: `/events` reports later changes,
    those of a `live` service included where the page shows them."""

    def fingerprinted(request: Request) -> Response:
        request.scope[FINGERPRINT] = run_cache(request).fingerprint(request.path_params.get("run"), live)
        return page(request)

    return fingerprinted
