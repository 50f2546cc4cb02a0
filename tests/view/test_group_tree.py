"""The drawing of plays that forked, and where the pages tell of it."""

from __future__ import annotations

import re
from dataclasses import replace
from io import StringIO

import numpy as np
from made import group, score, trajectory
from starlette.testclient import TestClient

from sojourn.record.episodes.store import EpisodeStore
from sojourn.record.run import RunFolder
from sojourn.terminal.episode import EpisodeContext, transcript
from sojourn.terminal.output import CleanConsole
from sojourn.types import Branch, Credit
from sojourn.view.branches import EDGE, LANE, STEP
from sojourn.view.group_tree import Line, Node, tree_svg
from sojourn.view.server import application


def line(id: str, turns: int, branch: Branch | None = None, advantage: float | None = None) -> Line:
    return Line(id, branch, [Node(f"/{id}/{n}", f"{id} {n}", advantage) for n in range(turns)], 1.0)


def circles(svg: str) -> dict[str, tuple[int, int]]:
    """The turn (from 0) and the lane of each drawn turn, by its link."""
    found = re.findall(r'<a href="([^"]*)"><circle class="[^"]*" cx="(\d+)" cy="(\d+)"', svg)
    return {link: ((int(x) - EDGE) // STEP, (int(y) - EDGE) // LANE) for link, x, y in found}


def edges(svg: str) -> set[tuple[int, int, int, int]]:
    """From which turn and lane to which."""
    found = re.findall(r'd="M(\d+) (\d+)C[-\d]+ [-\d]+ [-\d]+ [-\d]+ (\d+) (\d+)"', svg)
    return {
        ((int(a) - EDGE) // STEP, (int(b) - EDGE) // LANE, (int(c) - EDGE) // STEP, (int(d) - EDGE) // LANE)
        for a, b, c, d in found
    }


def test_a_branch_is_drawn_from_the_line_that_took_the_turn_before_it():
    """b left a after its first turn; c left b after one turn, too, which is a's."""
    svg = tree_svg([line("a", 3), line("b", 2, Branch("a", (1,), "a jump")), line("c", 2, Branch("b", (1,)))])
    assert circles(svg) == {"/a/0": (0, 0), "/a/1": (1, 0), "/a/2": (2, 0), "/b/1": (1, 1), "/c/1": (1, 2)}
    assert edges(svg) == {(0, 0, 1, 0), (1, 0, 2, 0), (0, 0, 1, 1), (0, 0, 1, 2)}
    assert "forked: a jump" in svg


def test_plays_that_did_not_fork_are_not_drawn():
    assert tree_svg([line("a", 3), line("b", 2)]) == ""


def test_a_branch_whose_origin_is_not_there_is_drawn_whole():
    svg = tree_svg([line("b", 2, Branch("gone", (1,))), line("c", 0, Branch("b", (2,)))])
    assert circles(svg) == {"/b/0": (0, 0), "/b/1": (1, 0)}


def test_plays_that_damaged_records_make_branches_of_each_other_are_drawn():
    svg = tree_svg([line("a", 2, Branch("b", (1,))), line("b", 2, Branch("a", (1,))), line("c", 2, Branch("c", (1,)))])
    assert circles(svg) == {"/a/1": (1, 0), "/b/1": (1, 1), "/c/1": (1, 2)}


def test_the_sign_of_an_advantage_is_a_colour_and_texts_are_escaped():
    svg = tree_svg([line("<a>", 1, None, 0.5), line("b", 2, Branch("<a>", (1,), "<why>"), -0.5), line("c", 1)])
    assert [svg.count(f'turn-node{sign}"') for sign in (" up", " down", "")] == [1, 1, 1]
    assert "<why>" not in svg
    assert "<a>" not in svg


def test_pages_and_the_terminal_tell_of_a_branch(tmp_path):
    rng = np.random.default_rng(0)
    first, second = (trajectory(rng, turns=3) for _ in range(2))
    made = group([first, replace(second, turns=(*first.turns[:2], second.turns[2]))])
    branch = Branch(made.episodes[0].id, (2,), "a jump of entropy")
    tree = replace(made, episodes=(made.episodes[0], replace(made.episodes[1], branch=branch)))
    scores = [[score(t, 1.0) for t in tree.trajectories]]
    credits = [[Credit.uniform(t, 0.5) for t in tree.trajectories]]
    with (
        RunFolder.create(tmp_path / "run", 'name = "made"', seeds={}) as run,
        EpisodeStore(run.path, write=True) as store,
    ):
        store.append("rl", 0, [tree], scores, credits)
        entry = list(store.query())[1]
        shown = StringIO()
        CleanConsole(file=shown, width=200).print(transcript(store.read(entry), EpisodeContext(run.path, entry)))
    with TestClient(application([tmp_path]), base_url="http://127.0.0.1") as client:
        page = client.get("/runs/run/groups/rl/0/0").text
        assert len(circles(page)) == 4
        own = client.get(f"/runs/run/episodes/{tree.episodes[1].id}").text
    assert "after 2 turns: a jump of entropy" in own
    assert f"a branch of {made.episodes[0].id} after 2 turns: a jump of entropy" in shown.getvalue()
