"""Prepares the releases of a live service for its page: what was published, why, and what it changed."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from markupsafe import Markup

from sojourn.intervals import Estimate
from sojourn.live.facts import Event, Release, Traffic
from sojourn.live.gate import CANARY, FAILED, FROZEN, OFFERED, PARTS, REFUSED, ROLLED_BACK, SERVING, THAWED
from sojourn.live.reading import LiveReading, Requests
from sojourn.record.summary import Summary
from sojourn.view.charts import COLOURS, Curve, chart

STATES = {OFFERED: "offered", CANARY: "canary", SERVING: "served", ROLLED_BACK: "rolled back", FAILED: "failed"}
UNJUDGED = (FROZEN, THAWED)  # events that say nothing of weights
MARKED = 6  # refused candidates that are marked in a chart


class PanelRow(NamedTuple):
    """Holds what an evaluation said of weights: success, malformed turns and tokens, each with its interval where the
    run has it, and the success by world and tag."""

    success: Estimate
    malformed: Estimate
    tokens: Estimate
    parts: Mapping[str, Estimate]


class ReleaseRow(NamedTuple):
    """A release with its panel, the release that served before it with that one's success, what people say of it, and
    the requests that it answered. `state` is what became of it last."""

    number: int
    step: int
    evaluation: str
    state: str
    panel: PanelRow
    before: int | None
    success_before: Estimate | None
    feedback: Estimate | None
    requests: Requests

    @property
    def change(self) -> float | None:
        """Returns by how much its success on the panel is above that of the release before, None for the first."""
        return None if self.success_before is None else self.panel.success.mean - self.success_before.mean


class EventRow(NamedTuple):
    """An event, with the evaluation that it is about, and the success on the panel of what served and of what is
    spoken of."""

    event: Event
    evaluation: str
    reason: str
    before: Estimate | None
    after: Estimate | None


class Releases(NamedTuple):
    """The releases and the events of a service, the newest first, and the release that serves."""

    rows: Sequence[ReleaseRow]
    events: Sequence[EventRow]
    serving: ReleaseRow | None
    charts: Sequence[Markup]


def releases_view(found: LiveReading, evaluations: Mapping[str, Summary]) -> Releases:
    """Returns what became of the releases; the run's evaluations give the intervals of their numbers."""
    panels = {one.number: _panel(one, evaluations) for one in found.releases}
    events, states, before = list[EventRow](), dict[int, str](), dict[int, int | None]()
    serving, served = None, set[int]()
    for event in found.events:
        name, reason = _named(event, found.releases, evaluations)
        now = None if serving is None else panels[serving].success
        judged = evaluations[name].overall.success if name in evaluations else None
        spoken_of = None if event.release is None else panels.get(event.release)
        after = judged if spoken_of is None else spoken_of.success
        if event.kind in UNJUDGED or event.release == serving:
            now = after = None
        events.append(EventRow(event, name, reason, now if after is not None else None, after))
        if event.release is None:
            continue
        if event.kind in STATES:
            states[event.release] = STATES[event.kind]
        if event.kind in (OFFERED, CANARY, SERVING) and event.release not in served:
            before[event.release] = serving
        if event.kind == SERVING and event.release in panels:
            serving = event.release
            served.add(serving)
    if serving is not None:
        states[serving] = "serving"
    rows = [_row(one, panels, states, before, found) for one in found.releases]
    panel = _panel_chart(events)
    drawn = [*([panel] if panel is not None else []), *_traffic_charts(found)]
    return Releases(rows[::-1], events[::-1], next((row for row in rows if row.number == serving), None), drawn)


def _row(
    one: Release, panels: Mapping[int, PanelRow], states: Mapping[int, str], before: Mapping[int, int | None],
    found: LiveReading,
) -> ReleaseRow:  # fmt: skip
    earlier = before.get(one.number)
    return ReleaseRow(
        number=one.number,
        step=one.step,
        evaluation=_evaluation(one),
        state=states.get(one.number, "offered"),
        panel=panels[one.number],
        before=earlier,
        success_before=None if earlier is None else panels[earlier].success,
        feedback=found.feedback.get(one.number),
        requests=found.requests(one.number),
    )


