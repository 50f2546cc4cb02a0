"""An agent that may ask a stronger model: what is trained, performed, paid, told, recorded and refused."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import trained_run
from judge_server import reply
from made import chatml
from test_return_conditioned import Notes, shown
from typer.testing import CliRunner

from sojourn.agents.plain import Plain
from sojourn.agents.self_verifying import SelfVerifying
from sojourn.agents.when_to_ask import WhenToAsk, WhenToAskSeat
from sojourn.cli import app
from sojourn.config import toml
from sojourn.config.registry import build
from sojourn.errors import ActionError, ConfigError
from sojourn.models.asking import Answer, AskedModels, TooLongError
from sojourn.protocols import AgentContext
from sojourn.record import metrics
from sojourn.record.episodes.step_file import Record
from sojourn.record.episodes.store import EpisodeStore
from sojourn.train.resolve import resolve
from sojourn.types import Ending, Message, Role, SamplingParams, Tool
from tests.envs.loopback import Raw, answered


@dataclass
class Sage:
    """Knows what to do, and notes what it was asked."""

    asked: list[list[tuple[str, str]]] = field(default_factory=list)
    seeds: list[int] = field(default_factory=list)

    async def ask(self, messages, *, max_tokens, temperature, seed, asker=""):
        self.asked.append([(message.role.value, message.text) for message in messages])
        self.seeds.append(seed)
        return Answer("<think>Hm.</think> go north", 30, 2, 0.0, False, 0.5)


def sit(said: str = "ask", **config: Any) -> tuple[WhenToAskSeat, Notes, Sage, AskedModels]:
    sampler, sage = Notes(), Sage()
    sampler.text = said
    models = AskedModels({"sage": sage})
    context = AgentContext(
        name="agent", renderer=chatml(), sampler=sampler, params=SamplingParams(8, seed=3), max_context=999,
        models=models.of_episode("rl/0/0/0-x"),
    )  # fmt: skip
    return WhenToAsk(model="sage", **config).seat(context), sampler, sage, models


async def test_a_refused_answer_is_one_turn_for_an_agent_that_counts_them():
    seat, sampler, _, _ = sit(base=SelfVerifying())
    first = shown("A door.", "Play.")
    await seat.act(first)
    await seat.act(seat.refuse(ActionError("no such way"), first))
    await seat.act(shown("A hall."))
    assert "[turn 2] The stronger model did: go north" in sampler.prompts[1]
    assert "[turn 3] The stronger model did: go north" in sampler.prompts[2]


async def test_what_it_asks_for_is_performed_and_what_it_sampled_is_kept():
    seat, sampler, sage, models = sit(cost=0.25)
    acted = await seat.act(shown("A door.", "Play."))
    seat.add_reward(1.0, {})
    assert (acted.text, acted.thought) == ("go north", "Hm.")
    await seat.act(shown("A hall."))
    first, second = seat.finish(Ending.DONE).turns
    assert [first.message.text, second.message.text] == ["ask", "ask"]
    assert [(turn.reward, turn.info["asked"]) for turn in (first, second)] == [(0.75, 1.0), (-0.25, 1.0)]
    assert (
        'Play. Say "ask" to have a stronger model choose your next action. Each time costs 0.25.' in sampler.prompts[0]
    )
    assert "The stronger model did: go north" in sampler.prompts[1]
    assert sampler.prompts[1].count("The stronger model did") == 1
    assert sage.asked[1] == [("system", "Play."), ("user", "A door."), ("assistant", "go north"), ("user", "A hall.")]
    assert len(set(sage.seeds)) == 2
    [recorded] = models.take(["rl/0/0/0-x"]).values()
    assert [(one.purpose, len(one.question)) for one in recorded] == [
        ("agent, question 1", 2),
        ("agent, question 2", 1),
    ]
    assert models.metrics()["asked_cost"] == 1.0


async def test_asking_is_refused_where_the_conversation_is_too_long_for_the_model():
    """It is the policy's doing, and its episode is trained on."""
    seat, sampler, sage, _ = sit(cost=0.25)

    async def unread(messages, **params):
        raise TooLongError("the model 'sage' cannot be asked")

    sage.ask = unread
    observation = shown("A door.", "Play.")
    with pytest.raises(ActionError, match="too long for the stronger model") as refused:
        await seat.act(observation)
    observation = seat.refuse(refused.value, observation)
    sampler.text = "look"
    assert (await seat.act(observation)).text == "look"
    assert "too long for the stronger model" in sampler.prompts[1]
    assert [turn.reward for turn in seat.finish(Ending.DONE).turns] == [0.0, 0.0]


async def test_what_it_does_itself_costs_nothing_and_is_part_of_the_conversation():
    seat, sampler, sage, _ = sit("look")
    assert (await seat.act(shown("A door.", "Play."))).text == "look"
    sampler.text = " ask "
    await seat.act(shown("A hall."))
    assert [message for message in sage.asked[0] if message[0] == "assistant"] == [("assistant", "look")]
    assert seat.finish(Ending.DONE).turns[0].reward == 0.0
    sampler.text = "look"
    for place in ("A lake.", "A hill."):
        await seat.act(shown(place))
    assert sampler.prompts[-1].count("The stronger model did") == 1  # where it was told


async def test_the_word_is_one_of_the_choices():
    seat, sampler, _, _ = sit(base=Plain(choices=True))
    observation = replace(shown("A door.", "Play."), choices=("look", "go north"))
    await seat.act(observation)
    assert [chatml().parse(choice).text for choice in sampler.asked[0].choices] == ["look", "go north", "ask"]
    other, *_ = sit(word="look", base=Plain(choices=True))
    with pytest.raises(ConfigError, match="'look' is an action of the world"):
        await other.act(observation)


