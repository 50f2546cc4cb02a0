"""What came right after each turn as its reward: what a user said next, or what a tool answered."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

import numpy as np

from sojourn.composite import HasBases
from sojourn.config.fields import NONBLANK, TEMPERATURE, Kind, Range
from sojourn.errors import ConfigError
from sojourn.models.asking import AskedModels, TooLongError
from sojourn.protocols import Reward
from sojourn.rewards.following import next_states, predecessors
from sojourn.rewards.hints import HINT, best_hint
from sojourn.rewards.judgements import Question, together
from sojourn.rewards.native import Native
from sojourn.rewards.reactions import CORRECTIONS, ERRORS, NONE, THANKS, Reaction, Rules, with_reactions
from sojourn.rewards.transcripts import SHORTEST, SPEAKERS, Said, acted, observed
from sojourn.rewards.verdicts import CODE, Form, FreeText, Rule, UnreadableError
from sojourn.seeds import seed_of
from sojourn.types import Group, Message, Score, Trajectory

VALUES = {"good": 1, "bad": -1, "unclear": 0}
LONGEST_HINT = 1000  # characters
ASKS = (
    "You are shown a reply of an agent and what came right after it: what the user whom it serves said next (as the "
    "world), or what its tools answered. Say by this whether the reply was good or bad, or that it is unclear. Where "
    "the user shows no attitude, conclude from what they ask for next whether the reply had helped."
)
HINT_ASKS = (
    'Under "hint", write in one to three sentences what the agent should have known before it replied, as far as what '
    "came after tells it: be concrete, and write it as advice to the agent. Leave it empty where nothing is told."
)


def _nothing() -> Native:
    return Native(scale=0.0)


@dataclass(frozen=True, kw_only=True)
class NextState(HasBases):
    """Reward of each turn, added to that of `base`: `coef` times what its next state says of it, from -1 to 1, and 0
    where nothing came after it (OpenClaw-RL: Wang et al. 2026, arXiv:2603.10165).

    The next state is what users and tools say in the next turn in time whose context goes on from the turn. Explicit
    feedback, a number from -1 to 1 under `feedback_key` in the turn's info, always counts instead; silence is 0.
    `judged_by` says who judges it:

    - "rules": an answer of a tool that any of the patterns `errors` finds, or a number of `error_keys` above 0 in the
      turn's info, is -1; then a message of the user that any of `corrections` finds is -1, and of `thanks` 1. Patterns
      are regular expressions, whatever the case of letters.
    - "model": `model`, one of `[models]` or "policy", votes good (1), bad (-1) or unclear (0), `votes` times at
      `temperature` with at most `max_tokens` each. The majority counts, and a tie is 0; votes that cannot be read are
      ignored, and counted as a metric. It sees the reply and its next state, as in the paper, and the `history` turns
      before these: with 1, what was replied to; it is shown at most about `shown_chars` characters of each. A judge
      that is down is a failure of infrastructure, never a reward.

    With `hints`, the score keeps a hint for each turn of which the next state tells what would have helped: the longest
    of more than 10 characters among the votes' hints; by rules, the correction itself. The stream `hindsight_hint`
    reads them. The estimator `reinforce` with discount = 0 and baseline = "none" then gives A_t = r_t.

    Of the paper the abstract and what others say of it were read, and the authors' code, which asks for the hint in a
    question of its own, with as many votes: here one question asks for both. There, turns without a next state are left
    out of the loss; here they have no reward. An answer of a tool without an error, which by an account counts as 1
    there, is 0 by the rules. The wording, and the rules, are ours.
    """

    base: Annotated[Reward, Kind("reward")] = field(default_factory=_nothing)
    judged_by: Literal["rules", "model"] = "rules"
    model: Annotated[str, NONBLANK] = "policy"
    votes: Annotated[int, Range(1)] = 3
    history: Annotated[int, Range(0)] = 0
    temperature: Annotated[float, TEMPERATURE] = 0.6
    max_tokens: Annotated[int, Range(1)] = 512
    shown_chars: Annotated[int, Range(200)] = 20_000
    corrections: tuple[Annotated[str, NONBLANK], ...] = CORRECTIONS
    thanks: tuple[Annotated[str, NONBLANK], ...] = THANKS
    errors: tuple[Annotated[str, NONBLANK], ...] = ERRORS
    error_keys: tuple[Annotated[str, NONBLANK], ...] = ("malformed", "error")
    feedback_key: Annotated[str, NONBLANK] = "feedback"
    hints: bool = False
    coef: float = 1.0

    def __post_init__(self) -> None:
        for key, patterns in (("corrections", self.corrections), ("thanks", self.thanks), ("errors", self.errors)):
            for pattern in patterns:
                try:
                    re.compile(pattern)
                except re.error as error:
                    raise ValueError(f"{key} has {pattern!r}, which is no regular expression: {error}") from None
        self._check_unused()
        if self.votes > 1 and not self.temperature:
            raise ValueError(f"votes = {self.votes} at temperature = 0 would be equal: set a temperature, or votes = 1")

    def _check_unused(self) -> None:
        """Refuses keys of the other way to judge, which would be ignored."""
        of_rules = {
            "corrections": (self.corrections, CORRECTIONS),
            "thanks": (self.thanks, THANKS),
            "errors": (self.errors, ERRORS),
            "error_keys": (self.error_keys, ("malformed", "error")),
        }
        of_model = {
            "model": (self.model, "policy"),
            "votes": (self.votes, 3),
            "history": (self.history, 0),
            "temperature": (self.temperature, 0.6),
            "max_tokens": (self.max_tokens, 512),
            "shown_chars": (self.shown_chars, 20_000),
        }
        for key, (value, default) in (of_model if self.judged_by == "rules" else of_rules).items():
            if value != default:
                raise ValueError(f'{key} = {value!r} with judged_by = "{self.judged_by}", which does not read it')

    @property
    def asks(self) -> frozenset[str]:
        return frozenset({self.model}) if self.judged_by == "model" else frozenset()

    @property
    def writes(self) -> frozenset[str]:
        return frozenset({HINT}) if self.hints else frozenset()

    def bind_models(self, models: AskedModels) -> Reward:
        return BoundNextState(self.base, self, models) if self.judged_by == "model" else self

    def example_answer(self, question: Sequence[Message]) -> str:
        [code] = re.findall(rf'"{CODE}": "(\w+)"', question[-1].text.rpartition("\n")[2])
        return f"It seems so.\n{Form(code, self.rules()).example(int(code, 16))}"

    def rules(self) -> dict[str, Rule]:
        """Returns what a vote says under each key."""
        return {"verdict": tuple(VALUES), **({HINT: FreeText(LONGEST_HINT)} if self.hints else {})}

    async def __call__(self, group: Group) -> list[Score]:
        if self.judged_by == "model":
            raise ConfigError(
                f"the reward next_state asks the model '{self.model}', which a run has open: score with a run, or "
                "bind_models"
            )
        scores = await self.base(group)
        rules = Rules(self.corrections, self.thanks, self.errors, self.error_keys, self.hints)
        reactions = [
            [rules.react(turn, following) for turn, following in zip(one.turns, next_states(one), strict=True)]
            for one in group.trajectories
        ]
        return self.added(group, scores, reactions)

    def added(self, group: Group, scores: Sequence[Score], reactions: Sequence[Sequence[Reaction]]) -> list[Score]:
        """Returns the scores with these reactions to each turn, or with the feedback to it where it has any."""
        return [
            with_reactions(score, [self._told(one, n, reaction) for n, reaction in enumerate(of_one)], self.coef)
            for one, score, of_one in zip(group.trajectories, scores, reactions, strict=True)
        ]

    def _told(self, trajectory: Trajectory, number: int, reaction: Reaction) -> Reaction:
        info = trajectory.turns[number].info
        if self.feedback_key not in info:
            return reaction
        return reaction._replace(value=float(np.clip(info[self.feedback_key], -1, 1)), judged=True)


@dataclass(frozen=True)
class BoundNextState(HasBases):
    """The reward in a run, whose models it asks."""

    base: Reward
    config: NextState
    models: AskedModels

    async def __call__(self, group: Group) -> list[Score]:
        scores = await self.base(group)
        places = [(number, turn) for number, one in enumerate(group.trajectories) for turn in range(len(one.turns))]
        following = [next_states(one) for one in group.trajectories]
        asked = [(number, turn) for number, turn in places if self._needs_votes(group, number, turn, following)]
        found = await together([self._reaction(group, number, turn, following[number]) for number, turn in asked])
        reactions = dict(zip(asked, found, strict=True))
        by_trajectory = [
            [reactions.get((number, turn), NONE) for turn in range(len(one.turns))]
            for number, one in enumerate(group.trajectories)
        ]
        return self.config.added(group, scores, by_trajectory)

    def _needs_votes(
        self, group: Group, number: int, turn: int, following: Sequence[Sequence[tuple[Message, ...]]]
    ) -> bool:
        told = self.config.feedback_key in group.trajectories[number].turns[turn].info
        return bool(following[number][turn]) and (self.config.hints or not told)

    async def _reaction(
        self, group: Group, number: int, turn: int, following: Sequence[tuple[Message, ...]]
    ) -> Reaction:
        """Returns what the majority of the votes says of a turn, and the best of their hints."""
        question = self._question(group, number, turn, following[turn])
        votes = await together([self._vote(question, vote) for vote in range(self.config.votes)])
        read = [vote for vote in votes if vote is not None]
        value = majority([VALUES[vote["verdict"]] for vote in read])
        return Reaction(float(value), best_hint(vote.get(HINT, "") for vote in read), len(votes) - len(read))

    def _question(self, group: Group, number: int, turn: int, following: Sequence[Message]) -> Question:
        trajectory, episode = group.trajectories[number], group.episodes[group.owners[number]]
        shown = {"reply": tuple(acted(trajectory.turns[turn], turn + 1))}
        if earlier := _earlier(trajectory, turn, self.config.history):
            shown = {"conversation before it": earlier, **shown}
        said = (Said(turn + 2, SPEAKERS[message.role], message.text) for message in following)
        several = len(episode.trajectories) > 1
        return Question(
            "\n".join([ASKS, HINT_ASKS] if self.config.hints else [ASKS]),
            {**shown, "what came after it": tuple(said)},
            self.config.rules(),
            (episode.id,),
            f"next state of turn {turn + 1}" + f" of {trajectory.agent}" * several,
        )

    async def _vote(self, question: Question, number: int) -> dict[str, str] | None:
        """Returns one vote, or None where it cannot be read."""
        config, form, most = self.config, question.form, self.config.shown_chars
        while True:
            try:
                answer = await self.models.ask(
                    config.model,
                    question.messages(most),
                    max_tokens=config.max_tokens,
                    temperature=config.temperature,
                    seed=seed_of("next_state", form.code, number) % 2**31,
                    about=question.about,
                    purpose=f"{question.purpose}, vote {number + 1}",
                )
                return form.read(answer.text)
            except TooLongError:
                if most <= SHORTEST:
                    raise
                most //= 2
            except UnreadableError:
                return None


def majority(votes: Sequence[int]) -> int:
    """Returns the most frequent vote; 0 for a tie, and where there is none."""
    counts = Counter(votes)
    first = [vote for vote, count in counts.items() if count == max(counts.values())]
    return first[0] if len(first) == 1 else 0


def _earlier(trajectory: Trajectory, turn: int, count: int) -> tuple[Said, ...]:
    """Returns what the turn replied to, and the `count` - 1 turns before it that its context goes on from."""
    before, chain = predecessors(trajectory), list[int]()
    while turn >= 0 and len(chain) < count:
        chain.append(turn)
        turn = before[turn]
    said: list[Said] = []
    for number in reversed(chain):
        one = trajectory.turns[number]
        said += observed(one, number + 1)
        said += acted(one, number + 1) if number != chain[0] else ()
    return tuple(said)
