"""Reads forms, which change something, and refuses those that no page of this viewer sent."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from urllib.parse import parse_qs, urlsplit

from starlette.requests import Request

from sojourn.errors import SojournError

MAX_FORM_BYTES = 1 << 20


class RefusedError(SojournError):
    """A form was not sent by a page of this viewer."""


async def read_form(request: Request, token: str) -> Mapping[str, str]:
    """Returns the fields of a form; raises RefusedError if no page of this viewer sent it, as these hold the token."""
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    host = request.headers.get("host", "")
    if site not in (None, "same-origin") or (origin is not None and urlsplit(origin).netloc != host):
        raise RefusedError("this form was sent by a page of another site, so it was ignored")
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > MAX_FORM_BYTES:
            raise RefusedError(f"this form is larger than {MAX_FORM_BYTES:,} bytes: shorten what you wrote")
    fields = parse_qs(body.decode(errors="replace"), keep_blank_values=True)
    form = {name: values[-1] for name, values in fields.items()}
    if not hmac.compare_digest(form.get("token", "").encode(), token.encode()):
        raise RefusedError("this form is of a page that the viewer sent before it was restarted: reload the page")
    return form
