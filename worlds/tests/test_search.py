"""Question answering over invented worlds: questions, marking, plays, and what chance earns."""

from __future__ import annotations

import random
import re

import pytest
from people_at_play import say
from search_play import follow

from sojourn.checks.env import check_env
from sojourn.config.registry import build
from sojourn.errors import ActionError, ConfigError, InfrastructureError
from sojourn_worlds.search import Search
from sojourn_worlds.search.corpus import Corpus, Passage
from sojourn_worlds.search.index import Index
from sojourn_worlds.search.invented import invent
from sojourn_worlds.search.marking import f1, mark, normalised
from sojourn_worlds.search.play import snippet
from sojourn_worlds.search.questions import Step, Thing, ask, flaw

EASY = dict(Search.about.smallest)


PROMISES = [EASY, {}, {"choices": True, "hops": 4, "marking": "evidence"}, {"masks": 0, "marking": "f1"}]


@pytest.mark.parametrize("fields", PROMISES, ids=str)
async def test_it_keeps_the_promises_of_a_world(fields) -> None:
    report = await check_env(Search(train=400, test=100, **fields))
    assert report.passed, report.failed


@pytest.mark.parametrize("hops", [1, 2, 3, 4])
async def test_the_expert_earns_everything_in_the_way_that_hops_say(hops: int) -> None:
    for marking in ("exact", "evidence"):
        family = Search(hops=hops, marking=marking, graph=True)
        for split, count in (("train", 25), ("test", 10)):
            for number in range(count):
                play = family.make(family.tasks(split)[number])
                steps = await follow(play)
                assert steps[-1][1].rewards == {"agent": 1.0}
                assert steps[-1][1].success
                assert sum(action.startswith("open[") for action, _ in steps) == hops
                assert len(steps) <= 3 * hops + 1


async def test_the_expert_says_only_what_is_offered() -> None:
    family = Search(hops=3, choices=True)
    for number in range(40):
        play = family.make(family.tasks("train")[number])
        offered = (await play.start()).choices
        while not play.done:
            assert play.expert() in offered
            step = await play.step("agent", say(play.expert()))
            offered = step.observation.choices if step.observation else ()


async def wander(play, rng: random.Random, answer: bool = True):
    """A random policy among the choices; what it earned."""
    observation = await play.start()
    while True:
        choices = [choice for choice in observation.choices if answer or not choice.startswith("answer")]
        step = await play.step("agent", say(rng.choice(choices)))
        if step.observation is None:
            return step.rewards["agent"]
        observation = step.observation


async def test_chance_earns_little() -> None:
    rng = random.Random(0)
    for fields, bound in ((EASY, 0.3), ({"choices": True, "hops": 3}, 0.15)):
        family = Search(**fields)
        earned = [await wander(family.make(family.tasks("train")[number]), rng) for number in range(150)]
        assert sum(earned) / len(earned) < bound


async def test_the_expert_goes_on_from_wherever_chance_stopped() -> None:
    rng, family = random.Random(1), Search(choices=True, hops=2, turns=9)
    for number in range(30):
        play = family.make(family.tasks("train")[number])
        observation = await play.start()
        for _ in range(rng.randrange(9)):
            allowed = [choice for choice in observation.choices if not choice.startswith("answer")]
            observation = (await play.step("agent", say(rng.choice(allowed)))).observation
        while not play.done:
            step = await play.step("agent", say(play.expert()))
        assert step.rewards == {"agent": 1.0}


async def test_running_out_of_turns_earns_nothing() -> None:
    family = Search(turns=3, choices=True, marking="evidence")
    play = family.make(family.tasks("train")[0])
    assert await wander(play, random.Random(0), answer=False) == 0.0
    assert play.done
    with pytest.raises(InfrastructureError):
        await play.step("agent", say("search[river]"))


def facts_read_from(corpus: Corpus) -> dict[tuple[str, str], str]:
    """Returns what the passages say, read by their own sentences and not from the facts that questions are made of."""
    found = {}
    for passage in corpus.passages:
        subject = passage.title.split(":")[0]
        for name, pattern in {
            "capital": r"capital of \w+ is (\w+)\.",
            "leader": r"leader is ([\w ]+),",
            "currency": r"currency is the (\w+)\.",
            "area": r"area of (\d+) ",
            "borders": r"borders of \w+: (.+)\.$",
            "birthplace": r"born in (\w+),",
            "founder": r"\. ([\w ]+) founded it",
        }.items():
            if told := re.search(pattern, passage.text):
                found[name, subject] = told[1]
    return found


