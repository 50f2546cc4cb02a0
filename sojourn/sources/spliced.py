"""Bad plays up to their first wrong turn, what the agent says of it, and then the rest of a good play."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np

from sojourn.abilities import LooksAhead, group_size, max_lag
from sojourn.ability import Ability
from sojourn.agents.plain import Plain
from sojourn.config.fields import NONBLANK, TEXT, Kind, Range
from sojourn.errors import BudgetError, ConfigError
from sojourn.protocols import Agent, AgentContext, Env, Sampler, SourceConfig
from sojourn.rewards.reward_cache import ScoredGroup
from sojourn.schedules import Constant, Schedule
from sojourn.seeds import seed_of
from sojourn.sources.context import SourceContext, StageContext, require_imitation, require_one_seat
from sojourn.sources.purified import Rescored
from sojourn.sources.segments import SampleReplay
from sojourn.sources.splices import Cut, Splice, same_prompts, shown_in, splice, spoken
from sojourn.sources.wrapped import WrappedGroups, WrappedSource
from sojourn.sources.wrong_turns import FirstWrong, divergence, first_wrong
from sojourn.types import Ending, Episode, Group, Message, Role, Sample, Score, Stop, Trajectory, Versions

ORIGIN = "spliced"
REVISIONS = (
    "My last step was a mistake. I go back and take another way.",
    "This does not lead to the goal. I return to where I was.",
    "I see that I went wrong here, and I start again from before that.",
    "That was the wrong choice. I undo it and try something else.",
)
ANSWER, ENDED = "ok.", "This attempt is over, and it failed."


@dataclass(frozen=True, kw_only=True)
class Spliced(WrappedSource):
    """The groups of another source, and beside them groups of splices: a bad play up to its first wrong turn, what the
    agent says of that, and then the rest of a good play of the same task (Agent-R: Yuan et al. 2025, arXiv:2501.11425,
    whose abstract and authors' code were read).

    A model that imitates them learns to notice that it went wrong, and to go on well from there. A play is good if it
    succeeded or, with `enough`, if its return is at least that; it goes with each play whose return is lower by at
    least `gap`. Up to `per_group` of the pairs are spliced, drawn at random. The first wrong turn of the bad play is,
    by `first_wrong`: "divergence", the first turn that it shares with no good play; "mistake", the first one from
    where the two parted that was refused (`malformed`), had an `error`, or led back to a state where the play had been;
    "end", its last one. The good play goes on with the turn in which it acted differently. Plays that fork and plays
    from the start are compared alike: turns are shared where the same was shown and done.

    The bad play's turns are in the context and not trained. Then the agent says one of `revisions`, which is trained
    with `train_revision`, and is told `answer`; with `show_again`, it is shown again what it saw where the two plays
    parted. Where the wrong turn ended the play, the agent is told `ended` before that; an empty text leaves such pairs
    out. What the good play said keeps its tokens. With `observations` = "recorded" the world is not asked, and the good
    play's observations are shown as if nothing wrong had been done: right where a wrong turn changes nothing, or the
    world takes steps back. With "played" all this is played in the world, which answers the revision as it answers any
    action, and a splice stays if the good turns then have the same rewards and success as before.

    Splices have the origin "spliced" and the good play's scores. Their revisions were not sampled, so they are
    imitated. Without `train_revision`, those of live plays have the log-probabilities that the present weights give
    them after their prompts, as with `purified`. With `keep` = false, the groups of the base are played and scored, but
    not trained. Metrics: `spliced` and `spliced_turns` (turns of a bad play from where it parted, in the mean), and the
    pairs that gave no splice: `splice_too_long` for the context, and `splice_refused` for any other reason.

    In the authors' code the policy itself judges each turn of the bad play, and the first one that is neither good nor
    uncertain is the wrong one; without that, it is the last one, as with "end". It splices every pair, and draws one of
    ten sentences, as the thought of an action `wait`. Its bar for good plays is the paper's alpha, which rises over the
    iterations; here `schedule` is a factor on `enough`. An account gives 0.5, 0.7 and 1.0 for it, and a gap of 0.2.
    """

    first_wrong: FirstWrong = "divergence"
    enough: float | None = None
    schedule: Annotated[Schedule, Kind("schedule")] = field(default_factory=Constant)
    gap: Annotated[float, Range(above=0)] = 0.2
    per_group: Annotated[int, Range(1)] = 8
    revisions: tuple[Annotated[str, NONBLANK], ...] = REVISIONS
    train_revision: bool = True
    observations: Literal["recorded", "played"] = "recorded"
    answer: Annotated[str, NONBLANK] = ANSWER
    ended: Annotated[str, TEXT] = ENDED
    show_again: bool = False
    keep: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if group_size(self.base) == 1:
            raise ValueError(
                f"base = {type(self.base).__name__} plays each task once, so that there are no two plays of it to "
                "splice: raise its size, or have its plays fork"
            )
        if not self.revisions:
            raise ValueError('revisions = []: give at least one, such as revisions = ["I was wrong."]')
        if self.enough is None and self.schedule != Constant():
            raise ValueError("schedule without enough, on which it is a factor: give enough, such as enough = 1.0")
        if self.observations == "played" and (self.answer, self.ended, self.show_again) != (ANSWER, ENDED, False):
            raise ValueError(
                "answer, ended and show_again say what is shown in place of the world, which itself answers with "
                "observations = 'played': leave them out"
            )

    @property
    def parts(self) -> tuple[SourceConfig[SourceContext], ...]:
        """Returns what the groups of a step come from: the base, and what is made of its plays."""
        return self.base, Splices(self.base)

    @property
    def width(self) -> int:
        return self.base.width * (1 + self.keep)

    @property
    def size(self) -> None:
        return None

    async def check(self, stage: StageContext) -> None:
        await super().check(stage)
        require_one_seat(stage, ORIGIN, "choose another source", "splices the plays of one seat")
        if not isinstance(acting := _acting(stage.agent), Plain) or acting.history != "full":
            raise ConfigError(
                f"stage '{stage.name}': spliced shows the turns of two plays in one context, but the agent "
                f"{type(stage.agent).__name__} does not keep all turns in its context: set agent = {{name = 'plain', "
                "history = 'full'}, or one with that as its base"
            )
        if self.train_revision:
            require_imitation(stage, "a splice", ORIGIN)
            self._require_sayable(stage)
        elif not self.base.live or (isinstance(stage.agent, LooksAhead) and stage.agent.unsampled):
            require_imitation(stage, "a splice of plays that the policy did not just sample", ORIGIN)

    def bind(self, context: SourceContext, stage: str, steps: int, first: int = 0) -> SplicedGroups:
        return SplicedGroups(self.base.bind(context, stage, steps, first), context, stage, self, steps)

    def _require_sayable(self, stage: StageContext) -> None:
        """Raises `ConfigError` for a revision that the model may not say at its length."""
        if (renderer := stage.renderer) is None:
            return  # the model is not on this machine yet
        for text in self.revisions:
            count = len(renderer.encode_reply(Message(Role.ASSISTANT, text)))
            if count > stage.params.max_tokens:
                raise ConfigError(
                    f"stage '{stage.name}': groups.revisions: {text!r:.60} has {count} tokens, where "
                    f"sampling.max_tokens = {stage.params.max_tokens}: a model that learnt it would be cut off: raise "
                    "sampling.max_tokens, or write a shorter one"
                )


@runtime_checkable
class _HasBase(Ability, Protocol):
    """An agent that has another one act."""

    @property
    def base(self) -> Agent: ...


def _acting(agent: Agent) -> Agent:
    """Returns the agent that acts: the base of one that searches, or that is told something."""
    return _acting(agent.base) if isinstance(agent, _HasBase) else agent


@dataclass(frozen=True)
class Splices:
    """Describes the groups that are made of a source's plays, beside those of the source itself."""

    base: SourceConfig[SourceContext]

    live = False
    origin = ORIGIN
    gives_samples = True

    @property
    def width(self) -> int:
        return self.base.width

    @property
    def max_lag(self) -> int:
        return max_lag(self.base)

    def tasks(self, steps: int) -> int:
        return 0

    def bind(self, context: SourceContext, stage: str, steps: int, first: int = 0) -> SplicedGroups:
        raise NotImplementedError("splices are made by the source whose part they are")


class Play(NamedTuple):
    """A play of a group, with its number in it."""

    number: int
    episode: Episode
    trajectory: Trajectory
    score: Score


class Pair(NamedTuple):
    """A bad play and a good one; `better` are all plays that are good beside the bad one."""

    bad: Play
    good: Play
    better: Sequence[Trajectory]


@dataclass
class SplicedGroups(WrappedGroups):
    """Splices the plays of each group of its base."""

    config: Spliced
    steps: int
    _counts: Counter[str] = field(default_factory=Counter[str])

    async def take(self, step: int) -> list[Group]:
        groups = await self.base.take(step)
        scores = await self.context.rewards(groups)
        played = [ScoredGroup(*pair) for pair in zip(groups, scores, strict=True)]
        made = await asyncio.gather(*(self.changed(step, scored) for scored in played))
        splices = [group for group in made if group.episodes]
        return [*groups, *splices] if self.config.keep else splices

    async def changed(self, step: int, scored: ScoredGroup) -> Group:
        """Returns the splices of a group's plays as a group, which is empty where there are none. No slot has its
        number, so that what was played for a slot can be told from it."""
        group, pairs = scored.group, self._pairs(step, scored)
        rng = np.random.default_rng(seed_of(self.context.runner.seed, self.stage, *(e.id for e in group.episodes)))
        found = dict[tuple[bytes, int], tuple[Episode, Score]]()
        for number in rng.permutation(len(pairs)).tolist():
            if len(found) == self.config.per_group:
                break
            pair, text = pairs[number], self.config.revisions[int(rng.integers(len(self.config.revisions)))]
            cut = self._cut(pair)
            if cut is None:
                self._counts["refused"] += 1
                continue
            key = b"/".join(turn.sample.tokens.tobytes() for turn in cut.bad.turns[: cut.wrong + 1])
            if (key, pair.good.number) in found:
                continue
            label = f"{self.stage}/{ORIGIN}/{pair.bad.episode.id}/{pair.good.number}"
            if (made := await self._splice(cut, pair.good, text, label)) is not None:
                episode = Episode(f"{label}-{group.task.id}", group.task, (made.trajectory,))
                found[key, pair.good.number] = episode, made.score
                self._counts.update(spliced=1, turns=cut.wrong_turns)
        splices = Group(-1 - group.slot, group.task, tuple(episode for episode, _ in found.values()), ORIGIN)
        if found:
            self.context.rewards.remember(splices, [score for _, score in found.values()])
        return splices

    def metrics(self) -> Mapping[str, float]:
        """Returns how many splices were made since the last call, and how many pairs gave none."""
        counts, self._counts = self._counts, Counter()
        names = {"spliced": "spliced", "splice_refused": "refused", "splice_too_long": "too_long"}
        turns = {"spliced_turns": counts["turns"] / counts["spliced"]} if counts["spliced"] else {}
        return {**super().metrics(), **{name: float(counts[of]) for name, of in names.items()}, **turns}

    def _pairs(self, step: int, scored: ScoredGroup) -> list[Pair]:
        """Returns all pairs of a good play and one that is worse by the gap."""
        group = scored.group
        owned = zip(group.owners, group.trajectories, scored.scores, strict=True)
        every = [Play(owner, group.episodes[owner], of, score) for owner, of, score in owned if of.turns]
        good = [play for play in every if self._good(step, play)]
        pairs: list[Pair] = []
        for bad in every:
            better = [play for play in good if play.score.total - bad.score.total >= self.config.gap]
            pairs += [Pair(bad, play, [other.trajectory for other in better]) for play in better]
        return pairs

    def _good(self, step: int, play: Play) -> bool:
        if self.config.enough is None:
            return play.trajectory.success
        return play.score.total >= self.config.enough * self.config.schedule(step, self.steps)

    def _cut(self, pair: Pair) -> Cut | None:
        """Returns where a pair is cut; None where the bad play has no wrong turn, or where it ended with it and nothing
        is to be said of that."""
        bad, good = pair.bad.trajectory, pair.good.trajectory
        diverged = divergence(bad, good)
        wrong = first_wrong(self.config.first_wrong, bad, good, pair.better)
        if diverged is None or wrong is None or (wrong + 1 == len(bad.turns) and not self.config.ended):
            return None
        return Cut(bad, good, diverged, wrong)

    async def _splice(self, cut: Cut, good: Play, text: str, label: str) -> Splice | None:
        """Returns a splice; None, counted, where there is none."""
        runner, config = self.context.runner, self.config
        tokens = np.asarray(runner.renderer.encode_reply(Message(Role.ASSISTANT, text)), dtype=np.int64)
        revision = Sample(tokens, np.zeros(len(tokens), dtype=np.float32), Versions(-1, -1), Stop.END)
        samples = cut.samples(revision)

        def sampler() -> SampleReplay | Rescored:
            recorded = SampleReplay(samples)
            rescored = config.base.live and not config.train_revision
            return Rescored(runner.sampler, recorded, cut.wrong + 2) if rescored else recorded

        try:
            whole = await (
                self._played(cut, good.episode, label, sampler)
                if config.observations == "played"
                else self._shown(cut, sampler())
            )
        except BudgetError:
            self._counts["too_long"] += 1
            return None
        if whole is None:
            self._counts["refused"] += 1
            return None
        return splice(cut, whole, good.score, trains_revision=config.train_revision)

    async def _shown(self, cut: Cut, sampler: Sampler) -> Trajectory | None:
        """Returns the whole trajectory with what was recorded as observations; None where the contexts of one of the
        plays were not its whole history."""
        for play in (cut.bad, cut.good):
            replay = SampleReplay([turn.sample for turn in play.turns])
            if not same_prompts(play, await spoken(shown_in(play), self._context(play, replay))):
                return None
        shown = cut.shown(self.config.answer, self.config.ended, again=self.config.show_again)
        return await spoken(shown, self._context(cut.good, sampler))

    async def _played(self, cut: Cut, of: Episode, label: str, sampler: Callable[[], Sampler]) -> Trajectory | None:
        """Returns the whole trajectory as the world plays it; None where the good turns go otherwise than before."""

        def sampler_for(env: Env, label: str) -> Sampler:
            return sampler()

        played = await self.context.runner.play_episode(of.task, self.context.params, label, sampler_for)
        return played.trajectories[0] if played.error is None and _ends_as(cut, played.trajectories[0]) else None

    def _context(self, play: Trajectory, sampler: Sampler) -> AgentContext:
        runner = self.context.runner
        params = replace(self.context.params, max_tokens=runner.max_context, choices=())  # the context alone is a limit
        return AgentContext(
            name=play.agent, renderer=runner.renderer, sampler=sampler, params=params, max_context=runner.max_context
        )


def _ends_as(cut: Cut, played: Trajectory) -> bool:
    """Returns whether a splice that was played came to the end of the good play, with its rewards. Where samples are
    replayed, a play ends after the last one as for a full context."""
    rewards = [turn.reward for turn in played.turns[cut.wrong + 2 :]]
    return (
        rewards == [turn.reward for turn in cut.rest]
        and played.success == cut.good.success
        and (played.ending is Ending.DONE) == (cut.good.ending is Ending.DONE)
    )
