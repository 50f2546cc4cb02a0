"""What a run does with the trajectories of agents that the run's agent calls: refuses what would lose them, and tells
the results of a model."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sojourn.abilities import Branches, applied, origin_of, parts_of, reads_all_models, sub_agent_models
from sojourn.composite import with_bases
from sojourn.errors import ConfigError
from sojourn.rollout.world import seats_of_world, worlds_of
from sojourn.sources.earlier import Earlier
from sojourn.sources.experts import Experts
from sojourn.sources.folder import Folder
from sojourn.sources.imported import Imported
from sojourn.sources.replay import Replay
from sojourn.sources.slots import Slots
from sojourn.train.loop import chosen, taken_by
from sojourn.train.recipe import Recipe, Stage
from sojourn.types import Group, Score

WHOLE = (
    Slots,
    Earlier,
    Experts,
    Folder,
    Imported,
    Replay,
)  # sources that keep all trajectories of an episode as played


def check_sub_agents(recipe: Recipe) -> None:
    """Refuses sub-agents with the name of a seat or beside a second one, and sources whose plays would lose the turns
    of sub-agents."""
    names = sub_agent_models(recipe.agent)
    if not names:
        return
    for seats in map(seats_of_world, worlds_of(recipe.env)):
        if taken := sorted(names.keys() & set(seats)):
            raise ConfigError(
                f"agent: it has '{taken[0]}' act for it, but the world has a seat of this name, with whose "
                "trajectories its own would be compared: rename it"
            )
        if len(seats) > 1:
            raise ConfigError(
                f"agent: {type(recipe.agent).__name__} has others act for it, but the world has the seats "
                f"{', '.join(sorted(seats))}, and what acts for one would be compared with what acts for another: "
                "choose a world of one seat, such as one that plays the opponent itself, or another agent"
            )
    for stage in recipe.stages:
        for own in stage.of_models().values() if stage.learners else ():
            _check_estimator(own)
        for part in parts_of(stage.groups):
            forks = isinstance(part, Branches) and part.forks
            if forks or not isinstance(part, WHOLE):
                source = "groups.branching forks" if forks else f"{type(part).__name__} changes or repeats"
                raise ConfigError(
                    f"stage '{stage.name}': {source} plays of {type(recipe.agent).__name__}, where others have turns "
                    "of their own that this would lose: take groups from slots without branching, from experts or "
                    "recorded ones, or choose an agent that has no others act for it"
                )


def _check_estimator(stage: Stage) -> None:
    """Refuses an estimator that reads the trajectories of other models inside of another one, which has its model's
    alone."""
    for part in parts_of(stage.groups):
        inner = with_bases(applied([stage.estimator], origin_of(part)))
        names = [type(one).__name__ for one in inner if reads_all_models(one)]
        if names and not reads_all_models(stage.estimator):
            raise ConfigError(
                f"stage '{stage.name}': {names[0]} reads the trajectories of all models, but inside of "
                f"{type(stage.estimator).__name__} it has those of one: name it as the estimator itself, or take "
                "another as the base"
            )


def measured(
    model: str, called: Collection[str], groups: Sequence[Group], scores: Sequence[Sequence[Score]]
) -> tuple[Sequence[Group], Sequence[Sequence[Score]]]:
    """Returns the trajectories by which a model is measured, with their scores: those in seats of the world or, where
    it took none, those of the agents that were `called`. What a called agent does is part of a seat's result."""
    own = taken_by(model, groups, scores)
    seated = chosen(lambda one: one.agent not in called, *own) if called else own
    return seated if seated[0] else own
