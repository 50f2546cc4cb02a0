"""Intrinsic rewards distilled from a language model's feedback on the world's messages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Annotated, Any, Literal

import numpy as np
import torch

from sojourn.config.fields import Range
from sojourn.protocols import PerTurn, StepContext
from sojourn.streams.learner import LearnedStream, hashed_counts, layers
from sojourn.streams.replies import question_tokens, reply_tokens, score_replies
from sojourn.streams.trainer_passes import at_last_token
from sojourn.types import Trajectory

HELPFUL = "In a game, this has just happened:\n{message}\nDoes it help to reach the goal? Answer yes or no."
BETTER = (
    "In a game, two things may happen.\nA: {first}\nB: {second}\nWhich helps more to reach the goal? Answer A or B."
)


Question = tuple[str, ...]  # the message that a question is about, or the two messages that it compares


@dataclass(frozen=True, kw_only=True)
class Feedback(LearnedStream):
    """Intrinsic reward of each turn, at its last token: the value of the message that the action led to, by a language
    model's feedback, divided by the number of times the message was seen in the episode to the power `count_exponent`,
    3 by default (ONI: Zheng et al. 2024, arXiv:2410.23022, section 3).

    `reward_model` "hash" gives 1 to messages labelled helpful, which are looked up by their text; "classification"
    learns to predict the label and gives 1 above `threshold`; "ranking" learns a score from which of two messages helps
    more (Bradley-Terry), and gives it, standardised over the step (in the authors' code, by running moments over all
    steps), where it is above `min_score`. New messages wait; after each step the model labels the newest
    `messages_per_step` of them, so that feedback comes late, as from the paper's model, which runs beside the training.
    The model that labels is the present policy itself, by which of two answers it finds likelier; the paper's is
    another and larger model, and its pairs are drawn from all messages, where these are neighbours in time. A message
    is the whole text that the world shows after the action.
    """

    reward_model: Literal["hash", "classification", "ranking"] = "classification"
    messages_per_step: Annotated[int, Range(2)] = 32
    count_exponent: Annotated[float, Range(0)] = 3.0
    threshold: Annotated[float, Range(0, 1)] = 0.5
    min_score: float = -0.5
    question: str = ""  # a template with {message}, or {first} and {second}; empty: the built-in one
    max_chars: Annotated[int, Range(1)] = 2000  # of a message in a question; the rest is cut off
    capacity: Annotated[int, Range(2)] = 10_000  # of labels and of waiting messages; the oldest are dropped
    features: Annotated[int, Range(1)] = 512
    hidden_size: Annotated[int, Range(1)] = 128
    lr: Annotated[float, Range(above=0)] = 1e-3
    updates: Annotated[int, Range(1)] = 32
    batch_size: Annotated[int, Range(1)] = 256
    seed: Annotated[int, Range(0)] = 0
    _labels: dict[Question, float] = field(default_factory=dict, init=False, repr=False, compare=False)
    _waiting: dict[str, None] = field(default_factory=dict, init=False, repr=False, compare=False)  # oldest first
    _known: dict[str, None] = field(default_factory=dict, init=False, repr=False, compare=False)  # asked about

    provides = "feedback"
    reference = False

    def __post_init__(self) -> None:
        if self.question:
            placeholders = ("first", "second") if self.reward_model == "ranking" else ("message",)
            try:
                whole = self.question.format(**{name: f"<{name}>" for name in placeholders})
            except (KeyError, IndexError, ValueError) as error:
                raise ValueError(
                    f"question = {self.question!r}: {error}: its placeholders are {', '.join(placeholders)}"
                ) from None
            if missing := [name for name in placeholders if f"<{name}>" not in whole]:
                raise ValueError(f"question = {self.question!r}: expected the placeholder {{{missing[0]}}} in it")

    def build(self, size: int) -> torch.nn.Module:
        return layers(size, self.hidden_size, self.hidden_size, 1)

    async def __call__(self, context: StepContext) -> PerTurn:
        values = self._values(
            list(dict.fromkeys(m for g in context.groups for t in g.trajectories for m in following_observations(t)))
        )
        return [
            at_last_token(group, [self._rewards(t, values) for t in group.trajectories]) for group in context.groups
        ]

    async def learn(self, context: StepContext) -> Mapping[str, float]:
        """Labels new messages and learns from all labels. Returns the number of `labels`, that of messages `waiting`,
        the fraction of `helpful` labels, and as `error` the cross-entropy, in nats, on the new labels before that."""
        for message in (m for g in context.groups for t in g.trajectories for m in following_observations(t)):
            if message not in self._known:
                self._waiting[message] = None
        new = await self._label_newest(context)
        self._labels.update(new)
        for kept in (self._labels, self._waiting, self._known):
            _drop_oldest(kept, len(kept) - self.capacity)
        metrics = {"labels": float(len(self._labels)), "waiting": float(len(self._waiting))}
        if self._labels:
            metrics["helpful"] = sum(self._labels.values()) / len(self._labels)
        if self.reward_model != "hash" and self._labels:
            with torch.no_grad():
                metrics |= {"error": float(self._error(list(new.items())))} if new else {}
            self._distil(len(self._known))
        return metrics

    def _distil(self, seed: int) -> None:
        known, rng = list(self._labels.items()), np.random.default_rng((self.seed, seed))
        for _ in range(self.updates):
            chosen = rng.choice(len(known), min(self.batch_size, len(known)), replace=False)
            self.learner.update(self._error([known[n] for n in chosen]))

    def state(self) -> Mapping[str, Any]:
        known = [[list(asked), label] for asked, label in self._labels.items()]
        texts = {"waiting": list(self._waiting), "known": list(self._known)}
        return {"labels": known, **texts, "learner": self.learner.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        for kept in (self._labels, self._waiting, self._known):
            _drop_oldest(kept, len(kept))
        self._labels.update({tuple(asked): label for asked, label in state["labels"]})
        self._waiting.update(dict.fromkeys(state["waiting"]))
        self._known.update(dict.fromkeys(state["known"]))
        self.learner.restore(state["learner"])

    async def _label_newest(self, context: StepContext) -> dict[Question, float]:
        """Labels the newest waiting messages, or, for a ranking, pairs of neighbours among them (one alone waits)."""
        newest = list(self._waiting)[-self.messages_per_step :][::-1]
        ranked = self.reward_model == "ranking"
        about: list[Question] = list(pairwise(newest)) if ranked else [(message,) for message in newest]
        questions = [question_tokens(context, self._question_text(one)) for one in about]
        answers = [reply_tokens(context, text) for text in (("A", "B") if ranked else ("yes", "no"))]
        scored = await score_replies(context.trainer, [q for q in questions for _ in answers], answers * len(questions))
        means = [float(logprobs.mean()) for logprobs in scored]
        for message in (message for one in about for message in one):
            self._waiting.pop(message, None)
            self._known[message] = None
        return {one: float(means[2 * n] > means[2 * n + 1]) for n, one in enumerate(about)}

    def _question_text(self, about: Question) -> str:
        cut = [message[: self.max_chars] for message in about]
        if self.reward_model == "ranking":
            return (self.question or BETTER).format(first=cut[0], second=cut[1])
        return (self.question or HELPFUL).format(message=cut[0])

    def _scores(self, messages: Sequence[str]) -> torch.Tensor:
        return self.learner.net(self.features)(torch.from_numpy(hashed_counts(messages, self.features)))[:, 0]

    def _error(self, known: Sequence[tuple[Question, float]]) -> torch.Tensor:
        first, *others = (self._scores(messages) for messages in zip(*(asked for asked, _ in known), strict=True))
        logits = first - others[0] if others else first
        labels = torch.tensor([label for _, label in known])
        return torch.nn.functional.binary_cross_entropy_with_logits(logits, labels)

    @torch.no_grad()
    def _values(self, messages: Sequence[str]) -> dict[str, float]:
        if self.reward_model == "hash":
            return {message: self._labels.get((message,), 0.0) for message in messages}
        if not self._labels or not messages:
            return dict.fromkeys(messages, 0.0)
        scores = self._scores(messages)
        if self.reward_model == "classification":
            return dict(zip(messages, (torch.sigmoid(scores) > self.threshold).float().tolist(), strict=True))
        std = scores.std(correction=0)
        standardised = (scores - scores.mean()) / std if std > 0 else torch.zeros_like(scores)
        kept = torch.where(standardised > self.min_score, standardised, 0.0)
        return dict(zip(messages, kept.tolist(), strict=True))

    def _rewards(self, trajectory: Trajectory, values: Mapping[str, float]) -> list[float]:
        seen: Counter[str] = Counter()
        out = [0.0] * len(trajectory.turns)
        for turn, message in enumerate(following_observations(trajectory)):
            seen[message] += 1
            out[turn] = values[message] / seen[message] ** self.count_exponent
        return out


def _drop_oldest(kept: dict[Any, Any], count: int) -> None:
    """Removes the oldest `count` entries."""
    for oldest in list(kept)[: max(0, count)]:
        del kept[oldest]


def following_observations(trajectory: Trajectory) -> list[str]:
    """Returns the text that the world showed after each turn but the last: (T - 1,)."""
    return ["\n".join(message.text for message in turn.observed) for turn in trajectory.turns[1:]]
