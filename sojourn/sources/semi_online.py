"""Live groups that are played along the expert's way, whatever the policy does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, NamedTuple

import numpy as np

from sojourn.abilities import Demonstrates, max_turns
from sojourn.config.fields import Range
from sojourn.errors import ActionError, ConfigError
from sojourn.protocols import Env, Renderer, Sampler
from sojourn.same_action import same_action, same_kind
from sojourn.sources.context import SourceContext, StageContext
from sojourn.sources.expert_match import (
    EXPERT_PROGRESS,
    MATCHED,
    TYPE_MATCHED,
    matched_returns,
)
from sojourn.sources.experts import ExpertSampler, require_an_expert, require_sayable_expert
from sojourn.sources.segments import alone
from sojourn.sources.slot_record import SlotRecord
from sojourn.sources.slots import LiveSlots, Slots
from sojourn.types import (
    Ending,
    Episode,
    FloatArray,
    Group,
    Message,
    Prompt,
    Sample,
    SamplingParams,
    Score,
    Trajectory,
    Turn,
)


@dataclass(frozen=True, kw_only=True)
class SemiOnline(Slots):
    """`slots` whose episodes go the way of the world's expert, and whose rewards say how far the policy would have gone
    it (semi-online roll-outs of UI-S1: Lu et al. 2025, arXiv:2509.11543).

    In each turn the policy acts, with its own earlier turns in its context. Where its action is the expert's, the play
    goes on with it; where it differs, the expert's action takes its place in the world and in the context (the paper's
    patch, without a thought), up to `patches` times; the next difference ends the episode. Only what the policy
    sampled is trained. A turn is rewarded with `format_reward` if it can be read as an action, `type_reward` if it also
    calls the same tool or begins with the same word, and `match_reward` if it is the same action. The world's own
    rewards are not used. An episode succeeds if no turn differed and the expert's way did. Estimators find the
    info `matched` in each turn; `ui_s1` is the paper's.

    With a `min_std` above 0, a group has a signal, as `zero_signal` means it, if the standard deviation of its
    episodes' first returns, discounted by `discount`, is above it (the authors take 0.3 with 0.5).

    The metrics `semi_online_progress`, the fraction of the expert's turns before the first that differs, and
    `semi_online_success` are the paper's semi-online performance (PG and TSR) on what was played, and do not depend on
    `patches`: a stage with `trains = false` measures it. `patched` is the number of patches per episode. Sources and
    curricula that go by what the policy did by itself do not count these plays: the former are refused beside them, the
    latter draw as at the beginning.

    The authors' code was read, and of the paper the abstract. There the expert's way is recorded and no world is
    asked; `format_reward` asks for a thought; coordinates match within a box; and the rewards add up to 0.19, 0.55
    and 1.
    """

    patches: Annotated[int, Range(0)] = 2
    format_reward: float = 0.1
    type_reward: float = 0.4
    match_reward: float = 0.5
    min_std: Annotated[float, Range(0)] = 0.0
    discount: Annotated[float, Range(0, 1)] = 0.5

    origin = "semi_online"
    gives_samples = True
    env_needs = frozenset({"expert"})

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.min_std and self.zero_signal == "keep":
            raise ValueError(
                f'min_std = {self.min_std:g} with zero_signal = "keep", which trains all groups: use "redraw" or "drop"'
            )
        if self.branching is not None:
            raise ValueError("branching with semi_online, whose plays go the expert's one way: leave it out")

    async def check(self, stage: StageContext) -> None:
        await super().check(stage)
        if isinstance(stage.agent, Demonstrates):
            raise ConfigError(
                f"stage '{stage.name}': {type(stage.agent).__name__} samples several times in a turn, of which "
                "semi_online would not know which to compare with the expert: use an agent that samples once, such as "
                "plain"
            )
        await require_an_expert(stage, "compares the policy with an expert")
        await require_sayable_expert(stage)

    def bind(self, context: SourceContext, stage: str, steps: int, first: int = 0) -> LiveSemiOnline:
        return LiveSemiOnline(self, context, stage, steps, first)

    def reward(self, compared: Compared) -> float:
        """Returns the reward of a turn."""
        by_level = (self.format_reward, compared.message), (self.type_reward, compared.same_kind)
        return sum(value for value, earned in (*by_level, (self.match_reward, compared.same)) if earned)


class Compared(NamedTuple):
    """Holds what the policy sampled in a turn, and how it compares with the expert's action."""

    sample: Sample
    message: Message | None
    same_kind: bool
    same: bool


