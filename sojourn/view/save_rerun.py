"""A re-run that is kept: an episode of a run folder of its own, which can be opened, and re-run, like any other."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

from sojourn.config import toml
from sojourn.errors import ConfigError, RecordError
from sojourn.record.episodes import vocabulary
from sojourn.record.episodes.store import EpisodeStore
from sojourn.record.run import RunFolder
from sojourn.rewards.native import Native
from sojourn.types import Episode, Group
from sojourn.view.reruns import PERSON, Rerun, Reruns, State

STAGE = "rerun"


def keep(reruns: Reruns, rerun: Rerun) -> None:
    """Writes it under `out`, to a folder for its run and, where models speak in other tokens, for the model's run."""
    if reruns.out is None:
        raise ConfigError(
            "there is no folder to keep re-runs in: start the viewer with --out, such as --out runs/reruns"
        )
    if rerun.state is not State.DONE or rerun.finished is None:
        raise ConfigError("a re-run can be kept when it has come to its end")
    if rerun.kept is not None:
        return
    path = reruns.out / _name(rerun)
    with _folder(rerun, path) as folder, EpisodeStore(path, write=True) as store:
        if rerun.vocabulary is not None and vocabulary.read(path) is None:
            vocabulary.write(path, rerun.vocabulary)
        folder.blobs.keep(rerun.blobs)
        task = rerun.record.episode.task
        who = "by-person" if rerun.who == PERSON else f"by-{rerun.who}"
        task = replace(task, tags=(*task.tags, f"from-turn-{rerun.turn + 1}", who))
        episode = Episode(f"{STAGE}/{rerun.id}-{task.id}", task, (rerun.finished,), None, rerun.seconds)
        group = Group(0, task, (episode,))
        store.append(STAGE, 0, [group], [asyncio.run(Native()(group))])
    rerun.kept, rerun.kept_as = path, episode.id


def _name(rerun: Rerun) -> str:
    name = rerun.path.resolve().name
    other = rerun.vocabulary is not None and rerun.vocabulary != vocabulary.read(rerun.path)
    return f"{name}-by-{rerun.weights[0].resolve().name}" if other and rerun.weights else f"{name}-reruns"


def _folder(rerun: Rerun, path: Path) -> RunFolder:
    """The folder, made where it is not there yet; RecordError where it is of another world."""
    source = RunFolder.read(rerun.path).config
    kept = {key: source[key] for key in ("seed", "model", "env", "rollout") if key in source}
    if not (path / "config.toml").exists():
        return RunFolder.create(path, toml.dump({"name": STAGE, **kept}), seeds={})
    folder = RunFolder.open(path)
    if folder.config.get("env") != kept.get("env"):
        folder.close()
        raise RecordError(f"{path} holds re-runs in another world: start the viewer with another --out")
    return folder
