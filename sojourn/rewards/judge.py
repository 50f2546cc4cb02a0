"""The verdict of a language model as the reward."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

import numpy as np

from sojourn.composite import HasBases
from sojourn.config.fields import NONBLANK, TEMPERATURE, Kind, Range
from sojourn.config.unused import refuse_unused
from sojourn.errors import ConfigError
from sojourn.models.asking import AskedModels
from sojourn.protocols import Reward
from sojourn.rewards.judgements import Bench, Judgement, ranked, reference_scores, scored
from sojourn.rewards.likelihoods import likely, likely_beside_reference, preferred
from sojourn.rewards.native import Native
from sojourn.rewards.pairings import compared
from sojourn.rewards.proofs import RULES, Proof, proven
from sojourn.rewards.transcripts import Evidence
from sojourn.rewards.verdicts import CODE, Form, Rule, Scale
from sojourn.types import Group, Message, Score, Trajectory

RESERVED = frozenset({CODE, "better"})
WRITTEN = {"score": scored, "reference": reference_scores, "pairwise": compared, "ranking": ranked}
LIKELY = {"score": likely, "reference": likely_beside_reference, "pairwise": preferred}
ANSWERS = ("No", "Yes")
RUBRIC = "How well did the agent do what its task asks of it? What it claims counts for nothing, what it did counts."


def _nothing() -> Native:
    return Native(scale=0.0)


@dataclass(frozen=True, kw_only=True)
class Criterion:
    """One thing that a judge looks at, with a scale of its own: `low` is the worst, `high` the best."""

    name: Annotated[str, NONBLANK]
    text: str = ""
    low: float = 0.0
    high: float = 10.0
    weight: Annotated[float, Range(0)] = 1.0

    def __post_init__(self) -> None:
        if self.high <= self.low:
            raise ValueError(f"low = {self.low:g} with high = {self.high:g}: expected low < high")


@dataclass(frozen=True, kw_only=True)
class Judge(HasBases):
    """The verdict of a language model on each trajectory, from 0 to 1, times `coef`, at the last turn; `combine` says
    whether the reward `base` is added to it or multiplied by it.

    `model` is one of `[models]`, here or behind an endpoint, or "policy", by its present weights. It is told what
    `rubric` says. `mode` says what it is asked:

    - "score": each trajectory alone, on a scale from `low` to `high`, or on that of each of `criteria`, whose weighted
      mean counts (SOTOPIA: Zhou et al. 2023, arXiv:2310.11667, whose dimensions have scales of their own).
    - "reference": the same, beside the answer that the key `reference` of the task's data holds.
    - "pairwise": which of two trajectories of a group is better, or neither, each pair in both orders; one wins only if
      it does in both (Zheng et al. 2023, arXiv:2306.05685, against the judge's bias for a position).
      The verdict is the mean over its pairs: 1 for a win, 1/2 for a tie. Each meets all others or, with `neighbours`,
      that many on either side in a ring.
    - "ranking": all trajectories of a group at once, each on the scale, relative to the others; what all begin with is
      shown once (RULER of OpenPipe's ART, 2025).

    It answers with at most `max_tokens`, at `temperature`. Only trajectories of the same seat are compared; those that
    look the same to the judge are shown once, and tie. Each question is asked `samples` times: numbers are averaged,
    and of words the most frequent counts. The judge sees the last `turns` of a trajectory (0: all) or, with `evidence`,
    the last one and up to that many which the agent chose itself by their numbers, as in "evidence: 2, 5", with its
    reasoning if `thoughts` says so, and at most about `shown_chars` characters of each.

    With `proof`, the agent has to prove what it did (SmartSnap: Cai et al. 2025, arXiv:2512.22322): the judge sees the
    task, the agent's last message, and of the world only what it showed in the turns that this message names. It says
    whether the evidence is relevant and whether it proves success, by the majority of `samples`, and `proof` says what
    that is worth; so many pieces as `evidence` says are free. The agent `self_verifying` asks for evidence.

    With `verdict` = "likelihood" the model writes nothing. The verdict is the expectation of `answers`, from the worst
    to the best and at equal distances, under the probabilities that the model gives them where it may give no others: a
    model that is too small to write a verdict has one, and no other answer needs to be drawn (G-Eval: Liu et al. 2023,
    arXiv:2303.16634, eq. 1, by an account; there it reads the scores' tokens after a chain of thought). No / Yes gives
    the probability of Yes, and 1 to 5 the expected grade. Each of `criteria` is asked about alone. Of two trajectories
    the verdict is the probability that one is said to be better, the mean over both orders, in which what is given to a
    position cancels out. So it needs a model that is here, and no "ranking".

    What the agent wrote is marked as data, by a code that it cannot know, and a verdict must repeat that code. An
    answer that does not end with a verdict is asked for again, up to `retries` times, with other seeds; then, or where
    the judge is down, the group's episodes have failed: they are never scored 0 for it. Everything asked is recorded
    with the episodes.

    The documentation of RULER, the authors' code and the abstract of SmartSnap, and accounts of SOTOPIA and of Zheng et
    al. were read. The wording of the questions is ours, and so is that a verdict lies between 0 and 1. SmartSnap's
    agent ends its play by a tool of its own, which may be called once, its evidence are results of tool calls, and some
    of its runs pay for calls early in training; here a turn's observation is evidence, and the last message names it.
    """

    base: Annotated[Reward, Kind("reward")] = field(default_factory=_nothing)
    model: Annotated[str, NONBLANK] = "policy"
    mode: Literal["score", "reference", "pairwise", "ranking"] = "score"
    rubric: Annotated[str, NONBLANK] = RUBRIC
    criteria: tuple[Criterion, ...] = ()
    low: float = 0.0
    high: float = 10.0
    reference: str = ""
    verdict: Literal["written", "likelihood"] = "written"
    answers: tuple[Annotated[str, NONBLANK], ...] = ANSWERS
    neighbours: Annotated[int, Range(0)] = 0
    samples: Annotated[int, Range(1)] = 1
    retries: Annotated[int, Range(0)] = 3
    temperature: Annotated[float, TEMPERATURE] = 0.0
    max_tokens: Annotated[int, Range(1)] = 512
    turns: Annotated[int, Range(0)] = 0
    evidence: Annotated[int, Range(0)] = 0
    proof: Proof | None = None
    thoughts: bool = False
    shown_chars: Annotated[int, Range(200)] = 20_000
    coef: float = 1.0
    combine: Literal["add", "multiply"] = "add"

    unverified = "RULER's documentation, SmartSnap's code and accounts of the others were read, not their text"

    def __post_init__(self) -> None:
        names = [one.name for one in self.criteria]
        if len(set(names)) < len(names) or RESERVED.intersection(names):
            raise ValueError(f"criteria have the names {', '.join(names)}: give each its own, but not 'code'")
        if self.criteria and not sum(one.weight for one in self.criteria):
            raise ValueError("criteria have the weight 0 all together: give one of them a weight above 0")
        if self.criteria and self.mode in ("pairwise", "ranking"):
            raise ValueError(f'criteria with mode = "{self.mode}": say in the rubric what counts, and leave them out')
        if self.high <= self.low:
            raise ValueError(f"low = {self.low:g} with high = {self.high:g}: expected low < high")
        if (self.mode == "reference") != bool(self.reference):
            raise ValueError(
                f"mode = \"{self.mode}\" with reference = '{self.reference}': expected the key of a task's data that "
                'holds the right answer with mode = "reference", and none without'
            )
        if self.neighbours and self.mode != "pairwise":
            raise ValueError(f'neighbours = {self.neighbours} with mode = "{self.mode}": only pairs have them')
        if self.samples > 1 and not self.temperature:
            raise ValueError(f"samples = {self.samples} at temperature = 0 would be equal: set temperature to 1")
        self._check_answers()
        if self.proof is not None:
            self._check_proof()
        if self.turns and self.evidence:
            raise ValueError(
                f"turns = {self.turns} with evidence = {self.evidence}: expected one of them, the last turns or those "
                "that the agent names"
            )

    def _check_proof(self) -> None:
        """Refuses what has no effect on proofs, or no meaning."""
        if not self.evidence:
            raise ValueError("proof with evidence = 0: set evidence to how many pieces are free, such as 3")
        keys = ("mode", "verdict", "criteria", "low", "high", "combine")
        refuse_unused(self, keys, "with proof, whose verdict is whether it is one")

    def _check_answers(self) -> None:
        if self.verdict == "written":
            if self.answers != ANSWERS:
                raise ValueError(
                    f"answers = {list(self.answers)} with a verdict that is written, of which they are no part: set "
                    'verdict = "likelihood"'
                )
            return
        if self.mode not in LIKELY:
            raise ValueError(f'mode = "{self.mode}" with verdict = "likelihood": expected one of {", ".join(LIKELY)}')
        of_text = ("low", "high", "samples", "retries", "temperature", "max_tokens")
        refuse_unused(self, of_text, 'with verdict = "likelihood", which writes nothing')
        if self.mode == "pairwise" and self.answers != ANSWERS:
            raise ValueError(f'answers = {list(self.answers)} with mode = "pairwise", which has answers of its own')
        if len(set(self.answers)) < max(2, len(self.answers)):
            raise ValueError(f"answers = {list(self.answers)}: expected two or more, each another, the worst first")

    @property
    def asks(self) -> frozenset[str]:
        return frozenset({self.model})

    @property
    def likelihoods(self) -> frozenset[str]:
        return self.asks if self.verdict == "likelihood" else frozenset()

    @property
    def task_data(self) -> frozenset[str]:
        return frozenset({self.reference} - {""})

    def bind_models(self, models: AskedModels) -> BoundJudge:
        return BoundJudge(self.base, self, models)

    def example_answer(self, question: Sequence[Message]) -> str:
        form = question[-1].text.rpartition("\n")[2]
        [code] = re.findall(rf'"{CODE}": "(\w+)"', form)
        keys = re.findall(r'"([^"]+)": <', form)
        return f"It did.\n{Form(code, {key: self.rules().get(key, self.scale) for key in keys}).example(int(code, 16))}"

    @property
    def scale(self) -> Scale:
        return Scale(self.low, self.high)

    def rules(self) -> Mapping[str, Rule]:
        """Returns what a verdict on one trajectory, or one pair, says under each key."""
        if self.proof is not None:
            return RULES
        if self.mode == "pairwise":
            return {"better": ("first", "second", "tie")}
        return {one.name: Scale(one.low, one.high) for one in self.criteria} or {"score": self.scale}

    async def __call__(self, group: Group) -> list[Score]:
        raise ConfigError(
            f"the reward judge asks the model '{self.model}', which a run has open: score with a run, or bind_models"
        )


@dataclass(frozen=True)
class BoundJudge(HasBases):
    """A judge in a run, whose models it asks."""

    base: Reward
    config: Judge
    models: AskedModels

    async def __call__(self, group: Group) -> list[Score]:
        scores, config = await self.base(group), self.config
        evidence = Evidence(config.turns, config.evidence, config.thoughts, alone=config.proof is not None)
        bench = Bench(config, self.models, evidence, group)
        if config.proof is not None:
            judged = await proven(bench, config.proof, config.evidence)
        else:
            judged = await (WRITTEN if config.verdict == "written" else LIKELY)[config.mode](bench)
        trajectories = zip(group.trajectories, scores, strict=True)
        return [self._with(score, judged.get(number), one) for number, (one, score) in enumerate(trajectories)]

    def _with(self, score: Score, judgement: Judgement | None, trajectory: Trajectory) -> Score:
        """Returns the score with the judge's; a trajectory without a turn, which shows nothing, has none."""
        if judgement is None:
            return score
        value = self.config.coef * judgement.fraction
        if self.config.combine == "multiply":
            turns, outcome = score.turns * np.float32(value), score.result * value
        else:
            turns, outcome = score.turns.copy(), score.result + value
            turns[-1:] += np.float32(value)
        own = f"judge_{self.config.mode}" if "judge" in score.parts else "judge"  # beside that of another judge
        parts = {**score.parts, own: judgement.fraction, **judgement.parts}
        return replace(score, turns=turns, parts=parts, outcome=outcome)
