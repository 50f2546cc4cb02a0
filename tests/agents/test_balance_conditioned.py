"""What an agent is told of the balance between imitation and improvement, and what it notes of it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import pytest
from made import chatml
from made_world import Says

from sojourn.agents.balance_conditioned import BalanceConditioned
from sojourn.backends.torch.models.tiny import build_tokenizer
from sojourn.errors import ActionError
from sojourn.protocols import AgentContext, Seat
from sojourn.types import Ending, Message, Observation, Prompt, Role, Sample, SamplingParams, Stop, Versions


@dataclass
class Notes(Says):
    """In the engine's place: notes its prompts as text."""

    prompts: list[str] = field(default_factory=list)
    unreadable: bool = False

    async def sample(self, prompt: Prompt, params: SamplingParams) -> Sample:
        self.prompts.append(build_tokenizer().decode(prompt.tokens.tolist()))
        if self.unreadable:
            tokens = np.array(build_tokenizer().encode("<tool_call>{"))
            return Sample(tokens, np.zeros(len(tokens), dtype=np.float32), Versions(0, 0), Stop.LENGTH)
        return await super().sample(prompt, params)

    async def close(self) -> None: ...


def sit(agent: BalanceConditioned, seed: int = 0) -> tuple[Seat, Notes]:
    sampler, params = Notes(), SamplingParams(max_tokens=8, seed=seed)
    context = AgentContext(name="agent", renderer=chatml(), sampler=sampler, params=params, max_context=999)
    return agent.seat(context), sampler


def shown(text: str) -> Observation:
    return Observation((Message(Role.USER, text),), system=(Message(Role.SYSTEM, "Play."),))


async def test_the_balance_ends_the_system_message_and_is_noted_with_each_turn() -> None:
    seat, sampler = sit(BalanceConditioned(balance=3.0))
    await seat.act(shown("One."))
    seat.add_reward(0.5, {"success": 1.0})
    await seat.act(Observation((Message(Role.USER, "Two."),)))
    made = seat.finish(Ending.DONE)
    assert "Play. Balance: 3.<|im_end|>" in sampler.prompts[0]
    assert sampler.prompts[1].count("Balance") == 1
    assert [dict(turn.info) for turn in made.turns] == [{"success": 1.0, "balance": 3.0}, {"balance": 3.0}]
    assert made.reward == 0.5


async def test_a_turn_that_cannot_be_read_has_it_too() -> None:
    seat, sampler = sit(BalanceConditioned(balance=3.0))
    sampler.unreadable = True
    with pytest.raises(ActionError):
        await seat.act(shown("One."))
    [turn] = seat.finish(Ending.MALFORMED).turns
    assert turn.info["balance"] == 3.0


async def test_each_episode_draws_one_of_them_by_its_seed() -> None:
    agent = BalanceConditioned(balances=(0.0, 2.5))
    drawn: list[str] = []
    for seed in range(200):
        for _ in range(2):
            seat, sampler = sit(agent, seed)
            await seat.act(shown("One."))
            drawn.append(sampler.prompts[0].partition("Balance: ")[2].partition(".<")[0])
    assert drawn[::2] == drawn[1::2]
    assert set(drawn) == {"0", "2.5"}
    assert 70 < Counter(drawn[::2])["0"] < 130


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="base is balance_conditioned, too"):
        BalanceConditioned(base=BalanceConditioned())
    with pytest.raises(ValueError, match="name at least one number"):
        BalanceConditioned(balances=())
