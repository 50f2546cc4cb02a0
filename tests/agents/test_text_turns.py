"""The turns of players that act in text are turns of their own, also where plays fork."""

from dataclasses import dataclass

from delegated import Says
from made import chatml

from sojourn.agents.conversation import AskedSeat
from sojourn.agents.text_seat import TextReply, TextSeat
from sojourn.branching.budget import mean_spent
from sojourn.models.asking import Answer, AskedModels, TooLongError
from sojourn.protocols import AgentContext
from sojourn.rollout.limits import Limits
from sojourn.rollout.play import play
from sojourn.timeline import Timeline
from sojourn.types import Branch, Ending, Episode, Group, Message, Observation, Role, SamplingParams, Step, Task

TASK = Task("talk", {}, 0, "train")
SHOWN = Observation((Message(Role.USER, "Well?"),))


class Talks:
    async def reply(self, observation: Observation) -> TextReply:
        return TextReply(Message(Role.ASSISTANT, "Yes."))


async def played(turns: int) -> TextSeat:
    seat = TextSeat("agent", Talks())
    for _ in range(turns):
        await seat.act(SHOWN)
    return seat


@dataclass
class ReadsLittle:
    """A model that reads so many messages, and no more."""

    most: int

    async def ask(self, messages, *, max_tokens, temperature, seed, asker=""):
        if len(messages) > self.most:
            raise TooLongError("the server says that the messages exceed the model's context")
        return Answer("on", 1, 1)


class Endless:
    async def start(self):
        return SHOWN

    async def step(self, agent, action):
        return Step(SHOWN, {agent: 0.25})


async def test_a_play_that_is_too_long_for_a_model_behind_an_endpoint_is_cut_off_and_has_not_failed():
    models = AskedModels({"served": ReadsLittle(4)})
    context = AgentContext(
        name="agent", renderer=chatml(), sampler=Says([]), params=SamplingParams(8, model="served"), max_context=999,
        models=models.of_episode("e"),
    )  # fmt: skip
    seats = {"agent": AskedSeat.of(context)}
    [trajectory] = await play(Endless(), seats, Limits(turns=20), Timeline())
    assert (trajectory.ending, len(trajectory.turns), trajectory.reward) == (Ending.TOKENS, 2, 0.5)


async def test_a_tree_counts_each_of_them_once():
    root, branch = await played(3), await played(2)
    branch.turns[0] = root.turns[0]  # which both share
    episodes = (
        Episode("root", TASK, (root.finish(Ending.DONE),)),
        Episode("branch", TASK, (branch.finish(Ending.DONE),), branch=Branch("root", (1,))),
    )
    group = Group(0, TASK, episodes)
    assert mean_spent(group).turns == 4
    assert group.holders == ((0, 0, 0), (0, 1))
