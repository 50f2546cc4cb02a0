"""The turns of players that act in text are turns of their own, also where plays fork."""

from sojourn.agents.text_seat import TextReply, TextSeat
from sojourn.branching.budget import mean_spent
from sojourn.types import Branch, Ending, Episode, Group, Message, Observation, Role, Task

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
