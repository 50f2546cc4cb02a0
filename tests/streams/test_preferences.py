"""What streams for losses of preferences say of trajectories and turns, by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
from made import group, sample

from sojourn.backends.torch.models import loading
from sojourn.backends.torch.trainer.model_passes import ModelPasses
from sojourn.backends.torch.trainer.trainer import TorchTrainer
from sojourn.batch.flatten import flatten
from sojourn.errors import ConfigError
from sojourn.losses.nll import NLL
from sojourn.optim import Optim
from sojourn.streams.desirable import Desirable
from sojourn.streams.group_softmax import GroupSoftmax
from sojourn.streams.pairs import Pairs
from sojourn.streams.reference_kl import ReferenceKL, mismatched
from sojourn.streams.trainer_passes import TrainerPasses
from sojourn.streams.turn_pairs import TurnPairs
from sojourn.types import Ending, Message, Role, Score, ToolCall, Trajectory, Turn


def spoken(*turns: tuple[list[int], list[int], str], agent: str = "agent", won: float | None = None) -> Trajectory:
    """A line of turns, each given by its new context, its sampled tokens, and the world's state before it."""
    made = [
        Turn(number - 1, np.array(context), sample(tokens), None, state=state)
        for number, (context, tokens, state) in enumerate(turns)
    ]
    if won is not None:
        made[-1] = Turn(len(turns) - 2, made[-1].context, made[-1].sample, None, info={"success": won})
    return Trajectory(agent, tuple(made), Ending.DONE)


def rewards(*turns: float) -> Score:
    return Score(np.array(turns, dtype=np.float32))


async def read(stream: Any, groups: Any, scores: Any) -> list[list[list[float]]]:
    found = await stream(TrainerPasses(groups, scores, cast(Any, None)))
    return [[[float(turn[0]) for turn in turns] for turns in some] for some in found]


# Three plays of one task. All begin with the prompt 1, 2; two answer 5 to it, and one 6. After 5 the world says 3 to
# both, and they answer 7 and 8.
FIVE_SEVEN = spoken(([1, 2], [5], "start"), ([3], [7], "there"))
FIVE_EIGHT = spoken(([1, 2], [5], "start"), ([3], [8, 8], "there"))
SIX = spoken(([1, 2], [6], "start"), ([4], [9], "there"))


async def test_answers_to_the_same_prompt_are_paired_by_their_mean_return():
    groups = [group([FIVE_SEVEN, FIVE_EIGHT, SIX])]
    scores = [[rewards(0, 1), rewards(0, 0), rewards(0, 0.25)]]
    # 5 is worth the mean of 1 and 0, which is above 0.25; 7 is worth 1, and 8 is worth 0; nobody else was asked what 9
    # answers
    assert await read(TurnPairs(), groups, scores) == [[[1, 2], [0, -2], [-1, 0]]]
    assert await read(TurnPairs(margin=0.5), groups, scores) == [[[0, 1], [0, -1], [0, 0]]]
    # discounted by one half, 5 is worth 0.25, and 6 an eighth
    assert await read(TurnPairs(gamma=0.5, margin=0.12), groups, scores) == [[[1, 2], [0, -2], [-1, 0]]]
    assert await read(TurnPairs(gamma=0.5, margin=0.13), groups, scores) == [[[0, 1], [0, -1], [0, 0]]]


async def test_answers_that_are_worth_the_same_but_for_rounding_are_in_no_pair():
    """A tenth seven times is a bit more than 0.7 in 32 bits, which is no preference to learn from."""
    long = spoken(([1, 2], [5], "start"), *[([3], [7], "there")] * 6)
    scores = [rewards(*[0.1] * 7), rewards(0.7, 0)]
    assert scores[0].total != scores[1].total
    assert TurnPairs().pairs(group([long, SIX]), scores) == []