def test_the_answers_follow_from_what_the_passages_say() -> None:
    """Questions of a few forms are answered again by reading the passages alone."""
    seen = dict.fromkeys(["capital", "larger", "longest", "both"], 0)
    for seed in range(400):
        corpus = invent(seed % 20, 12)
        question = ask(random.Random(seed), corpus, 1 + seed % 2)
        said = facts_read_from(corpus)
        borders = {
            land: {part.rsplit(" ", 2)[0]: float(part.split()[-2]) for part in text.split(", ") if part.endswith("km")}
            for (kind, land), text in said.items()
            if kind == "borders"
        }
        if told := re.fullmatch(r"What is the capital of (\w+)\?", question.text):
            assert question.answer == said["capital", told[1]]
            seen["capital"] += 1
        if told := re.fullmatch(r"Which has a larger area, (\w+) or (\w+)\?", question.text):
            assert question.answer == max(told.groups(), key=lambda land: int(said["area", land]))
            seen["larger"] += 1
        if told := re.fullmatch(r"What is the country that has the longest border with (\w+)\?", question.text):
            assert question.answer == max(borders[told[1]], key=lambda land: borders[told[1]][land])
            seen["longest"] += 1
        if told := re.fullmatch(r"What is the country that borders on both (\w+) and (\w+)\?", question.text):
            assert {question.answer} == borders[told[1]].keys() & borders[told[2]].keys()
            seen["both"] += 1
    assert min(seen.values()) >= 3, seen


def test_questions_need_as_many_passages_as_they_have_hops() -> None:
    kinds = set()
    for hops in (1, 2, 3, 4):
        for seed in range(60):
            question = ask(random.Random(seed), invent(seed, 12), hops)
            assert len(set(question.evidence)) == hops
            corpus = invent(seed, 12)
            assert all(id in corpus.by_id for id in question.evidence)
            kinds |= set(question.kinds)
    assert kinds == {"relation", "inverse", "border", "comparison", "both", "superlative"}


def test_flawed_questions_are_seen() -> None:
    corpus = Corpus((Passage("1", "Here", "The capital of Here is There."),), "made")

    def thing(answer: str, says: str, path: tuple[str, ...]) -> Thing:
        asked = "What is the capital of Here?"
        return Thing(answer, "city", "", asked, ("relation",), (Step("1", says),), path)

    assert flaw(thing("There", "There", ("Here", "There")), corpus) == ""
    assert "does not say" in flaw(thing("Nowhere", "Nowhere", ("Here", "Nowhere")), corpus)
    assert "gives its answer away" in flaw(thing("Here", "Here", ("Here",)), corpus)
    assert "twice" in flaw(thing("There", "There", ("Here", "here")), corpus)


def test_worlds_differ_between_tasks_and_splits() -> None:
    family = Search()
    train, test = family.tasks("train"), family.tasks("test")
    assert len({family.corpus_at(tasks[n].seed).digest for tasks in (train, test) for n in range(20)}) == 40
    shared = Search(worlds=2)
    digests = {
        split: {shared.corpus_at(shared.tasks(split)[n].seed).digest for n in range(20)} for split in ("train", "test")
    }
    assert len(digests["train"]) == len(digests["test"]) == 2
    assert not digests["train"] & digests["test"]
    assert train[5].data["answer"] not in train[5].data["question"]
    assert {len(Search(hops=0).tasks("train")[n].data["evidence"]) for n in range(40)} == {1, 2, 3, 4}


def test_answers_are_marked_as_squad_does() -> None:
    assert normalised("  The  Río-Grande's, a river!") == "rio grandes river"
    assert f1("the red house", "a red barn") == 0.5
    assert f1("nothing", "something") == 0.0
    judged = mark("barn", ["the Barn", "shed"], ["1", "2"], {"2", "3"})
    assert judged == (1.0, 1.0, 0.5)
    assert mark("big barn", ["barn"], [], set()) == (0.0, pytest.approx(2 / 3), pytest.approx(2 / 3))
    assert mark("barn shed", ["barn"], [], set(), ["barn", "shed"]) == (0.0, 0.0, 0.0)  # two names are no answer
    assert mark("Isle of Man", ["Isle of Man"], [], set(), ["Isle", "Man"]).f1 == 1.0


