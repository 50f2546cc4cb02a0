"""What a folder of runs holds, and what one run holds, for people in a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.table import Table
from rich.text import Text

from sojourn.errors import RecordError
from sojourn.record import metrics
from sojourn.record.intervals import Summary
from sojourn.record.run import RunFolder
from sojourn.record.step_file import Record
from sojourn.record.store import EpisodeStore
from sojourn.types import Message, Trajectory, Turn

NEWEST = 20  # episodes that are listed


def runs(folders: Sequence[Path]) -> Table:
    """One row per run, newest last; each folder is a run, or holds runs."""
    paths: list[Path] = []
    for folder in folders:
        if not folder.is_dir():
            raise RecordError(f"no folder '{folder}': train something first, or name the folder that holds your runs")
        held = [folder] if (folder / "config.toml").exists() else [p.parent for p in folder.glob("*/config.toml")]
        paths += sorted(held, key=lambda path: path.stat().st_mtime)
    shown = Table("run", "stage", "steps", "success now", "evaluations (95% interval)", box=None)
    if not paths:
        shown.caption = f"no runs in '{folders[0]}' yet: sojourn train recipes/toy/train.toml"
    for path in paths:
        shown.add_row(path.name, *_row(path))
    return shown


def _row(path: Path) -> tuple[str, str, str, str]:
    """What a run came to; of a damaged one what is wrong, so that it does not hide the others."""
    try:
        return _standing(RunFolder.read(path))
    except RecordError as error:
        return "-", "-", "-", f"damaged: {error}"


def _standing(run: RunFolder) -> tuple[str, str, str, str]:
    last = None
    for line in metrics.read(run.path / "metrics.jsonl"):
        last = line
    found = [f"{e['name']} {Summary.from_json(e['summary']).overall.success.percent}" for e in run.evaluations()]
    if last is None:
        return "-", "-", "-", "\n".join(found)
    success = last.values.get("success")  # demonstrations have none
    return last.stage, str(last.step + 1), "-" if success is None else f"{success:.0%}", "\n".join(found)


def episodes(folder: Path, stage: str = "") -> Table:
    """The newest episodes of a stage, by default the last that was trained; steps count from 0 within the stage."""
    run = RunFolder.read(folder)
    shown = Table("episode", "step", "of", "turns", "ending", "success", "reward", box=None)
    for column in shown.columns[:2]:
        column.no_wrap = True
    with EpisodeStore(run.path) as store:
        held = list(dict.fromkeys(count.stage for count in store.steps()))
        trained = [line.stage for line in metrics.read(run.path / "metrics.jsonl")]
        chosen = stage or (trained or held or [""])[-1]
        if stage and stage not in held:
            raise RecordError(f"no stage '{stage}' in {folder}: it has {', '.join(held) or 'none yet'}")
        for entry in store.query(stage=chosen, newest=True, limit=NEWEST):
            success = "-" if entry.success is None else f"{entry.success:g}"
            reward = "-" if entry.reward is None else f"{entry.reward:.3g}"
            about = ", ".join(entry.tags) or f"seed {entry.seed}"
            ending = entry.ending or f"failed: {entry.error}"
            shown.add_row(entry.id, str(entry.step), about, str(entry.turns), ending, success, reward)
    if not shown.row_count:
        shown.caption = f"no episodes in {folder} yet"
        return shown
    others = f"; others: --stage {', '.join(name for name in held if name != chosen)}" if len(held) > 1 else ""
    shown.title = f"{chosen}, newest first"
    shown.caption = f"to read one: sojourn runs {folder} --episode <episode>{others}"
    return shown


def transcript(folder: Path, episode: str) -> Text:
    """One episode as it was played: what was shown and said, and what came of each turn."""
    with EpisodeStore(RunFolder.read(folder).path) as store:
        record = store.record(episode)
    told = Text(
        f"{episode}: {record.episode.task.env} {dict(record.episode.task.data)}, seed {record.episode.task.seed}"
    )
    if record.episode.error is not None:
        return told.append(f"\nfailed: {record.episode.error}", "red")
    for seat, trajectory in enumerate(record.episode.trajectories):
        told.append_text(_trajectory(record, seat, trajectory))
    return told


def _trajectory(record: Record, seat: int, trajectory: Trajectory) -> Text:
    told = Text()
    scores = record.scores[seat].turns if seat < len(record.scores) else None
    credits = record.credits[seat].tokens if seat < len(record.credits) else None
    for number, turn in enumerate(trajectory.turns):
        told.append(f"\n\n[{trajectory.agent}] turn {number + 1}", "bold")
        told.append(
            "" if turn.parent == number - 1 else " (a new context)" if turn.parent < 0 else " (a branch)", "dim"
        )
        for message in turn.shown:
            told.append(f"\n{_said(message)}", "dim" if message.role == "system" else "")
        told.append(f"\n> {'(could not be read)' if turn.said is None else _said(turn.said)}", "green")
        facts = list(_facts(turn))
        facts += [] if scores is None else [f"reward {scores[number]:.3g}"]
        facts += [] if credits is None or not len(credits[number]) else [f"advantage {credits[number].mean():.3g}"]
        told.append(f"\n  {', '.join(facts)}", "dim")
    return told.append(f"\n\n{trajectory.ending}, {'success' if trajectory.success else 'no success'}", "bold")


def _said(message: Message) -> str:
    lines = [f"(thinks: {message.thought})"] if message.thought else []
    lines += [message.text] if message.text else []
    for call in message.calls:
        lines.append(f"{call.name}({', '.join(f'{key}={value!r}' for key, value in call.arguments.items())})")
    return "\n".join([*lines, *(f"(image {image})" for image in message.images)])


def _facts(turn: Turn) -> Iterator[str]:
    sample = turn.sample
    yield f"{len(sample.tokens)} tokens" + (" (cut off)" if sample.stop == "length" else "")
    if len(sample.tokens) and sample.versions.newest >= 0:
        yield f"log-probability {float(sample.logprobs.sum()):.3g}, version {sample.versions.newest}"
    yield from (f"{name} {value:g}" for name, value in turn.info.items() if value)
