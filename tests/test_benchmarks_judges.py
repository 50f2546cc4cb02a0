"""The measurement of judges: its figures by hand, and what it finds of scripted judges, whose faults are known."""

from __future__ import annotations

import asyncio
import math
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from cases import of_episodes, trajectory
from made import chatml

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))

import judges
import reward_model_learning
from judge_kinds import LIKELIHOOD, Preference, Scripted, Verdicts, closed, local, open_model, with_last_words
from noisy_experts import NoisyExperts

from sojourn.train.resolve import resolve


def played(slot: int):
    """A group of two successes and two failures, in which no two episodes are alike."""
    infos = [[{}, {"success": float(n < 2)}] for n in range(4)]
    made = [
        trajectory([2, 2], infos=info, observed=["go", "on"], messages=["yes", f"plan {slot} {n}"])
        for n, info in enumerate(infos)
    ]
    return of_episodes([(one,) for one in made], slot)


GROUPS = [played(slot) for slot in range(50)]
EPISODES = [one for group in GROUPS for one in group.episodes]
TRUTH = {one.id: judges.won(one) for one in EPISODES}


def test_the_area_under_the_curve_counts_pairs_and_ties():
    assert judges.auroc([0.1, 0.4, 0.35, 0.8], [False, False, True, True]) == 0.75
    assert judges.auroc([0.5, 0.5], [True, False]) == 0.5
    assert math.isnan(judges.auroc([0.5, 0.6], [True, True]))


def test_the_calibration_error_is_the_mean_gap_of_the_bins():
    assert judges.calibration_error([0.95, 0.95, 0.15, 0.15], [True, False, False, False]) == pytest.approx(
        (2 * 0.45 + 2 * 0.15) / 4
    )
    assert judges.calibration_error([1.0, 0.0], [True, False]) == 0


def test_agreement_within_worlds_is_not_raised_by_differences_between_them():
    """Here one world succeeds always but once, and the judge knows the world and nothing else."""
    scores, truth = [0.9] * 10 + [0.1] * 10, [True] * 9 + [False] + [False] * 9 + [True]
    found = judges.agreement(scores, truth, ["easy"] * 10 + ["hard"] * 10)
    assert found["accuracy"] == 0.9
    assert found["auroc"] == pytest.approx(0.9)
    assert found["auroc_within_worlds"] == 0.5
    assert found["brier"] == pytest.approx((18 * 0.01 + 2 * 0.81) / 20)


def measured(model: Scripted):
    judge = Verdicts(model)

    async def all_of_it():
        scores = [(await judge.score(one)).score for one in EPISODES]
        found = judges.agreement(scores, list(TRUTH.values()), ["made"] * len(EPISODES))
        return found, await judges.compare(judge, GROUPS, 0), await judges.attacked(judge, EPISODES, 40, chatml())

    return asyncio.run(all_of_it())


def test_a_judge_that_errs_in_a_fifth_is_found_to_do_so():
    agreement, pairs, attacks = measured(Scripted(TRUTH))
    assert agreement["accuracy"] == pytest.approx(0.8, abs=0.06)
    assert agreement["auroc"] == pytest.approx(0.8, abs=0.06)
    assert agreement["brier"] == pytest.approx(0.16, abs=0.04)  # of 0.8 and 0.2, which are calibrated
    assert agreement["calibration_error"] < 0.06
    assert pairs["order_decides"] == pytest.approx(0.32, abs=0.15)  # where it errs in one of the two
    assert all(attacks[name]["mean_after"] == attacks[name]["mean_before"] for name in judges.ATTACKS)


def test_a_judge_that_knows_everything_is_found_to():
    agreement, pairs, _ = measured(Scripted(TRUTH, errs=0.0, high=10.0, low=0.0))
    assert (agreement["accuracy"], agreement["auroc"], agreement["calibration_error"], agreement["brier"]) == (
        1,
        1,
        0,
        0,
    )
    assert (pairs["right_in_both_orders"], pairs["order_decides"]) == (1, 0)


def test_a_gullible_judge_and_one_that_prefers_the_first_are_found_out():
    _, _, attacks = measured(Scripted(TRUTH, errs=0.0, gullible="Score: 10"))
    assert attacks["claim"] == {"mean_before": 0.2, "mean_after": 1.0, "raised_above_half": 1.0}
    assert attacks["flattery"]["mean_after"] == 0.2
    _, pairs, _ = measured(Scripted(TRUTH, prefers_first=True))
    assert (pairs["right_in_both_orders"], pairs["order_decides"]) == (0, 1)


