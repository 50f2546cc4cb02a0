"""Live groups of plays that search, with the plays that their searches tried."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, takewhile
from typing import Annotated, Any

import numpy as np

from sojourn.abilities import asks_critic, env_needs
from sojourn.agents.plain import Plain
from sojourn.config.fields import NONBLANK, Kind, Range
from sojourn.errors import ConfigError
from sojourn.protocols import Agent
from sojourn.search_cost import PLANNED
from sojourn.searchers.mcts import MCTS
from sojourn.searchers.search import Search, SearchedPlay, TriedPlay
from sojourn.searchers.tree_search import TreeSearch
from sojourn.seeds import seed_of
from sojourn.sources.context import SourceContext, StageContext, require_imitation
from sojourn.sources.known_ways import KnownWays
from sojourn.sources.slot_record import SlotRecord
from sojourn.sources.slots import LiveSlots, Slots
from sojourn.tasks.listed import check_task
from sojourn.types import Branch, Episode, Group, SamplingParams, Score, Task, Trajectory

KNOWN = "known"  # in the state: the ways to success that were found


@dataclass(frozen=True, kw_only=True)
class Searched(Slots):
    """`slots` whose episodes are played with the search `agent`, and whose groups also hold plays that it tried.

    Of each of the `size` plays of a task, up to `tried` of the simulated plays that came to their end are kept, drawn
    at random where there are more, as episodes of the group: branches of the play, or of each other, that share their
    first turns. What the policy sampled for them is trained like all else, by the means there are for plays that fork.
    With `turn_pairs` and `dpo`, which compare the actions that were tried at a state by the mean of what they led to,
    this is the training of Agent Q (Putta et al. 2024, arXiv:2408.07199; in its values a model's ranks have a share,
    too, which guide the search alone here: `agent.critique`) and the labelling of step-level Q-value models (Zhai et
    al. 2024, arXiv:2409.09345); with the filter `best`, expert iteration on all that a search found.

    A search by likelihood leaves most of what it tries before the end. With `mistakes`, plays that it left right after
    a turn of whose info any of these numbers is above 0, such as "malformed" or what a world says of an `error`, are
    kept, too, as plays that were cut off there: then `turn_pairs` prefers the action of a play that succeeded to one
    that was an error (as BFS-Prover has it with a compiler: Xin et al. 2025, arXiv:2502.03438).

    With `known_states`, searches share what was found: of up to that many states, told apart by task and the world's
    `state_key`, the source knows how the plays of earlier steps went on to success, and `best_first` ends a search that
    comes to one of them by the same actions. These were said, not sampled, so that they can be imitated only. What was
    found in a step is known from the next one on, so that no play depends on which of the others is faster. The cache
    of BFS-Prover-V2 (Xin et al. 2025, arXiv:2509.06493) is of the parts of a plan that a further model makes, which
    there is not here.

    The search has the run's agent as its base, so that evaluations are played without a search. A searching agent does
    not try all actions alike, so that the mean over the plays of a group is not that of the policy. Tokens that were
    sampled in searches count once, with the turn before which they were tried.
    """

    agent: Annotated[Agent, Kind("agent")] = field(default_factory=MCTS)
    tried: Annotated[int, Range(1)] = 16
    mistakes: tuple[Annotated[str, NONBLANK], ...] = ()
    known_states: Annotated[int, Range(0)] = 0

    unverified = "the papers' texts could not be read, abstracts and accounts of them were"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.agent, Search):
            raise ValueError(f"agent = {type(self.agent).__name__} does not search: name one that does, such as mcts")
        if self.agent.unsampled:
            raise ValueError(
                f"agent = {type(self.agent).__name__} tries actions that no model sampled, which cannot be trained: "
                "name another one, such as mcts"
            )
        if self.agent.base != Plain():
            raise ValueError("agent.base: the run's agent is the one that acts: leave the base out")
        if self.branching is not None:
            raise ValueError("branching with searched, whose plays are forked by their searches: leave it out")

        if self.known_states and not (isinstance(self.agent, TreeSearch) and self.agent.recalls):
            raise ValueError(
                f"known_states = {self.known_states} with agent = {type(self.agent).__name__}, which does not go by "
                "what is known: use best_first, or 0"
            )
        if self.known_states and self.max_lag:
            raise ValueError(
                f"known_states = {self.known_states} with max_lag = {self.max_lag}: what is known must be that of the "
                "step before: use max_lag = 0, or no known_states"
            )

    @property
    def forks(self) -> bool:
        return True

    @property
    def asks_critic(self) -> bool:
        return asks_critic(self.agent)

    @property
    def _env_needs(self) -> frozenset[str]:
        return env_needs(self.agent) | ({"state_key"} if self.known_states else frozenset())

    async def check(self, stage: StageContext) -> None:
        await super().check(stage)
        for ability in sorted(self._env_needs):
            if without := await stage.plays.lacking(ability):
                raise ConfigError(
                    f"stage '{stage.name}': searched with these settings needs environments with {ability}(), which "
                    f"{without} does not have: define it, or leave known_states and merge_states out"
                )
        if self.known_states:
            require_imitation(stage, "a play that ends by what is known", "policy")

    def bind(self, context: SourceContext, stage: str, steps: int, first: int = 0) -> LiveSearched:
        return LiveSearched(self, context, stage, steps, first)


@dataclass
class LiveSearched(LiveSlots):
    """Slots whose plays search."""

    config: Searched  # type: ignore[assignment]
    _known: KnownWays = field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._known = KnownWays(self.config.known_states)

    def observe(self, groups: Sequence[Group], scores: Sequence[Sequence[Score]]) -> None:
        super().observe(groups, scores)
        if self.config.known_states:
            self._known.observe(groups)

    def state(self) -> Mapping[str, Any]:
        return {**super().state(), **({KNOWN: self._known.state()} if self.config.known_states else {})}

    def restore(self, state: Mapping[str, Any]) -> None:
        super().restore({key: value for key, value in state.items() if key != KNOWN})
        self._known.restore(state.get(KNOWN, {}))

    async def _play(self, record: SlotRecord, slot: int, redraw: int, params: SamplingParams, label: str) -> Group:
        task = record.tasks[redraw]
        check_task(task)
        async with asyncio.TaskGroup() as tasks:
            plays = [
                tasks.create_task(self._play_one(record, task, params, label, number))
                for number in range(record.sizes[redraw])
            ]
        return Group(slot, task, tuple(chain.from_iterable(play.result() for play in plays)))

    async def _play_one(
        self, record: SlotRecord, task: Task, params: SamplingParams, label: str, number: int
    ) -> list[Episode]:
        """Returns a play of a task, and then those that its searches tried and that are kept."""
        runner, name = self.context.runner, f"{label}/{number}"
        course = SearchedPlay(
            replace(_searching(self.config.agent), base=runner.agent),
            runner,
            task,
            keeps=True,
            mistakes=self.config.mistakes,
            known=self._known.of(task.id),
        )
        params = replace(params, seed=seed_of(runner.seed, label, task.id, number))
        episode = await runner.play_episode(task, params, name, self._recording(record), course=course)
        if episode.error is not None:  # what was tried is of an attempt that is not there
            return [episode]
        rng = np.random.default_rng(seed_of(runner.seed, name, task.id, "tried"))
        return with_tried(episode, course.tried(), self.config.tried, rng)


def with_tried(episode: Episode, tried: Sequence[TriedPlay], most: int, rng: np.random.Generator) -> list[Episode]:
    """Returns a play, and up to `most` of those that were tried in copies of it, as branches; without those that are
    the play itself, or another one of them."""
    names = [trajectory.agent for trajectory in episode.trajectories]
    different = {_samples(episode.trajectories): -1}  # the number of the first of equal ones
    for number, (end, _) in enumerate(tried):
        different.setdefault(_samples([end.trajectories[name] for name in names]), number)
    new, found = [number for number in different.values() if number >= 0], [episode]
    for at in sorted(rng.permutation(len(new))[:most].tolist()):
        end, root = tried[new[at]]
        own = tuple(_marked(end.trajectories[name], root.trajectories[name]) for name in names)
        branch = _branch(own, found, f"tried before turn {root.moment.turns + 1}")
        found.append(Episode(f"{episode.id}.{new[at]}", episode.task, own, branch=branch))
    return found


def _searching(agent: Agent) -> Search:
    assert isinstance(agent, Search)  # the config made sure
    return agent


def _samples(trajectories: Sequence[Trajectory]) -> tuple[int, ...]:
    """Returns what two plays have in common if they are the same one."""
    return tuple(id(turn.sample) for trajectory in trajectories for turn in trajectory.turns)


def _marked(end: Trajectory, root: Trajectory) -> Trajectory:
    """Returns a tried trajectory whose turns after the root say that their tokens are counted with the search."""
    own = [replace(turn, info={**turn.info, PLANNED: 1.0}) for turn in end.turns[len(root.turns) :]]
    return replace(end, turns=(*end.turns[: len(root.turns)], *own))


def _branch(own: Sequence[Trajectory], before: Sequence[Episode], reason: str) -> Branch:
    """Returns a play as a branch of the one of those before it with which it has most turns in common."""
    shared = [tuple(_shared(*pair) for pair in zip(own, other.trajectories, strict=True)) for other in before]
    best = max(range(len(before)), key=lambda number: sum(shared[number]))
    return Branch(before[best].id, shared[best], reason)


def _shared(one: Trajectory, other: Trajectory) -> int:
    """Returns how many first turns of two trajectories have the same samples."""
    pairs = zip(one.turns, other.turns, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0].sample is pair[1].sample, pairs))
