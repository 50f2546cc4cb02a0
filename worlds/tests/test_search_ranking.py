"""The seat that ranks what the search engine finds: what it is shown, what it is worth, and what the searcher sees."""

from __future__ import annotations

from typing import Any

import pytest
import trained_run
from people_at_play import say

from sojourn.checks.env import check_env
from sojourn.errors import ConfigError, InfrastructureError
from sojourn.record import metrics
from sojourn.record.episodes.store import EpisodeStore
from sojourn_worlds.search import Search
from sojourn_worlds.search.corpus import Passage
from sojourn_worlds.search.ranking import FORMAT_PENALTY, quality, ranked, written

FIELDS: dict[str, Any] = {"candidates": 8, "results": 3}


@pytest.mark.parametrize(
    "fields", [FIELDS, {"candidates": 4, "results": 1, "choices": True, "hops": 1, "countries": 6}], ids=str
)
async def test_it_keeps_the_promises_of_a_world(fields) -> None:
    report = await check_env(Search(train=400, test=100, **fields))
    assert report.passed, report.failed


async def asked(number: int = 0, query: str = "country capital river city", **fields):
    """Returns a play in which the ranker is to act, and the step that asked it."""
    family = Search(**{**FIELDS, **fields})
    play = family.make(family.tasks("train")[number])
    await play.start()
    return play, await play.step("agent", say(f"search[{query}]"))


async def test_a_ranker_reads_the_question_the_query_and_the_candidates():
    play, step = await asked()
    assert step.observation is not None
    assert step.observation.agent == "ranker"
    assert "the 3 best passages, best first, such as [3] > [2] > [1]" in step.observation.system[0].text
    question, query, *lines = step.observation.messages[0].text.splitlines()
    assert question == f"Question: {play.data['question']}"
    assert query == f"Search: {play.state.last_query}"
    assert len(lines) == len(play.state.candidates) == 8
    assert step.rewards == {"agent": 0.0}


async def test_the_searcher_is_shown_what_the_ranker_names_first_in_its_order():
    play, _ = await asked()
    candidates = play.state.candidates
    step = await play.step("ranker", say("<reason>The last ones are short.</reason>\n[8] > [1] > [7]"))
    assert step.observation is not None
    assert step.observation.agent == "agent"
    shown = [line.split()[0] for line in step.observation.messages[0].text.splitlines()]
    assert shown == [candidates[7], candidates[0], candidates[6]]
    assert play.state.listed == set(shown)


@pytest.mark.parametrize(
    "wrong",
    ["", "[1] > [2]", "[1] > [2] > [2]", "[1] > [2] > [9]", "[0] > [1] > [2]", "1 > 2 > 3", "[1], [2], [3]",
     "[1] > [2] > [3] are best", "<reason>a</reason><reason>b</reason>[1] > [2] > [3]", "[1] > [2] > [3] > [4]"],
)  # fmt: skip
async def test_a_ranking_in_a_wrong_form_is_penalised_and_the_engines_order_is_shown(wrong):
    play, _ = await asked()
    candidates = play.state.candidates
    step = await play.step("ranker", say(wrong))
    assert step.rewards == {"ranker": FORMAT_PENALTY} == {"ranker": -0.2}
    shown = [line.split()[0] for line in step.observation.messages[0].text.splitlines()]
    assert shown == list(candidates[:3])


def test_a_ranking_is_read_as_it_is_written():
    assert ranked(written([4, 0, 2]), 5, 3) == (4, 0, 2)


def test_quality_is_the_mean_of_hit_at_1_3_and_5():
    """The authors' compute_average_hit_at_ks with the cutoffs 1, 3, 5."""
    idle, holds = Passage("1", "A town", "It lies by a river."), Passage("2", "Its mayor", "The mayor is Ada Lund.")
    for place, worth in enumerate([1, 2 / 3, 2 / 3, 1 / 3, 1 / 3]):
        assert quality([idle] * place + [holds] + [idle] * (4 - place), ["ada lund"]) == pytest.approx(worth)
    assert quality([idle] * 5, ["ada lund"]) == 0
    assert quality([holds], ["Ada Lun"]) == 0, "words are compared, not letters"
    assert quality([Passage("3", "Yes", "yes")], ["yes"]) == 0, "a mere yes tells nothing"


