"""What an agent is told of the return that it is to get, and when."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from made import chatml
from made_world import Says

from sojourn.agents.plain import Plain
from sojourn.agents.return_conditioned import ReturnConditioned
from sojourn.backends.torch.models.tiny import build_tokenizer
from sojourn.errors import ActionError, ConfigError
from sojourn.protocols import Agent, AgentContext, Seat
from sojourn.types import Ending, Message, Observation, Prompt, Role, Sample, SamplingParams


@dataclass
class Notes(Says):
    """In the engine's place: notes its prompts as text."""

    prompts: list[str] = field(default_factory=list)

    async def sample(self, prompt: Prompt, params: SamplingParams) -> Sample:
        self.prompts.append(build_tokenizer().decode(prompt.tokens.tolist()))
        return await super().sample(prompt, params)

    async def close(self) -> None: ...


def shown(text: str, system: str = "") -> Observation:
    messages = (Message(Role.SYSTEM, system),) if system else ()
    return Observation((Message(Role.USER, text),), system=messages)


def sit(agent: Agent) -> tuple[Seat, Notes]:
    sampler, params = Notes(), SamplingParams(max_tokens=8)
    context = AgentContext(name="agent", renderer=chatml(), sampler=sampler, params=params, max_context=999)
    return agent.seat(context), sampler


async def prompts(agent: ReturnConditioned, *rewards: float) -> list[str]:
    """What the model is shown in turns that get these rewards."""
    seat, sampler = sit(agent)
    for turn, reward in enumerate(rewards):
        await seat.act(shown(f"Turn {turn}.", "Play." if turn == 0 else ""))
        seat.add_reward(reward, {})
    return sampler.prompts


async def test_the_target_is_in_every_context():
    """It ends the system message, which stays where a context is a page."""
    whole = await prompts(ReturnConditioned(target=0.7), 0.5, 0.25)
    assert "Play. Return: 0.7.<|im_end|>" in whole[0]
    assert whole[1].count("Return") == 1
    pages = await prompts(ReturnConditioned(target=2.0, base=Plain(history="page")), 0.5, 0.25)
    assert ["Play. Return: 2.<|im_end|>" in page for page in pages] == [True, True]
    assert "Turn 0" not in pages[1]


async def test_the_return_to_go_falls_by_what_was_got():
    *_, last = await prompts(ReturnConditioned(target=1.0, to_go=True, decimals=2), 0.5, 0.25, 0.0)
    said = [part.partition("<|im_end|>")[0] for part in last.split("Turn ")[1:]]
    assert said == ["0. Return: 1.", "1. Return: 0.5.", "2. Return: 0.25."]
    assert "Play.<|im_end|>" in last


@pytest.mark.parametrize(
    ("value", "decimals", "text"), [(1 / 3, 1, "0.3"), (1 / 3, 3, "0.333"), (2, 0, "2"), (-0.01, 1, "0"), (-1, 2, "-1")]
)
def test_returns_are_rounded(value: float, decimals: int, text: str):
    assert ReturnConditioned(decimals=decimals).text(value) == f"Return: {text}."


async def test_a_world_without_a_system_message_gets_one_and_changed_ones_are_told_again():
    seat, sampler = sit(ReturnConditioned())
    await seat.act(shown("One."))
    await seat.act(shown("Two.", "Now play otherwise."))
    assert sampler.prompts[0].startswith("<|im_start|>system\nReturn: 1.<|im_end|>")
    assert "Now play otherwise. Return: 1.<|im_end|>" in sampler.prompts[1]


@pytest.mark.parametrize("history", ["full", "page"])
async def test_a_refusal_says_only_why(history):
    """What was shown is shown again only where it has left the context."""
    seat, sampler = sit(ReturnConditioned(to_go=True, base=Plain(history=history)))
    world = shown("One.", "Play.")
    await seat.act(world)
    for _ in range(2):
        await seat.act(seat.refuse(ActionError("No such way."), world))
    last = sampler.prompts[-1]
    assert last.count("No such way.") == (2 if history == "full" else 1)
    assert last.count("One. Return: 1.") == last.count("One.") == last.count("Return") == 1


async def test_a_fork_goes_on_with_what_is_still_to_come():
    seat, sampler = sit(ReturnConditioned(to_go=True))
    await seat.act(shown("One."))
    fork = seat.fork()  # type: ignore[attr-defined]
    seat.add_reward(1.0, {})
    fork.add_reward(0.5, {})
    await fork.act(shown("Two."))
    await seat.act(shown("Two."))
    assert "Two. Return: 0.5." in sampler.prompts[1]
    assert "Two. Return: 0." in sampler.prompts[2]
    assert [len(one.finish(Ending.DONE).turns) for one in (seat, fork)] == [2, 2]


def test_what_cannot_be_is_refused():
    with pytest.raises(ValueError, match="base is return_conditioned, too"):
        ReturnConditioned(base=ReturnConditioned())

    class Still:
        """An agent whose seats cannot be copied."""

        def seat(self, context: AgentContext) -> object:
            return object()

    seat, _ = sit(replace(ReturnConditioned(), base=Still()))
    with pytest.raises(ConfigError, match=r"the seats of Still have no fork\(\)"):
        seat.fork()  # type: ignore[attr-defined]
