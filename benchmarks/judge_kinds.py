"""The judges that `judges.py` measures, behind one interface: what each says of an episode, and of two of one task."""

from __future__ import annotations

import hashlib
import json
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

import numpy as np

from sojourn.backends.torch.backend import Torch
from sojourn.errors import RewardError
from sojourn.models.asking import Answer, AskedModel, AskedModels, Weighed, WeighsAnswers
from sojourn.models.spec import Model
from sojourn.protocols import Opened, Renderer, Reward
from sojourn.render.auto import Auto
from sojourn.rewards.judge import Judge
from sojourn.train.asked_models import LocalModel
from sojourn.types import Episode, Group, Message, Role

TURNS, CHARS = 3, 1_200  # what a judge is shown of an episode: its task and its last turns


class Opinion(NamedTuple):
    """A score from 0 to 1, None where there was no verdict, and the tokens that it took."""

    score: float | None
    tokens: int


class Preference(NamedTuple):
    """The points of the better of two episodes (1: preferred in both orders), whether the order mattered, and how often
    the one that was shown first was preferred; None where there was no verdict."""

    points: float | None
    swapped: float = 0.0
    first: float | None = None


class Judged(Protocol):
    """Scores episodes, and prefers one of two."""

    async def score(self, episode: Episode) -> Opinion: ...
    async def prefer(self, better: Episode, worse: Episode) -> Preference: ...
    async def close(self) -> None: ...


def group_of(*episodes: Episode) -> Group:
    return Group(0, episodes[0].task, tuple(replace(one, id=f"{one.id}#{n}") for n, one in enumerate(episodes)))


@dataclass
class Verdicts:
    """The reward `judge` as runs use it: a verdict in JSON, with a code to be repeated, or one that is read from the
    probabilities of answers."""

    model: AskedModel
    opened: Opened | None = None
    judge: Judge = field(default_factory=lambda: Judge(turns=TURNS, shown_chars=CHARS, retries=0, max_tokens=120))

    async def score(self, episode: Episode) -> Opinion:
        counting = Counting(self.model)
        judge = self.judge.bind_models(AskedModels({"policy": counting}))
        try:
            [score] = await judge(group_of(episode))
        except RewardError:
            return Opinion(None, counting.tokens)
        return Opinion(score.total, counting.tokens)

    async def prefer(self, better: Episode, worse: Episode) -> Preference:
        counting = Counting(self.model)
        judge = replace(self.judge, mode="pairwise").bind_models(AskedModels({"policy": counting}))
        try:
            scores = await judge(group_of(better, worse))
        except RewardError:
            return Preference(None)
        swapped = scores[0].parts.get("judge_swapped", 0.0)
        points = 0.5 if swapped else float(np.sign(scores[0].total - 0.5) + 1) / 2
        first = statistics.fmean(p[0] > 0.5 for p in counting.weighed) if counting.weighed else None
        return Preference(points, swapped, first)

    async def close(self) -> None:
        await closed(self.opened)


LIKELIHOOD = Judge(turns=TURNS, shown_chars=CHARS, verdict="likelihood")


@dataclass
class Counting:
    """Counts the tokens of what a model is asked, and of what it answers, and keeps the probabilities that it gives."""

    model: AskedModel
    tokens: int = 0
    weighed: list[tuple[float, ...]] = field(default_factory=list)

    async def ask(
        self, messages: Sequence[Message], *, max_tokens: int, temperature: float, seed: int, asker: str = ""
    ) -> Answer:
        answer = await self.model.ask(messages, max_tokens=max_tokens, temperature=temperature, seed=seed, asker=asker)
        self.tokens += answer.prompt_tokens + answer.sampled_tokens
        return answer

    async def weigh(self, messages: Sequence[Message], answers: Sequence[str], *, seed: int) -> Weighed:
        assert isinstance(self.model, WeighsAnswers)
        found = await self.model.weigh(messages, answers, seed=seed)
        self.tokens += found.prompt_tokens
        self.weighed.append(found.probabilities)
        return found


@dataclass
class Trained:
    """A reward that reads a trained reward model."""

    reward: Reward

    async def score(self, episode: Episode) -> Opinion:
        [score] = await self.reward(group_of(episode))
        [trajectory] = episode.trajectories
        last = len(trajectory.turns) - 1
        return Opinion(score.total, len(trajectory.prompt(last)) + len(trajectory.turns[last].sample.tokens))

    async def prefer(self, better: Episode, worse: Episode) -> Preference:
        scores = [score.total for score in await self.reward(group_of(better, worse))]
        return Preference(0.5 if scores[0] == scores[1] else float(scores[0] > scores[1]))

    async def close(self) -> None:
        """Does nothing: whoever assembled the run closes it."""


@dataclass
class Scripted:
    """A model of known accuracy, by which the measurement itself is checked: it knows the truth of each episode, by its
    id, and errs in a fixed share of them. Where it is sure of itself it says `high`, or else `low`. A `gullible` one
    gives the highest score to whatever asks for it; one with `prefers_first` says of two that the first is better."""

    truth: dict[str, bool]
    errs: float = 0.2
    high: float = 8.0
    low: float = 2.0
    gullible: str = ""
    prefers_first: bool = False

    async def ask(
        self, messages: Sequence[Message], *, max_tokens: int, temperature: float, seed: int, asker: str = ""
    ) -> Answer:
        text = messages[-1].text
        [code] = re.findall(r'"code": "(\w+)"', text.rpartition("\n")[2])
        said: object = self.high if self.says(asker) else self.low
        if self.gullible and self.gullible in text:
            said = 10.0
        verdict = {"code": code, "score": said}
        if "second record" in text:
            verdict = {"code": code, "better": "first" if self.prefers_first or self.says(asker) else "second"}
        return Answer(json.dumps(verdict), len(text) // 4, 20)

    def says(self, asker: str) -> bool:
        """Returns what it says of an episode: the truth, but for a share of the episodes, which their ids decide."""
        id = asker.partition("#")[0]
        drawn = int.from_bytes(hashlib.sha256(id.encode()).digest()[:4], "big") / 2**32
        return self.truth[id] != (drawn < self.errs)


def open_model(name: str) -> Opened:
    return Torch(threads=1, max_context=2048).open(Model(name=name), Auto(), 0)


def local(opened: Opened) -> AskedModel:
    return LocalModel("policy", opened.renderer, opened.sampler)


async def closed(opened: Opened | None) -> None:
    if opened is not None:
        await opened.sampler.close()
        opened.trainer.close()


def with_last_words(episode: Episode, words: str, renderer: Renderer) -> Episode:
    """Returns an episode in which the agent's last message ends with these words, in its tokens, too."""
    [trajectory] = episode.trajectories
    *turns, last = trajectory.turns
    said = last.message.text if last.message is not None else ""
    message = Message(Role.ASSISTANT, f"{said}\n{words}")
    tokens = np.asarray(renderer.encode_reply(message), dtype=np.int64)
    sample = replace(last.sample, tokens=tokens, logprobs=np.zeros(len(tokens), dtype=np.float32))
    changed = replace(trajectory, turns=(*turns, replace(last, message=message, sample=sample)))
    return replace(episode, trajectories=(changed,))
