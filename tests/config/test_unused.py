"""A key that would have no effect beside the other keys of its component is refused, never ignored."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from sojourn.batch import Aggregate
from sojourn.config import old_keys
from sojourn.config.registry import unknown_key
from sojourn.config.unused import refuse_unused
from sojourn.credit.gigpo import GiGPO
from sojourn.credit.grpo import GRPO
from sojourn.credit.masked import Masked
from sojourn.credit.papers.oprl import OPRL
from sojourn.credit.papers.ui_s1 import UIS1
from sojourn.credit.tree_values import TreeValues
from sojourn.curricula.accel import Accel
from sojourn.curricula.mpts import MPTS
from sojourn.curricula.plr import PLR
from sojourn.losses.distill import Distill
from sojourn.losses.importance import Importance
from sojourn.losses.ppo import PPO
from sojourn.rewards.composite import Composite
from sojourn.rewards.native import Native
from sojourn.searchers.beam import Beam
from sojourn.searchers.best_first import BestFirst
from sojourn.searchers.look_ahead import LookAhead
from sojourn.searchers.mcts import MCTS
from sojourn.searchers.self_consistency import SelfConsistency
from sojourn.searchers.sim_rollout import SimRollout
from sojourn.searchers.tree_of_code import TreeOfCode
from sojourn.sources.adaptive_slots import AdaptiveSlots
from sojourn.sources.slots import Slots
from sojourn.streams.feedback import Feedback
from sojourn.streams.utterance_advantage import UtteranceAdvantage
from sojourn.train.recipe import LearnerConfig, Stage

REFUSED = [
    (PLR, {"new": 0.9}, 'new = 0.9 with schedule = "proportionate"'),
    (Accel, {"base": PLR(schedule="fixed")}, "schedule = fixed of the base, as `new` of accel"),
    (Accel, {"base": PLR(schedule="fixed", new=0.9)}, "schedule = fixed of the base"),
    (MPTS, {"aim": "hard", "target": 0.9}, 'target = 0.9 with aim = "hard"'),
    (MCTS, {"rule": "uct", "prior": "uniform"}, 'prior = uniform with rule = "uct", which has no prior: leave it out'),
    (Beam, {"by": "likelihood", "rollouts": 2}, 'rollouts = 2 with by = "likelihood"'),
    (BestFirst, {"by": "likelihood", "rollouts": 0}, 'rollouts = 0 with by = "likelihood"'),
    (BestFirst, {"alpha": 0.5}, 'alpha = 0.5 with by = "reward"'),
    (LookAhead, {"turns": 1, "rollouts": 2}, "rollouts = 2 with turns = 1"),
    (Composite, {"closed_reward": -1.0}, "closed_reward = -1.0 without gate_key"),
    (Slots, {"signal": "score"}, 'signal = score with zero_signal = "keep"'),
    (AdaptiveSlots, {"exhausted": "stop"}, 'exhausted = stop with zero_signal = "keep"'),
    (Slots, {"zero_signal": "drop", "max_redraws": 3}, 'max_redraws = 3 with zero_signal = "drop"'),
    (GRPO, {"scale_by_std": False, "epsilon": 0.1}, "epsilon = 0.1 with scale_by_std = false"),
    (GiGPO, {"scale_by_std": False, "epsilon": 0.1}, "epsilon = 0.1 with scale_by_std = false"),
    (UIS1, {"scale_by_std": False, "epsilon": 0.1}, "epsilon = 0.1 with scale_by_std = false"),
    (TreeValues, {"epsilon": 0.1}, "epsilon = 0.1 with scale_by_std = false"),
    (OPRL, {"step_advantage": "leave_one_out", "epsilon": 0.1}, 'epsilon = 0.1 with step_advantage = "leave_one_out"'),
    (Masked, {"stream_above": 0.5}, "stream_above = 0.5 without a stream"),
    (Masked, {"stream_below": 0.5}, "stream_below = 0.5 without a stream"),
    (Masked, {"stream_by": "turn", "part": "judge"}, "stream_by = turn without a stream"),
    (Masked, {"stream": "entropy", "part_above": 0.5}, "part_above = 0.5 without a part"),
    (Importance, {"combine": "mean"}, 'combine = mean with level = "token"'),
    (Importance, {"min_weight": 0.5}, 'min_weight = 0.5 with mode = "truncate"'),
    (Distill, {"beta": 0.1}, 'beta = 0.1 with divergence = "reverse_kl"'),
    (UtteranceAdvantage, {"deviations": 2.0}, 'deviations = 2.0 with pessimism = "min"'),
    (UtteranceAdvantage, {"output": "disagreement", "pessimism": "deviation"}, "pessimism = deviation with output"),
    (Feedback, {"reward_model": "ranking", "threshold": 0.9}, 'threshold = 0.9 with reward_model = "ranking"'),
    (Feedback, {"min_score": 0.0}, 'min_score = 0.0 with reward_model = "classification"'),
    (Feedback, {"reward_model": "hash", "updates": 4}, 'updates = 4 with reward_model = "hash"'),
    (Stage, {"losses": (PPO(),), "aggregate": Aggregate(length=64)}, 'length = 64 of aggregate with by = "token"'),
    (LearnerConfig, {"aggregate": Aggregate(by="turn", length=64)}, 'length = 64 of aggregate with by = "turn"'),
]
ACCEPTED = [
    (PLR, {"schedule": "fixed", "new": 0.9}),
    (Accel, {"base": PLR(by="proportional")}),
    (MPTS, {"target": 0.9}),
    (MCTS, {"prior": "uniform"}),
    (Beam, {"rollouts": 2}),
    (BestFirst, {"by": "likelihood", "alpha": 0.5}),
    (LookAhead, {"turns": 2, "rollouts": 2}),
    (Composite, {"gate_key": "format", "closed_reward": -1.0}),
    (Slots, {"zero_signal": "drop", "signal": "score"}),
    (Slots, {"zero_signal": "redraw", "max_redraws": 3, "exhausted": "keep"}),
    (GRPO, {"epsilon": 0.1}),
    (TreeValues, {"scale_by_std": True, "epsilon": 0.1}),
    (Masked, {"stream": "entropy", "stream_above": 0.5, "stream_by": "turn", "part": "judge", "part_above": 0.5}),
    (Importance, {"level": "turn", "combine": "mean", "mode": "mask", "min_weight": 0.5}),
    (Distill, {"divergence": "jsd", "beta": 0.1}),
    (UtteranceAdvantage, {"pessimism": "deviation", "deviations": 2.0}),
    (Feedback, {"threshold": 0.9, "updates": 4}),
    (Feedback, {"reward_model": "hash", "messages_per_step": 4}),
    (Stage, {"losses": (PPO(),), "aggregate": Aggregate(by="constant", length=64)}),
]


@pytest.mark.parametrize(("cls", "keys", "words"), REFUSED)
def test_a_key_without_an_effect_is_refused(cls: Callable[..., Any], keys: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError) as caught:
        cls(**keys)
    assert words in str(caught.value)


@pytest.mark.parametrize(("cls", "keys"), ACCEPTED)
def test_the_same_key_is_used_beside_others(cls: Callable[..., Any], keys: dict[str, Any]) -> None:
    assert cls(**keys)


def test_a_default_is_no_key_that_was_set() -> None:
    @dataclass(frozen=True)
    class Both:
        one: int = 1
        two: Native = field(default_factory=Native)

    refuse_unused(Both(), ["one", "two"], "alone")
    with pytest.raises(ValueError, match=r"^two = Native alone: leave it out$"):
        refuse_unused(Both(two=Native(scale=2.0)), ["one", "two"], "alone")


@pytest.mark.parametrize("cls", [SelfConsistency, SimRollout, TreeOfCode])
def test_a_search_that_judges_nothing_has_no_reward(cls: Callable[..., Any]) -> None:
    with pytest.raises(TypeError, match="reward"):
        cls(reward=Native())


def test_a_run_that_recorded_such_a_reward_opens_without_it() -> None:
    agent = {"name": "self_consistency", "n": 4, "reward": {"name": "native"}}
    assert old_keys.upgraded({"agent": agent}) == {"agent": {"name": "self_consistency", "n": 4}}
    other = {"agent": {**agent, "name": "best_of_n"}}
    assert old_keys.upgraded(other) == other
    told = str(unknown_key("reward", ["n"], "agent.", "agent", "self_consistency"))
    assert told == "agent.reward is no longer a key: delete its line"
