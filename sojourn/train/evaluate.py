"""Evaluation: a fixed panel of tasks, decided by the config alone, played by the current weights."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from sojourn.abilities import Forgets, ObservesEvaluations, sub_agent_models
from sojourn.errors import InfrastructureError, failure_and_place
from sojourn.record.episodes.store import EpisodeStore
from sojourn.record.stage_names import EVALUATION_PREFIX
from sojourn.record.summary import Summary, summarise
from sojourn.rewards.reward_cache import score_group, scored_or_failed
from sojourn.sources.context import count_unjudged
from sojourn.sources.experts import expert_sampler
from sojourn.tasks.listed import some_tasks
from sojourn.train.policy_measures import policy_measures
from sojourn.train.seating import POLICY
from sojourn.train.sub_agents import measured
from sojourn.types import Group, Score, Task

if TYPE_CHECKING:
    from sojourn.train.assemble import Components


@dataclass(frozen=True)
class EvaluationPlays:
    """Holds the groups that an evaluation played, their scores, and what the worlds measured of the policy.
    `models` are those that learn in the run, and `called` the agents that the run's agent calls."""

    groups: list[Group]
    scores: list[list[Score]]
    measures: Mapping[str, float]
    models: Collection[str] = (POLICY,)
    called: Collection[str] = ()

    def summary(self) -> Summary:
        """Returns the numbers of the policy's trajectories; of other models that learn, the means of success and reward
        are among the measures."""
        measures = dict(self.measures)
        for model in self.models:
            groups, scores = measured(model, self.called, self.groups, self.scores)
            if model != POLICY and groups:
                overall = summarise(groups, scores).overall
                measures |= {f"{model}_success": overall.success.mean, f"{model}_reward": overall.reward.mean}
        return replace(summarise(*measured(POLICY, self.called, self.groups, self.scores)), measures=measures)


def panel(components: Components) -> Sequence[Task]:
    """Returns the tasks that every evaluation of the recipe plays."""
    config = components.recipe.evaluation
    return some_tasks(components.recipe.env, config.split)[: config.tasks]


async def evaluate(components: Components, label: str, expert: bool = False) -> EvaluationPlays:
    """Plays the recipe's panel, and has the worlds measure the policy, where it is no expert that plays. `label` begins
    the ids of the episodes, and seeds their sampling."""
    config = components.recipe.evaluation
    params = config.params(components.recipe.sampling)
    options: dict[str, Any] = {"search": config.search}
    if expert:
        options = {"sampler_for": expert_sampler(components.renderer, components.runner.agent), "blame": False}
    plays = [
        components.runner.play_group(task, slot, config.samples, params, f"{label}/{slot}", **options)
        for slot, task in enumerate(panel(components))
    ]
    groups = await asyncio.gather(*plays)
    measures = {} if expert else await policy_measures(components)
    require_plays(groups)
    reward = functools.partial(score_group, components.rewards.reward)
    scored = await asyncio.gather(*(scored_or_failed(reward, group) for group in groups))
    if isinstance(components.sampler, Forgets):  # a reward may have asked it, too
        await components.sampler.forget()  # so that training continues as it would after a restart
    for group, (judged, _) in zip(groups, scored, strict=True):
        count_unjudged(components.runner, group, judged)
    groups = [group for group, _ in scored]
    require_plays(groups)
    models, called = components.trainers.keys(), sub_agent_models(components.runner.agent)
    return EvaluationPlays(groups, [scores for _, scores in scored], measures, models, called)


def show_recorded(name: str, curriculum: object, store: EpisodeStore) -> None:
    """Shows an evaluation to a curriculum that observes them, as it was recorded, so that a resumed run shows the
    same."""
    if isinstance(curriculum, ObservesEvaluations):
        records = list(store.records(f"{EVALUATION_PREFIX}{name}"))
        curriculum.observe_evaluation([one.group for one in records], [one.scores for one in records])


def require_plays(groups: Sequence[Group]) -> None:
    """Raises `InfrastructureError` where no episode can be judged: all failed, or none had room for an action."""
    episodes = [episode for group in groups for episode in group.episodes]
    if all(episode.error is not None for episode in episodes):
        cause = failure_and_place(episodes[-1].error, episodes[-1].traceback)
        raise InfrastructureError(f"all of {len(episodes)} episodes failed; the last cause: {cause}")
    if not any(trajectory.turns for group in groups for trajectory in group.trajectories):
        raise InfrastructureError(
            f"none of {len(episodes)} episodes had room for a single action: raise backend.max_context, or "
            "shorten what the world shows"
        )