@dataclass
class LiveSemiOnline(LiveSlots):
    """Slots whose plays are patched."""

    config: SemiOnline  # type: ignore[assignment]
    _ended: list[Mapping[str, float]] = field(default_factory=list[Mapping[str, float]])

    def observe(self, groups: Sequence[Group], scores: Sequence[Sequence[Score]]) -> None:
        super().observe(groups, scores)
        trajectories = [t for group in groups if group.origin == self.config.origin for t in group.trajectories]
        self._ended += [
            {
                "semi_online_progress": trajectory.turns[-1].info[EXPERT_PROGRESS],
                "semi_online_success": float(trajectory.success),
                "patched": float(min(sum(not turn.info[MATCHED] for turn in trajectory.turns), self.config.patches)),
            }
            for trajectory in trajectories
            if trajectory.turns
        ]

    def metrics(self) -> Mapping[str, float]:
        ended, self._ended = self._ended, []
        names = ended[0] if ended else ()
        return {**super().metrics(), **{name: float(np.mean([one[name] for one in ended])) for name in names}}

    async def _play(self, record: SlotRecord, slot: int, redraw: int, params: SamplingParams, label: str) -> Group:
        runner, samplers, recording = self.context.runner, dict[str, PatchSampler](), self._recording(record)

        def sampler_for(env: Env, label: str) -> PatchSampler:
            expert = ExpertSampler(env, runner.renderer, runner.agent)
            samplers[label] = PatchSampler(recording(env, label), expert, runner.renderer, self.config.patches)
            return samplers[label]

        task, size = record.tasks[redraw], record.sizes[redraw]
        group = await runner.play_group(task, slot, size, params, label, sampler_for=sampler_for, blame=False)
        episodes = [self._own(episode, samplers[f"{label}/{n}"]) for n, episode in enumerate(group.episodes)]
        return replace(group, episodes=tuple(episodes), origin=self.config.origin)

    def _own(self, episode: Episode, sampler: PatchSampler) -> Episode:
        if episode.error is not None:
            return episode
        return replace(episode, trajectories=tuple(own_turns(t, sampler, self.config) for t in episode.trajectories))

    async def _has_zero_signal(self, group: Group) -> bool:
        if not self.config.min_std:
            return await super()._has_zero_signal(group)
        scores = await self.context.rewards.score(group)
        pairs = [(t.turns, score) for t, score in zip(group.trajectories, scores, strict=True) if t.turns]
        firsts = [matched_returns(turns, score, self.config.discount)[0] for turns, score in pairs]
        return not firsts or float(np.std(firsts)) <= self.config.min_std


@dataclass
class PatchSampler:
    """Samples one play: what the engine samples where that is the expert's action, and else what the expert does.

    The engine is asked until more than `patches` of its actions differed; the rest of the play is the expert's. So
    the play comes to the end of the expert's way, and tells how long it is. `compared` has what the engine sampled.
    """

    engine: Sampler
    expert: ExpertSampler
    renderer: Renderer
    patches: int
    compared: list[Compared] = field(default_factory=list[Compared])

    @property
    def max_turns(self) -> int:
        return max_turns(self.engine, 1 << 30)

    @property
    def over(self) -> bool:
        return sum(not one.same for one in self.compared) > self.patches

    async def sample(self, prompt: Prompt, params: SamplingParams) -> Sample:
        shown = await self.expert.sample(prompt, params)
        if self.over:
            return shown
        sample = await self.engine.sample(prompt, params)
        self.compared.append(self._compared(sample, shown))
        return sample if self.compared[-1].same else shown

    async def score(self, prompt: Prompt) -> FloatArray:
        return await self.engine.score(prompt)

    async def close(self) -> None:
        """Does nothing: whoever opened the engine closes it."""

    def _compared(self, sample: Sample, shown: Sample) -> Compared:
        expert = self.renderer.parse(shown.tokens.tolist())
        try:
            message = self.renderer.parse(sample.tokens.tolist())
        except ActionError:
            return Compared(sample, None, same_kind=False, same=False)
        same = same_action(message, expert)
        return Compared(sample, message, same_kind=same or same_kind(message, expert), same=same)


def own_turns(played: Trajectory, sampler: PatchSampler, config: SemiOnline) -> Trajectory:
    """Returns the turns of a patched play as the policy took them, each with its reward. After a patch a new context
    begins, which shows the expert's action."""
    turns = [_own_turn(played, number, sampler.compared, config) for number in range(len(sampler.compared))]
    if not turns:
        return played
    differ = [number for number, one in enumerate(sampler.compared) if not one.same]
    progress = (differ[0] if differ else len(turns)) / len(played.turns)
    ended = {"success": float(played.success and not differ), EXPERT_PROGRESS: progress}
    turns[-1] = replace(turns[-1], info={**turns[-1].info, **ended})
    return replace(played, turns=tuple(turns), ending=Ending.DONE if sampler.over else played.ending)


def _own_turn(played: Trajectory, number: int, compared: Sequence[Compared], config: SemiOnline) -> Turn:
    one, parent = compared[number], played.turns[number].parent
    turn = alone(played, number) if parent >= 0 and not compared[parent].same else played.turns[number]
    info = {MATCHED: float(one.same), TYPE_MATCHED: float(one.same_kind), "malformed": float(one.message is None)}
    return replace(turn, sample=one.sample, message=one.message, reward=config.reward(one), info=info)
