"""Reads the decisions of recorded episodes as a policy sees them: its hidden states, and how certain it is."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from sojourn.abilities import HasHiddenStates
from sojourn.errors import ActionError, ConfigError
from sojourn.ope.of_run import load_into, opened_for
from sojourn.protocols import Opened, PerTurn, TurnSpan
from sojourn.record.checkpoint import Checkpoint
from sojourn.record.episodes.group import GroupRecord
from sojourn.same_action import same_action
from sojourn.seeds import seed_of
from sojourn.steering.east import Decisions
from sojourn.streams.trainer_passes import TrainerPasses
from sojourn.train.recipe import Recipe
from sojourn.types import Message, Prompt, Trajectory

GROUPS_PER_PASS = 16  # so that memory does not grow with the number of episodes


async def decisions_of_run(
    recipe: Recipe, weights: Checkpoint | None, records: Sequence[GroupRecord], layer: int, completions: int
) -> list[Decisions]:
    """Returns the decisions of each recorded play, as weights of a run see them (None: those that it began with).

    The entropy of a turn that was sampled among choices is the sum of the entropies of its tokens, each among those
    that were allowed: exact for choices of one token, and in the mean over samples for others. Any other turn is
    sampled again, `completions` times, as the paper does, and the entropy is that of the actions which these are;
    thoughts do not count, and what cannot be read is left out. Turns of which nothing can be read are left out, too.
    """
    async with opened_for(recipe, records, "a steering vector is of the model that played") as opened:
        load_into(opened, recipe, weights)
        if not isinstance(opened.trainer, HasHiddenStates):
            raise ConfigError(
                f"a steering vector is made of hidden states, which {type(opened.trainer).__name__} does not give: use "
                "backend.name=torch"
            )
        await opened.trainer.publish()
        reader = _Reader(opened, opened.trainer, recipe, layer, completions)
        found = list[Decisions]()
        for start in range(0, len(records), GROUPS_PER_PASS):
            found += await reader.read(records[start : start + GROUPS_PER_PASS])
        return found


class _Reader:
    def __init__(self, opened: Opened, states: HasHiddenStates, recipe: Recipe, layer: int, completions: int) -> None:
        self._opened, self._states, self._layer, self._completions = opened, states, layer, completions
        self._params, self._seed = recipe.sampling.params(), recipe.seed

    async def read(self, records: Sequence[GroupRecord]) -> list[Decisions]:
        passes = TrainerPasses([one.group for one in records], [one.scores for one in records], self._opened.trainer)
        batch, spans = passes.flat
        spans = [span for span in spans if span.stop > span.start]
        starts = np.array([span.start - 1 for span in spans], dtype=np.int64)
        states = await self._states.hidden_states(batch, starts, layer=self._layer)
        of_tokens = await passes.read(lambda forward: forward.entropy)
        entropies = await asyncio.gather(*(self._entropy(records, span, of_tokens) for span in spans))
        of_plays: dict[tuple[int, int], list[int]] = {}
        for number, (span, entropy) in enumerate(zip(spans, entropies, strict=True)):
            if entropy is not None:
                of_plays.setdefault((span.group, span.trajectory), []).append(number)
        return [
            Decisions(states[own], np.array([entropies[number] for number in own], dtype=np.float32))
            for own in of_plays.values()
        ]

    async def _entropy(self, records: Sequence[GroupRecord], span: TurnSpan, of_tokens: PerTurn) -> float | None:
        """Returns the entropy of the actions of a turn; None where none is readable."""
        trajectory = records[span.group].group.trajectories[span.trajectory]
        if trajectory.turns[span.turn].sample.allowed is not None:
            return float(of_tokens[span.group][span.trajectory][span.turn].sum(dtype=np.float64))
        actions = await asyncio.gather(*(self._completion(trajectory, span, n) for n in range(self._completions)))
        return entropy([action for action in actions if action is not None])

    async def _completion(self, trajectory: Trajectory, span: TurnSpan, number: int) -> Message | None:
        prompt = Prompt(trajectory.prompt(span.turn))
        seed = seed_of(self._seed, "steering", span, number)
        room = min(self._params.max_tokens, self._opened.max_context - len(prompt.tokens))
        sample = await self._opened.sampler.sample(prompt, replace(self._params, max_tokens=room, seed=seed))
        try:
            return self._opened.renderer.parse(sample.tokens.tolist())
        except ActionError:
            return None


def entropy(actions: Sequence[Message]) -> float | None:
    """Returns the entropy, in nats, of the distribution of these actions; None where there are none."""
    if not actions:
        return None
    kinds: list[list[Message]] = []
    for action in actions:
        like = next((kind for kind in kinds if same_action(kind[0], action)), None)
        if like is None:
            kinds.append([action])
        else:
            like.append(action)
    shares = np.array([len(kind) for kind in kinds]) / len(actions)
    return float(-(shares * np.log(shares)).sum())
