"""A whole run folder of made-up episodes, as large as asked, to try the viewer and the search on.

    python benchmarks/big_run.py FOLDER [--steps 480] [--groups 25] [--plays 8] [--panel 500] [--turns 20] [--seed 0]

By default 100,000 episodes of 20 turns on average: 96,000 of 480 training steps, 4,000 of eight evaluations. Everything
follows from the seed, apart from the seconds that writing takes. Config, metrics, evaluations and records are written
by the code that writes them for a real run; only what was played is made up: a policy that gets better, of which some
episodes are malformed, cut off or lost, over five worlds with tags, tools and a vocabulary with rare words.
"""

from __future__ import annotations

import argparse
import math
import random
import string
import time
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

import numpy as np

from sojourn.config import toml
from sojourn.record.episodes.store import EpisodeStore
from sojourn.record.metrics import Jsonl
from sojourn.record.run import RunFolder
from sojourn.record.summary import summarise
from sojourn.train.resolve import resolve
from sojourn.types import (
    Credit,
    Ending,
    Episode,
    Group,
    Message,
    Role,
    Sample,
    Score,
    Stop,
    Task,
    ToolCall,
    Trajectory,
    Turn,
    Versions,
)

RECIPE = Path(__file__).parent.parent / "recipes" / "worlds" / "train.toml"
STAGE = "rl"
LAG = 2
TOOLS = {
    "shop": ("search", "click", "go_back", "buy_now"),
    "search": ("search", "open_page", "answer"),
    "clarify": ("ask_user", "book"),
    "toy": (),
    "frozenlake": (),
}
TOPICS = ("garden", "kitchen", "travel", "office", "music", "sports", "weather", "health", "history", "astronomy")
ERRORS = (
    "the browser died: Target page, context or browser has been closed",
    "the sandbox did not start within 30 s",
    "connection to the retriever was refused (errno 111)",
)


@dataclass(frozen=True, kw_only=True)
class Size:
    steps: int = 480
    groups: int = 25
    plays: int = 8
    evaluations: int = 8
    panel: int = 500
    turns: int = 20


class Played(NamedTuple):
    groups: list[Group]
    scores: list[list[Score]]
    credits: list[list[Credit]]


