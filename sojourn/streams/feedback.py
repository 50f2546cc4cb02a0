"""What a language model thinks of what the world said, learnt by something cheaper than asking it each time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Literal

import torch

from sojourn.registry import Range
from sojourn.streams.learner import Learner, hashed, layers
from sojourn.streams.passes import Passes, PerTurn, at_last
from sojourn.types import Group, Trajectory

HELPFUL = "In a game, this has just happened:\n{message}\nDoes it help to reach the goal? Answer yes or no."
BETTER = (
    "In a game, two things may happen.\nA: {first}\nB: {second}\nWhich helps more to reach the goal? Answer A or B."
)


@dataclass(frozen=True, kw_only=True)
class Feedback:
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

    form: Literal["hash", "classification", "ranking"] = "classification"
    rate: Annotated[int, Range(1)] = 32
    exponent: Annotated[float, Range(0)] = 3.0
    threshold: Annotated[float, Range(0, 1)] = 0.5
    floor: float = -0.5
    question: str = ""  # with {message}, or {first} and {second}; ours where empty
    features: Annotated[int, Range(1)] = 512
    width: Annotated[int, Range(1)] = 128
    lr: Annotated[float, Range(above=0)] = 1e-3
    updates: Annotated[int, Range(1)] = 32
    seed: Annotated[int, Range(0)] = 0
    _learner: Any = field(default=None, init=False, repr=False, compare=False)
    _labels: dict[str, float] = field(default_factory=dict, init=False, repr=False, compare=False)  # by message or pair
    _waiting: dict[str, None] = field(default_factory=dict, init=False, repr=False, compare=False)  # oldest first

    provides: ClassVar[str] = "feedback"
    reference: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.question:
            asked = ("first", "second") if self.form == "ranking" else ("message",)
            try:
                whole = self.question.format(**{name: f"<{name}>" for name in asked})
            except (KeyError, IndexError, ValueError) as error:
                raise ValueError(f"question = {self.question!r}: {error}: its gaps are {', '.join(asked)}") from None
            if missing := [name for name in asked if f"<{name}>" not in whole]:
                raise ValueError(f"question = {self.question!r}: it leaves no gap {{{missing[0]}}}")
        made = Learner(lambda size: layers(size, self.width, self.width, 1), self.lr, seed=self.seed)
        object.__setattr__(self, "_learner", made)

    async def __call__(self, passes: Passes) -> PerTurn:
        worth = self._worth(list(dict.fromkeys(m for g in passes.groups for t in g.trajectories for m in led_to(t))))
        return [at_last(group, [self._paid(t, worth) for t in group.trajectories]) for group in passes.groups]

    async def learn(self, passes: Passes) -> Mapping[str, float]:
        """`labels` is how many are known, `waiting` how many are not, `helpful` the share found so, and `error` the
        cross-entropy of what learns from them, in nats."""
        for message in _new(passes.groups, self._labels, self._waiting):
            self._waiting[message] = None
        await self._ask(passes)
        found = {"labels": float(len(self._labels)), "waiting": float(len(self._waiting))}
        if self._labels:
            found["helpful"] = sum(self._labels.values()) / len(self._labels)
        if self.form != "hash" and self._labels:
            wanted = torch.tensor(list(self._labels.values()))
            errors = [self._learner.descend(self._error(wanted)) for _ in range(self.updates)]
            found["error"] = errors[0]
        return found

    def state(self) -> Mapping[str, Any]:
        known = [[message, label] for message, label in self._labels.items()]
        return {"labels": known, "waiting": list(self._waiting), "learner": self._learner.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._labels.clear()
        self._labels.update(dict(state["labels"]))
        self._waiting.clear()
        self._waiting.update(dict.fromkeys(state["waiting"]))
        self._learner.restore(state["learner"])

    async def _ask(self, passes: Passes) -> None:
        """About the newest; for a ranking, about neighbours among them."""
        newest = list(self._waiting)[-self.rate :][::-1]
        about = [f"{a}\0{b}" for a, b in pairwise(newest)] if self.form == "ranking" else newest
        asked = [passes.question(self._worded(one)) for one in about]
        answers = [passes.reply(text) for text in (("A", "B") if self.form == "ranking" else ("yes", "no"))]
        said = await passes.unsaid([p for p in asked for _ in answers], answers * len(asked))
        for number, one in enumerate(about):
            yes, no = (float(s.mean()) for s in said[2 * number : 2 * number + 2])
            self._labels[one] = float(yes > no)
        for message in newest:
            del self._waiting[message]

    def _worded(self, about: str) -> str:
        if self.form == "ranking":
            first, second = about.split("\0")
            return (self.question or BETTER).format(first=first, second=second)
        return (self.question or HELPFUL).format(message=about)

    def _scores(self, messages: Sequence[str]) -> torch.Tensor:
        return self._learner.net(self.features)(torch.from_numpy(hashed(messages, self.features)))[:, 0]

    def _error(self, wanted: torch.Tensor) -> torch.Tensor:
        known = list(self._labels)
        if self.form == "ranking":
            first, second = zip(*(pair.split("\0") for pair in known), strict=True)
            logits = self._scores(first) - self._scores(second)
        else:
            logits = self._scores(known)
        return torch.nn.functional.binary_cross_entropy_with_logits(logits, wanted)

    @torch.no_grad()
    def _worth(self, messages: Sequence[str]) -> dict[str, float]:
        if self.form == "hash":
            return {message: self._labels.get(message, 0.0) for message in messages}
        if not self._labels or not messages:
            return dict.fromkeys(messages, 0.0)
        scores = self._scores(messages)
        if self.form == "classification":
            return dict(zip(messages, (torch.sigmoid(scores) > self.threshold).float().tolist(), strict=True))
        spread = scores.std(correction=0)
        standard = (scores - scores.mean()) / spread if spread > 0 else torch.zeros_like(scores)
        return dict(zip(messages, torch.where(standard > self.floor, standard, 0.0).tolist(), strict=True))

    def _paid(self, trajectory: Trajectory, worth: Mapping[str, float]) -> list[float]:
        seen: Counter[str] = Counter()
        out = [0.0] * len(trajectory.turns)
        for turn, message in enumerate(led_to(trajectory)):
            seen[message] += 1
            out[turn] = worth[message] / seen[message] ** self.exponent
        return out


def led_to(trajectory: Trajectory) -> list[str]:
    """What the world said after each turn but the last."""
    return ["\n".join(message.text for message in turn.shown) for turn in trajectory.turns[1:]]


def _new(groups: Sequence[Group], *known: Mapping[str, Any]) -> Iterator[str]:
    asked = {message for of in known for entry in of for message in entry.split("\0")}
    for message in dict.fromkeys(m for g in groups for t in g.trajectories for m in led_to(t)):
        if message not in asked:
            yield message
