"""Repeats consecutive stages of a recipe: to collect with the present weights, to train on it, and to collect again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, NamedTuple

from sojourn.config.fields import NONBLANK, Range
from sojourn.errors import ConfigError
from sojourn.record import metrics
from sojourn.record.run import RunFolder
from sojourn.record.stage_rounds import round_name
from sojourn.record.summary import Summary
from sojourn.train.early_stop import EarlyStop, Result, spent


@dataclass(frozen=True, kw_only=True)
class Repeat:
    """Repeats consecutive `stages`, so that they are trained `rounds` times in all. The stages of later rounds are
    called NAME_2, NAME_3 and so on, and have the keys of the first.

    Each round ends with an evaluation. No further round begins once `early_stop` holds: at a success, after so many
    rounds without a better one, or once the steps of all rounds have taken so long, or sampled so much.
    """

    stages: tuple[Annotated[str, NONBLANK], ...]
    rounds: Annotated[int, Range(2, 1000)]
    early_stop: EarlyStop = field(default_factory=EarlyStop)

    def __post_init__(self) -> None:
        if not self.stages:
            raise ValueError("stages = []: name the stages that are repeated")
        if self.early_stop.patience >= self.rounds:
            raise ValueError(
                f"early_stop.patience = {self.early_stop.patience} never ends {self.rounds} rounds: set it lower"
            )

    def names(self, round: int) -> list[str]:
        """Returns the names of the stages in a round, which are counted from 1."""
        return [round_name(stage, round) for stage in self.stages]


class Unrolled(NamedTuple):
    """A stage of an unrolled recipe: the number of the stage that was written, and the name in its round."""

    written: int
    name: str


def unroll(names: Sequence[str], repeats: Sequence[Repeat]) -> list[Unrolled]:
    """Returns the stages in the order in which they are trained. Rounds that are written out, as in the config of a run
    folder, are not added again."""
    unrolled = [Unrolled(number, name) for number, name in enumerate(names)]
    for repeat in repeats:
        first, rest = _find(names, repeat), list(repeat.stages)
        if list(names[first : first + len(rest)]) != rest:
            raise ConfigError(
                f"repeats.stages = {rest}: expected consecutive stages in their order, and the recipe has "
                f"{', '.join(names)}"
            )
        later = [name for round in range(2, repeat.rounds + 1) for name in repeat.names(round)]
        if later[0] in names:
            if list(names[first + len(rest) : first + len(rest) + len(later)]) != later:
                raise ConfigError(
                    f"repeats.stages = {rest}: the recipe has a stage '{later[0]}', as the second round is called, but "
                    f"not all of {', '.join(later)} after it: give that stage another name"
                )
            continue
        added = [Unrolled(first + number % len(rest), name) for number, name in enumerate(later)]
        place = next(n for n, stage in enumerate(unrolled) if stage.written == first) + len(rest)
        unrolled[place:place] = added
    return unrolled


def _find(names: Sequence[str], repeat: Repeat) -> int:
    if repeat.stages[0] not in names:
        raise ConfigError(f"repeats.stages: there is no stage '{repeat.stages[0]}': the recipe has {', '.join(names)}")
    return names.index(repeat.stages[0])


def why_skipped(repeats: Sequence[Repeat], folder: RunFolder, stage: str) -> str:
    """Returns why a stage of a later round is not trained any more; empty where it is to be trained."""
    for repeat in repeats:
        rounds = [repeat.names(round) for round in range(1, repeat.rounds + 1)]
        number = next((n for n, names in enumerate(rounds) if stage in names), 0)
        if number:
            done = rounds[:number]
            effort = spent(metrics.read(folder.path / "metrics.jsonl"), {name for names in done for name in names})
            return repeat.early_stop.reason(_results(folder, [names[-1] for names in done]), effort, "round")
    return ""


def _results(folder: RunFolder, ends: Sequence[str]) -> list[Result]:
    """Returns the results of the rounds that were trained, by the last stage of each; `step` counts the rounds."""
    summaries = {e["name"]: Summary.from_json(e["summary"]).overall for e in folder.evaluations()}
    return [
        Result(number, summaries[name].success.mean, summaries[name].reward.mean)
        for number, name in enumerate(ends, 1)
        if name in summaries
    ]
