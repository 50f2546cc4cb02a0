"""Attempts with guidance: a second group where the first attempts of a task failed, or further episodes of a group."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Literal

from sojourn.call_text import call_text
from sojourn.config.fields import Range
from sojourn.errors import ActionError, ConfigError, RewardError
from sojourn.protocols import Agent, AgentContext, Env, Seat
from sojourn.rewards.reward_cache import ScoredGroup, score_group
from sojourn.rollout.runner import SamplerFor
from sojourn.sources.context import SourceContext, StageContext, require_one_seat
from sojourn.sources.experts import expert_sampler
from sojourn.sources.segments import SampleReplay
from sojourn.sources.wrapped import WrappedGroups, WrappedSource
from sojourn.types import Ending, Episode, Group, Message, Observation, Role, Trajectory

PLAN = "An earlier attempt at this task failed. A way that works begins like this: {}."
FAILURE = "An earlier attempt at this task failed. It did this, and it did not succeed: {}."


@dataclass(frozen=True, kw_only=True)
class Guidance(WrappedSource):
    """The groups of `base`, mostly live ones; a group without a winner gives way to a second one of its task, whose
    episodes begin with guidance (Agent-RLVR: Da et al. 2025, arXiv:2506.11425).

    The guidance comes before the first thing that the world says. With `kind` = "plan" it is what the world's expert
    would do, the first `fraction` of its actions; with "failure" it is what the policy did in one of the attempts that
    failed; with "text" it is `text`, such as a policy document. The first attempts are what was played, as metrics and
    curricula see it; the second ones are trained, guidance included, if any of them succeeds, else the first. `guided`
    counts the second groups, `guided_success` is the success of their episodes.

    With `hidden`, the second attempts are trained without the guidance, as the policy will meet the task: their samples
    are played again in contexts that lack it, and the first attempts are trained where that ends otherwise. The
    log-probabilities stay those of the guided policy, so that the ratio of a loss corrects for the guidance.

    With `join` above 0, every group, whatever came of it, is extended by that many guided episodes in place of a second
    group, and the reward is asked about the joint group, so that the advantages are over both (PolicyRollout of TriMPI:
    Wang et al. 2025, arXiv:2510.09474, whose text is a policy document). With `hidden`, too, the joint group is trained
    without the text; a guided episode that ends otherwise without it is left out. `guided` counts the joined groups.

    In the paper on Agent-RLVR a teacher model writes the guidance, from the task, the failed attempt and its tests, and
    what is trained are preferences. Whether the authors of TriMPI update the policy without the document could not be
    read; here the ratio is to the guided policy, which weighs down what would hardly be said without the text.
    """

    kind: Literal["plan", "failure", "text"] = "plan"
    fraction: Annotated[float, Range(above=0, max=1)] = 1.0
    text: str = ""
    hidden: bool = False
    join: Annotated[int, Range(0)] = 0

    unverified = "the abstracts of both papers and accounts of them were read, not their texts"

    def __post_init__(self) -> None:
        super().__post_init__()
        if bool(self.text) != (self.kind == "text"):
            raise ValueError("kind = 'text' and a text belong together: give both, or none of them")
        if self.join and self.kind != "text":
            raise ValueError(
                f"join = {self.join} with kind = '{self.kind}': all groups are joined, those that did not fail, too: "
                "use kind = 'text', or join = 0"
            )

    @property
    def max_lag(self) -> int:
        return max(super().max_lag, int(self.hidden))  # hidden guidance makes samples off-policy

    @property
    def gives_samples(self) -> bool:
        return self.hidden or super().gives_samples

    async def check(self, stage: StageContext) -> None:
        await super().check(stage)
        if self.kind == "plan" and (without := await stage.plays.lacking("expert")):
            raise ConfigError(
                f"stage '{stage.name}': guidance by plan asks an expert, but {without} has no expert(): define it, or "
                "use kind = 'failure'"
            )
        if self.hidden:
            require_one_seat(stage, "hidden guidance", "set hidden = false")

    def bind(self, context: SourceContext, stage: str, steps: int, first: int = 0) -> GuidedGroups:
        return GuidedGroups(self.base.bind(context, stage, steps, first), context, stage, self)


@dataclass
class GuidedGroups(WrappedGroups):
    """Plays the second attempts."""

    config: Guidance
    _guided: int = 0
    _episodes: int = 0
    _won: int = 0

    async def changed(self, step: int, scored: ScoredGroup) -> Group:
        group = scored.group
        return await (self._joined(group) if self.config.join else self._retried(group))

    async def _joined(self, group: Group) -> Group:
        """Returns the group with guided episodes added to it; the group itself where it cannot be scored then."""
        if not group.trajectories:
            return group
        guided = await self._guided_group(group, self.config.join, self.config.text)
        if self.config.hidden:
            guided = _unchanged(guided, await self._without_text(guided))
        if not guided.trajectories:
            return group
        joint = replace(group, episodes=(*group.episodes, *guided.episodes))
        return joint if await self._scored(joint) else group

    async def _retried(self, group: Group) -> Group:
        """Returns a second group where nothing succeeded in the first, and something in the second."""
        if not group.trajectories or any(trajectory.success for trajectory in group.trajectories):
            return group
        text = await self._text(group)
        if not text:
            return group
        guided = await self._guided_group(group, len(group.episodes), text)
        won = [trajectory.success for trajectory in guided.trajectories]
        if not any(won):
            return group
        if self.config.hidden:
            guided = await self._without_text(guided)
            if won != [trajectory.success for trajectory in guided.trajectories]:
                return group
        return guided if await self._scored(guided) else group

    async def _guided_group(self, group: Group, size: int, text: str) -> Group:
        """Plays and counts the guided episodes of a group."""
        guided = await self._play(group, size, f"{self.stage}/guided/{group.slot}", text)
        won = [trajectory.success for trajectory in guided.trajectories]
        self._guided, self._episodes, self._won = self._guided + 1, self._episodes + len(won), self._won + sum(won)
        return guided

    async def _scored(self, group: Group) -> bool:
        """Scores a group; returns False where its server failed, so that the first attempts are what is left."""
        try:
            scores = await score_group(self.context.rewards.reward, group)
        except RewardError:
            return False
        self.context.rewards.remember(group, scores)
        return True

    def metrics(self) -> Mapping[str, float]:
        """Returns how many groups were guided since the last call, and the success of their episodes."""
        guided, episodes, won = self._guided, self._episodes, self._won
        self._guided = self._episodes = self._won = 0
        success = {"guided_success": won / episodes} if episodes else {}
        return {**super().metrics(), "guided": float(guided), **success}

    async def _text(self, group: Group) -> str:
        """Returns the guidance for a task; nothing where there is none."""
        if self.config.kind == "text":
            return self.config.text
        actions = await self._plan(group) if self.config.kind == "plan" else _actions(group.trajectories[-1])
        return (PLAN if self.config.kind == "plan" else FAILURE).format("; ".join(actions)) if actions else ""

    async def _without_text(self, guided: Group) -> Group:
        """Returns the same samples in contexts without the guidance; episodes that failed are left out."""
        label = f"{self.stage}/hidden/{guided.slot}"
        samples = [[turn.sample for turn in trajectory.turns] for trajectory in guided.trajectories]
        recorded = {f"{label}/{number}": found for number, found in enumerate(samples)}

        def sampler_for(env: Env, label: str) -> SampleReplay:
            return SampleReplay(recorded[label])

        return await self._play(guided, len(samples), label, "", sampler_for)

    async def _plan(self, group: Group) -> list[str]:
        """Returns the first of the expert's actions for a task; none where the expert failed."""
        runner = self.context.runner
        sampler_for = expert_sampler(runner.renderer, runner.agent)
        shown = await self._play(group, 1, f"{self.stage}/plan/{group.slot}", "", sampler_for)
        if not any(trajectory.success for trajectory in shown.trajectories):
            return []
        actions = _actions(shown.trajectories[0])
        return actions[: max(1, round(self.config.fraction * len(actions)))]

    async def _play(
        self, group: Group, size: int, label: str, text: str, sampler_for: SamplerFor | None = None
    ) -> Group:
        """Plays a group's task again, with a text before what the world says first."""
        own = self.context.runner
        runner = replace(own, agent=Guided(own.agent, text)) if text else own
        before = runner.errors
        guided = await runner.play_group(
            group.task, group.slot, size, self.context.params, label, sampler_for=sampler_for, blame=sampler_for is None
        )
        own.errors += runner.errors - before if runner is not own else 0
        return guided


