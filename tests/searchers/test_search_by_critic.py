"""Searches that value positions by the critic, which is asked while plays go on."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from made import chatml as renderer
from made import trajectory
from search_worlds import TASK, Draws, Family, Game, runner

from sojourn.agents.plain import Plain
from sojourn.backends.torch.backend import Torch
from sojourn.config.registry import build
from sojourn.errors import ConfigError
from sojourn.models.spec import Critic, Model
from sojourn.render.auto import Auto
from sojourn.search_cost import spent_tokens
from sojourn.searchers.beam import Beam
from sojourn.searchers.best_first import BestFirst
from sojourn.searchers.look_ahead import LookAhead
from sojourn.searchers.mcts import MCTS
from sojourn.searchers.thought_graph import ThoughtGraph
from sojourn.streams.asked_critic import AskedCritic
from sojourn.types import Episode, Prompt, SamplingParams, Trajectory

SECRET = "120"
SEARCHERS = {
    "look_ahead": LookAhead(width=8, turns=1, critic=1),
    "beam": Beam(width=8, beams=1, rollouts=0, critic=1),
    "best_first": BestFirst(width=8, expansions=3, rollouts=0, critic=1),
    "mcts": MCTS(width=8, simulations=10, rollouts=0, critic=1),
    "thought_graph": ThoughtGraph(width=8, rollouts=0, critic=1),
}


@dataclass
class Knows:
    """A critic that knows the secret: a play is worth as many quarters as it has right digits, if all are right."""

    asked: list[str] = field(default_factory=list[str])

    async def value(self, prompt: Prompt) -> float:
        shown = renderer().codec.decode(prompt.tokens.tolist())
        said = shown.rpartition("said ")[2].partition("<")[0].strip().replace("nothing", "")
        self.asked.append(said)
        return len(said) / 4 if SECRET.startswith(said) else 0.0

    async def values(self, trajectory: Trajectory) -> list[float]:
        raise NotImplementedError


def played(agent: Any, critic: Any, seed: int = 0, family: Any = None) -> Episode:
    one = runner(family or Family(secret=SECRET), agent)
    one.critic = critic
    return asyncio.run(one.play_episode(TASK, SamplingParams(8, seed=seed), f"play/{seed}"))


@pytest.mark.parametrize("name", SEARCHERS)
def test_a_search_wins_by_what_the_critic_expects_without_a_play_to_the_end(name: str) -> None:
    knows = Knows()
    won = sum(played(SEARCHERS[name], knows, seed).trajectories[0].success for seed in range(12))
    assert won > 7
    assert knows.asked
    assert "" not in knows.asked, "only what an action led to is valued"
    blind = type(SEARCHERS[name])(**{**vars(SEARCHERS[name]), "critic": 0})
    assert won - sum(played(blind, None, seed).trajectories[0].success for seed in range(12)) > 3


def test_the_critic_is_asked_for_the_prompt_after_which_the_seat_would_act() -> None:
    """At position 1 of the play, the prompt is that of its second turn."""

    class Prompts(Knows):
        async def value(self, prompt: Prompt) -> float:
            prompts.append(prompt.tokens.tobytes())
            return await super().value(prompt)

    prompts: list[bytes] = []
    sampler = Draws()
    one = runner(Family(secret=SECRET), SEARCHERS["look_ahead"], sampler)
    one.critic = Prompts()
    episode = asyncio.run(one.play_episode(TASK, SamplingParams(8), "play/0"))
    [played_one] = episode.trajectories
    assert {played_one.prompt(1).tobytes(), played_one.prompt(2).tobytes()} <= set(prompts)
    assert spent_tokens(played_one.turns) == sampler.tokens, "what asks the critic samples nothing"


@pytest.mark.parametrize(("weight", "expected"), [(0.0, 0.0), (0.25, 0.125), (1.0, 0.5)])
async def test_the_critic_has_its_weight_beside_plays_to_the_end(weight: float, expected: float) -> None:
    """All plays to the end lose, and the critic expects 0.5 after two right digits."""
    one = runner(Family(secret=SECRET), MCTS(), Draws(("1", "2", "9")))
    one.critic = Knows()
    found: list[float] = []

    class Reads(MCTS):
        async def search(self, ahead: Any) -> Any:
            if not found:
                for digit in "12":
                    position = await ahead.play_on(found_at[-1] if found_at else ahead.root, 1, digit)
                    found_at.append(position)
                valued = await ahead.valued(found_at[-1], 0 if weight == 1 else 2, weight)
                found.append(valued.worths["agent"])
            return ()

    found_at: list[Any] = []
    one.agent = Reads(base=Plain())
    await one.play_episode(TASK, SamplingParams(8), "play/0")
    assert found == [pytest.approx(expected)]


async def test_what_was_earned_on_the_way_counts_with_what_is_expected() -> None:
    one = runner(Family(secret=SECRET, hint=0.2), MCTS(), Draws(("1",)))
    one.critic = Knows()
    found: list[float] = []

    class Reads(MCTS):
        async def search(self, ahead: Any) -> Any:
            found.append(await ahead.expected(await ahead.play_on(ahead.root, 1, "1")) if not found else 0.0)
            return ()

    one.agent = Reads()
    await one.play_episode(TASK, SamplingParams(8), "play/0")
    assert found[0] == pytest.approx(0.2 + 0.25)


@pytest.mark.parametrize(
    ("name", "keys", "sentence"),
    [
        ("mcts", {"critic": 1}, "critic = 1 with rollouts = 1: expected rollouts of 0, as nothing is played"),
        ("mcts", {"critic": 0.5, "rollouts": 0}, "expected rollouts of 1 or more, or critic = 1"),
        ("mcts", {"critic": 1.5}, "critic"),
        ("beam", {"critic": 0.5, "by": "likelihood"}, 'expected by = "reward"'),
        ("best_first", {"critic": 0.5, "by": "likelihood"}, 'expected by = "reward"'),
        ("look_ahead", {"critic": 1}, "expected turns of at least 1"),
        ("look_ahead", {"critic": 0.5, "turns": 1}, "expected 1, for plays that are not over, or 0"),
    ],
)
def test_keys_that_do_not_go_together_are_refused(name: str, keys: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        build("agent", {"name": name, **keys}, "agent")


def test_a_game_of_two_seats_is_not_searched_by_a_critic() -> None:
    one = runner(Game(), MCTS(rollouts=0, critic=1), Draws(tuple("012345678")))
    one.critic = Knows()
    with pytest.raises(ConfigError, match="several seats"):
        asyncio.run(one.play_episode(Game().tasks("train")[0], SamplingParams(8), "play/0"))


def opened() -> Any:
    backend = Torch(threads=1, max_context=1024)
    model = Model(name="tiny:layers=1,hidden=64", dtype="fp32")
    return backend.open(model, Auto(), 3, None, Critic())


async def test_the_critic_of_a_trainer_says_the_same_alone_and_beside_others() -> None:
    """The values before a turn's first token, as the stream `values` has them; a prompt alone has the same one."""
    trainer = opened().trainer
    try:
        rng = np.random.default_rng(0)
        for parameter in trainer.critic.head.parameters():
            parameter.data += 0.1 * rng.standard_normal(tuple(parameter.shape)).astype(np.float32)
        asked = AskedCritic(trainer)
        one = trajectory(rng, turns=3, vocabulary=200)
        values = await asked.values(one)
        assert len(set(values)) == 3
        prompts = [Prompt(one.prompt(number)) for number in range(3)]
        together = await asyncio.gather(*(asked.value(prompt) for prompt in prompts))
        np.testing.assert_allclose(together, values, atol=1e-5)
        alone = [await asked.value(prompt) for prompt in prompts]
        assert alone == together, "to the last bit"
    finally:
        trainer.close()