class Maker:
    """Makes groups; `skill` between 0 and 1 is how good the policy is by then."""

    def __init__(self, seed: int, turns: int) -> None:
        self.random = random.Random(seed)
        self.turns = turns
        self.sentences = _sentences(self.random)
        numbers = np.random.default_rng(seed)
        self.ids = np.minimum(numbers.zipf(1.3, 1 << 18), 49_151).astype(np.int64)
        self.logprobs = -numbers.exponential(0.4, 1 << 18).astype(np.float32)

    def step(self, stage: str, slots: range, plays: int, version: int, skill: float) -> Played:
        played = Played([], [], [])
        for slot in slots:
            group = self._group(stage, slot, plays, version, skill)
            scores = [self._score(trajectory) for trajectory in group.trajectories]
            mean = sum(score.total for score in scores) / max(1, len(scores))
            played.groups.append(group)
            played.scores.append(scores)
            played.credits.append(
                [
                    Credit.uniform(trajectory, score.total - mean)
                    for trajectory, score in zip(group.trajectories, scores, strict=True)
                ]
            )
        return played

    def _group(self, stage: str, slot: int, plays: int, version: int, skill: float) -> Group:
        split = "train" if stage == STAGE else "test"
        seed = slot % 4000 if stage == STAGE else 10**9 + slot
        drawn = random.Random(seed)  # so that every evaluation has the same tasks
        env = drawn.choice(list(TOOLS))
        hard = drawn.choice(("easy", "medium", "hard"))
        topic, code = drawn.choice(TOPICS), f"P{drawn.randrange(10**6):06d}"
        task = Task(env, {"topic": topic, "code": code}, seed, split, (hard, topic))
        goal = f"Find {code} for the {topic} and say what it costs. Say one action at a time; {hard} tasks need more."
        chance = min(0.97, max(0.02, skill + {"easy": 0.2, "medium": 0.0, "hard": -0.25}[hard]))
        episodes = tuple(
            self._episode(f"{stage}/{slot}/0/{n}-{task.id}", task, goal, version, chance) for n in range(plays)
        )
        return Group(slot, task, episodes)

    def _episode(self, name: str, task: Task, goal: str, version: int, chance: float) -> Episode:
        drawn = self.random
        seconds = drawn.uniform(2, 40)
        if drawn.random() < 0.004:
            return Episode(name, task, (), drawn.choice(ERRORS), seconds)
        won = drawn.random() < chance
        ending = (
            Ending.DONE if won else drawn.choices([e for e in Ending if e is not Ending.FAILED], (50, 25, 15, 7, 3))[0]
        )
        count = max(1, round(drawn.gammavariate(4, self.turns / 4)))
        oldest = max(0, version - drawn.randrange(LAG + 1))
        turns = []
        for number in range(count):
            first, last = number == 0, number == count - 1
            info = {"success": float(won)} if last else {}
            if (last and ending is Ending.MALFORMED) or drawn.random() < 0.02:
                info["malformed"] = 1.0
            system = (Message(Role.SYSTEM, goal),) if first else ()
            said, length = self._said(task.env, task.data["code"]), drawn.randrange(6, 40)
            cut = last and ending is Ending.TOKENS
            turns.append(
                Turn(
                    parent=number - 1,
                    context=_piece(drawn, self.ids, 90 if first else drawn.randrange(20, 100)),
                    sample=Sample(
                        _piece(drawn, self.ids, length),
                        _piece(drawn, self.logprobs, length),
                        Versions(oldest, version),
                        Stop.LENGTH if cut else Stop.END,
                    ),
                    message=said,
                    reward=float(won and last),
                    info=info,
                    observed=(*system, Message(Role.TOOL if said.calls else Role.USER, self._shown(task.env))),
                )
            )
        return Episode(name, task, (Trajectory("agent", tuple(turns), ending),), None, seconds)

    def _said(self, env: str, code: str) -> Message:
        drawn = self.random
        thought = drawn.choice(self.sentences) if drawn.random() < 0.3 else ""
        if not TOOLS[env]:
            return Message(Role.ASSISTANT, f"go {drawn.choice(('north', 'south', 'east', 'west'))}", thought)
        name = drawn.choice(TOOLS[env])
        text = drawn.choice(self.sentences) if drawn.random() < 0.5 else code
        return Message(Role.ASSISTANT, "", thought, calls=(ToolCall(name, {"text": text}),))

    def _shown(self, env: str) -> str:
        drawn = self.random
        found = " ".join(drawn.choices(self.sentences, k=drawn.randrange(2, 6)))
        return f"{found} Offer P{drawn.randrange(10**6):06d} ${drawn.randrange(5, 900)}" if TOOLS[env] else found

    def _score(self, trajectory: Trajectory) -> Score:
        rewards = np.array([turn.reward for turn in trajectory.turns], dtype=np.float32)
        rewards[-1] -= np.float32(0.01 * round(4 * self.random.random() * len(rewards) / self.turns))
        parts = {
            "success": float(trajectory.success),
            "malformed": sum(t.info.get("malformed", 0.0) for t in trajectory.turns),
        }
        return Score(rewards, {**parts, "truncated": float(trajectory.ending.truncated)})


def make(folder: Path, size: Size, seed: int = 0) -> None:
    """Writes the run; `folder` must not exist or be empty."""
    overrides = [f"stages.1.steps={size.steps}", f"stages.1.groups.width={size.groups}",
                 f"stages.1.groups.size={size.plays}", f"stages.1.groups.max_lag={LAG}", f"seed={seed}"]  # fmt: skip
    table = resolve(toml.read(RECIPE, overrides)).table
    maker = Maker(seed, size.turns)
    evaluated = {round(size.steps * n / max(1, size.evaluations - 1)) for n in range(size.evaluations)}
    with (
        RunFolder.create(folder, toml.dump(table), seeds={"run": seed}) as run,
        EpisodeStore(folder, write=True) as store,
    ):
        metrics = Jsonl(folder / "metrics.jsonl")
        for step in range(size.steps + 1):
            if step in evaluated:
                _evaluate(run, store, maker, size, step)
            if step < size.steps:
                played = maker.step(STAGE, range(step * size.groups, (step + 1) * size.groups), size.plays, step,
                                    _skill(step, size))  # fmt: skip
                store.append(STAGE, step, *played)
                metrics.write(step, STAGE, _metrics(maker.random, played, step, size))
        metrics.close()


def _evaluate(run: RunFolder, store: EpisodeStore, maker: Maker, size: Size, step: int) -> None:
    name = "before" if step == 0 else STAGE if step == size.steps else f"{STAGE}-{step}"
    played = maker.step(f"evaluation-{name}", range(size.panel), 1, step, _skill(step, size))
    store.append(f"evaluation-{name}", step, played.groups, played.scores)
    run.add_evaluation(name, "before" if step == 0 else STAGE, step, summarise(played.groups, played.scores))


def _skill(step: int, size: Size) -> float:
    return 0.1 + 0.7 * (1 - math.exp(-3 * step / size.steps))


