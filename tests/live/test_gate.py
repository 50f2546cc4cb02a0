"""The gate: which weights are offered, beside those that serve, and why not."""

import pytest

from sojourn.commands.arguments import print_too_few_plays
from sojourn.config.toml import Tables
from sojourn.live.facts import SERVING
from sojourn.live.gate import FREEZE, OFFERED, Gate, judge, panel_of, serving
from sojourn.live.store import LiveStore
from sojourn.train.resolve import resolve
from tests.live_sessions import RECIPE, stage, summary

SERVES = {"success": 0.8, "success_low": 0.72, "malformed": 0.02, "tokens": 100.0, "part:guard": 0.9}
GATE = Gate(margin=0.1, part_margin=0.15, malformed_rise=0.05, tokens_ratio=1.5)


@pytest.mark.parametrize(
    ("panel", "words"),
    [
        ({}, ""),
        ({"success_low": 0.71}, ""),
        ({"success_low": 0.69}, "success 80.0%, at least 69.0%, where 80.0% serves"),
        ({"part:guard": 0.76}, ""),
        ({"part:guard": 0.74}, "success 74.0% in 'guard', where 90.0% serves"),
        ({"part:new": 0.0}, ""),
        ({"malformed": 0.06}, ""),
        ({"malformed": 0.08}, "8.0% of turns are malformed, where it is 2.0%"),
        ({"tokens": 149.0}, ""),
        ({"tokens": 151.0}, "151 tokens an episode, where it is 100"),
    ],
)
def test_what_may_take_the_place_of_what_serves(panel, words):
    reason = GATE.why_not({**SERVES, **panel}, SERVES)
    assert words in reason
    assert bool(reason) == bool(words)


def test_the_first_weights_pass_and_later_ones_are_compared_with_those_that_serve(tmp_path):
    store = LiveStore(tmp_path)
    assert judge(GATE, store, summary(0.0)) == ""
    first = store.offer(0, tmp_path / "a", panel_of(summary(0.9)))
    store.tell(OFFERED, first, "before")
    assert serving(store).number == first
    assert "where 90.0% serves" in judge(GATE, store, summary(0.5))
    second = store.offer(1, tmp_path / "b", panel_of(summary(0.5)))
    store.tell(OFFERED, second, "rl-1")
    assert serving(store).number == first  # until the service says otherwise
    store.tell(SERVING, second, "")
    assert judge(GATE, store, summary(0.6)) == ""
    (tmp_path / FREEZE).touch()
    assert "nothing changes until it is removed" in judge(GATE, store, summary(1.0))
    store.close()


def test_too_few_plays_for_the_margin_are_those_with_which_equal_results_may_be_refused():
    for margin in (0.05, 0.1, 0.15, 0.3):
        gate = Gate(margin=margin)
        for plays in (4, 10, 11, 42, 43, 64, 96, 97, 384, 385):
            equal = [panel_of(summary(won / plays, plays)) for won in range(plays + 1)]
            assert bool(gate.too_few(plays)) == any(gate.why_not(panel, panel) for panel in equal)
    assert "expected at least 97 plays, or release.margin = 0.13" in Gate(margin=0.1).too_few(64)
    assert Gate(margin=0.1).too_few(97) == Gate(margin=0.0).too_few(4) == ""


def test_too_few_plays_are_told_at_the_start(capsys):
    table = {"name": "chat", **RECIPE, "release": {"margin": 0.1}, "stages": [stage(1)]}
    for plays in ({"tasks": 64}, {"tasks": 64, "samples": 2}):
        print_too_few_plays(resolve(Tables({**table, "evaluation": {**plays, "every": 1}})).recipe)
    assert capsys.readouterr().err.count("note: release.margin = 0.1") == 1


def test_a_panel_has_the_numbers_of_worlds_and_tags():
    panel = panel_of(summary(0.75))
    assert panel["success"] == panel["part:made"] == 0.75
    assert panel["success_low"] < 0.75
    assert panel["part:hard"] == 0.75
