"""A run whose every text means harm: what agents, worlds and other people's folders may hold."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np

from sojourn.abilities import PartLoad, PartState
from sojourn.record.episodes.store import EpisodeStore
from sojourn.record.metrics import Jsonl
from sojourn.record.parts import PARTS, PartsFile, Reading
from sojourn.record.run import RunFolder
from sojourn.record.summary import summarise
from sojourn.types import Credit, Ending, Episode, Group, Message, Role, Score, Task, ToolCall, Trajectory, Turn
from tests.made import sample

NAME = 'it\'s a "run" #1 100% ü %2f.. <b>&amp;'
MARK = "harmless-tail"
TEXT = (
    "</pre></textarea></title></script><script>window.taken=1</script><img src=x onerror='window.taken=1'>"
    '<svg onload="window.taken=1">"\'`{{7*7}}{%% raw %%}<a href="javascript:window.taken=1">x</a>'
    f"\x00\x1b[31m\x07\x7f\u202egnp.exe\u2066\u200b\ufeff\ud800\r{MARK}"
)
LINE = "<" * 5_000_000  # one line, of what is longest when it is escaped
WORLD = "<i>world</i>"


def make(folder: Path) -> None:
    config = f"name = {json.dumps(TEXT[:99])}\nseed = 7\nmodel.name = '<u>m</u>'\nrecord.tags = ['<b>', '\u202e']\n"
    with RunFolder.create(folder, config) as run, EpisodeStore(folder, write=True) as store:
        groups = [_group(0, LINE), _group(1, "<")]
        scores = [[_score(t) for t in group.trajectories] for group in groups]
        credits = [[Credit.uniform(t, 0.5) for t in group.trajectories] for group in groups]
        store.append("rl <b>/%2f?#", 0, groups, scores, credits)
        store.append("evaluation-<b>", 0, groups, scores)
        run.add_evaluation("<b>", "rl", 0, summarise(groups, scores))
        metrics = Jsonl(folder / "metrics.jsonl")
        metrics.write(0, "rl <b>/%2f?#", {"success": 0.5, TEXT: 1.0, "success_<b>": float("nan")})
        metrics.close()
        parts = PartsFile(folder / PARTS)
        for step in range(2):
            parts.write(Reading(step, "rl <b>/%2f?#", 1e9, math.nan, tuple(map(_part, range(12)))))
        parts.close()


def _part(number: int) -> PartLoad:
    numbers = {TEXT: math.inf, "busy_share": float("nan"), "<b>_bytes": -1e300, "memory_bytes": 1e300}
    return PartLoad(
        name=f"{number} {TEXT}", kind=("<b>", TEXT)[number % 2], state=PartState.DOWN, seen_s=math.inf,
        note=TEXT, facts={"<i>": f"{number} {TEXT}", TEXT: LINE}, numbers=numbers,
    )  # fmt: skip


def _group(slot: int, line: str) -> Group:
    task = Task(WORLD, {"<script>": TEXT, "long": line}, 3, "train", (TEXT, "a,b\"c'd", ""))
    ways = [
        Episode(f'{slot}/{n}?#&"<b>%00', task, (_trajectory(n, line if n == 0 else "<"),), None, 1.0) for n in range(2)
    ]
    return Group(slot, task, (*ways, Episode(f"{slot}/failed", task, (), TEXT + line, 1.0)))


def _trajectory(number: int, line: str) -> Trajectory:
    call = ToolCall(TEXT, {TEXT: TEXT, "long": line})
    messages = [
        Message(Role.ASSISTANT, TEXT, thought=TEXT + line),
        Message(Role.ASSISTANT, "", calls=(call,)),
        Message(Role.ASSISTANT, f"{number} {line}"),
    ]
    observations = [
        Message(Role.SYSTEM, TEXT),
        Message(Role.TOOL, line, answers=TEXT),
        Message(Role.USER, TEXT, images=("../x",)),
    ]
    turns = [
        Turn(
            at - 1,
            np.arange(4),
            sample([5, 2**40, -3]),
            message,
            info={"<b>": 1.0},
            observed=(observations[at],),
            notes={TEXT: TEXT, line: "x", "long": line, **_request(at, line)},
        )
        for at, message in enumerate(messages)
    ]
    return Trajectory(TEXT, (*turns, Turn(2, np.arange(2), sample([1]), None)), Ending.DONE)


def _request(at: int, line: str) -> dict[str, str]:
    """Returns notes as a gateway writes them, and as it never would."""
    context = {"new context": TEXT, "history differs at": line, "history before": line, "history now": TEXT}
    return {"API": TEXT, "request body": line, "request body shares": f"{at} 99999999 {2**30}", **context}


def _score(trajectory: Trajectory) -> Score:
    return Score(np.ones(len(trajectory.turns), dtype=np.float32), {TEXT: 1.0, "success": 1.0})