async def test_a_ranking_is_worth_its_quality_where_a_candidate_holds_the_answer():
    seen = set()
    for number in range(30):
        play, _ = await asked(number, hops=1)
        passages = [play.index.corpus.by_id[id] for id in play.state.candidates]
        places = tuple(range(len(passages)))[::-1][:3]
        step = await play.step("ranker", say(written(places)))
        answers = [play.data["answer"], *play.data["aliases"]]
        answerable = any(quality([one], answers) for one in passages)
        assert step.info["answerable"] == float(answerable)
        assert step.rewards["ranker"] == (quality([passages[n] for n in places], answers) if answerable else 0)
        seen.add((answerable, step.rewards["ranker"] > 0))
    assert seen == {(True, True), (True, False), (False, False)}


async def test_where_no_candidate_holds_the_answer_a_ranking_is_worth_nothing_by_itself():
    for number in range(40):
        play, _ = await asked(number, hops=4)
        passages = [play.index.corpus.by_id[id] for id in play.state.candidates]
        if not any(quality([one], [play.data["answer"]]) for one in passages):
            step = await play.step("ranker", say("[1] > [2] > [3]"))
            assert (step.rewards, step.info["answerable"]) == ({"ranker": 0.0}, 0.0)
            return
    raise AssertionError("every search found the answer")


async def test_both_seats_know_how_it_ended():
    family = Search(hops=2, **FIELDS)
    play = family.make(family.tasks("train")[3])
    observation = await play.start()
    acted = set()
    while observation is not None:
        acted.add(observation.agent)
        step = await play.step(observation.agent, say(play.expert()))
        observation = step.observation
    assert acted == {"agent", "ranker"}
    assert step.rewards == {"agent": 1.0, "ranker": 0.0}
    assert step.success


async def test_no_seat_acts_in_the_turn_of_the_other():
    play, _ = await asked()
    with pytest.raises(InfrastructureError, match="in another's turn"):
        await play.step("agent", say("search[river]"))


async def test_a_fork_waits_for_the_ranker_too():
    play, _ = await asked()
    twin = await play.fork()
    assert twin.state_key() == play.state_key()
    await play.step("ranker", say("[1] > [2] > [3]"))
    assert twin.state_key() != play.state_key()
    assert (await twin.step("ranker", say("[3] > [2] > [1]"))).observation.agent == "agent"


def test_seats_and_fields():
    assert Search().seats == ("agent",)
    assert Search(**FIELDS).seats == ("agent", "ranker")
    with pytest.raises(ConfigError, match="candidates = 4"):
        Search(candidates=4, results=5)
    with pytest.raises(ConfigError, match="a ranking of several is not one of a list"):
        Search(choices=True, **FIELDS)


RECIPE = """
name = "ranking"
model = { name = "tiny:layers=1,hidden=64", dtype = "fp32" }
backend = { name = "torch", threads = 1 }
agent = { name = "plain", choices = true }
evaluation = { tasks = 2 }
sampling = { max_tokens = 32 }
rollout = { limits = { turns = 12 } }
record = { checkpoint_every = 1 }
[env]
name = "search"
candidates = 4
results = 1
hops = 1
countries = 6
turns = 6
choices = true
MODELS
[[stages]]
name = "rl"
steps = 3
groups = { name = "slots", width = 2, size = 6 }
ESTIMATOR
losses = [{ name = "ppo" }]
optim = { lr = 1e-3 }
"""
CALLER = '{ name = "cosearch", caller = "agent", min_similar = 2, similarity = 0.4 }'
ONE = RECIPE.replace("MODELS", "").replace("ESTIMATOR", f"estimator = {CALLER}")
TWO = RECIPE.replace(
    "MODELS",
    '[models.ranker]\nname = "tiny:layers=1,hidden=64"\ndtype = "fp32"\n[seats]\nmodels = { ranker = ["ranker"] }',
).replace(
    "ESTIMATOR",
    'estimator = { name = "grpo" }\n'
    f'learners = {{ ranker = {{ estimator = {CALLER}, losses = [{{ name = "ppo" }}], optim = {{ lr = 1e-3 }} }} }}',
)


@pytest.mark.parametrize("recipe", [ONE, TWO], ids=["one", "two"])
def test_a_searcher_and_a_ranker_are_trained_together(recipe, tmp_path):
    run = trained_run.train(tmp_path / "run", recipe=recipe)
    with EpisodeStore(run) as store:
        groups = list(store.groups("rl"))
    models = {(one.agent, one.model) for group in groups for one in group.trajectories if one.turns}
    assert models == {("agent", "policy"), ("ranker", "ranker" if recipe is TWO else "policy")}
    trained = [line.values for line in metrics.read(run / "metrics.jsonl") if "trained_tokens" in line.values]
    assert sum(values["trained_tokens"] for values in trained) > 0
    if recipe is TWO:
        assert sum(values["ranker_trained_tokens"] for values in trained) > 0
        assert any(values["ranker_grad_norm"] > 0 for values in trained), "the ranker has learnt from its rankings"