def _evaluation(one: Release) -> str:
    """Returns the name of the evaluation that a release was offered after."""
    return one.folder.name.rpartition("@")[0]


def _panel(one: Release, evaluations: Mapping[str, Summary]) -> PanelRow:
    """Returns the numbers of a release from its evaluation or, where the run does not have that, from the gate's."""
    summary, numbers = evaluations.get(_evaluation(one)), one.panel
    if summary is not None:
        overall = summary.overall
        parts = {name: part.success for name, part in {**summary.envs, **summary.tags}.items()}
        return PanelRow(overall.success, overall.malformed, overall.tokens, parts)

    def estimate(name: str, low: float = math.nan) -> Estimate:
        value = float(numbers.get(name, math.nan))
        return Estimate(value, low, math.nan, 0)

    parts = {name.removeprefix(PARTS): estimate(name) for name in numbers if name.startswith(PARTS)}
    success = estimate("success", float(numbers.get("success_low", math.nan)))
    return PanelRow(success, estimate("malformed"), estimate("tokens"), parts)


def _named(event: Event, releases: Sequence[Release], evaluations: Mapping[str, Summary]) -> tuple[str, str]:
    """Returns the evaluation that an event is about, and its reason without that name."""
    if event.kind == REFUSED:
        names = [name for name in evaluations if event.reason.startswith(f"{name}: ")]
        name = max(names, key=len, default="")
        return name, event.reason.removeprefix(f"{name}: ")
    name = next((_evaluation(one) for one in releases if one.number == event.release), "")
    return name, "it passed the gate" if event.kind == OFFERED and event.reason == name else event.reason


def _panel_chart(events: Sequence[EventRow]) -> Markup | None:
    """Draws the success of each candidate on the panel, in the order in which they were judged, beside that of the
    release that served then."""
    judged = [(row, row.after) for row in events if row.event.kind in (OFFERED, REFUSED) and row.after is not None]
    if len(judged) < 2:
        return None
    x = np.arange(1.0, len(judged) + 1)
    rates = np.array([[rate.mean, rate.low, rate.high] for _, rate in judged])
    served = np.array([math.nan if row.before is None else row.before.mean for row, _ in judged])
    refused = [float(at) for at, (row, _) in zip(x, judged, strict=True) if row.event.kind == REFUSED]
    curves = [Curve("candidate", x, rates[:, 0], rates[:, 1], rates[:, 2]), Curve("what served then", x, served)]
    marks = [(at, "refused") for at in refused[-MARKED:]]
    return chart("success on the panel, by candidate", curves, fraction=True, marks=marks, x="candidate")


def _traffic_charts(found: LiveReading) -> list[Markup]:
    """Draws requests and failures over time, in bins of a minute or more."""
    if not found.traffic:
        return []
    width, starts = found.minutes, [one.minute for one in found.traffic]
    first = min(starts)
    x = np.arange((max(starts) - first) // width + 1, dtype=np.float64) * width
    if len(x) < 2:
        return []

    def curve(name: str, chosen: Callable[[Traffic], bool]) -> Curve:
        counts = np.zeros(len(x))
        for one, count in found.traffic.items():
            counts[(one.minute - first) // width] += count if chosen(one) else 0
        return Curve(name, x, counts)

    numbers = sorted({one.release for one in found.traffic})[-COLOURS:]
    answered = [curve(_release_name(number), lambda one, n=number: one.release == n) for number in numbers]
    failed = [curve("failed", lambda one: one.failed), curve("client left", lambda one: one.left)]
    per = "minute" if width == 1 else f"{width} minutes"
    return [
        chart(f"requests per {per}, by release; minutes since the first", answered, x="minute"),
        chart(f"failures per {per}; minutes since the first", failed, x="minute"),
    ]


def _release_name(number: int) -> str:
    return f"release {number}" if number >= 0 else "no session"