async def test_answers_in_the_same_state_of_the_world_are_paired_whatever_was_said_before():
    groups = [group([FIVE_SEVEN, FIVE_EIGHT, SIX])]
    scores = [[rewards(0, 1), rewards(0, 0), rewards(0, 0.25)]]
    # 7, 8 and 9 are answers in the state "there"; the best is paired with the worst, and 9 with nobody
    assert await read(TurnPairs(state="key"), groups, scores) == [[[1, 2], [0, -2], [-1, 0]]]
    scores = [[rewards(0, 0.25), rewards(0, 0), rewards(0, 1)]]
    assert await read(TurnPairs(state="key"), groups, scores) == [[[-1, 0], [0, -2], [1, 2]]]


async def test_states_of_other_groups_and_seats_are_others():
    other = spoken(([1, 2], [6], "start"), agent="other")
    groups = [group([FIVE_SEVEN, other]), group([SIX], 1)]
    scores = [[rewards(0, 1), rewards(0)], [rewards(0, 0)]]
    assert await read(TurnPairs(), groups, scores) == [[[0, 0], [0]], [[0, 0]]]
    assert await read(TurnPairs(state="key"), groups, scores) == [[[0, 0], [0]], [[0, 0]]]


async def test_the_pairs_of_a_state_are_bounded():
    plays = [spoken(([1], [number], "start")) for number in range(5)]
    scores = [[rewards(number) for number in range(5)]]
    assert await read(TurnPairs(), [group(plays)], scores) == [[[-1], [-2], [0], [2], [1]]]
    assert await read(TurnPairs(max_pairs=1), [group(plays)], scores) == [[[-1], [0], [0], [0], [1]]]


def acting(number: int, calls: bool | None) -> Trajectory:
    """One turn in the same state, which calls a tool, does not, or (None) was malformed."""
    message = None if calls is None else Message(Role.ASSISTANT, "", calls=(ToolCall("search", {}),) if calls else ())
    return Trajectory("agent", (Turn(-1, np.array([1]), sample([number]), message),), Ending.DONE)


async def test_an_answer_that_calls_a_tool_is_paired_with_one_that_does_not():
    async def pairs(calls: Sequence[bool | None], values: Sequence[float], **options: Any) -> list[float]:
        plays = [acting(number, kind) for number, kind in enumerate(calls)]
        stream = TurnPairs(contrast="calls", **options)
        [found] = await read(stream, [group(plays)], [[rewards(value) for value in values]])
        return [turn for [turn] in found]

    # the best call with the worst answer without one; the best of all and the worst of all both called
    assert await pairs([True, True, False, False], [1, 0, 0.5, 0.25]) == [1, -2, 2, -1]
    # it was better not to call
    assert await pairs([True, False, True], [0, 1, 0.5]) == [-1, 1, 0]
    assert await pairs([True, False], [1, 1]) == [0, 0]  # no difference
    assert await pairs([True, True], [1, 0]) == [0, 0]  # nothing to contrast
    assert await pairs([True, None], [1, 0]) == [0, 0]  # what was malformed is of neither kind
    assert await pairs([True, False, True, False], [1, 0, 0.5, 0.25], max_pairs=1) == [1, -1, 0, 0]
    assert await pairs([True, False, True, False], [1, 0, 0.5, 0.25], margin=0.3) == [1, -1, 0, 0]


async def test_what_is_desirable_by_success_or_by_reward():
    won, lost = spoken(([1], [2], "a"), won=1.0), spoken(([1], [2], "a"), won=0.0)
    groups = [group([won, lost, lost])]
    scores = [[rewards(0.2), rewards(0.9), rewards(0.5)]]
    assert await read(Desirable(), groups, scores) == [[[1], [-1], [-1]]]
    assert await read(Desirable(above=0.5), groups, scores) == [[[-1], [1], [-1]]]
    assert await read(Desirable(above=0.8, below=0.3), groups, scores) == [[[-1], [1], [0]]]


