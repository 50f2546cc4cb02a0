"""What a model that was told a hint says of the tokens that the policy sampled without it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, NamedTuple

import numpy as np

from sojourn.abilities import ScoresTokens
from sojourn.batch.flatten import flatten, scatter
from sojourn.config.fields import Range
from sojourn.errors import ConfigError
from sojourn.protocols import PerTurn, Renderer, StepContext
from sojourn.rewards.hints import HINT, hints_of
from sojourn.streams.teacher import MODEL_NAME
from sojourn.types import Ending, Episode, Group, IntArray, Message, Role, Trajectory, Turn

LABEL = "\n\n[Hint]\n"


class Place(NamedTuple):
    """The place of a turn in a step."""

    group: int
    trajectory: int
    turn: int


@dataclass(frozen=True, kw_only=True)
class HindsightHint:
    """Log-probability that a model which reads a hint gives to each sampled token of a turn that has a hint; for the
    tokens of the other turns it is the sampler's own, so that a log-ratio to the sampler is 0 there (hindsight-guided
    on-policy distillation of OpenClaw-RL: Wang et al. 2026, arXiv:2603.10165).

    The reward says in hindsight what would have helped (`next_state` with hints = true). The hint is added to the last
    message of the user in the turn's context, cut so that the context is at most `max_tokens` longer; the sampled
    tokens stay as they are. `model` is "policy", the policy as the step began, which so teaches itself; or "reference",
    the policy as the stage began, or the name of a model in `[models]`. With the estimator `teacher_kl`, whose `stream`
    is then "hindsight_hint", the advantage of a token is log p(a | s, hint) - log p(a | s).

    Of the paper the abstract and what others say of it were read, and the authors' code, whose teacher is the model
    that judges, and which tokenises the reply anew. Its variant on the teacher's likeliest tokens is not here.
    """

    model: Annotated[str, MODEL_NAME] = "policy"
    max_tokens: Annotated[int, Range(16)] = 256

    provides = "hindsight_hint"
    reads_words = frozenset({HINT})

    @property
    def all_models(self) -> frozenset[str]:
        return frozenset({self.model})

    @property
    def reference(self) -> bool:
        return self.model == "reference"

    @property
    def models(self) -> frozenset[str]:
        return self.all_models - {"policy", "reference"}

    def added_tokens(self, renderer: Renderer) -> int:
        """Returns by how many tokens a hint makes a context longer at most."""
        return self.max_tokens

    async def __call__(self, context: StepContext) -> PerTurn:
        if not isinstance(context.trainer, ScoresTokens):
            raise ConfigError(
                f"the stream 'hindsight_hint' asks a model, which {type(context.trainer).__name__} cannot do: use "
                "backend = {name = 'torch'}"
            )
        places, told = self._told(context)
        scored: PerTurn = []
        if told:
            groups = [_alone(number, turn, context.groups[place.group]) for number, (place, turn) in enumerate(told)]
            batch, spans = flatten(groups)
            scored = scatter(groups, await context.trainer.ask_models({self.model: batch}), spans)
        found = {place: of_group[0][0] for place, of_group in zip(places, scored, strict=True)}
        return [
            [
                tuple(found.get(Place(g, t, n), turn.sample.logprobs) for n, turn in enumerate(trajectory.turns))
                for t, trajectory in enumerate(group.trajectories)
            ]
            for g, group in enumerate(context.groups)
        ]

    def _told(self, context: StepContext) -> tuple[list[Place], list[tuple[Place, Turn]]]:
        """Returns the turns that have hints, with their whole contexts, in which the hints are."""
        told = [
            (Place(g, t, n), self._with_hint(trajectory, n, hint, context.renderer))
            for g, (group, scores) in enumerate(zip(context.groups, context.scores, strict=True))
            for t, (trajectory, score) in enumerate(zip(group.trajectories, scores, strict=True))
            for n, hint in sorted(hints_of(score).items())
        ]
        return [place for place, _ in told], told

    def _with_hint(self, trajectory: Trajectory, number: int, hint: str, renderer: Renderer | None) -> Turn:
        if renderer is None:
            raise ConfigError("the stream 'hindsight_hint' needs a renderer: give the run one")
        before = len(trajectory.prompt(number))
        while True:
            turn = with_hint(trajectory, number, LABEL + hint, renderer)
            more = len(turn.context) - before
            if more <= self.max_tokens or not hint:
                return turn
            hint = hint[: min(len(hint) - 1, len(hint) * self.max_tokens // more)]


def _alone(number: int, turn: Turn, group: Group) -> Group:
    """Returns a group of one episode that has one turn."""
    trajectory = Trajectory("agent", (turn,), Ending.DONE)
    return Group(number, group.task, (Episode(str(number), group.task, (trajectory,)),))


def with_hint(trajectory: Trajectory, number: int, text: str, renderer: Renderer) -> Turn:
    """Returns a turn alone, whose context is all that the model saw, with a text after the last message of the user.

    The text follows the last message of all where there is none of a user, and where replies come after that one in
    the same part of the context whose sampled tokens are not those that the renderer would write.
    """
    path = [number]
    while (parent := trajectory.turns[path[-1]].parent) >= 0:
        path.append(parent)
    shown = [_shown(trajectory.turns[at]) for at in path]  # the newest turn first
    by_user = [n for n, messages in enumerate(shown) if any(one.role is Role.USER for one in messages)]
    chosen = by_user[0] if by_user else next((n for n, messages in enumerate(shown) if messages), 0)
    at, parts = path[chosen], list[IntArray]()
    for place in reversed(path):
        one = trajectory.turns[place]
        parts += [_changed(trajectory, at, text, renderer) if place == at else one.context]
        parts += [one.sample.tokens] if place != number else []
    images = tuple(image for place in reversed(path) for image in trajectory.turns[place].images)
    last = trajectory.turns[number]
    return replace(last, parent=-1, context=np.concatenate(parts), images=images)


def _shown(turn: Turn) -> tuple[Message, ...]:
    """Returns the messages of a turn's own part of its context."""
    return (*turn.context_messages, *turn.observed) if turn.parent < 0 else turn.observed


