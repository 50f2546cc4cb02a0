"""One file that tells of a run, without a server and without a network: curves, tables and chosen episodes.

It is made of the viewer's own charts and templates, with style, script and images in it. Its policy lets nothing be
fetched, and no script run but the one whose digest it names.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from markupsafe import Markup

from sojourn.errors import RecordError
from sojourn.record.atomic import write_bytes
from sojourn.record.blobs import Blobs
from sojourn.record.episodes.episode_row import EpisodeRow
from sojourn.record.episodes.step_file import Record
from sojourn.record.episodes.store import EpisodeStore
from sojourn.record.metrics import Line
from sojourn.record.run import RunFolder
from sojourn.record.run_status import RunStatus, read_status
from sojourn.terminal.find import found
from sojourn.view.counts import PREFIX, failures, of_tags
from sojourn.view.episode import End, TurnView, View, ends, version_of
from sojourn.view.page import TEMPLATES
from sojourn.view.pages.run import charts, stage_starts
from sojourn.view.pictures import Picture, measured
from sojourn.view.shelf import Shelf

STATIC = Path(__file__).parent / "static"
LARGEST = 2_000_000  # bytes of an image that is put in
EPISODES = 6  # that are chosen where none are named


class Told(NamedTuple):
    """An episode of the report; `why` says why it was chosen, `trouble` why it cannot be read."""

    entry: EpisodeRow
    why: str
    turns: Sequence[TurnView] = ()
    ends: Sequence[End] = ()
    data: str = ""
    error: str | None = None
    trouble: str = ""


def write(run: Path, out: Path, episodes: Sequence[str] = (), smooth: float = 0.0) -> int:
    """Writes the report of a run, and says how many episodes are in it."""
    lines = Shelf((run,)).lines(run)
    told = _episodes(run, episodes, lines)
    page = _page(run, told, lines, smooth)
    write_bytes(out, page.encode(errors="backslashreplace"))
    return len(told)


def _page(run: Path, told: Sequence[Told], lines: Sequence[Line], smooth: float) -> str:
    folder = RunFolder.read(run)
    script, style = (STATIC / "live.js").read_text(), (STATIC / "style.css").read_text()
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    state = read_status(run)
    with EpisodeStore(run) as store:
        failed, tags = failures(store), of_tags(store, lines[-1].stage, lines[-1].step) if lines else []
    return TEMPLATES.get_template("report.html").render(
        policy=f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{digest}'",
        style=Markup(style), script=Markup(script), standing=state, told=told, failed=failed, tags=tags,
        charts=charts(lines, stage_starts(lines), smooth, every=False),
        config=folder.config_text,
        versions=_versions(folder, state), when=f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
    )  # fmt: skip


def _versions(folder: RunFolder, state: RunStatus) -> dict[str, str]:
    try:
        models = {f"{role} model": which for role, which in folder.models.items()}
        return {name: str(version) for name, version in {**folder.versions, **models}.items()}
    except RecordError as error:
        return {"versions": f"cannot be read: {error}"}


def _episodes(run: Path, names: Sequence[str], lines: Sequence[Line]) -> list[Told]:
    with EpisodeStore(run) as store:
        chosen = [(found(store, name), "asked for") for name in names] or _chosen(store)
        return [_told(run, store, entry, why, lines) for entry, why in chosen]


def _chosen(store: EpisodeStore) -> list[tuple[EpisodeRow, str]]:
    """Some of the last evaluation, else of the last step: the best, the worst, the longest, and one of each ending."""
    counts = store.steps()
    panels = [count for count in counts if count.stage.startswith(PREFIX)]
    last = max(panels or counts, key=lambda count: (count.step, count.stage == PREFIX + "before"), default=None)
    entries = list(store.query(stage=last.stage, step=last.step)) if last else []
    whole = sorted((e for e in entries if e.reward is not None), key=lambda e: (e.reward, e.turns))
    picked: dict[str, tuple[EpisodeRow, str]] = {}
    for entry, why in (
        *((e, "the most reward") for e in whole[:-3:-1]),
        *((e, "the least reward") for e in whole[:2]),
        *((e, "the longest") for e in sorted(whole, key=lambda e: -e.turns)[:1]),
        *((e, f"one that ended as {e.ending}") for e in {e.ending: e for e in whole}.values()),
        *((e, "one that failed") for e in entries if e.error is not None),
    ):
        picked.setdefault(entry.id, (entry, why))
    return list(picked.values())[:EPISODES]


def _told(run: Path, store: EpisodeStore, entry: EpisodeRow, why: str, lines: Sequence[Line]) -> Told:
    try:
        record: Record = store.read(entry)
    except RecordError as error:
        return Told(entry, why, trouble=str(error))
    version = version_of(lines, entry)
    view = View(version=version, whole=lambda seat, turn, message: "", pictured=lambda digest: _inlined(run, digest))
    data = str(dict(record.episode.task.data))[:2000]
    return Told(entry, why, list(view.turns(record)), ends(record), data, record.episode.error)


def _inlined(run: Path, digest: str) -> Picture:
    """An image as a part of the file."""
    try:
        data = Blobs(run / "blobs").get(digest)
    except (RecordError, OSError):
        return Picture("", 0, 0, f"the image {digest[:16]} is not in the run's blobs folder")
    kind, width, height = measured(data[:24])
    if kind is None or len(data) > LARGEST:
        return Picture("", 0, 0, f"the image {digest[:16]} of {len(data):,} bytes is left out")
    return Picture(f"data:{kind};base64,{base64.b64encode(data).decode()}", width, height)
