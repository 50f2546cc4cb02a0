"""Evidence that agents choose: what the judge sees of it, and what it is worth, as in the authors' reward."""

from __future__ import annotations

import pytest
from cases import group, line
from judge_server import records
from test_judge import Scripted, judged, totals

from sojourn.config.registry import build
from sojourn.errors import ConfigError
from sojourn.rewards.proofs import Proof
from sojourn.rewards.transcripts import Evidence, chosen, written

WORLD = ["The task.", "world 2", "world 3", "world 4"]
TOLD = line("a one", "b two", "c three", "Done. evidence: 3, 2", observed=WORLD)
PROOF = {"evidence": 2, "proof": Proof()}


def says(success, evidence="relevant"):
    return lambda body: {"evidence": evidence, "success": success}


def named(words):
    return line("a one", "b two", "c three", f"Done. {words}", observed=WORLD)


async def worth(words, says, **more):
    return await totals(Scripted(says), group(named(words)), **PROOF, **more)


async def judged_with(model, *trajectories, **more):
    return await judged(model, group(*trajectories), **{**PROOF, **more})


def build_judge(**keys):
    return build("reward", {"name": "judge", **keys})


def test_the_judge_sees_the_task_the_evidence_and_the_claim_alone():
    text = written(Evidence(named=1, alone=True).of(TOLD), "c0de", 10_000)
    assert all(text.count(one) == 1 for one in ("The task.", "world 2", "world 3", "Done."))
    assert not any(one in text for one in ("a one", "b two", "c three", "world 4", "end of the play"))


@pytest.mark.parametrize(
    ("words", "turns", "unknown"),
    [
        ("evidence: 3, 2, 3", (2, 1), 0),
        ("submit(evidences=[4])", (3,), 0),
        ("evidence: 9, 2", (1,), 1),
        ("evidence: 0", (), 1),
        ("I am sure.", (), 0),
    ],
)
def test_what_is_chosen(words, turns, unknown):
    assert chosen(named(words)) == (turns, unknown)


@pytest.mark.parametrize(
    ("success", "evidence", "expected"),
    [("yes", "relevant", 1.0), ("no", "relevant", 0.0), ("no", "irrelevant", -1.0), ("yes", "irrelevant", -1.0)],
)
async def test_proven_success_unproven_and_irrelevant(success, evidence, expected):
    model = Scripted(says(success, evidence))
    [(total, parts)] = await judged_with(model, TOLD)
    assert total == pytest.approx(expected)
    assert (parts["judge_evidence"], parts["judge_valid"]) == (2, 1)
    assert (parts["judge_relevant"], parts["judge_success"]) == (evidence == "relevant", expected == 1)
    [record] = records(model.asked[0])
    assert "world 3" in record
    assert "world 4" not in record


@pytest.mark.parametrize("words", ["I am sure.", "evidence: 0", "evidence: 2, 9"])
async def test_who_names_no_valid_evidence_is_not_judged(words):
    model = Scripted(says("yes"))
    [(total, parts)] = await judged_with(model, named(words))
    assert total == -1.0
    assert parts["judge_valid"] == 0
    assert model.asked == []


@pytest.mark.parametrize(("words", "expected"), [("1", 1.0), ("1, 2", 1.0), ("1, 2, 3", 0.9), ("4, 1, 2, 3", 0.8)])
async def test_each_piece_beyond_the_free_ones_costs(words, expected):
    assert await worth(f"evidence: {words}", says("yes")) == [expected]


@pytest.mark.parametrize(
    ("votes", "expected"),
    [
        (["yes", "yes", "no"], 1.0),
        (["yes", "no", "no"], 0.0),
        (["yes", "irrelevant", "no"], 0.0),
        (["yes", "irrelevant", "irrelevant"], -1.0),
    ],
)
async def test_the_majority_decides(votes, expected):
    left = [*votes]

    def voting(body):
        vote = left.pop()
        return {"evidence": "irrelevant", "success": "no"} if vote == "irrelevant" else says(vote)(body)

    assert await worth("evidence: 2", voting, samples=3, temperature=0.7) == [expected]


async def test_each_trajectory_has_its_own_verdict():
    model = Scripted(lambda body: {"evidence": "relevant", "success": "yes" if "world 2" in records(body)[0] else "no"})
    plays = [named("evidence: 3"), named("nothing"), named("evidence: 2")]
    assert [total for total, _ in await judged_with(model, *plays)] == [0.0, -1.0, 1.0]
    assert len(model.asked) == 2


REFUSED = {
    "set evidence to how many": {"proof": {}},
    "mode = ranking with proof": {"mode": "ranking", "evidence": 1, "proof": {}},
    "high = 5.0 with proof": {"high": 5.0, "evidence": 1, "proof": {}},
    "combine = multiply with proof": {"combine": "multiply", "evidence": 1, "proof": {}},
    "verdict = likelihood with proof": {"verdict": "likelihood", "evidence": 1, "proof": {}},
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_has_no_effect_on_proofs_is_refused(words):
    with pytest.raises(ConfigError, match=words):
        build_judge(**REFUSED[words])