def _unchanged(guided: Group, replayed: Group) -> Group:
    """Returns the replayed episodes that took as many turns, and ended as well, as the guided ones did."""
    pairs = zip(guided.trajectories, replayed.episodes, strict=True)
    same = tuple(episode for before, episode in pairs if episode.error is None and _same_end(before, episode))
    return replace(replayed, episodes=same)


def _same_end(before: Trajectory, episode: Episode) -> bool:
    after = [trajectory for trajectory in episode.trajectories if trajectory.trainable]
    return [(len(t.turns), t.success) for t in after] == [(len(before.turns), before.success)]


def _actions(trajectory: Trajectory) -> list[str]:
    """Returns what was said or called in each turn."""
    messages = [turn.message for turn in trajectory.turns if turn.message is not None]
    said = ["; ".join(map(call_text, m.calls)) or " ".join(m.text.split()) for m in messages]
    return [action for action in said if action]


@dataclass(frozen=True)
class Guided:
    """Another agent, which is shown a text before what the world says first."""

    base: Agent
    text: str

    def seat(self, context: AgentContext) -> Seat:
        return GuidedSeat(self.base.seat(context), self.text)


@dataclass
class GuidedSeat:
    base: Seat
    text: str
    first: Observation | None = None  # what the world says first

    @property
    def ends_when_malformed(self) -> bool:
        return self.base.ends_when_malformed

    async def act(self, observation: Observation, state: str | None = None) -> Message:
        if self.first is None:
            self.first = observation
        return await self.base.act(self._told(observation), state)

    def add_reward(self, reward: float, info: Mapping[str, float]) -> None:
        self.base.add_reward(reward, info)

    def refuse(self, error: ActionError, observation: Observation) -> Observation:
        return self.base.refuse(error, self._told(observation))

    def finish(self, ending: Ending) -> Trajectory:
        return self.base.finish(ending)

    def _told(self, observation: Observation) -> Observation:
        return _guided(observation, self.text) if observation is self.first else observation


def _guided(observation: Observation, text: str) -> Observation:
    """Returns the observation with a text at the beginning of its first message of the user, or as such a message."""
    messages = list(observation.messages)
    place = next((n for n, message in enumerate(messages) if message.role is Role.USER), None)
    if place is None:
        messages.append(Message(Role.USER, text))
    else:
        messages[place] = replace(messages[place], text=f"{text}\n\n{messages[place].text}")
    return replace(observation, messages=tuple(messages))