def _metrics(drawn: random.Random, played: Played, step: int, size: Size) -> dict[str, float]:
    trajectories = [t for group in played.groups for t in group.trajectories]
    turns = [turn for t in trajectories for turn in t.turns]
    totals = [[score.total for score in scores] for scores in played.scores]
    seconds = {"train": 30, "publish": 0.4, "sample": 16, "env": 3, "other": 0.5}
    seconds = {f"seconds_{name}": mean * drawn.uniform(0.8, 1.2) for name, mean in seconds.items()}
    worlds = {group.task.env for group in played.groups}
    won = {
        f"success_{env}": _mean([float(t.success) for g in played.groups if g.task.env == env for t in g.trajectories])
        for env in sorted(worlds)
    }
    tokens = float(sum(len(turn.sample.tokens) for turn in turns))
    done = step / size.steps
    return {
        "loss": drawn.gauss(-0.01, 0.01), "trained_tokens": tokens, "computed_tokens": tokens * 0.6,
        "entropy": 0.9 - 0.6 * done + drawn.gauss(0, 0.03), "clip_fraction": abs(drawn.gauss(0.01, 0.004)),
        "kl": abs(drawn.gauss(0.002, 0.001)), "lr": 2e-5 * (1 - 0.8 * done), "grad_norm": abs(drawn.gauss(0.3, 0.08)),
        "version": float(step + 1), "success": _mean([float(t.success) for t in trajectories]),
        "reward": _mean([total for group in totals for total in group]),
        "malformed": _mean([turn.info.get("malformed", 0.0) for turn in turns]),
        "cut_off": _mean([float(turn.sample.stop is Stop.LENGTH) for turn in turns]),
        "lag_mean": _mean([float(step - turn.sample.versions.oldest) for turn in turns]),
        "lag_max": float(min(step, LAG)), "zero_signal": _mean([float(len(set(group)) < 2) for group in totals]), **won,
        "groups": float(len(played.groups)), "episodes": float(len(trajectories)),
        "turns": len(turns) / max(1, len(trajectories)), "sampled_tokens": tokens,
        "errors": float(sum(e.error is not None for g in played.groups for e in g.episodes)),
        "sampler_batch": drawn.uniform(30, 60), "sampler_reuse": drawn.uniform(0.88, 0.97),
        "sampler_prefill_tokens": tokens * 2,
        "sampler_queued_s": drawn.uniform(0, 1), "sampler_evicted_pages": 0.0, "sampler_held": 0.0,
        **seconds, "seconds_step": sum(seconds.values()), "episodes_per_s": len(trajectories) / sum(seconds.values()),
    }  # fmt: skip


def _mean(values: list[float]) -> float:
    return sum(values) / max(1, len(values))


def _piece(drawn: random.Random, pool: np.ndarray, length: int) -> np.ndarray:
    start = drawn.randrange(len(pool) - length)
    return pool[start : start + length]


def _sentences(drawn: random.Random, count: int = 20_000) -> list[str]:
    """Sentences of words that are as unequally frequent as those of a language."""
    words = ["".join(drawn.choices(string.ascii_lowercase, k=drawn.randrange(2, 10))) for _ in range(12_000)]
    words[:12] = ["the", "of", "and", "to", "a", "in", "is", "it", "you", "that", "for", "on"]
    words[40:44] = ["refund", "cheapest", "umbrella", "telescope"]
    shares = list(accumulate(1 / (rank + 3) for rank in range(len(words))))
    return [
        f"{' '.join(drawn.choices(words, cum_weights=shares, k=drawn.randrange(5, 14)))}.".capitalize()
        for _ in range(count)
    ]


def main() -> None:
    options = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    options.add_argument("folder", type=Path)
    for name, default in (("steps", 480), ("groups", 25), ("plays", 8), ("panel", 500), ("turns", 20), ("seed", 0)):
        options.add_argument(f"--{name}", type=int, default=default)
    given = vars(options.parse_args())
    folder, seed = given.pop("folder"), given.pop("seed")
    began = time.perf_counter()
    make(folder, Size(**given), seed)
    held = {path.name: path.stat().st_size for path in folder.glob("episodes.sqlite*")}
    held["tokens"] = sum(path.stat().st_size for path in (folder / "tokens").iterdir())
    with EpisodeStore(folder) as store:
        episodes = sum(count.episodes for count in store.steps())
    sizes = ", ".join(f"{name} {size / 2**20:.1f} MiB" for name, size in held.items())
    print(f"{folder}: {episodes} episodes in {time.perf_counter() - began:.0f} s; {sizes}")


if __name__ == "__main__":
    main()
