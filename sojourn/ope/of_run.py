"""Predicts the outcome of a run's weights from the recorded episodes of a run."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from sojourn.errors import ConfigError
from sojourn.ope.logged import LoggedEpisode, Outcome, logged
from sojourn.ope.predict import Prediction, predict
from sojourn.protocols import Opened
from sojourn.record.checkpoint import Checkpoint
from sojourn.record.decoding import not_drawn
from sojourn.record.episodes.group import GroupRecord
from sojourn.record.episodes.store import EpisodeStore
from sojourn.record.stage_names import EVALUATION_PREFIX
from sojourn.sources.context import misread, unsampled
from sojourn.train.recipe import Recipe
from sojourn.train.weights import found_weights


async def predict_run(
    recipe: Recipe,
    candidates: Sequence[Checkpoint | None],
    records: Sequence[GroupRecord],
    outcome: Outcome = "success",
) -> list[Prediction]:
    """Returns the predicted outcome of weights of a run, of which None, those that it began with, can only be the
    first; neither its world nor a sampler is opened.

    Raises `ConfigError` where the records have nothing to predict from, or are of another model.
    """
    async with opened_for(recipe, records, "off-policy evaluation compares weights of one model") as opened:
        predictions = list[Prediction]()
        for candidate in candidates:
            load_into(opened, recipe, candidate)
            predictions.append(_predicted(await logged(records, opened.trainer, outcome)))
        return predictions


@asynccontextmanager
async def opened_for(recipe: Recipe, records: Sequence[GroupRecord], why: str) -> AsyncIterator[Opened]:
    """Opens the model of a recipe alone. Raises `ConfigError` where the records are of another model, with the reason
    `why` that matters."""
    opened = recipe.backend.open(recipe.model, recipe.renderer, recipe.seed, None, recipe.critic)
    try:
        if sentence := misread(opened.renderer, records[0].group):
            raise ConfigError(f"{sentence}: {why}")
        yield opened
    finally:
        await opened.sampler.close()
        opened.trainer.close()


def load_into(opened: Opened, recipe: Recipe, checkpoint: Checkpoint | None) -> None:
    """Loads weights of a run, or without a checkpoint those that it began with."""
    found = found_weights(recipe) if checkpoint is None else checkpoint
    if found is not None:
        opened.trainer.load(found.weights, weights_only=True)


def _predicted(episodes: Sequence[LoggedEpisode]) -> Prediction:
    if len({episode.task for episode in episodes}) < 2:
        raise ConfigError(
            f"the records have {len(episodes)} episodes of fewer than two tasks: expected several tasks, as intervals "
            "are over them: name more steps"
        )
    return predict(episodes)


def recorded_groups(folder: Path, stage: str = "", steps: range | None = None) -> list[GroupRecord]:
    """Returns the recorded groups of a stage, of these steps or all. Without a name, it is the only stage, evaluations
    apart, whose episodes a policy sampled.

    Raises `ConfigError` where there is none, or more than one.
    """
    if not (folder / "episodes.sqlite").exists():
        raise ConfigError(f"'{folder}' has no recorded episodes: give a run folder")
    with EpisodeStore(folder) as store:
        known = [count.stage for count in store.steps()]
        chosen = stage or _only_sampled(store, list(dict.fromkeys(known)), folder)
        at = [count.step for count in store.steps() if count.stage == chosen]
        kept = [step for step in at if steps is None or step in steps]
        records = [record for record in store.records(chosen, kept) if record.group.trajectories]
    if not records:
        where = f" in its steps {steps.start} to {steps.stop - 1}" if steps is not None and at else ""
        raise ConfigError(
            f"'{folder}' has no episodes of the stage '{chosen}'{where}: it holds {', '.join(dict.fromkeys(known))}"
        )
    if setting := not_drawn(folder, chosen):
        raise ConfigError(
            f"'{chosen}' was decoded with {setting}, so that its log-probabilities do not say how likely its turns "
            "were: name a stage that was trained, or an evaluation at a temperature above 0 without truncation"
        )
    return records


def _only_sampled(store: EpisodeStore, stages: Sequence[str], folder: Path) -> str:
    sampled = [
        name
        for name in stages
        if not name.startswith(EVALUATION_PREFIX)
        and (first := next(store.records(name), None)) is not None
        and not unsampled(first.group)
    ]
    if len(sampled) != 1:
        raise ConfigError(
            f"'{folder}' has {len(sampled)} stages whose episodes a policy sampled ({', '.join(sampled) or 'none'}): "
            "name one with --stage"
        )
    return sampled[0]
