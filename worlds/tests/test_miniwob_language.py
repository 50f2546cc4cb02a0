"""The page as text and the action language, without a browser."""

import asyncio
import re
import subprocess
import sys
from dataclasses import replace

import pytest

pytest.importorskip("miniwob", reason="the pages come with the package miniwob")

from sojourn.errors import ActionError, ConfigError, InfrastructureError
from sojourn.types import Task
from sojourn_worlds.miniwob import MiniWoB
from sojourn_worlds.miniwob.actions import Point, parse
from sojourn_worlds.miniwob.experts import EXPERTS
from sojourn_worlds.miniwob.facts import FILLER, PARTIAL, RELOADED, page_names
from sojourn_worlds.miniwob.families import FAMILIES, family_of
from sojourn_worlds.miniwob.page import PageReader, choices
from sojourn_worlds.miniwob.serve import PagesServer


def element(role, name="", **more):
    return {
        "kind": "element",
        "id": 1,
        "role": role,
        "name": name,
        "value": "",
        "state": "",
        "options": [],
        "x": 10,
        "y": 20,
        "w": 30,
        "h": 40,
        **more,
    }


ENTRIES = [
    {"kind": "text", "text": "Some words"},
    {"kind": "break"},
    element("textbox", "Username", value="bob", id=1),
    element("password", "Password", value="abc", id=2),
    element("textbox", id=3),
    element("textbox", id=4),
    element("button", "Ok", id=5),
    element("button", "Ok", id=6),
    element("checkbox", "tick", state="on", id=7),
    element("list", value="red", options=["red", "green"], id=8),
    element("item", id=9),
    {**element("circle", "blue", id=10), "kind": "shape", "x": 57, "y": 103},
    element("button", "Go", state="disabled", id=11),
]


def read(entries=None, *, refs="name", filler=True, longest=6000):
    report = {"entries": ENTRIES if entries is None else entries, "goal": "g", "done": False, "raw": 0}
    return PageReader(refs=refs, filler=filler, longest=longest)(report)


def test_the_page_has_one_line_per_element():
    assert read().text.splitlines() == [
        "Some words",
        "textbox Username: bob",
        "password Password: ***",
        "textbox",
        "textbox (2)",
        "button Ok",
        "button Ok (2)",
        "checkbox tick: on",
        "list: red",
        "options red | green",
        "item 10,20 30x40",
        "circle blue 57,103 30x40",
        "button Go: disabled",
    ]


def test_numbers_name_every_element_and_option():
    page = read(refs="number")
    assert page.text.splitlines()[1] == "1 textbox Username: bob"
    assert "options 9 red | 10 green" in page.text
    assert parse("click 6", page).target.id == 6
    assert parse("select 10", page).target.option == 1


def test_filler_and_length():
    assert "Some words" not in read(filler=False).text
    field = element("textbox", "lorem ipsum", borrowed=True)
    assert (read([field]).text, read([field], filler=False).text) == ("textbox lorem ipsum", "textbox")
    assert read(longest=10).text == "Some words"[:10] + "…"
    assert read([]).text == "(empty page)"


@pytest.mark.parametrize(
    ("said", "verb", "target", "text"),
    [
        ("click Ok", "click", 5, ""),
        ("click Ok (2)", "click", 6, ""),
        ("  click ok (2) \n", "click", 6, ""),
        ("click button Ok", "click", 5, ""),
        ("click 80,120", "click", Point(80, 120), ""),
        ("click 57,103", "click", 10, ""),
        ('type Username "bob"', "type", 1, "bob"),
        ('type textbox (2) "say "hi" now"', "type", 4, 'say "hi" now'),
        ('type "ls -l"', "type", None, "ls -l"),
        ('type Password ""', "type", 2, ""),
        ("select green", "select", 8, ""),
        ("press Control+A", "press", None, "Control+A"),
        ("scroll down", "scroll", None, "down"),
        ("wait", "wait", None, ""),
        ("click(Ok (2))", "click", 6, ""),
        ("click(80,120)", "click", Point(80, 120), ""),
        ('type(Username, "bob")', "type", 1, "bob"),
        ('type("ls")', "type", None, "ls"),
        ("wait()", "wait", None, ""),
    ],
)
def test_actions_that_can_be_read(said, verb, target, text):
    action = parse(said, read())
    wanted = action.target if isinstance(action.target, Point) or action.target is None else action.target.id
    assert (action.verb, wanted, action.text) == (verb, target, text)


def test_drag_splits_where_both_sides_are_known():
    page = read([element("item", "A to B", id=1), element("item", "C", id=2)])
    action = parse("drag A to B to C", page)
    assert (action.target.id, action.to.id) == (1, 2)
    assert parse("drag 1,2 to 30,40", page).to == Point(30, 40)
    action = parse("drag(1, 2)", read(refs="number"))
    assert (action.target.id, action.to.id) == (1, 2)


@pytest.mark.parametrize(
    "said",
    [
        "",
        "Ok",
        "press",
        "click",
        "click Nothing",
        "click Ok\nclick Ok",
        "click 200,20",
        "click 20,300",
        "click green",
        "click Go",
        "select Ok",
        "select blue",
        "type Username bob",
        'type Ok "bob"',
        "press F12",
        "press Control+T",
        "scroll",
        "scroll left",
        "scroll down Nothing",
        "drag Ok",
        "drag Ok to Nothing",
        "wait 5",
        "CLICK Ok",
    ],
)
def test_what_cannot_be_read_is_an_action_error(said):
    with pytest.raises(ActionError):
        parse(said, read())


