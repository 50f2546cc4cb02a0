"""An agent that names the evidence by which it is judged: what it is shown, and what the world gets of its words."""

from __future__ import annotations

import pytest
from test_return_conditioned import shown, sit

from sojourn.abilities import ForkableSeat
from sojourn.agents.plain import Plain
from sojourn.agents.self_verifying import SelfVerifying, without_evidence
from sojourn.errors import ActionError
from sojourn.rewards.transcripts import chosen
from sojourn.types import Ending


async def test_observations_are_numbered_and_the_rule_is_told_once():
    seat, sampler = sit(SelfVerifying(evidence=2))
    await seat.act(shown("One.", "Play."))
    await seat.act(shown("Two."))
    assert sampler.prompts[1].count("[turn 1] One.") == sampler.prompts[1].count("[turn 2] Two.") == 1
    assert [prompt.count("the numbers of the 2 turns, or fewer") for prompt in sampler.prompts] == [1, 1]


@pytest.mark.parametrize(
    ("said", "done", "turns"),
    [
        ("take it\nevidence: 2, 1", "take it", (1, 0)),
        ("Done. Evidences: turns 1.", "Done.", (0,)),
        ("read the evidence", "read the evidence", ()),
        ("evidence: 1 is here", "evidence: 1 is here", (0,)),
    ],
)
async def test_the_world_gets_the_action_alone_and_what_was_sampled_is_kept(said, done, turns):
    seat, sampler = sit(SelfVerifying())
    sampler.text = said
    await seat.act(shown("One.", "Play."))
    assert (await seat.act(shown("Two."))).text == done
    trajectory = seat.finish(Ending.DONE)
    message = trajectory.turns[-1].message
    assert message is not None
    assert message.text == said
    assert chosen(trajectory).turns == turns


async def test_a_refused_action_takes_a_number_too():
    """As the judge counts the turns of the trajectory."""
    seat, sampler = sit(SelfVerifying())
    first = shown("One.", "Play.")
    await seat.act(first)
    again = seat.refuse(ActionError("no such way"), first)
    await seat.act(again)
    await seat.act(shown("Three."))
    assert sampler.prompts[2].count("[turn 2]") == sampler.prompts[2].count("[turn 3] Three.") == 1
    assert [
        turn.observed[-1].text.startswith(f"[turn {n}]") for n, turn in enumerate(seat.finish(Ending.DONE).turns, 1)
    ]


async def test_a_copy_counts_on_by_itself():
    seat, sampler = sit(SelfVerifying())
    await seat.act(shown("One.", "Play."))
    assert isinstance(seat, ForkableSeat)
    fork = seat.fork()
    await fork.act(shown("Two."))
    await seat.act(shown("Two."))
    assert all("[turn 2] Two." in prompt for prompt in sampler.prompts[1:])


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("Done. \n\nEvidence: turns 2, 5. \n", "Done."),
        ("evidence: 3", ""),
        ("The evidence 4 is here", "The evidence 4 is here"),
        ("No evidences ", "No evidences "),
        (" " * 200_000 + "x", " " * 200_000 + "x"),  # in no time
        ("evidence: 1" + " " * 200_000 + "x", "evidence: 1" + " " * 200_000 + "x"),
    ],
    ids=range(6),
)
def test_the_line_of_evidence_is_taken_off(text, left):
    assert without_evidence(text) == left


def test_an_agent_that_only_chooses_is_refused():
    with pytest.raises(ValueError, match="base with choices"):
        SelfVerifying(base=Plain(choices=True))
