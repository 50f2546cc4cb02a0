"""Makes the policy of a task page: it runs its own scripts, known by their hashes, and nothing that is added later.

The header makes Chromium refuse handlers in attributes, `javascript:` addresses, added scripts, `eval`, connections,
frames with an address, workers, plugins, popups and dialogs. The pages need none of these (all of them play alike with
and without it).
"""

from __future__ import annotations

import base64
import hashlib
from codecs import BOM_UTF8
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urljoin, urlsplit

REST = (
    "default-src 'none'; script-src-attr 'none'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "font-src 'self' data:; form-action 'none'; base-uri 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types default sojourn; "
    "sandbox allow-scripts allow-same-origin allow-forms"
)
"""Forms are allowed because Chromium fires no submit event without; where they lead to is not."""
EVALUATES = "/core/jscolor.min.js"  # reads its options so, while it loads; later, the seal's Trusted Types refuse it


@dataclass(frozen=True)
class Policy:
    """`header` is the page's Content-Security-Policy, `known` the hashes of its scripts.

    `payers` are those that may end the episode: the page's inline scripts and `core.js`, not the libraries, whose
    functions would call whatever they are given.
    """

    header: str
    payers: tuple[str, ...]
    known: tuple[str, ...]


def policy_of(folder: Path, target: str, url: str) -> Policy:
    """The policy of an HTML file below `folder` that is served as `url` + `target`."""
    found = _Scripts()
    found.feed((folder / target.lstrip("/")).read_text(encoding="utf-8"))
    found.close()
    places = [urlsplit(urljoin(target, source)).path for source in found.sources]
    files = {place: folder / place.lstrip("/") for place in places}
    hashes = {
        place: _digest(path.read_bytes().removeprefix(BOM_UTF8)) for place, path in files.items() if path.is_file()
    }
    inline = [_digest(text.encode()) for text in found.texts]
    allowed = [f"'sha256-{base64.b64encode(digest).decode()}'" for digest in inline] + [f"{url}{at}" for at in places]
    allowed += ["'unsafe-eval'"] * (EVALUATES in places)
    payers = [digest for place, digest in hashes.items() if place == "/core/core.js"]
    return Policy(
        header=f"script-src {' '.join(allowed)}; {REST}",
        payers=tuple(digest.hex() for digest in [*inline, *payers]),
        known=tuple(digest.hex() for digest in [*inline, *hashes.values()]),
    )


def _digest(source: bytes) -> bytes:
    return hashlib.sha256(source).digest()


class _Scripts(HTMLParser):
    """Collects the scripts of a page: the addresses of some, the text of the others."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=False)
        self.sources: list[str] = []
        self.texts: list[str] = []
        self._inside = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "script":
            source = dict(attrs).get("src")
            self._inside = source is None
            if source is None:
                self.texts.append("")
            else:
                self.sources.append(source)

    def handle_endtag(self, tag: str) -> None:
        if tag == "script":
            self._inside = False

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.texts[-1] += data
