"""Estimators on top of others, against small examples worked by hand from their equations."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from cases import by_token, by_turn, group, paid, stream, trajectory

from sojourn.credit.constant import Constant
from sojourn.credit.gigpo import GiGPO
from sojourn.credit.grpo import GRPO
from sojourn.credit.kl_reward import KLReward
from sojourn.credit.papers.aem import AEM
from sojourn.credit.papers.aepo import AEPO
from sojourn.credit.papers.difficulty import Difficulty
from sojourn.credit.papers.empg import EMPG
from sojourn.credit.papers.rae import RAE
from sojourn.credit.reinforce import Reinforce
from sojourn.credit.whitened import Whitened
from sojourn.train.resolve import load
from sojourn.types import Ending

PRESETS = Path(__file__).parents[2] / "recipes" / "presets"


def step():
    """Advantages of 1 and -1; entropies of 0.2 and 0.6 in the first trajectory's turns, of 1 in the second's."""
    made = group(trajectory([2, 1]), trajectory([2]))
    return [made], [paid([0, 1], [-1])], {"entropy": stream([[[0.1, 0.3], [0.6]], [[1.0, 1.0]]])}


PLAIN = GRPO(epsilon=0.0)


def test_empg_by_hand():
    [credit] = EMPG(base=PLAIN, clarity_coef=0.1)(*step())
    assert by_turn(credit) == [pytest.approx([0.932524, 0.274017], abs=1e-5), pytest.approx([-1.206541])]


def test_empg_keeps_what_tokens_of_a_turn_differ_by():
    base = AEPO(base=PLAIN, entropy_coef=0.2)
    plain, moved = (estimator(*step())[0] for estimator in (base, EMPG(base=base, clarity_coef=0.0)))
    gaps = [float(np.ptp(credit[0].tokens[0])) for credit in (plain, moved)]
    assert gaps[0] > 0
    assert gaps[1] == pytest.approx(1.519441 * gaps[0], rel=1e-5)


def test_aem_by_hand():
    [credit] = AEM(base=PLAIN)(*step())
    assert by_turn(credit) == [pytest.approx([1.519441, 0.921588]), pytest.approx([-0.558971])]
    groups, scores, _ = step()
    close = {"entropy": stream([[[0.5, 0.5], [0.55]], [[0.58, 0.58]]])}
    [credit] = AEM(base=PLAIN)(groups, scores, close)
    assert by_turn(credit) == [pytest.approx([1, 1]), pytest.approx([-1])]


def test_aepo_by_hand():
    made = [group(trajectory([2, 1]))]
    streams = {"entropy": stream([[[0.5, 1.0], [1.5]]])}
    [credit] = AEPO(base=Constant())(made, [paid([0, 1])], streams)
    assert by_token(credit) == [pytest.approx([0.8, 1.0, 1.2])]
    [credit] = AEPO(base=Constant(), entropy_coef=2.0)(made, [paid([0, 1])], streams)
    assert by_token(credit) == [pytest.approx([0, 1.0, 3.0])]


def test_kl_reward_by_hand():
    made = [group(trajectory([2, 1], logprobs=[[-1.0, -1.0], [-1.0]]))]
    streams = {"ref_logprobs": stream([[[-1.5, -1.0], [-0.5]]])}
    base = Reinforce(baseline="none", discount=0.0)  # each turn's own reward
    for form, costs in (("k1", [0.5, -0.5]), ("k2", [0.125, 0.125]), ("k3", [0.106531, 0.148721])):
        [credit] = KLReward(base=base, coef=2.0, kl_estimator=form)(made, [paid([1, 3])], streams)
        assert by_turn(credit) == [pytest.approx([1 - 2 * costs[0], 3 - 2 * costs[1]], rel=1e-5)]


def test_whitened_by_hand():
    made = [group(trajectory([3]), trajectory([1]))]
    scores = [paid([1], [-1])]
    base = Reinforce(baseline="none")
    [credit] = Whitened(base=base, epsilon=1e-12)(made, scores, {})  # mean 0.5, variance 0.75
    assert [t[0] for t in by_turn(credit)] == pytest.approx([0.5 / 0.75**0.5, -1.5 / 0.75**0.5])
    [credit] = Whitened(base=base, shift_mean=False, clip=1.0, epsilon=1e-12)(made, scores, {})
    assert [t[0] for t in by_turn(credit)] == pytest.approx([1, -1])


def test_whitening_by_turn_counts_each_turn_once():
    """Turns of 3, 1 and no tokens, worth 1, -1 and 9: of mean 0 and deviation 1 without the last."""
    made, base = [group(trajectory([3]), trajectory([1, 0]))], Reinforce(baseline="none", discount=0.0)
    [credit] = Whitened(base=base, level="turn", epsilon=1e-12)(made, [paid([1], [-1, 9])], {})
    assert [t[0] for t in (credit[0].tokens[0].tolist(), credit[1].tokens[0].tolist())] == pytest.approx([1, -1])
    [credit] = Whitened(base=base, epsilon=1e-12)(made, [paid([1], [-1, 9])], {})
    assert credit[0].tokens[0][0] == pytest.approx(0.5 / 0.75**0.5)


def test_vl_dac_whitens_one_advantage_for_each_step_of_the_world():
    estimator = load(PRESETS / "vl_dac.toml").recipe.stages[0].estimator
    made = [group(trajectory([30]), trajectory([1]), trajectory([2]))]
    nothing = stream([[[0.0] * 30], [[0.0]], [[0.0] * 2]])
    [credit] = estimator(made, [paid([1], [0], [0])], {"values": nothing, "next_values": nothing})
    assert [turns[0] for turns in by_turn(credit)] == pytest.approx([2**0.5, -(0.5**0.5), -(0.5**0.5)], abs=1e-4)


def test_difficulty_by_hand():
    hard, easy = (trajectory([1], infos=[{"success": float(won)}]) for won in (0, 1))
    groups = [group(hard, hard, hard, easy), group(hard, easy, easy, easy, slot=1)]
    scores = [paid([0], [0], [0], [1]), paid([0], [1], [1], [1])]
    found = Difficulty()(groups, scores, {})  # 0.75 and 0.25 failed: weights of 1.5 and 0.5
    assert [t[0] for credit in found for t in by_turn(credit)] == pytest.approx(
        [-0.375, -0.375, -0.375, 1.125, -0.375, 0.125, 0.125, 0.125]
    )


def test_a_difficulty_of_the_task_gives_the_weights_of_gui_g1():
    """0.5 + (d - low) / (high - low), where low and high are those of all steps so far, and survive a restart."""
    hard, easy = (trajectory([1], infos=[{"success": float(won)}]) for won in (0, 1))

    def weights(estimator, *sizes):
        groups = [group(hard, easy, slot=n, data={"size": size}) for n, size in enumerate(sizes)]
        found = estimator(groups, [paid([0], [1])] * len(groups), {})
        return [2 * by_turn(credit)[1][0] for credit in found]  # the advantages are -0.5 and 0.5

    estimator = Difficulty(task_key="size")
    assert weights(estimator, 3, 3) == pytest.approx([1, 1])
    assert weights(estimator, 3, 1, 2) == pytest.approx([1.5, 0.5, 1])
    assert weights(estimator, 2) == pytest.approx([1])
    resumed = Difficulty(task_key="size")
    resumed.restore(estimator.state())
    assert weights(resumed, 3, 5) == pytest.approx([1, 1.5])
    resumed.restore({})  # a state that was saved when nothing was remembered
    assert weights(resumed, 3, 5) == pytest.approx([0.5, 1.5])


def test_a_difficulty_can_be_told_by_turns_and_what_was_never_judged_has_none():
    lost = replace(trajectory([1]), ending=Ending.TURNS)
    hard, easy = (trajectory([1, 1], infos=[{}, {"size": size}]) for size in (3.0, 1.0))
    groups = [group(hard, lost), group(easy, easy, slot=1), group(lost, lost, slot=2)]
    found = Difficulty(task_key="size")(groups, [paid([0, 0], [1]), paid([0, 0], [0, 1]), paid([0], [1])], {})
    assert [t[0] for credit in found for t in by_turn(credit)] == pytest.approx(
        [-0.75, 0.75, -0.25, 0.25, -0.5, 0.5]
    )  # weights 1.5, 0.5 and 1


def test_a_difficulty_that_a_task_does_not_have_is_named():
    with pytest.raises(ValueError, match="size"):
        Difficulty(task_key="size")([group(trajectory([1]))], [paid([0])], {})


def test_what_a_base_needs_and_remembers_is_passed_on():
    assert KLReward(base=AEM(base=GiGPO())).needs == {"ref_logprobs", "entropy"}
    assert KLReward(base=AEM(base=GiGPO())).env_needs == {"state_key"}
    groups, scores, _ = step()
    remembers = Whitened(base=RAE())
    remembers(groups, scores, {})
    other = Whitened(base=RAE())
    other.restore(remembers.state())
    assert other.state() == remembers.state() != Whitened(base=RAE()).state()


@pytest.mark.parametrize("estimator", [EMPG(base=Constant(), clarity_coef=0.1), AEM(base=Constant())])
def test_a_turn_without_tokens_has_no_entropy(estimator):
    """It would be the lowest of all, and move what the others are compared with."""
    whole, scores = group(trajectory([2, 1]), trajectory([2])), [paid([0, 1], [-1])]
    [plain] = estimator([whole], scores, {"entropy": stream([[[0.1, 0.3], [0.6]], [[1.0, 1.0]]])})
    made, judged = group(trajectory([2, 0, 1]), trajectory([2])), [paid([0, 0, 1], [-1])]
    [credit] = estimator([made], judged, {"entropy": stream([[[0.1, 0.3], [], [0.6]], [[1.0, 1.0]]])})
    assert by_token(credit) == [pytest.approx(tokens) for tokens in by_token(plain)]


def test_a_group_that_failed_as_a_whole_has_no_difficulty():
    made, failed = group(trajectory([1]), trajectory([1])), group(trajectory([1]), slot=1)
    failed = replace(failed, episodes=tuple(replace(e, error="the browser died") for e in failed.episodes))
    [alone] = Difficulty()([made], [paid([1], [0])], {})
    beside, nothing = Difficulty()([made, failed], [paid([1], [0]), []], {})
    assert by_turn(beside) == by_turn(alone)
    assert nothing == []
