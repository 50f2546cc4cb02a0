"""What came after each reply of a gateway's session, and where a hint to it stands."""

from __future__ import annotations

from gateway_sessions import LOOK, asked, renderer, replies, said, session, user

from sojourn.rewards.following import next_states, predecessors
from sojourn.streams.hindsight_hint import LABEL, with_hint
from sojourn.types import Ending


async def test_a_session_with_a_title_and_other_tools_is_followed_turn_by_turn():
    one, _ = session(replies(said("window"), said("A title"), said("door"), said("look"), said("end")))
    talk = [user("Hi")]
    await one.reply(asked(*talk))
    await one.reply(asked(user("Give it a title.")))
    talk += [said("window"), user("No, wrong.")]
    await one.reply(asked(*talk))
    talk += [said("door "), user("Thanks.")]
    await one.reply(asked(*talk, tools=[LOOK]))
    talk += [said("look"), user("And then?")]
    await one.reply(asked(*talk, tools=[LOOK]))
    made = one.trajectory(Ending.DONE)
    assert [turn.parent for turn in made.turns] == [-1, -1, 0, -1, 3]
    assert predecessors(made) == [-1, -1, 0, 2, 3]
    assert [[m.text for m in messages] for messages in next_states(made)] == [
        ["No, wrong."], [], ["Thanks."], ["And then?"], [],
    ]  # fmt: skip
    format, spoken = renderer(), ["Hi", "Give it a title.", "No, wrong.", "Thanks.", "And then?"]
    for number, last in enumerate(spoken):
        told = format.decode(with_hint(made, number, f"{LABEL}Look.", format).context.tolist())
        assert told.replace(f"{LABEL}Look.", "") == format.decode(made.prompt(number).tolist())
        assert f"{last}{LABEL}Look.<|im_end|>" in told