def _changed(trajectory: Trajectory, number: int, text: str, renderer: Renderer) -> IntArray:
    """Returns a turn's own part of its context, with a text after the last message of the user in it.

    Only what follows that text is rendered again, as replies before it are sampled tokens, mostly.
    """
    turn, messages = trajectory.turns[number], _shown(trajectory.turns[number])
    for by_user in (True, False):
        before = _rendered(trajectory, turn, messages, renderer)
        after = _rendered(trajectory, turn, _added(messages, text, by_user), renderer)
        if before is None or after is None or np.array_equal(before, after):
            continue
        same = _common(before, after)
        rest = before[same:]
        kept = len(turn.context) - len(rest)
        if kept >= 0 and np.array_equal(turn.context[kept:], rest):
            return np.concatenate([turn.context[:kept], after[same:]])
    raise ConfigError(
        f"turn {number}: its context is not what the renderer writes for its messages, so a hint cannot be added to "
        "it: use agent = {name = 'plain'} or the gateway, or leave out the stream 'hindsight_hint'"
    )


def _rendered(trajectory: Trajectory, turn: Turn, messages: Sequence[Message], renderer: Renderer) -> IntArray | None:
    if turn.parent < 0:
        return renderer.open(messages, turn.tools).tokens
    more = renderer.extend(trajectory.turns[turn.parent].sample, messages)
    return None if more is None else more.tokens


def _added(messages: Sequence[Message], text: str, by_user: bool) -> tuple[Message, ...]:
    """Returns the messages with a text after the last one of the user, if `by_user` says so and there is one, else
    after the last of all."""
    of_user = [n for n, message in enumerate(messages) if message.role is Role.USER and by_user]
    at = of_user[-1] if of_user else len(messages) - 1
    return tuple(replace(one, text=one.text + text) if n == at else one for n, one in enumerate(messages))


def _common(one: IntArray, other: IntArray) -> int:
    """Returns the length of the common prefix."""
    length = min(len(one), len(other))
    return int(np.cumprod(one[:length] == other[:length]).sum())
