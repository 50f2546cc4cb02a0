"""Pairs what was said by the regret of its latent strategy, for losses of preferences."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import numpy as np

from sojourn.abilities import MOVE
from sojourn.config.fields import Range
from sojourn.protocols import PerTurn, StepContext
from sojourn.streams.abstract_game import AbstractGame, Choice, Place
from sojourn.streams.latent_strategies import strategies
from sojourn.types import Episode, Group, Message, Role, Score, Trajectory, Turn


class Said(NamedTuple):
    """A turn that said something: by its trajectory's number in the episode and its own."""

    trajectory: int
    number: int
    seat: str
    turn: Turn
    text: str


class Answer(NamedTuple):
    """A turn that can be trained, by group, trajectory (of `Group.trajectories`) and number, and its advantage."""

    group: int
    trajectory: int
    number: int
    advantage: float


@dataclass(frozen=True, kw_only=True)
class LatentPairs:
    """The number of its pair for each sampled token of a turn, as `turn_pairs` gives it, where turns are compared by
    the regret of the latent strategy that they follow (LSPO: Xu et al. 2025, arXiv:2502.04686).

    What was said in all turns of the same number of the same seat is divided into `strategies` clusters, the latent
    strategies, so that the recorded plays of a step become a game of few actions (`sojourn/streams/abstract_game.py`):
    a seat knows what it was shown and did itself, in which words that were said, where they are a line or follow a
    colon to its end ("ann: I saw it"), stand for their strategies; each group is one deal. There `iterations` of
    counterfactual regret minimisation find how much better or worse than its policy each strategy is. In each
    information set, the turn of the best strategy is paired with that of the worst, the second with the second worst,
    and so on, as long as their advantages differ by more than `margin`; `max_pairs` bounds the pairs of an information
    set (0: all). The loss is `dpo`, whose model then plays the next step: one iteration of LSPO a step, or a stage.

    It differs from the paper, in which a network learns the regrets by new plays (deep CFR), texts are embedded by a
    model, and several answers to one prompt are sampled to be compared: here the plays of the step are all that is
    known, a strategy that none of them took in a place counts as the mean there, words are counted, and the prompts of
    a pair may differ in the words of one strategy. Groups should have many plays, as regrets are of those.
    """

    strategies: Annotated[int, Range(2)] = 3
    iterations: Annotated[int, Range(1)] = 200
    margin: Annotated[float, Range(0)] = 0.05
    max_pairs: Annotated[int, Range(0)] = 0

    provides = "pairs"
    reference = False
    unverified = "the paper's abstract and accounts of it were read, not its equations"

    async def __call__(self, context: StepContext) -> PerTurn:
        numbers = dict[tuple[int, int, int], int]()
        for count, (better, worse) in enumerate(self.pairs(context.groups, context.scores), 1):
            numbers[better[:3]], numbers[worse[:3]] = count, -count
        numbered = list[list[tuple[Any, ...]]]()
        for g, group in enumerate(context.groups):
            numbered.append(
                [
                    tuple(
                        np.full(len(turn.sample.tokens), numbers.get((g, holder, n), 0), dtype=np.float32)
                        for n, (turn, holder) in enumerate(zip(trajectory.turns, holders, strict=True))
                    )  # alike in all plays that share a turn
                    for trajectory, holders in zip(group.trajectories, group.holders, strict=True)
                ]
            )
        return numbered

    def pairs(self, groups: Sequence[Group], scores: Sequence[Sequence[Score]]) -> list[tuple[Answer, Answer]]:
        """Returns the pairs of a step, the preferred answer first; information sets in a fixed order."""
        found = list[tuple[Answer, Answer]]()
        answers = self._answers(groups, scores)
        for key in sorted(answers, key=repr):
            best_first = sorted(answers[key], key=lambda one: (-one.advantage, *one[:3]))
            opposed = zip(best_first[: len(best_first) // 2], best_first[::-1], strict=False)
            differing = [(a, b) for a, b in opposed if a.advantage - b.advantage > self.margin]
            found += differing[: self.max_pairs or None]
        return found

    def _answers(
        self, groups: Sequence[Group], scores: Sequence[Sequence[Score]]
    ) -> dict[tuple[str, Any], list[Answer]]:
        """Returns the turns that can be trained in each information set, with the advantages of their strategies."""
        of_turn = _labels(groups, self.strategies)
        deals, taken = list[Place](), list[tuple[int, int, int, Choice]]()
        for g, (group, judged) in enumerate(zip(groups, scores, strict=True)):
            deals.append(Place())
            trained = _trained(group, judged)
            for episode in (one for one in group.episodes if one.error is None):
                said = _said(episode)
                choices = _choices(said, of_turn)
                deals[-1].add(choices, _payoffs(episode, trained))
                for one, choice in zip(said, choices, strict=True):
                    at = trained.get(id(episode.trajectories[one.trajectory]))
                    if at is not None and len(one.turn.sample.tokens):
                        taken.append((g, at[0], one.number, choice))
        game = AbstractGame(deals)
        game.solve(self.iterations)
        found, met = defaultdict[tuple[str, Any], list[Answer]](list), set[tuple[int, int, int]]()
        for g, t, n, choice in taken:
            holder = groups[g].holders[t][n]
            if (g, holder, n) not in met:
                met.add((g, holder, n))
                advantage = game.advantage(choice.seat, choice.known, choice.strategy)
                found[choice.seat, choice.known].append(Answer(g, holder, n, advantage))
        return found


def _said(episode: Episode) -> list[Said]:
    """Returns the turns of all seats of an episode, in the order in which they were taken."""
    found = [
        Said(t, n, trajectory.agent, turn, turn.message.text if turn.message is not None else "")
        for t, trajectory in enumerate(episode.trajectories)
        for n, turn in enumerate(trajectory.turns)
    ]
    return sorted(found, key=lambda one: one.turn.info.get(MOVE, 0.0))


def _labels(groups: Sequence[Group], count: int) -> dict[tuple[str, int], dict[str, int]]:
    """Returns the strategy of each text, by the seat and the number of its turn."""
    texts = defaultdict[tuple[str, int], set[str]](set)
    for group in groups:
        for episode in (one for one in group.episodes if one.error is None):
            for one in _said(episode):
                texts[one.seat, one.number].add(one.text)
    return {key: strategies(of_key, count) for key, of_key in texts.items()}


def _choices(said: Sequence[Said], of_turn: Mapping[tuple[str, int], Mapping[str, int]]) -> list[Choice]:
    """Returns the turns of an episode in the abstract."""
    known, spoken, found = defaultdict[str, tuple[Any, ...]](tuple), _Spoken(), list[Choice]()
    for one in said:
        strategy = of_turn[one.seat, one.number][one.text]
        known[one.seat] = (*known[one.seat], "\n".join(map(spoken.abstract, one.turn.observed)))
        found.append(Choice(one.seat, known[one.seat], strategy))
        known[one.seat] = (*known[one.seat], strategy)
        spoken.add(one, strategy)
    return found


class _Spoken:
    """Holds what was said in a play so far, and tells what a seat is shown of it by the strategies alone."""

    def __init__(self) -> None:
        self.markers = defaultdict[str, dict[str, str]](dict)  # by text and seat

    def add(self, said: Said, strategy: int) -> None:
        if text := said.text.strip():
            self.markers[text].pop(said.seat, None)  # the newest comes last
            self.markers[text][said.seat] = f"<{said.seat} {said.number}: {strategy}>"

    def abstract(self, message: Message) -> str:
        """Returns a message's text with words that were said replaced, where they are a line or all that follows a
        colon in it: a name that somebody said in secret is also in the rules, and in what others say."""
        if not self.markers or message.role is Role.SYSTEM:
            return message.text
        longest_first = "|".join(map(re.escape, sorted(self.markers, key=len, reverse=True)))
        heard = rf"^(?P<before>(?:[^\n]*?:[ \t]*)??)(?P<quote>[\"']?)(?P<text>{longest_first})(?P=quote)$"
        return re.sub(heard, self._marked, message.text, flags=re.MULTILINE)

    def _marked(self, heard: re.Match[str]) -> str:
        """Returns a line with its words replaced: of several who said them, it is whom the line names, or the last."""
        of_seats = self.markers[heard["text"]]
        named = [seat for seat in of_seats if re.search(rf"(?<!\w){re.escape(seat)}(?!\w)", heard["before"])]
        return heard["before"] + of_seats[named[0] if named else [*of_seats][-1]]


def _trained(group: Group, scores: Sequence[Score]) -> dict[int, tuple[int, float]]:
    """Returns the number and the return of each trajectory that can be trained, by its identity."""
    pairs = enumerate(zip(group.trajectories, scores, strict=True))
    return {id(trajectory): (n, score.total) for n, (trajectory, score) in pairs}


def _payoffs(episode: Episode, trained: Mapping[int, tuple[int, float]]) -> dict[str, float]:
    """Returns the payoff of each seat: its score or, where it is not trained, the world's reward."""

    def payoff(trajectory: Trajectory) -> float:
        known = trained.get(id(trajectory))
        return trajectory.reward if known is None else known[1]

    return {trajectory.agent: payoff(trajectory) for trajectory in episode.trajectories}
