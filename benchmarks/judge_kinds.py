"""The judges that `judges.py` measures, behind one interface: what each says of an episode, and of two of one task."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import numpy as np

from sojourn.backends.torch.backend import Torch
from sojourn.errors import RewardError
from sojourn.models.asking import Answer, AskedModel, AskedModels
from sojourn.models.spec import Model
from sojourn.protocols import Opened, Renderer, Reward
from sojourn.render.auto import Auto
from sojourn.rewards.judge import RUBRIC, Judge
from sojourn.rewards.transcripts import Evidence, code_of, written
from sojourn.train.asked_models import LocalModel
from sojourn.types import Episode, Group, Message, Prompt, Role

TURNS, CHARS = 3, 1_200  # what a judge is shown of an episode: its task and its last turns
EVIDENCE = Evidence(TURNS)


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
    """The reward `judge` as runs use it: a verdict in JSON, with a code to be repeated."""

    model: AskedModel
    retries: int = 0
    max_tokens: int = 120
    opened: Opened | None = None

    @property
    def judge(self) -> Judge:
        return Judge(turns=TURNS, shown_chars=CHARS, retries=self.retries, max_tokens=self.max_tokens)

    async def score(self, episode: Episode) -> Opinion:
        counting = Counting(self.model)
        judge = self.judge.bind_models(AskedModels({"policy": counting}))
        try:
            [score] = await judge(group_of(episode))
        except RewardError:
            return Opinion(None, counting.tokens)
        return Opinion(score.total, counting.tokens)

    async def prefer(self, better: Episode, worse: Episode) -> Preference:
        judge = replace(self.judge, mode="pairwise").bind_models(AskedModels({"policy": self.model}))
        try:
            scores = await judge(group_of(better, worse))
        except RewardError:
            return Preference(None)
        return Preference(scores[0].total, scores[0].parts.get("judge_swapped", 0.0))

    async def close(self) -> None:
        await closed(self.opened)


@dataclass
class Counting:
    """Counts the tokens of what a model is asked, and of what it answers."""

    model: AskedModel
    tokens: int = 0

    async def ask(
        self, messages: Sequence[Message], *, max_tokens: int, temperature: float, seed: int, asker: str = ""
    ) -> Answer:
        answer = await self.model.ask(messages, max_tokens=max_tokens, temperature=temperature, seed=seed, asker=asker)
        self.tokens += answer.prompt_tokens + answer.sampled_tokens
        return answer


@dataclass
class Likelihood:
    """A model that writes no verdict: the probability that it gives to one of two words, against the other's."""

    opened: Opened

    async def score(self, episode: Episode) -> Opinion:
        text = f"{RUBRIC}\n\n{shown(episode, 'record')}\n\nDid the agent solve its task? Answer Yes or No."
        return await self._between(text, "Yes", "No")

    async def prefer(self, better: Episode, worse: Episode) -> Preference:
        forth, back = await self._first(better, worse), await self._first(worse, better)
        right = [forth > 0.5, back < 0.5]
        points = 1.0 if all(right) else 0.0 if not any(right) else 0.5
        return Preference(points, float(right[0] != right[1]), ((forth > 0.5) + (back > 0.5)) / 2)

    async def _first(self, first: Episode, second: Episode) -> float:
        records = f"{shown(first, 'record A')}\n\n{shown(second, 'record B')}"
        text = f"{RUBRIC}\n\n{records}\n\nIn which record did the agent do better? Answer A or B."
        opinion = await self._between(text, "A", "B")
        assert opinion.score is not None
        return opinion.score

    async def _between(self, text: str, one: str, other: str) -> Opinion:
        renderer, sampler = self.opened.renderer, self.opened.sampler
        prompt = renderer.open((Message(Role.USER, text),))
        logprobs = []
        for word in (one, other):
            token = np.asarray(renderer.encode_reply(Message(Role.ASSISTANT, word))[:1], dtype=np.int64)
            scored = await sampler.score(Prompt(np.concatenate([prompt.tokens, token])))
            logprobs.append(float(scored[-1]))
        return Opinion(float(1 / (1 + np.exp(logprobs[1] - logprobs[0]))), len(prompt.tokens) + 1)

    async def close(self) -> None:
        await closed(self.opened)


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


def shown(episode: Episode, name: str) -> str:
    """Returns an episode as a judge reads it."""
    said = EVIDENCE.of(episode.trajectories[0])
    return written(said, code_of([said]), CHARS, name)


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
