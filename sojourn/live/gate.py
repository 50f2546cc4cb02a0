"""Decides which trained weights may serve: by what an evaluation says of them, beside those that serve."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from sojourn.config.fields import Range
from sojourn.intervals import Z
from sojourn.live.facts import SERVING, Release
from sojourn.live.store import LiveStore
from sojourn.record.summary import Summary, TaskStatistics

OFFERED, REFUSED, CANARY, ROLLED_BACK = "offered", "refused", "canary", "rolled back"
KEPT = "kept"  # of a release that serves: it is watched no longer
RETURNED = "returned"  # of the learner: it goes on from the weights of a release
FAILED = "failed"  # of a release: it cannot be opened
FROZEN, THAWED = "frozen", "thawed"  # of all: nothing changes any more, or again
FREEZE = "FREEZE"  # a file in the store's folder, while which is there nothing is offered and nothing changes
PARTS = "part:"  # begins the names of numbers that are those of a world, or a tag, of the panel


@dataclass(frozen=True, kw_only=True)
class Gate:
    """Says when weights that were trained may serve people: after each evaluation (`evaluation.every`), whose tasks are
    the held-out panel.

    They may if the lower bound of their success (95%) is at least that of the weights which serve, less `margin`, and
    if they are no worse otherwise: in no world and no tag of the panel may their success be lower by more than
    `part_margin`, so that guard tasks can be a world of the panel (`mixed`); their fraction of malformed turns may be
    higher by `malformed_rise` at most; and their episodes may have `tokens_ratio` times as many tokens at most. A file
    named FREEZE in the folder of the service's store keeps all from being offered.

    The lower bound of n plays lies up to 0.98 / sqrt(n) below their success: with a `margin` below that, such as 0.1
    with 96 plays, weights that are exactly as good may be refused each time, and a note says so at the start.

    What is offered is then tried: `canary_share` of new sessions are answered by it (0: it serves at once) until
    `canary_sessions` of its own, and as many of the serving release, have feedback. If its feedback is lower in the
    mean than that of the serving release, by more than `tolerance`, it is rolled back; else it serves. Then its
    predecessor answers `canary_share` of the other new sessions, until `watch_sessions` of both have feedback: if those
    of the new release are worse by more than `tolerance`, the predecessor serves again. Only sessions are compared that
    began in the same time, so when people change, both are seen to change; with `canary_share = 0` the predecessor
    answers nobody, and its last sessions before count. A difference that is sure is acted on at once. Nothing new
    serves before that watch has ended; with `overlap` it does, and the service follows people who change sooner, as a
    watch with a small `canary_share` takes long.

    With a small `canary_share`, one of the two has few sessions. What cannot be told when the new release has
    `limit_sessions` with feedback is not waited for: the release serves on, and the reason that is written down begins
    with "too few sessions to tell".

    When `refused_limit` candidates in a row were refused (0: never), the learner goes back: it continues from the
    weights of the release that serves, with new optimisers and schedules, as at the beginning of a stage. These weights
    are then the reference, too. What is refused because of FREEZE does not count.
    """

    margin: Annotated[float, Range(0, 1)] = 0.1
    part_margin: Annotated[float, Range(0, 1)] = 0.15
    malformed_rise: Annotated[float, Range(0, 1)] = 0.05
    tokens_ratio: Annotated[float, Range(above=1)] = 1.5
    canary_share: Annotated[float, Range(0, below=1)] = 0.1
    canary_sessions: Annotated[int, Range(2)] = 20
    tolerance: Annotated[float, Range(0)] = 0.1
    watch_sessions: Annotated[int, Range(0)] = 50
    limit_sessions: Annotated[int, Range(2)] = 1_000
    refused_limit: Annotated[int, Range(0)] = 8
    overlap: bool = False

    def __post_init__(self) -> None:
        least = max(self.canary_sessions, self.watch_sessions)
        if self.limit_sessions < least:
            raise ValueError(
                f"limit_sessions = {self.limit_sessions}: expected at least {least}, as canary_sessions = "
                f"{self.canary_sessions} and watch_sessions = {self.watch_sessions}"
            )

    def too_few(self, plays: int) -> str:
        """Returns that an evaluation has too few plays for `margin`, or nothing. With `margin = 0`, only weights that
        are clearly better are to serve, whatever their number."""
        if not 0 < self.margin < (below := Z / (2 * math.sqrt(plays))):  # the most by which Wilson's bound lies below
            return ""
        return (
            f"release.margin = {self.margin:g}: the lower bound of the success in {plays} plays (evaluation.tasks "
            f"times samples) lies up to {below:.1%} below it, so weights as good as those which serve may be refused "
            f"each time: expected at least {math.ceil((Z / (2 * self.margin)) ** 2)} plays, or release.margin = "
            f"{math.ceil(100 * below) / 100:g}"
        )

    def why_not(self, panel: Mapping[str, float], serving: Mapping[str, float]) -> str:
        """Returns why weights with these numbers may not take the place of those with the others, or nothing."""
        if panel["success_low"] < serving["success"] - self.margin:
            return (
                f"success {panel['success']:.1%}, at least {panel['success_low']:.1%}, where {serving['success']:.1%} "
                f"serves: expected at least that less {self.margin:.1%}"
            )
        for name in sorted(panel.keys() & serving.keys()):
            if name.startswith(PARTS) and panel[name] < serving[name] - self.part_margin:
                return (
                    f"success {panel[name]:.1%} in '{name.removeprefix(PARTS)}', where {serving[name]:.1%} serves: "
                    f"expected at least that less {self.part_margin:.1%}"
                )
        if panel["malformed"] > serving["malformed"] + self.malformed_rise:
            return f"{panel['malformed']:.1%} of turns are malformed, where it is {serving['malformed']:.1%} that serve"
        if panel["tokens"] > serving["tokens"] * self.tokens_ratio:
            return f"{panel['tokens']:.0f} tokens an episode, where it is {serving['tokens']:.0f} that serve"
        return ""


def panel_of(summary: Summary) -> dict[str, float]:
    """Returns the numbers of an evaluation by which weights are compared."""
    overall = summary.overall
    numbers = {"success": overall.success.mean, "success_low": overall.success.low}
    numbers |= {"malformed": overall.malformed.mean, "tokens": overall.tokens.mean}
    parts: dict[str, TaskStatistics] = {**summary.envs, **summary.tags}
    return numbers | {f"{PARTS}{name}": part.success.mean for name, part in parts.items()}


def serving(store: LiveStore) -> Release | None:
    """Returns the release that serves, or will until the service says otherwise."""
    releases = {one.number: one for one in store.releases()}
    told = [event.release for event in store.events() if event.kind == SERVING]
    if told and told[-1] in releases:
        return releases[told[-1]]
    offered = [event.release for event in store.events() if event.kind == OFFERED]
    return releases.get(offered[0]) if offered and offered[0] is not None else None


def frozen(store: LiveStore) -> bool:
    return (store.folder / FREEZE).exists()


def judge(gate: Gate, store: LiveStore, summary: Summary) -> str:
    """Returns why the weights of an evaluation may not serve, or nothing."""
    if frozen(store):
        return f"the file {FREEZE} is there: nothing changes until it is removed"
    now = serving(store)
    return "" if now is None else gate.why_not(panel_of(summary), now.panel)
