"""What a language model thinks of what the world said, learnt by something cheaper than asking it each time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch

from sojourn.config.registry import Range
from sojourn.protocols import PerTurn, StepContext
from sojourn.streams.learner import Learning, hashed, layers
from sojourn.streams.trainer_passes import at_last
from sojourn.types import Trajectory

HELPFUL = "In a game, this has just happened:\n{message}\nDoes it help to reach the goal? Answer yes or no."
BETTER = (
    "In a game, two things may happen.\nA: {first}\nB: {second}\nWhich helps more to reach the goal? Answer A or B."
)


Asked = tuple[str, ...]  # a message, or two that were compared


@dataclass(frozen=True, kw_only=True)
class Feedback(Learning):
    """An intrinsic reward for what each turn's action led to, at the turn's last token: what a language model's
    feedback says of the message, over the cube of how often it was seen in the episode (ONI: Zheng et al. 2024,
    arXiv:2410.23022, section 3).

    `form`: "hash" pays 1 for messages that were found helpful, known by their text; "classification" learns to tell
    them and pays 1 above `threshold`; "ranking" learns a score from which of two messages helps more (Bradley-Terry),
    and pays it, standardised over the step, where it is above `floor`. New messages wait, `rate` of them, the newest
    first, are asked about after each step, so feedback comes late, as from the paper's model beside the run. Asked is
    the present policy itself, by which of two answers it finds likelier; the paper's is larger and another. A message
    is all that the world said after the action.
    """

    reward_model: Literal["hash", "classification", "ranking"] = "classification"
    messages_per_step: Annotated[int, Range(2)] = 32
    count_exponent: Annotated[float, Range(0)] = 3.0
    threshold: Annotated[float, Range(0, 1)] = 0.5
    min_score: float = -0.5
    question: str = ""  # with {message}, or {first} and {second}; ours where empty
    max_chars: Annotated[int, Range(1)] = 2000  # characters of a message that are asked about
    capacity: Annotated[int, Range(2)] = 10_000  # labels, and messages that wait; the oldest are forgotten
    features: Annotated[int, Range(1)] = 512
    hidden_size: Annotated[int, Range(1)] = 128
    lr: Annotated[float, Range(above=0)] = 1e-3
    updates: Annotated[int, Range(1)] = 32
    batch_size: Annotated[int, Range(1)] = 256
    seed: Annotated[int, Range(0)] = 0
    _labels: dict[Asked, float] = field(default_factory=dict, init=False, repr=False, compare=False)
    _waiting: dict[str, None] = field(default_factory=dict, init=False, repr=False, compare=False)  # oldest first
    _known: dict[str, None] = field(default_factory=dict, init=False, repr=False, compare=False)  # asked about already

    provides: ClassVar[str] = "feedback"
    reference: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.question:
            asked = ("first", "second") if self.reward_model == "ranking" else ("message",)
            try:
                whole = self.question.format(**{name: f"<{name}>" for name in asked})
            except (KeyError, IndexError, ValueError) as error:
                raise ValueError(f"question = {self.question!r}: {error}: its gaps are {', '.join(asked)}") from None
            if missing := [name for name in asked if f"<{name}>" not in whole]:
                raise ValueError(f"question = {self.question!r}: it leaves no gap {{{missing[0]}}}")

    def build(self, size: int) -> torch.nn.Module:
        return layers(size, self.hidden_size, self.hidden_size, 1)

    async def __call__(self, context: StepContext) -> PerTurn:
        worth = self._worth(list(dict.fromkeys(m for g in context.groups for t in g.trajectories for m in led_to(t))))
        return [at_last(group, [self._paid(t, worth) for t in group.trajectories]) for group in context.groups]

    async def learn(self, context: StepContext) -> Mapping[str, float]:
        """`labels` is how many are known, `waiting` how many messages wait, `helpful` the share of labels that are 1,
        and `error` the cross-entropy, in nats, on the step's own labels before they were learnt from."""
        for message in (m for g in context.groups for t in g.trajectories for m in led_to(t)):
            if message not in self._known:
                self._waiting[message] = None
        new = await self._ask(context)
        self._labels.update(new)
        for kept in (self._labels, self._waiting, self._known):
            _forget(kept, len(kept) - self.capacity)
        found = {"labels": float(len(self._labels)), "waiting": float(len(self._waiting))}
        if self._labels:
            found["helpful"] = sum(self._labels.values()) / len(self._labels)
        if self.reward_model != "hash" and self._labels:
            with torch.no_grad():
                found |= {"error": float(self._error(list(new.items())))} if new else {}
            self._distil(len(self._known))
        return found

    def _distil(self, seed: int) -> None:
        known, rng = list(self._labels.items()), np.random.default_rng((self.seed, seed))
        for _ in range(self.updates):
            drawn = rng.choice(len(known), min(self.batch_size, len(known)), replace=False)
            self.learner.descend(self._error([known[n] for n in drawn]))

    def state(self) -> Mapping[str, Any]:
        known = [[list(asked), label] for asked, label in self._labels.items()]
        texts = {"waiting": list(self._waiting), "known": list(self._known)}
        return {"labels": known, **texts, "learner": self.learner.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        for kept in (self._labels, self._waiting, self._known):
            _forget(kept, len(kept))
        self._labels.update({tuple(asked): label for asked, label in state["labels"]})
        self._waiting.update(dict.fromkeys(state["waiting"]))
        self._known.update(dict.fromkeys(state["known"]))
        self.learner.restore(state["learner"])

    async def _ask(self, context: StepContext) -> dict[Asked, float]:
        """About the newest; for a ranking, about neighbours among them, so a single one waits for another."""
        newest = list(self._waiting)[-self.messages_per_step :][::-1]
        ranked = self.reward_model == "ranking"
        about: list[Asked] = list(pairwise(newest)) if ranked else [(message,) for message in newest]
        asked = [context.question(self._worded(one)) for one in about]
        answers = [context.reply(text) for text in (("A", "B") if ranked else ("yes", "no"))]
        said = await context.unsaid([p for p in asked for _ in answers], answers * len(asked))
        means = [float(s.mean()) for s in said]
        for message in (message for one in about for message in one):
            self._waiting.pop(message, None)
            self._known[message] = None
        return {one: float(means[2 * n] > means[2 * n + 1]) for n, one in enumerate(about)}

    def _worded(self, about: Asked) -> str:
        cut = [message[: self.max_chars] for message in about]
        if self.reward_model == "ranking":
            return (self.question or BETTER).format(first=cut[0], second=cut[1])
        return (self.question or HELPFUL).format(message=cut[0])

    def _scores(self, messages: Sequence[str]) -> torch.Tensor:
        return self.learner.net(self.features)(torch.from_numpy(hashed(messages, self.features)))[:, 0]

    def _error(self, known: Sequence[tuple[Asked, float]]) -> torch.Tensor:
        first, *others = (self._scores(messages) for messages in zip(*(asked for asked, _ in known), strict=True))
        logits = first - others[0] if others else first
        wanted = torch.tensor([label for _, label in known])
        return torch.nn.functional.binary_cross_entropy_with_logits(logits, wanted)

    @torch.no_grad()
    def _worth(self, messages: Sequence[str]) -> dict[str, float]:
        if self.reward_model == "hash":
            return {message: self._labels.get((message,), 0.0) for message in messages}
        if not self._labels or not messages:
            return dict.fromkeys(messages, 0.0)
        scores = self._scores(messages)
        if self.reward_model == "classification":
            return dict(zip(messages, (torch.sigmoid(scores) > self.threshold).float().tolist(), strict=True))
        spread = scores.std(correction=0)
        standard = (scores - scores.mean()) / spread if spread > 0 else torch.zeros_like(scores)
        return dict(zip(messages, torch.where(standard > self.min_score, standard, 0.0).tolist(), strict=True))

    def _paid(self, trajectory: Trajectory, worth: Mapping[str, float]) -> list[float]:
        seen: Counter[str] = Counter()
        out = [0.0] * len(trajectory.turns)
        for turn, message in enumerate(led_to(trajectory)):
            seen[message] += 1
            out[turn] = worth[message] / seen[message] ** self.count_exponent
        return out


def _forget(kept: dict[Any, Any], count: int) -> None:
    """The oldest."""
    for oldest in list(kept)[: max(0, count)]:
        del kept[oldest]


def led_to(trajectory: Trajectory) -> list[str]:
    """What the world said after each turn but the last."""
    return ["\n".join(message.text for message in turn.observed) for turn in trajectory.turns[1:]]
