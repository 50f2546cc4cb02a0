"""The page of what agents ask people: questions, answers, and what is refused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from sojourn.models.questions import MOST_CHARACTERS, Questions
from sojourn.record.run import RunFolder
from sojourn.types import Message, Role
from sojourn.view.pages.questions import SHOWN
from sojourn.view.server import application
from tests.view import hostile
from tests.view.conftest import Tab, served

HOME = "http://127.0.0.1"
CONFIG = "name = 'asks'\nseed = 1\nmodel.name = 'tiny'\n"
PAGE = "/runs/asks/questions"


class Site:
    """A viewer of one run."""

    def __init__(self, folder: Path, answering: str = "secret") -> None:
        RunFolder.create(folder / "asks", CONFIG).close()
        self.questions = Questions(folder / "asks")
        self.client = TestClient(
            application([folder], answering=answering), base_url=HOME, raise_server_exceptions=False
        )  # fmt: skip

    def put(self, key: str, question: str = "ask: Which way?", shown: str = "A door.") -> None:
        said = [Message(Role.SYSTEM, "Play."), Message(Role.USER, shown), Message(Role.ASSISTANT, question)]
        self.questions.put(key, f"rl/0/0/{key}-x", said, 600.0)

    def page(self) -> str:
        found = self.client.get(PAGE)
        assert found.status_code == 200
        return found.text

    def token(self) -> str:
        found = re.search(r'name="token" value="([^"]+)"', self.page())
        return found[1] if found else ""

    def answer(self, key: str, text: str, token: str | None = None, **headers: str):
        fields = {"token": self.token() if token is None else token, "question": key, "answer": text}
        return self.client.post(PAGE, data=fields, headers={"origin": HOME, **headers}, follow_redirects=False)


@pytest.fixture
def site(tmp_path) -> Site:
    return Site(tmp_path)


def test_a_question_is_shown_with_the_episode_so_far_and_answered(site):
    site.put("a")
    site.put("b", "ask: And now?")
    page = site.page()
    for shown in ("2 open", "rl/0/0/a-x", "the episode so far, 2 messages", "A door.", "ask: Which way?", "ask: And"):
        assert shown in page
    assert "The run does not go on at present" in page
    done = site.answer("a", "North.\r\nQuickly.")
    assert (done.status_code, done.headers["location"]) == (303, PAGE)
    assert site.questions.reply("a") == ("North.\nQuickly.", True)
    page = site.page()
    assert "1 open · 1 answered by people · 0 by nobody in time" in page
    assert "ask: Which way?" not in page


def test_a_run_without_questions_says_so_and_its_page_names_those_that_it_has(site):
    assert "No question is open." in site.page()
    assert "Questions to people" not in site.client.get("/runs/asks").text
    site.put("a")
    assert f'<a href="{PAGE}">1 open</a>' in site.client.get("/runs/asks").text


def test_an_answer_that_comes_too_late_or_is_none_is_told_and_not_lost(site):
    site.put("a")
    refused = site.answer("a", "x" * (MOST_CHARACTERS + 1))
    assert refused.status_code == 409
    assert "at most 4,000" in refused.text
    assert f">{'x' * 4001}</textarea>" in refused.text
    token = site.token()
    site.questions.close("a", "Nobody is there.")
    late = site.answer("a", "<i>North</i>", token)
    assert late.status_code == 409
    assert "not open any more" in late.text
    assert "<pre>&lt;i&gt;North&lt;/i&gt;</pre>" in late.text


def test_forms_of_other_sites_and_without_the_token_are_refused(site):
    site.put("a")
    assert site.answer("a", "North.", "wrong").status_code == 403
    assert site.answer("a", "North.", origin="http://elsewhere").status_code == 403
    assert site.answer("a", "North.", **{"sec-fetch-site": "cross-site"}).status_code == 403
    assert site.questions.reply("a") is None


def test_a_viewer_that_is_not_told_so_takes_no_answers(tmp_path):
    site = Site(tmp_path, answering="")
    site.put("a")
    page = site.page()
    assert "<textarea" not in page
    assert "sojourn view --answer" in page
    assert f"sojourn answer {tmp_path}" in page
    assert site.answer("a", "North.", "").status_code == 403
    assert site.questions.reply("a") is None


def test_texts_that_mean_harm_are_shown_as_they_are(site):
    site.put("a", f"ask: {hostile.TEXT}", hostile.TEXT)
    page = site.page()
    assert "<script>" not in page.replace("<script src=", "")
    assert "&lt;script&gt;" in page
    assert "\u202e" not in page


def test_where_the_questions_cannot_be_read_the_page_says_so(site):
    site.questions.path.write_bytes(b"no database, but long enough to look at" * 10)
    page = site.page()
    assert "cannot be read" in page
    assert "No question is open." in page
    assert site.client.get("/runs/asks").status_code == 200
    assert site.client.get("/runs/none/questions").status_code == 404


def test_many_questions_are_shown_a_few_at_once(site):
    for number in range(SHOWN + 2):
        site.put(f"{number:02}")
    page = site.page()
    assert page.count("<textarea") == SHOWN
    assert "and 2 more" in page


def test_a_browser_answers_and_the_page_changes_by_itself_but_not_while_somebody_writes(site, tmp_path, chromium):
    site.put("a", f"ask: {hostile.TEXT.replace(chr(0xD800), '')}")
    with served(tmp_path, "--answer") as address:
        tab = Tab(chromium, address)
        page = tab.open(PAGE)
        page.fill("#question-a textarea", "Nor")
        page.click("h1")  # the field is not focused any more
        site.put("b", "ask: And now?")
        page.evaluate("refresh()")
        assert page.input_value("#question-a textarea") == "Nor"
        assert not page.query_selector("#question-b")
        page.fill("#question-a textarea", "North.")
        page.click("#question-a button")
        page.wait_for_selector("#question-b")
        assert site.questions.reply("a") == ("North.", True)
        page.wait_for_selector(".pulse.on", state="attached")
        site.put("c", "ask: And then?")
        page.wait_for_selector("#question-c")
        tab.close()