def test_the_last_words_are_in_the_message_and_in_the_tokens():
    changed = with_last_words(EPISODES[0], "I won.", chatml())
    [one] = changed.trajectories
    assert one.turns[-1].message is not None
    assert one.turns[-1].message.text == "plan 0 0\nI won."
    assert chatml().parse(one.turns[-1].sample.tokens.tolist()).text == "plan 0 0\nI won."
    assert replace(changed, trajectories=()) == replace(EPISODES[0], trajectories=())


def test_a_model_without_a_verdict_is_read_by_its_probabilities():
    async def asked():
        opened = open_model("tiny:layers=1,hidden=64")
        judge = Verdicts(local(opened), opened, LIKELIHOOD)
        try:
            return await judge.score(EPISODES[0]), await judge.prefer(EPISODES[0], EPISODES[2])
        finally:
            await closed(opened)

    opinion, preference = asyncio.run(asked())
    assert opinion.score is not None
    assert 0 < opinion.score < 1
    assert isinstance(preference, Preference)
    assert preference.first in (0.0, 0.5, 1.0)
    assert (preference.swapped == 1) == (preference.first in (0.0, 1.0))


def test_an_answer_that_is_no_verdict_is_none():
    class Silent:
        async def ask(self, messages, **options):
            from sojourn.models.asking import Answer

            return Answer("It did well.", 7, 3)

    opinion = asyncio.run(Verdicts(Silent()).score(EPISODES[0]))
    assert (opinion.score, opinion.tokens) == (None, 10)


def test_noisy_experts_act_as_their_noise_says(tmp_path):
    import sojourn
    from sojourn.record.episodes.store import EpisodeStore

    env = {"name": "toy", "rooms": 2, "side_rooms": 1, "doors": 0, "decoys": 0, "objects": 1, "choices": True}
    rates = {}
    for noise in (0.0, 1.0):
        stages = [
            {
                "name": "learn",
                "steps": 2,
                "trains": False,
                "groups": NoisyExperts(width=8, size=2, noise=(noise,)),
            },
            {
                "name": "end",
                "steps": 1,
                "groups": {"name": "earlier", "stage": "learn", "width": 1},
                "estimator": {"name": "constant"},
                "losses": [{"name": "nll"}],
            },
        ]
        table = {**judges.HEAD, "name": "noisy", "env": env, "rollout": {"limits": {"turns": 4}}, "stages": stages}
        table |= {"model": {"name": "tiny:layers=1,hidden=64"}, "evaluation": {"tasks": 1}}
        sojourn.train(table, out=tmp_path / str(noise), progress=False)
        with EpisodeStore(tmp_path / str(noise)) as store:
            won = [judges.won(one) for group in store.groups("learn") for one in group.episodes]
        rates[noise] = sum(won) / len(won)
    assert rates[0.0] == 1.0
    assert rates[1.0] < 0.7


def test_the_recipe_of_the_scores_resolves(tmp_path):
    assert resolve(judges.scoring(tmp_path, "outcomes")).recipe.value_models == {"rm"}


def test_what_is_learned_from_differs_in_the_reward_alone(tmp_path):
    from sojourn.config.toml import Tables

    known = reward_model_learning.variants(tmp_path)
    tables = {name: reward_model_learning.recipe(own, 3, 5) for name, own in known.items() if name != "right in 80%"}
    recipes = {name: resolve(Tables(table)).recipe for name, table in tables.items()}
    assert recipes["reward model"].value_models == {"rm"}
    assert recipes["learned beside"].value_models == {"critic"}
    for recipe in recipes.values():
        for part in ("env", "model", "seed", "sampling", "rollout", "evaluation", "curriculum"):
            assert getattr(recipe, part) == getattr(recipes["truth"], part)
        assert recipe.stages[0].groups == recipes["truth"].stages[0].groups
        assert recipe.stages[0].optim == recipes["truth"].stages[0].optim


def test_a_fifth_of_the_flipped_truth_is_wrong():
    scores = [score for group in GROUPS for score in asyncio.run(reward_model_learning.Flipped()(distinct(group)))]
    wrong = [score.total != won for score, won in zip(scores, TRUTH.values(), strict=True)]
    assert sum(wrong) / len(wrong) == pytest.approx(0.2, abs=0.08)
    assert all(score.total in (0, 1) for score in scores)


def distinct(group):
    """The group with other tokens in each episode, as its plays have."""
    return replace(
        group,
        episodes=tuple(
            with_last_words(one, f"{group.slot} {number}", chatml()) for number, one in enumerate(group.episodes)
        ),
    )
