"""Intrinsic rewards distilled from a language model's feedback on the world's messages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Annotated, Any, Literal

import numpy as np
import torch

from sojourn.config.fields import NONBLANK, Range
from sojourn.config.unused import refuse_unused
from sojourn.errors import ConfigError
from sojourn.models.asking import AskedModels
from sojourn.protocols import PerTurn, StepContext
from sojourn.streams.annotations import Annotations, Annotator, Ask, Labels, Question
from sojourn.streams.learner import LearnedStream, hashed_counts, layers
from sojourn.streams.replies import question_tokens, reply_tokens, score_replies
from sojourn.streams.trainer_passes import at_last_token
from sojourn.types import Message, SamplingParams, Trajectory

POLICY = SamplingParams.model
OF_REWARD_MODEL = {"classification": ["threshold"], "ranking": ["min_score"]}  # keys of one reward model alone
OF_NETWORKS = ["features", "hidden_size", "lr", "updates", "batch_size", "seed"]  # and those of models that learn
HELPFUL = "In a game, this has just happened:\n{message}\nDoes it help to reach the goal? Answer yes or no."
BETTER = (
    "In a game, two things may happen.\nA: {first}\nB: {second}\nWhich helps more to reach the goal? Answer A or B."
)


@dataclass(frozen=True, kw_only=True)
class Feedback(LearnedStream):
    """Intrinsic reward of each turn, at its last token: the value of the message that the action led to, by a language
    model's feedback, divided by the number of times the message was seen in the episode to the power `count_exponent`,
    3 by default (ONI: Zheng et al. 2024, arXiv:2410.23022, section 3).

    `reward_model` "hash" gives 1 to messages labelled helpful, which are looked up by their text; "classification"
    learns to predict the label and gives 1 above `threshold`; "ranking" learns a score from which of two messages helps
    more (Bradley-Terry), and gives it, standardised over the step (in the authors' code, by running moments over all
    steps), where it is above `min_score`. New messages wait, the newest first and at most `capacity` of them; after
    each step `messages_per_step` of them are asked about. The paper's pairs are drawn from all messages, where these
    are neighbours in time. A message is the whole text that the world shows after the action; where that repeats what
    the agent wrote, the agent can speak to whoever labels it.

    `annotator` is who labels: one of `[models]` that does not learn, here or behind an endpoint, as in the paper; or
    "policy", the present policy itself, by which of the two answers it finds likelier, asked between the steps. A model
    is asked beside the play, as in the paper: of what it is asked after step s, the answers are waited for after step
    s + `lag`, and count from the next step on (0: it is waited for at once). So what each step's rewards follow from
    depends on neither the model's speed nor a restart, which the paper leaves to chance. Its `verdict` is "written", in
    at most `max_tokens` tokens, or the "likelihood" of the two answers, of a model that is here. An answer that ends
    with neither is asked for again up to `retries` times, and then gives no label (in the authors' code: not helpful,
    or a tie). The run stops where the model fails, or where it gives none for most of a step's questions. What is asked
    is recorded with the first episode of the step after which its labels count.
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
    annotator: Annotated[str, NONBLANK] = POLICY
    lag: Annotated[int, Range(0)] = 1
    verdict: Literal["written", "likelihood"] = "written"
    max_tokens: Annotated[int, Range(1)] = 256
    retries: Annotated[int, Range(0)] = 2
    _labels: dict[Question, float] = field(default_factory=dict, init=False, repr=False, compare=False)
    _waiting: dict[str, str] = field(default_factory=dict, init=False, repr=False, compare=False)  # the last one newest
    _known: dict[str, None] = field(default_factory=dict, init=False, repr=False, compare=False)  # asked about
    _steps: list[int] = field(default_factory=lambda: [0], init=False, repr=False, compare=False)  # how many learned
    _annotations: Annotations | None = field(default=None, init=False, repr=False, compare=False)  # in a run

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
        own = {"lag": (self.lag, 1), "verdict": (self.verdict, "written"), "max_tokens": (self.max_tokens, 256)}
        for key, (value, default) in {**own, "retries": (self.retries, 2)}.items():
            if self.annotator == POLICY and value != default:
                raise ValueError(
                    f"{key} = {value} with annotator = '{POLICY}', which is asked for likelihoods between the steps: "
                    "name one of [models] as the annotator"
                )
        if self.verdict == "likelihood":
            refuse_unused(self, ["max_tokens", "retries"], 'with verdict = "likelihood", which writes nothing')
        unused = [key for kind, keys in OF_REWARD_MODEL.items() if kind != self.reward_model for key in keys]
        unused += OF_NETWORKS if self.reward_model == "hash" else []
        refuse_unused(self, unused, f'with reward_model = "{self.reward_model}"')

    @property
    def asks(self) -> frozenset[str]:
        return frozenset({self.annotator} - {POLICY})

    @property
    def likelihoods(self) -> frozenset[str]:
        return self.asks if self.verdict == "likelihood" else frozenset()

    def bind_models(self, models: AskedModels) -> Feedback:
        """Returns the stream in a run, whose models it asks."""
        bound = replace(self)
        if self.asks:
            annotator = Annotator(
                self.annotator, self._answers, self._question_text, self.verdict, self.max_tokens, self.retries
            )
            object.__setattr__(bound, "_annotations", Annotations(annotator, models))
        return bound

    def example_answer(self, question: Sequence[Message]) -> str:
        return self._answers[len(question[-1].text) % 2]

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
        the fraction of `helpful` labels, and as `error` the cross-entropy, in nats, on the new labels before that; with
        an annotator also how many questions are `asked` and not due yet, and how many answers were `unreadable`."""
        for group in context.groups:
            for trajectory, owner in zip(group.trajectories, group.owners, strict=True):
                for message in following_observations(trajectory):
                    if message not in self._known:
                        self._waiting[message] = group.episodes[owner].id
        asks = self._take_newest()
        new, metrics = await self._labelled(asks, context)
        self._labels.update(new)
        for kept in (self._labels, self._waiting, self._known):
            _drop_oldest(kept, len(kept) - self.capacity)
        metrics |= {"labels": float(len(self._labels)), "waiting": float(len(self._waiting))}
        if self._labels:
            metrics["helpful"] = sum(self._labels.values()) / len(self._labels)
        if self.reward_model != "hash" and self._labels:
            with torch.no_grad():
                metrics |= {"error": float(self._error(list(new.items())))} if new else {}
            self._distil(self._steps[0])
        self._steps[0] += 1
        return metrics

    async def _labelled(
        self, asks: Sequence[Ask], context: StepContext
    ) -> tuple[Mapping[Question, float], dict[str, float]]:
        """Returns the labels that count from now on, and metrics of the annotator."""
        if self.annotator == POLICY:
            return await self._label(asks, context), {}
        if self._annotations is None:
            raise ConfigError(
                f"the stream feedback asks the model '{self.annotator}', which a run has open: train, or bind_models"
            )
        self._annotations.ask(asks)
        found = Labels({})
        if context.groups:  # what is asked is recorded with an episode
            found = await self._annotations.due(self.lag, context.groups[0].episodes[0].id)
        return found.of, {"asked": float(len(self._annotations)), "unreadable": float(found.unreadable)}

    def close(self) -> None:
        if self._annotations is not None:
            self._annotations.close()

    def _distil(self, seed: int) -> None:
        known, rng = list(self._labels.items()), np.random.default_rng((self.seed, seed))
        for _ in range(self.updates):
            chosen = rng.choice(len(known), min(self.batch_size, len(known)), replace=False)
            self.learner.update(self._error([known[n] for n in chosen]))

    def state(self) -> Mapping[str, Any]:
        known = [[list(asked), label] for asked, label in self._labels.items()]
        texts = {"waiting": [[*one] for one in self._waiting.items()], "known": list(self._known)}
        asked = {} if self._annotations is None else {"asked": self._annotations.state()}
        return {"labels": known, **texts, **asked, "learner": self.learner.state(), "steps": self._steps[0]}

    def restore(self, state: Mapping[str, Any]) -> None:
        for kept in (self._labels, self._waiting, self._known):
            _drop_oldest(kept, len(kept))
        self._steps[0] = state.get("steps", 0)  # which an older run does not know
        self._labels.update({tuple(asked): label for asked, label in state["labels"]})
        self._waiting.update(dict(state["waiting"]))
        self._known.update(dict.fromkeys(state["known"]))
        if self._annotations is not None:
            self._annotations.restore(state["asked"])
        self.learner.restore(state["learner"])

    def _take_newest(self) -> list[Ask]:
        """Takes the newest waiting messages, or, for a ranking, pairs of neighbours among them (one alone waits)."""
        newest = list(self._waiting)[-self.messages_per_step :][::-1]
        about: list[Question] = list(pairwise(newest)) if self._ranks else [(message,) for message in newest]
        asks = [Ask(one, self._waiting[one[0]]) for one in about]
        for message in (message for one in about for message in one):
            self._waiting.pop(message, None)
            self._known[message] = None
        return asks

    @property
    def _ranks(self) -> bool:
        return self.reward_model == "ranking"

    @property
    def _answers(self) -> tuple[str, str]:
        return ("A", "B") if self._ranks else ("yes", "no")

    async def _label(self, asks: Sequence[Ask], context: StepContext) -> dict[Question, float]:
        """Returns the labels by which of the two answers the present policy finds likelier."""
        questions = [question_tokens(context, self._question_text(one.about)) for one in asks]
        answers = [reply_tokens(context, text) for text in self._answers]
        scored = await score_replies(context.trainer, [q for q in questions for _ in answers], answers * len(questions))
        means = [float(logprobs.mean()) for logprobs in scored]
        return {one.about: float(means[2 * n] > means[2 * n + 1]) for n, one in enumerate(asks)}

    def _question_text(self, about: Question) -> str:
        cut = [message[: self.max_chars] for message in about]
        if self._ranks:
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
