"""Saves a re-run as an episode of a separate run folder, which can be opened and re-run like any other."""

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


def save_rerun(reruns: Reruns, rerun: Rerun) -> None:
    """Writes a finished re-run under `reruns.out`.

    There is one folder per original run, and one more for each player whose model has another vocabulary.
    """
    if reruns.out is None:
        raise ConfigError(
            "there is no folder to save re-runs in: start the viewer with --out, such as --out runs/reruns"
        )
    if rerun.state is not State.DONE or rerun.finished is None:
        raise ConfigError(f"only a finished re-run can be saved, but this one is in the state '{rerun.state}'")
    if rerun.saved_folder is not None:
        return
    path = reruns.out / _folder_name(rerun)
    with _open_folder(rerun, path) as folder, EpisodeStore(path, write=True) as store:
        if rerun.vocabulary is not None and vocabulary.read(path) is None:
            vocabulary.write(path, rerun.vocabulary)
        folder.blobs.keep(rerun.blobs)
        task = rerun.record.episode.task
        player_tag = "by-person" if rerun.player == PERSON else f"by-{rerun.player}"
        task = replace(task, tags=(*task.tags, f"from-turn-{rerun.turn + 1}", player_tag))
        episode = Episode(f"{STAGE}/{rerun.id}-{task.id}", task, (rerun.finished,), None, rerun.seconds)
        group = Group(0, task, (episode,))
        store.append(STAGE, 0, [group], [asyncio.run(Native()(group))])
    rerun.saved_folder, rerun.saved_id = path, episode.id


def _folder_name(rerun: Rerun) -> str:
    name = rerun.path.resolve().name
    other = rerun.vocabulary is not None and rerun.vocabulary != vocabulary.read(rerun.path)
    return f"{name}-by-{rerun.weights[0].resolve().name}" if other and rerun.weights else f"{name}-reruns"


def _open_folder(rerun: Rerun, path: Path) -> RunFolder:
    """Opens the folder or creates it; raises RecordError if it holds episodes of another environment."""
    source = RunFolder.read(rerun.path).config
    config = {key: source[key] for key in ("seed", "model", "env", "rollout") if key in source}
    if not (path / "config.toml").exists():
        return RunFolder.create(path, toml.dump({"name": STAGE, **config}), seeds={})
    folder = RunFolder.open(path)
    if folder.config.get("env") != config.get("env"):
        folder.close()
        raise RecordError(f"{path} holds re-runs of another environment: start the viewer with another --out")
    return folder