@pytest.mark.parametrize(("looked", "worth"), [((), 0.0), ((0,), 0.0), ((0, 1), 1.0)])
async def test_a_choice_must_have_been_looked_up(looked, worth: float) -> None:
    family = Search()
    tasks = (family.tasks("train")[number] for number in range(40))
    task = next(task for task in tasks if task.tags[-1] == "comparison")
    play = family.make(task)
    assert "only if the passages" in (await play.start()).system[0].text
    for number in looked:
        title = play.index.corpus.by_id[task.data["evidence"][number]].title
        await play.step("agent", say(f"search[{title}]"))
    end = await play.step("agent", say(f"answer[{task.data['answer']}]"))
    assert end.rewards == {"agent": worth}
    assert end.success is bool(worth)


async def test_a_play_by_hand() -> None:
    family = Search(hops=2, results=3, snippet=4, graph=True, marking="f1")
    task = family.tasks("train")[0]
    play = family.make(task)
    first = await play.start()
    assert task.data["question"] in first.system[0].text
    assert "neighbours[name]" in first.system[0].text
    country = next(p for p in play.index.corpus.passages if p.title.endswith(": government"))
    listed = await play.step("agent", say(f"search[{country.title}]"))
    lines = listed.observation.messages[0].text.splitlines()
    assert len(lines) == 3
    assert lines[0].startswith(f"{country.id} {country.title} |")
    opened = await play.step("agent", say(f"Open[{country.id}]"))
    assert opened.observation.messages[0].text == f"{country.title}\n{country.text}"
    around = await play.step("agent", say(f"neighbours[{country.names[1].lower()}]"))
    assert country.title in around.observation.messages[0].text
    nothing = await play.step("agent", say("search[zzyzx]"))
    assert nothing.observation.messages[0].text == "Nothing found."
    key = play.state_key()
    for wrong in (
        "open[0]",
        "search[]",
        "search[the of]",
        "answer[the]",
        "neighbours[Zzyzx]",
        "look",
        "answer[x" * 200,
    ):
        with pytest.raises(ActionError):
            await play.step("agent", say(wrong))
    assert play.state_key() == key
    twin = await play.fork()
    end = await twin.step("agent", say(f"answer[{task.data['answer']} town]"))
    assert 0.6 < end.rewards["agent"] < 1
    assert end.success is False
    assert not play.done


def test_snippets_start_at_what_was_asked() -> None:
    text = "one two three four five six"
    assert snippet(text, "four", 3) == "... four five six"
    assert snippet(text, "nothing", 2) == "one two ..."
    assert snippet(text, "six", 9) == text
    assert snippet(text, "six", 0) == ""


@pytest.mark.parametrize("engine", ["fts5", "bm25s", "tantivy"])
def test_every_engine_finds_what_is_asked_for(engine: str) -> None:
    if engine != "fts5":
        pytest.importorskip(engine)
    corpus = invent(3, 12)
    index = Index(corpus, engine)
    for passage in corpus.passages:
        assert passage in index.search(passage.title, 5)
    assert index.search("zzyzx", 5) == ()
    assert index.search('the "of', 5) == ()
    assert len(index.search('leader: -capital" AND ( ~x', 4)) == 4


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"countries": 2}, "countries = 2"),
        ({"hops": 5}, "hops = 5"),
        ({"turns": 0}, "turns = 0"),
        ({"retriever": "grep"}, "retriever"),
        ({"marking": "bleu"}, "marking"),
        ({"embedder": "/x"}, "dense"),
        ({"corpus": "/nowhere"}, "needs them"),
        ({"questions": "/x.jsonl"}, "questions go with"),
        ({"corpus": "/nowhere", "questions": "/nowhere.jsonl"}, "no such file"),
    ],
)
def test_wrong_configs_are_refused(fields, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Search(**fields).tasks("train")


def test_a_task_of_another_world_is_refused() -> None:
    with pytest.raises(ConfigError, match="own config"):
        Search(countries=8).make(Search().tasks("train")[0])
    with pytest.raises(ConfigError, match="unknown split"):
        Search().tasks("dev")


def test_it_is_built_from_a_table() -> None:
    assert build("env", {"name": "search", "hops": 3}).value == Search(hops=3)