def test_an_error_names_what_is_near():
    with pytest.raises(ActionError, match="Did you mean Username"):
        parse('type Usernam "x"', read())


def test_choices_can_all_be_read():
    page = read()
    offered = choices(page)
    assert {"click Ok (2)", "select green", "click 10,20"} <= set(offered)
    assert "click Go" not in offered
    assert all(parse(said, page) for said in offered)


def test_the_tables_name_pages_that_exist():
    known = set(page_names())
    assert len(known) >= 100
    assert set(EXPERTS) <= known
    assert known >= FILLER | RELOADED | PARTIAL


def test_tasks_take_the_pages_in_turn_and_the_splits_share_none():
    family = MiniWoB(pages=("click-button", "login-user"), train_seeds=50, test_seeds=20)
    train, test = family.tasks("train"), family.tasks("test")
    assert (len(train), len(test)) == (100, 40)
    assert [task.tags[0] for task in train[:4]] == ["click-button", "login-user"] * 2
    assert len({task.id for task in [*train, *test]}) == 140
    assert not {task.seed for task in train} & {task.seed for task in test}
    assert train[3] == family.tasks("train")[3]
    with pytest.raises(ConfigError, match="validation"):
        family.tasks("validation")


def test_pages_are_chosen_by_family_too():
    listed = [page for pages in FAMILIES.values() for page in pages]
    assert len(listed) == len(set(listed))
    assert set(listed) >= set(page_names())
    assert MiniWoB(pages=("search", "click-test", "click-test")).pages == ("phone-book", "search-engine", "click-test")
    assert len(MiniWoB(pages=("experts",)).pages) == len(EXPERTS) >= 100
    assert len(MiniWoB(pages=("published",)).pages) == 56
    assert MiniWoB(pages=("email",)).tasks("train")[0].tags == ("email-inbox", "email")
    assert family_of("a-page-of-tomorrow") == "other"


def test_all_pages():
    assert MiniWoB().pages == MiniWoB(pages=("all",)).pages == page_names()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"pages": ("click-buton",)}, "'click-button'"),
        ({"observation": "pixels"}, "screenshot"),
        ({"observation": "dom"}, "number"),
        ({"observation": "aria", "refs": "number"}, "name"),
        ({"refs": "colour"}, "number"),
        ({"contexts": 0}, "contexts"),
        ({"turns": 0}, "turns"),
        ({"marks": True}, "screenshot"),
        ({"observation": "screenshot", "marks": True}, "number"),
        ({"step_s": 0.0}, "step_s"),
    ],
)
def test_configs_that_cannot_work_are_refused(wrong, message):
    with pytest.raises(ConfigError, match=message):
        MiniWoB(**wrong)


def test_an_env_needs_the_open_world():
    with pytest.raises(ConfigError, match="open"):
        MiniWoB(pages=("click-test",)).make(Task("miniwob", {"page": "click-test"}, 0, "train"))


async def test_a_missing_chromium_is_one_sentence(monkeypatch):
    with pytest.raises(ConfigError, match="/no/such/chromium"):
        await MiniWoB(chromium="/no/such/chromium").open()
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("SOJOURN_CHROMIUM", raising=False)
    with pytest.raises(ConfigError, match="install"):
        await MiniWoB().open()


def test_importing_the_world_imports_no_browser():
    making = "import sys; import sojourn_worlds.miniwob as m; m.MiniWoB()"
    code = f"{making}; print(sys.modules.keys() & {{'playwright', 'torch'}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


async def test_only_files_below_the_folder_are_served(tmp_path):
    (tmp_path / "pages").mkdir()
    (tmp_path / "pages" / "a b.html").write_text("hello")
    (tmp_path / "secret.txt").write_text("secret")
    server = PagesServer(tmp_path / "pages")
    await server.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", int(server.url.rsplit(":", 1)[1]))
    answers = []
    for target in ("/a%20b.html?x=1", "/../secret.txt", "/%2e%2e/secret.txt", "/", "/none.html"):
        writer.write(f"GET {target} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(re.search(rb"Content-Length: (\d+)", head)[1])
        answers.append((head.split()[1], await reader.readexactly(length)))
    writer.close()
    server.close()
    assert answers == [(b"200", b"hello"), *[(b"404", b"")] * 4]


def test_an_expert_that_finds_nothing_loses_its_play_and_not_the_run():
    page = replace(read([element("item", "Bob hello")]), goal="Find the email by Ada and reply to them.")
    with pytest.raises(InfrastructureError, match=r"finds no message on the page, .*Ada.*: it shows Bob hello"):
        EXPERTS["email-inbox"](page)


@pytest.mark.parametrize(
    "goal", ["Forward to Dee Dee the email from Jo Ann.", "Dee Dee wants the email Jo Ann sent to you."]
)
def test_an_expert_of_mail_knows_names_of_two_words(goal):
    inbox = replace(read([element("item", "Jo Sed ut."), element("item", "Jo Ann Sed ut.", id=2)]), goal=goal)
    assert EXPERTS["email-inbox-forward-nl"](inbox) == "click Jo Ann Sed ut."
    entries = [element("textbox", "to"), element("textarea", value="Nulla.", id=2)]
    assert EXPERTS["email-inbox-forward-nl"](replace(read(entries), goal=goal)) == 'type to "Dee Dee"'