async def test_a_refused_action_of_the_model_is_told():
    seat, sampler, sage, _ = sit()
    await seat.act(shown("A door.", "Play."))
    refused = seat.refuse(ActionError("there is a wall"), shown("A door."))
    assert [m.text for m in refused.messages] == ["The stronger model did: go north", "there is a wall"]
    await seat.act(refused)
    assert "The stronger model did" not in "".join(sampler.prompts[1].partition("there is a wall")[2])
    assert sage.asked[1][-1] == ("user", "The stronger model did: go north\nthere is a wall")


async def test_a_fork_goes_on_by_itself():
    seat, sampler, sage, _ = sit("look")
    await seat.act(shown("A door.", "Play."))
    fork = seat.fork()
    sampler.text = "ask"
    await seat.act(shown("A hall."))
    await fork.act(shown("A lake."))
    assert [asked[-1] for asked in sage.asked] == [("user", "A hall."), ("user", "A lake.")]
    assert [len(asked) for asked in sage.asked] == [4, 4]


async def test_worlds_that_are_not_in_text_are_refused():
    seat, *_ = sit()
    picture = replace(shown("A door."), messages=(Message(Role.USER, "A door.", images=("d1",)),))
    with pytest.raises(ConfigError, match="'sage' is asked in text"):
        await seat.act(picture)
    with pytest.raises(ConfigError, match="declares its tool 'open_door' as a schema alone"):
        await seat.act(replace(shown("A door."), tools=(Tool("open_door", "", {}),)))


RECIPE = """
name = "asks"
model = { name = "tiny:layers=1,hidden=64", dtype = "fp32" }
backend = { name = "torch", threads = 1 }
env = { name = "toy", rooms = 2, choices = true }
agent = { name = "when_to_ask", model = "sage", cost = 0.1, base = { name = "plain", choices = true } }
evaluation = { tasks = 2 }
sampling = { max_tokens = 8 }
rollout = { limits = { turns = 4 } }
record = { checkpoint_every = 1 }
[[stages]]
name = "rl"
steps = 2
groups = { name = "slots", width = 2, size = 4 }
losses = [{ name = "ppo" }]
"""
SERVED = '[models.sage.endpoint]\nbase_url = "{url}"\nmodel = "big"\nsampled_price = 1.0'
HERE = '[models.sage]\nname = "tiny:layers=2,hidden=64"\ndtype = "fp32"'


def wise(path: str, body: dict[str, Any]) -> Raw:
    return reply(("open", "go")[len(json.dumps(body["messages"])) % 2])


def episodes(path: Path) -> list[Record]:
    with EpisodeStore(path) as store:
        return [store.read(row) for row in store.query(stage="rl")]


@pytest.mark.parametrize("served", [True, False])
def test_a_run_learns_when_to_ask_and_is_replayed(tmp_path, served):
    with answered(wise) as (url, asked):
        models = SERVED.format(url=url) if served else HERE
        path = trained_run.train(tmp_path / "run", recipe=f"{RECIPE}\n{models}")
    turns = [turn for one in episodes(path) for turn in one.episode.trajectories[0].turns]
    count = sum(turn.info.get("asked", 0.0) for turn in turns)
    assert 0 < count < len(turns)
    assert sum(len(one.asked) for one in episodes(path)) == count
    assert sum(line.values.get("asked", 0.0) for line in metrics.read(path / "metrics.jsonl")) == count
    assert bool(asked) == served
    for one in episodes(path):
        costs = 0.1 * sum(turn.info.get("asked", 0.0) for turn in one.episode.trajectories[0].turns)
        assert one.scores[0].total <= 1.0 - costs + 1e-6
    done = CliRunner().invoke(app, ["replay", str(path), "--all"])
    assert done.exit_code == 0, done.output
    assert "gave the same observations and rewards" in done.output


REFUSED = {
    "agent: it asks the model 'sage', but there are policy": ("", []),
    "agent: it asks the model 'policy', which learns": (HERE, ["agent.model=policy"]),
    "is a pool of snapshots": ("[models.sage.snapshots]\nevery = 1", []),
    "agent: WhenToAsk asks a model in the course of a play, but Searched tries actions": (
        HERE, ["stages.0.groups={name='searched', agent={name='mcts'}, width=2, size=2}"]
    ),
    "but Hindsight plays with samples of its own": (
        HERE, ["stages.0.groups={name='mixed', parts=[{name='slots', width=2, size=4}, {name='hindsight', width=1}]}",
            "stages.0.estimator={name='reinforce'}"]
    ),
    "but Guidance plays with samples of its own": (
        HERE, ["stages.0.groups={name='guidance', hidden=true, base={name='slots', width=2, size=4}}"]
    ),
}  # fmt: skip


@pytest.mark.parametrize("words", REFUSED)
def test_what_cannot_be_asked_is_refused_at_the_start(tmp_path, words):
    models, overrides = REFUSED[words]
    (tmp_path / "recipe.toml").write_text(f"{RECIPE}\n{models}")
    with pytest.raises(ConfigError) as caught:
        resolve(toml.read(tmp_path / "recipe.toml", overrides))
    assert words in str(caught.value)


def test_agents_that_search_or_ask_are_no_base():
    for base in ({"name": "mcts"}, {"name": "when_to_ask", "model": "sage"}):
        with pytest.raises(ConfigError, match="base"):
            build("agent", {"name": "when_to_ask", "model": "sage", "base": base})