@pytest.mark.parametrize("options", [{"below": 0.0}, {"above": 0.0, "below": 1.0}])
def test_what_is_undesirable_is_below_what_is_desirable(options: dict[str, float]):
    with pytest.raises(ValueError, match=r"below = [01] with above = .*: expected both, and below <= above"):
        Desirable(**options)
    with pytest.raises(ValueError, match=r"part = 'judge' without above: say above which number"):
        Desirable(part="judge")


async def test_trajectories_are_compared_by_what_a_judge_said():
    groups = [group([spoken(([1], [2], "a")) for _ in range(3)])]
    scores = [[Score(np.ones(1, dtype=np.float32), parts) for parts in ({"judge": 0.5}, {}, {"judge": 0.75})]]
    assert await read(Pairs(), groups, scores) == [[[0], [0], [0]]]
    assert await read(Pairs(part="judge"), groups, scores) == [[[-1], [0], [1]]]
    assert await read(Desirable(above=0.6, part="judge"), groups, scores) == [[[-1], [0], [1]]]
    with pytest.raises(ConfigError, match=r"part = 'jugde': no score of the step has it; they have judge: name one"):
        await read(Pairs(part="jugde"), groups, scores)
    assert await read(Pairs(part="judge"), [], []) == []


async def test_the_softmax_of_a_groups_rewards_is_one_on_average():
    plays = [spoken(([1], [2], "a")) for _ in range(3)]
    groups = [group(plays), group(plays[:1], 1)]
    found = await read(GroupSoftmax(alpha=0.5), groups, [[rewards(1), rewards(0.5), rewards(0.5)], [rewards(7)]])
    e = np.exp(1.0)
    assert [turn[0] for turn in found[0]] == pytest.approx([3 * e / (e + 2), 3 / (e + 2), 3 / (e + 2)])
    assert found[1] == [[1.0]]


def test_each_trajectory_is_asked_what_the_next_group_was():
    opponent = spoken(([9], [9], "a"), agent="opponent")
    groups = [group([FIVE_SEVEN, FIVE_EIGHT]), group([spoken(([30, 31, 32], [5], "a"))], 1), group([opponent], 2)]
    found = mismatched(groups)
    assert [t.prompt(0).tolist() for t in found[0].trajectories] == [[30, 31, 32]] * 2
    assert [t.prompt(1).tolist() for t in found[0].trajectories] == [[30, 31, 32, 5, 3]] * 2
    assert [g.trajectories for g in found[1:]] == [(), ()]  # nobody else sits on that seat
    assert mismatched(groups[:1]) == []


async def nowhere(weights: Any, version: int) -> None:
    pass


async def test_the_reference_point_is_the_mean_log_ratio_of_what_was_said_to_others():
    trainer = TorchTrainer(
        ModelPasses(loading.load("tiny:layers=1,hidden=64").model, bf16=False, token_budget=200), nowhere
    )
    trainer.begin(Optim(lr=1e-2), 10, reference=True)
    groups = [group([FIVE_SEVEN, FIVE_EIGHT]), group([spoken(([30, 31, 32], [5], "a"))], 1)]
    passes = TrainerPasses(groups, [], trainer)
    assert {float(v) for some in await ReferenceKL()(passes) for turns in some for turn in turns for v in turn} == {0.0}
    made = mismatched(groups)
    flat, _ = flatten(made)
    await trainer.forward_backward(replace(flat, advantages=np.ones(len(flat), dtype=np.float32)), [NLL()])
    await trainer.optim_step()
    now, first = (await trainer.forward(flat)).logprobs, (await trainer.forward(flat, reference=True)).logprobs
    found = await ReferenceKL()(passes)
    assert float(found[1][0][0][0]) == pytest.approx(float((now - first).sum()) / 3, rel=1e-5)
    assert float(found[1][0][0][0]) > 0.01
    assert {float(v) for some in found for turns in some for turn in turns for v in turn} == {float(found[1][0][0][0])}
