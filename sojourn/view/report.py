"""Writes a run's curves, tables and some episodes to one HTML file, which needs neither a server nor a network.

It uses the viewer's charts and templates, with style, script and images inlined. Its content security policy forbids
all requests, and every script but the one whose digest it names.
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
from sojourn.record.diagnosis import findings
from sojourn.record.episodes.episode_row import EpisodeRow
from sojourn.record.episodes.step_file import Record
from sojourn.record.episodes.store import EpisodeStore
from sojourn.record.metrics import Line
from sojourn.record.run import RunFolder
from sojourn.record.run_status import read_status
from sojourn.terminal.find import find_episode
from sojourn.view.counts import EVALUATION_PREFIX, RECENT_STEPS, failures, success_by_tag
from sojourn.view.episode import EpisodeView, SeatEnd, TurnView, seat_ends, trained_version
from sojourn.view.images import Image, image_format
from sojourn.view.page import TEMPLATES
from sojourn.view.pages.run import charts, stage_starts
from sojourn.view.run_cache import RunCache

STATIC = Path(__file__).parent / "static"
MAX_IMAGE_BYTES = 2_000_000  # of an image that is inlined
MAX_EPISODES = 6  # that are chosen if none are named


class ReportEpisode(NamedTuple):
    """An episode of the report. `reason` says why it was chosen, `problem` why it cannot be read."""

    row: EpisodeRow
    reason: str
    turns: Sequence[TurnView] = ()
    seat_ends: Sequence[SeatEnd] = ()
    data: str = ""
    error: str | None = None
    traceback: str | None = None
    problem: str = ""


def write_report(run: Path, out: Path, episodes: Sequence[str] = (), smooth: float = 0.0) -> int:
    """Writes the report of a run to a file, and returns the number of its episodes."""
    lines = RunCache((run,)).lines(run)
    chosen = _episodes(run, episodes, lines)
    page = _page(run, chosen, lines, smooth)
    write_bytes(out, page.encode(errors="backslashreplace"))
    return len(chosen)


def _page(run: Path, episodes: Sequence[ReportEpisode], lines: Sequence[Line], smooth: float) -> str:
    folder = RunFolder.read(run)
    script, style = (STATIC / "live.js").read_text(), (STATIC / "style.css").read_text()
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    status = read_status(run)
    with EpisodeStore(run) as store:
        failed, tags = failures(store), success_by_tag(store, lines[-1].stage, lines[-1].step) if lines else []
        diagnosis = findings(store, lines)
    return TEMPLATES.get_template("report.html").render(
        policy=f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{digest}'",
        style=Markup(style), script=Markup(script), status=status, episodes=episodes, failed=failed, tags=tags,
        charts=charts(lines, stage_starts(lines), smooth, show_all=False), config=folder.config_text,
        recent_steps=RECENT_STEPS, versions=_versions(folder), diagnosis=diagnosis,
        when=f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
    )  # fmt: skip


def _versions(folder: RunFolder) -> dict[str, str]:
    """Returns the recorded versions of packages and the revisions of models."""
    try:
        models = {f"{role} model": revision for role, revision in folder.models.items()}
        return {name: str(version) for name, version in {**folder.versions, **models}.items()}
    except RecordError as error:
        return {"versions": f"cannot be read: {error}"}


def _episodes(run: Path, names: Sequence[str], lines: Sequence[Line]) -> list[ReportEpisode]:
    with EpisodeStore(run) as store:
        chosen = [(find_episode(store, name), "named on the command line") for name in names] or _choose(store)
        return [_report_episode(run, store, entry, reason, lines) for entry, reason in chosen]


def _choose(store: EpisodeStore) -> list[tuple[EpisodeRow, str]]:
    """Chooses episodes of the last evaluation (or of the last step): the best, the worst, the longest, one per
    ending."""
    counts = store.steps()
    evaluations = [count for count in counts if count.stage.startswith(EVALUATION_PREFIX)]
    made = _evaluations_in_order(store.folder)
    last = max(evaluations or counts, key=lambda count: (made.get(count.stage, -1), count.step), default=None)
    entries = list(store.query(stage=last.stage, step=last.step)) if last else []
    judged = sorted((e for e in entries if e.reward is not None), key=lambda e: (e.reward, e.turns))
    chosen: dict[str, tuple[EpisodeRow, str]] = {}
    for entry, reason in (
        *((e, "highest reward") for e in judged[:-3:-1]),
        *((e, "lowest reward") for e in judged[:2]),
        *((e, "longest") for e in sorted(judged, key=lambda e: -e.turns)[:1]),
        *((e, f"example of the ending {e.ending}") for e in {e.ending: e for e in judged}.values()),
        *((e, "example of a failure") for e in entries if e.error is not None),
    ):
        chosen.setdefault(entry.id, (entry, reason))
    return list(chosen.values())[:MAX_EPISODES]


def _evaluations_in_order(run: Path) -> dict[str, int]:
    """Returns the number of each evaluation in the order in which they were made, by the stage that records it: steps
    begin anew in each stage, so that they do not tell which was last."""
    try:
        evaluations = RunFolder.read(run).evaluations()
    except RecordError:
        return {}
    return {f"{EVALUATION_PREFIX}{evaluation['name']}": number for number, evaluation in enumerate(evaluations)}


def _report_episode(
    run: Path, store: EpisodeStore, entry: EpisodeRow, reason: str, lines: Sequence[Line]
) -> ReportEpisode:
    try:
        record: Record = store.read(entry)
    except RecordError as error:
        return ReportEpisode(entry, reason, problem=str(error))
    version = trained_version(lines, entry)
    view = EpisodeView(
        version=version, full_text=lambda seat, turn, message: "", image=lambda digest: _inlined(run, digest)
    )
    data = str(dict(record.episode.task.data))[:2000]
    failure = record.episode.error, record.episode.traceback
    return ReportEpisode(entry, reason, list(view.turns(record)), seat_ends(record), data, *failure)


def _inlined(run: Path, digest: str) -> Image:
    """Returns an image as a data URL."""
    try:
        data = Blobs(run / "blobs").get(digest)
    except (RecordError, OSError):
        return Image("", 0, 0, f"the image {digest[:16]} is not in the run's blobs folder")
    kind, width, height = image_format(data[:24])
    if kind is None or len(data) > MAX_IMAGE_BYTES:
        return Image("", 0, 0, f"the image {digest[:16]} is left out: it has {len(data):,} bytes")
    return Image(f"data:{kind};base64,{base64.b64encode(data).decode()}", width, height)
