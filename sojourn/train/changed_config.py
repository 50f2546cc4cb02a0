"""Resumes a run with another value of some keys: which keys may change, and what a finished stage needs to go on."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from sojourn.config import toml
from sojourn.errors import ConfigError
from sojourn.record import checkpoint
from sojourn.record.changes import Change, Resumed, forget_last_change, record_changes
from sojourn.record.episodes.renaming import rename_stage
from sojourn.record.episodes.store import EpisodeStore
from sojourn.record.run import RunFolder
from sojourn.record.stage_names import EVALUATION_PREFIX
from sojourn.record.stopped import Stopped, record_stop, stopped_stages
from sojourn.schedules import Constant

if TYPE_CHECKING:
    from sojourn.train.recipe import Recipe
    from sojourn.train.resolve import Resolved

OPTIM = r"optim\.(lr|weight_decay|clip_norm|schedule(\..+)?)"
CHANGEABLE = re.compile(
    rf"stages\.\d+\.(steps|early_stop\..+|{OPTIM})|critic\.{OPTIM}|evaluation\.every"
    r"|record\.(checkpoint_every|keep|keep_every|keep_best|keep_optimizer|tags)"
    r"|backend\.(name|address|threads|memory_gb|activation_gb|patience_s|(samplers|trainer|envs|models)(\..+)?)"
    r"|models\..+\.endpoint\.(base_url|key|concurrency|timeout_s|answers|prompt_price"
    r"|sampled_price|token_budget|cost_budget)"
)
ALLOWED = (
    "steps, early_stop and optim (all but betas and lookahead) of a stage, optim of the critic, evaluation.every, and "
    "checkpoint_every, keep, keep_every, keep_best, keep_optimizer and tags of record, and of backend name, address, "
    "samplers, trainer, envs, models, threads, memory_gb, activation_gb and patience_s, and of the endpoint of a model "
    "base_url, key, concurrency, timeout_s, answers, prompt_price, sampled_price, token_budget and cost_budget"
)


class Position(NamedTuple):
    """Says how far a run is: `step` steps of its stage number `stage` are done. `full` says whether its checkpoint has
    all that training goes on from, beside the weights."""

    stage: int
    step: int
    full: bool


def position(folder: RunFolder, recipe: Recipe) -> Position:
    """Returns the position of the newest checkpoint of a run."""
    found = checkpoint.latest(folder.checkpoints, lambda sentence: None)
    if found is None:
        return Position(0, 0, True)
    state = found.state()
    number, step = int(state["stage"]), int(state["step"])
    at_end = step == recipe.stages[number].steps  # where older checkpoints have weights alone
    return Position(number, step, bool(state.get("full", not at_end)))


@dataclass(frozen=True)
class Changed:
    """A change of a run's config that was made: `resumed` says which. `config` is the text of the config before,
    `reopened` the stage that is to go on though it had ended (empty: none), and `stopped` its record of that."""

    folder: RunFolder
    resumed: Resumed
    config: str
    reopened: str = ""
    stopped: Stopped | None = None

    def undo(self) -> None:
        """Takes the change back, where the run could not begin with it."""
        self.folder.replace_config(self.config)
        forget_last_change(self.folder)
        if self.reopened:
            record_stop(self.folder, self.reopened, self.stopped)
            _rename(self.folder, f"{self.reopened}-{self.resumed.step}", self.reopened)


def _rename(folder: RunFolder, evaluation: str, new: str) -> None:
    folder.rename_evaluation(evaluation, new)
    with EpisodeStore(folder.path, write=True) as store:
        rename_stage(store, EVALUATION_PREFIX + evaluation, EVALUATION_PREFIX + new)


def change(folder: RunFolder, before: Resolved, after: Resolved) -> Changed | None:
    """Gives a run that is to be resumed another config, and records it; returns what changed, None where nothing did.

    Raises ConfigError for a key that what was recorded so far depends on, for a stage that is over, and where the
    checkpoint of a finished stage cannot be trained on.
    """
    changes = list(_changes(before, after))
    if not changes:
        return None
    at = position(folder, before.recipe)
    _check_keys(folder, changes)
    reopened = _check_stages(folder, before.recipe, after.recipe, at, changes)
    stage, config = after.recipe.stages[at.stage].name, folder.config_text
    folder.replace_config(toml.dump(after.table))
    resumed = record_changes(folder, stage, at.step, changes)
    if not reopened:
        return Changed(folder, resumed, config)
    changed = Changed(folder, resumed, config, reopened=stage, stopped=stopped_stages(folder).get(stage))
    record_stop(folder, stage, None)
    _rename(folder, stage, f"{stage}-{at.step}")
    return changed


def notes(resumed: Resumed, recipe: Recipe) -> Iterator[str]:
    """Yields what differs from a run that had these values from its first step on."""
    for number, stage in enumerate(recipe.stages):
        steps = any(one.key == f"stages.{number}.steps" for one in resumed.changes)
        if steps and stage.name == resumed.stage and not isinstance(stage.optim.schedule, Constant):
            yield (
                f"the schedule of stage '{stage.name}' counts its {stage.steps} steps from now on, while the "
                f"{resumed.step} steps before followed the earlier number"
            )


def _changes(before: Resolved, after: Resolved) -> Iterator[Change]:
    old, new = dict(toml.leaves(before.table, "")), dict(toml.leaves(after.table, ""))
    for key in dict.fromkeys([*old, *new]):
        if old.get(key) != new.get(key):
            yield Change(key, old.get(key), new.get(key))


def _check_keys(folder: RunFolder, changes: Sequence[Change]) -> None:
    """Refuses a key that what was recorded so far depends on."""
    for one in changes:
        if not CHANGEABLE.fullmatch(one.key):
            raise ConfigError(
                f"{one.key} = {_text(one.new)}: what the run has done so far was done with {_text(one.old)}, so a "
                f"resumed run keeps it; it may change {ALLOWED}. For a new run from these weights, override "
                f"model.weights={folder.path}@last without --resume"
            )


def _text(value: Any) -> str:
    return "nothing" if value is None else repr(value)


def _check_stages(folder: RunFolder, before: Recipe, after: Recipe, at: Position, changes: Sequence[Change]) -> bool:
    """Refuses changes of a stage that is over, and returns whether they let a stage go on that had ended."""
    keys = {number: _keys_of(number, changes) for number in range(len(before.stages))}
    for number in range(at.stage):
        if keys[number]:
            raise ConfigError(
                f"{keys[number][0]}: the stage '{before.stages[number].name}' is over, and "
                f"'{before.stages[at.stage].name}' has begun: change a stage that is not over, or start a new run"
            )
    old, new = before.stages[at.stage], after.stages[at.stage]
    if new.steps < old.steps and new.steps <= at.step:
        raise ConfigError(
            f"stages.{new.name}.steps = {new.steps}: {at.step} steps of it are done: expected at least {at.step + 1}"
        )
    stopped = stopped_stages(folder).get(old.name)
    if at.step < old.steps and (stopped is None or stopped.step != at.step):
        return False  # it is in the middle of its steps
    goes_on = new.steps > at.step and (stopped is None or _lifts_stop(at.stage, keys[at.stage]))
    if keys[at.stage] and not goes_on:
        raise ConfigError(
            f"{keys[at.stage][0]}: the stage '{old.name}' ended after {at.step} steps: give it more as well, such as "
            f"stages.{old.name}.steps={2 * max(at.step, 1)}"
        )
    if goes_on and not at.full:
        raise ConfigError(
            f"stages.{old.name}: the checkpoint at its end has the weights without the optimiser's moments, so it "
            "cannot go on as if it had not ended; only the last stage's has them, with record.keep_optimizer. Start a "
            "new run "
            f"from these weights: override model.weights={folder.path}@last without --resume"
        )
    return goes_on


def _keys_of(number: int, changes: Sequence[Change]) -> list[str]:
    return [one.key for one in changes if one.key.startswith(f"stages.{number}.")]


def _lifts_stop(number: int, keys: Sequence[str]) -> bool:
    """Returns whether keys of a stage that was stopped early let it go on."""
    return any(key.startswith((f"stages.{number}.steps", f"stages.{number}.early_stop")) for key in keys)
