"""What the calls of tools are worth, by hand."""

from dataclasses import replace

import pytest
from cases import group, trajectory

from sojourn.rewards.native import Native
from sojourn.rewards.tool_use import ToolUse
from sojourn.types import Message, Role, ToolCall


def line(said, reward=0.0, infos=None):
    """A turn for each text, or for each tuple of structured calls; None is what could not be read."""
    made = trajectory([1] * len(said), infos=infos)
    turns = [replace(turn, message=message(what)) for turn, what in zip(made.turns, said, strict=True)]
    turns[-1:] = [replace(turn, reward=reward) for turn in turns[-1:]]
    return replace(made, turns=tuple(turns))


def message(what):
    if isinstance(what, tuple):
        return Message(Role.ASSISTANT, calls=what)
    return None if what is None else Message(Role.ASSISTANT, what)


def call(name, **arguments):
    return (ToolCall(name, arguments),)


def scored(*scores):
    return [{"tool_score": float(score)} for score in scores] + [{}]


async def only(reward, made):
    [judged] = await reward(group(made))
    return judged


async def test_the_papers_reward_by_hand():
    """Right with tools of 1, 0, 1; right without any; wrong with tools of 1, 1."""
    one = line(["a", "b", "c", "so 4"], 1.0, scored(1, 0, 1))
    judged = await ToolUse()(group(one, line(["think", "so 4"], 1.0), line(["a", "b", "so 5"], 0.0, scored(1, 1))))
    assert [score.total for score in judged] == pytest.approx([4 / 3, 1.0, 0.5])
    assert judged[0].turns.tolist() == pytest.approx([0, 0, 0, 4 / 3])
    assert [score.parts["tool_use"] for score in judged] == pytest.approx([2 / 3, 0, 1])
    assert [score.parts["tool_turns"] for score in judged] == [3, 0, 2]
    assert judged[0].parts["success"] == 1


@pytest.mark.parametrize(
    ("said", "infos", "mean"),
    [
        ([call("look", at=1), call("look", at=2), "so 4"], [{}, {}, {}], 1.0),
        ([call("look", at=1), call("look", at=1), "so 4"], [{}, {}, {}], 0.0),  # made before
        ([call("look", at=1) * 2, call("look", at=3)], [{}, {}], 0.0),  # twice in one turn
        ([call("look", at=1, of=2), call("look", of=2, at=1)], [{}, {}], 0.0),  # in another order
        ([call("look", at=1), call("turn", at=1)], [{}, {}], 1.0),
        ([call("look", at=1), call("look", at=2)], [{"malformed": 1.0}, {}], 0.0),
        ([call("look", at=1), call("look", at=2)], [{}, {"error": 1.0}], 0.0),
        ([call("look", at=1), call("look", at=2)], [{"malformed": 0.0}, {"error": 0.0}], 1.0),
        ([None, call("look", at=2)], [{"malformed": 1.0}, {}], 0.0),  # a call that was not finished
        (["look(1)", "look(2)", "so 4"], [{}, {}, {}], 1.0),
        (["look(1, of='a')", ' look(1,of="a")', "look(2)"], [{}, {}, {}], 1 / 3),
        (["look(1)", "look(1"], [{}, {"malformed": 1.0}], 0.0),
        (["I look(1)", "Paris (1)", "4"], [{}, {}, {}], 0.0),  # no calls
    ],
)
async def test_the_rule_by_hand(said, infos, mean):
    judged = await only(ToolUse(coef=0.3), line(said, 1.0, infos))
    assert judged.parts["tool_use"] == pytest.approx(mean)
    assert judged.total == pytest.approx(1 + 0.3 * mean)


@pytest.mark.filterwarnings("error")
async def test_a_text_of_which_the_parser_warns_is_a_call():
    assert (await only(ToolUse(), line([r"look('\d')"]))).parts["tool_turns"] == 1


async def test_the_penalty_and_what_is_no_tool():
    said = [call("look", at=1), call("look", at=1), call("submit", answer=4)]
    assert (await only(ToolUse(penalty=-0.5), line(said))).parts["tool_use"] == pytest.approx(0.5)
    assert (await only(ToolUse(ignored_tools=("submit",)), line(said))).parts["tool_use"] == 0
    assert (await only(ToolUse(penalise_repeats=False), line(said))).parts["tool_use"] == 1
    alone = await only(ToolUse(ignored_tools=("submit",)), line(said[2:], 1.0))
    assert (alone.total, alone.parts["tool_turns"]) == (1.0, 0.0)


async def test_a_judges_score_goes_before_the_rule():
    said = [call("look", at=1), call("look", at=1), "so 4"]
    judged = await only(
        ToolUse(info_key="seen"), line(said, infos=[{"seen": 0.25}, {"seen": 0.75, "malformed": 1.0}, {}])
    )
    assert judged.parts["tool_use"] == pytest.approx(0.5)


async def test_another_episode_knows_nothing_of_calls():
    one, other = await ToolUse()(group(line([call("look", at=1)]), line([call("look", at=1)])))
    assert one.total == other.total == 0.5


async def test_it_stands_on_another_reward_and_nothing_is_nothing():
    made = line([None, "so 4"], 1.0, [{"malformed": 1.0}, {}])
    judged = await only(ToolUse(base=Native(malformed=-0.25)), made)
    assert judged.turns.tolist() == [-0.25, 0.5]
    assert (await only(ToolUse(), line([]))).turns.tolist() == []
