"""Makes the Content-Security-Policy of a task page: it runs its own scripts, known by their hashes, and no others.

The header makes Chromium refuse event handlers in attributes, `javascript:` addresses, added scripts, `eval`,
connections, frames with an address, workers, plugins, popups and dialogs. The pages need none of these (all of them
play alike with and without it).
"""

from __future__ import annotations

import base64
import hashlib
from codecs import BOM_UTF8
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urljoin, urlsplit

COMMON_POLICY = (
    "default-src 'none'; script-src-attr 'none'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "font-src 'self' data:; form-action 'none'; base-uri 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types default sojourn; "
    "sandbox allow-scripts allow-same-origin allow-forms"
)
"""Forms are allowed because Chromium fires no submit event without; their targets are not."""
EVAL_SCRIPT = "/core/jscolor.min.js"  # evaluates its options while it loads; later, the seal's Trusted Types refuse it


@dataclass(frozen=True)
class Policy:
    """`header` is the page's Content-Security-Policy, `known_scripts` the hashes of its scripts.

    `reward_scripts` are those that may end the episode: the page's inline scripts and `core.js`, not the libraries,
    whose functions would call whatever they are given.
    """

    header: str
    reward_scripts: tuple[str, ...]
    known_scripts: tuple[str, ...]


def policy_of(folder: Path, target: str, url: str) -> Policy:
    """Returns the policy of an HTML file below `folder` that is served as `url` + `target`."""
    scripts = _Scripts()
    scripts.feed((folder / target.lstrip("/")).read_text(encoding="utf-8"))
    scripts.close()
    paths = [urlsplit(urljoin(target, src)).path for src in scripts.sources]
    files = {path: folder / path.lstrip("/") for path in paths}
    hashes = {path: _digest(file.read_bytes().removeprefix(BOM_UTF8)) for path, file in files.items() if file.is_file()}
    inline = [_digest(text.encode()) for text in scripts.texts]
    allowed = [f"'sha256-{base64.b64encode(digest).decode()}'" for digest in inline] + [
        f"{url}{path}" for path in paths
    ]
    allowed += ["'unsafe-eval'"] * (EVAL_SCRIPT in paths)
    reward_scripts = [digest for path, digest in hashes.items() if path == "/core/core.js"]
    return Policy(
        header=f"script-src {' '.join(allowed)}; {COMMON_POLICY}",
        reward_scripts=tuple(digest.hex() for digest in [*inline, *reward_scripts]),
        known_scripts=tuple(digest.hex() for digest in [*inline, *hashes.values()]),
    )


def _digest(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()


class _Scripts(HTMLParser):
    """Collects the scripts of a page: the addresses of external ones, the text of inline ones."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=False)
        self.sources: list[str] = []
        self.texts: list[str] = []
        self._inside = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "script":
            src = dict(attrs).get("src")
            self._inside = src is None
            if src is None:
                self.texts.append("")
            else:
                self.sources.append(src)

    def handle_endtag(self, tag: str) -> None:
        if tag == "script":
            self._inside = False

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.texts[-1] += data
