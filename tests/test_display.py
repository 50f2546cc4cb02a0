"""The display shows the numbers of a run in 80 columns, and plain lines where nobody looks."""

from __future__ import annotations

import io
from dataclasses import replace

import numpy as np
import pytest
from rich.cells import cell_len
from rich.console import Console

from sojourn.display import Display
from sojourn.record.summary import Summary, summarise
from sojourn.terminal.evaluations import side_by_side
from sojourn.terminal.numbers import metric
from sojourn.types import Ending, Episode, Group, Message, Role, Sample, Score, Stop, Task, Trajectory, Turn, Versions

VALUES = {
    "success": 0.625,
    "reward": 0.61,
    "entropy": 0.512,
    "kl": 0.0031,
    "loss": -0.012,
    "lag_mean": 0.8,
    "lag_max": 2,
    "episodes": 64,
    "trained_tokens": 3100,
    "errors": 1,
    "seconds_sample": 9.0,
    "seconds_train": 5.0,
    "seconds_step": 15.0,
    "sampled_tokens": 1800,
    "malformed": 0.125,
    "zero_signal": 0.25,
    "cut_off": 0.5,
    "episodes_per_s": 7.03,
    "sampler_batch": 11.5,
    "sampler_reuse": 0.93,
}


def played(reward: float, number: int = 0, ending: Ending = Ending.DONE) -> Episode:
    task = Task("toy", {}, number, "test")
    sample = Sample(np.arange(2), np.zeros(2, np.float32), Versions(0, 0), Stop.END)
    turn = Turn(-1, np.arange(3), sample, Message(Role.ASSISTANT, "x"), reward)
    return Episode(str(number), task, (Trajectory("a", (turn,), ending),))


def broken(cause: str) -> Episode:
    return Episode("broken", Task("toy", {}, 0, "test"), (), error=cause)


def judged(count: int = 4):
    groups, scores = [], []
    for number in range(count):
        episode = played(float(number % 2), number)
        groups.append(Group(number, episode.task, (episode,)))
        scores.append([Score(np.array([number % 2], np.float32))])
    return summarise(groups, scores)


def drive(display: Display) -> None:
    with display:
        display.stage("rl", 60, start=10, episodes=64)
        for step in range(10, 13):
            display.episode(played(1.0))
            display.step(step, VALUES)
        display.evaluation("base", judged())
        display.message("a [bracket] is not markup")
        display.episode(played(1.0))
        display.episode(played(0.0))


def test_a_log_has_one_line_per_step():
    console = Console(file=io.StringIO(), width=80)
    drive(Display("toy", console=console))
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    steps = [line for line in lines if line.startswith("rl ")]
    assert len(steps) == 3
    assert steps[0].startswith("rl 11/60  success 62% [50–73]  reward 0.61")
    for text in (
        "kl 0.0031",
        "lag 0.8/2",
        "sampled 200 tok/s",
        "trained 620 tok/s",
        "malformed 12.5%",
        "cut off 50.0%",
        "no signal 25.0%",
        "sampling 60%  train 33%",
        "took 15.0 s",
        "left 12:15",
    ):
        assert text in steps[0]
    assert "a [bracket] is not markup" in lines
    assert any(line.startswith("evaluation base: success 50%") for line in lines)
    assert "\x1b" not in "".join(lines)


def test_a_terminal_gets_a_panel_in_80_columns():
    console = Console(file=io.StringIO(), width=80, height=24, force_terminal=True, color_system=None)
    display = Display("toy", console=console)
    assert display.live
    drive(display)
    plain = Console(file=io.StringIO(), width=80)
    plain.print(display.render())
    shown = plain.file.getvalue()  # type: ignore[attr-defined]
    lines = shown.splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) <= 24
    for text in ("rl 13/60", "62% [50–73]", "episodes 2/64", "0.512", "0.8, at most 2", "left 11:45", "base", "▆▆▆"):
        assert text in shown
    assert "a [bracket] is not markup" in shown
    assert "rl 13/60" in console.file.getvalue()  # type: ignore[attr-defined]


def test_what_learns_beside_the_policy_is_shown():
    console = Console(file=io.StringIO(), width=80)
    display = Display("toy", console=console)
    display.stage("rl", 5)
    display.step(0, {"explained_variance": 0.314, "value_error": 0.2, "progress_error": 0.05, "seconds_step": 1.0})
    assert "critic explains 31.4%  progress error 0.05" in console.file.getvalue()  # type: ignore[attr-defined]
    shown = Console(file=io.StringIO(), width=80)
    shown.print(display.render())
    assert "explains 31.4%" in shown.file.getvalue()  # type: ignore[attr-defined]


def test_an_empty_display_draws():
    console = Console(file=io.StringIO(), width=80)
    display = Display(console=console)
    assert console.file.getvalue() == ""  # type: ignore[attr-defined]
    console.print(display.render())
    display.stage("warm-up", 0)
    display.step(0, {})
    assert "warm-up 1/0" in console.file.getvalue()  # type: ignore[attr-defined]


def test_plays_of_several_seats_are_counted_once():
    one = played(1.0)
    display = Display(console=Console(width=80, file=io.StringIO()), live=False)
    display.stage("rl", 2, episodes=4)
    for _ in range(2):
        display.episode(replace(one, trajectories=one.trajectories * 2))
    display.console.print(display.render())
    assert "episodes 2/4" in display.console.file.getvalue()
    display.step(0, VALUES)
    display.console.print(display.render())
    assert "episodes 0/4" in display.console.file.getvalue()


def test_an_evaluation_shows_how_far_it_is_and_earlier_ones_stay():
    console = Console(file=io.StringIO(), width=80)
    display = Display(console=console)
    display.recall("before", judged())
    display.evaluating("rl", 4)
    display.episode(played(1.0))
    console.print(display.render())
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "evaluating rl 1/4" in shown
    assert "1 successful so far" in shown
    assert "before" in shown
    display.evaluation("rl", judged())
    console.print(display.render())
    assert "evaluating" not in console.file.getvalue()[len(shown) :]  # type: ignore[attr-defined]


def test_a_narrow_terminal_keeps_the_labels():
    console = Console(file=io.StringIO(), width=60)
    display = Display(console=console)
    drive(display)
    console.print(display.render())
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    for label in ("success", "entropy", "malformed", "no signal", "reward", "speed", "11.5 sequences per batch"):
        assert label in shown


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_nothing_is_wider_than_the_terminal_and_nothing_is_cut(width):
    console = Console(file=io.StringIO(), width=width, height=40)
    display = Display("worlds", console=console)
    display.stage("rl", 60, episodes=64)
    display.step(0, VALUES | {"success_shop": 0.8125, "success_toy": 0.0, "seconds_publish": 1.0})
    display.evaluation("before", judged())
    display.episode(broken("the server gave no answer within 30 s"))
    shown = Console(file=io.StringIO(), width=width)
    shown.print(display.render())
    text = shown.file.getvalue()  # type: ignore[attr-defined]
    assert max(map(cell_len, text.splitlines())) <= width
    assert "…" not in text or width < 60
    for told in ("62% [50–73]", "shop 81%", "publish 7%", "failed 1 x"):
        assert told in text


def test_values_do_not_move_what_stands_beside_them():
    def places(values):
        display = Display(console=Console(file=io.StringIO(), width=80))
        display.stage("rl", 60, episodes=64)
        display.step(0, VALUES | values)
        shown = Console(file=io.StringIO(), width=80)
        shown.print(display.render())
        text = shown.file.getvalue()  # type: ignore[attr-defined]
        return [line.index(label) for label in ("trend", "malformed", "kl", "no signal")
                for line in text.splitlines() if label in line]  # fmt: skip

    assert places({"reward": 0.1, "entropy": 1}) == places({"reward": -0.123456, "entropy": 12345.678, "lag_max": 12})


def test_each_cause_of_failure_is_told_once_and_counted():
    console = Console(file=io.StringIO(), width=80)
    display = Display(console=console)
    with display:
        for number in range(6):
            display.episode(broken("first" if number % 2 else "second\x1b[2J\nline"))
        shown = Console(file=io.StringIO(), width=80)
        shown.print(display.render())
    log = console.file.getvalue()  # type: ignore[attr-defined]
    assert log.count("an episode failed: first") == 1
    assert "failed 3 x second\\x1b[2J line" in log
    assert "failed 3 x first" in shown.file.getvalue()  # type: ignore[attr-defined]
    assert "\x1b" not in log


def test_the_lines_of_a_log_are_pairs_that_can_be_searched_for():
    console = Console(file=io.StringIO(), width=80)
    display = Display(console=console)
    display.stage("warmup", 2)
    display.step(0, {"loss": 2.5, "seconds_step": 1.0, "seconds_train": 0.5})
    line = console.file.getvalue().splitlines()[-1]  # type: ignore[attr-defined]
    assert line == "warmup 1/2  loss 2.5  train 50%  took 1.0 s  left 0:01"


def test_an_evaluation_says_how_many_contexts_were_full():
    ends = [Ending.TOKENS, Ending.TOKENS, Ending.DONE, Ending.TURNS]
    episodes = [played(0.0, number, ending) for number, ending in enumerate(ends)]
    groups = [Group(number, episode.task, (episode,)) for number, episode in enumerate(episodes)]
    summary = summarise(groups, [[Score(np.zeros(1, np.float32))]] * len(ends))
    assert summary.full_contexts == 2
    assert Summary.from_json(summary.to_json()) == summary
    out = io.StringIO()
    with Display(console=Console(file=out, width=200)) as display:
        display.evaluation("before", summary)
        display.evaluation("none", judged())
    assert out.getvalue().count("2 of the 4 episodes of before ended because their context was full: raise back") == 1
    assert out.getvalue().count("ended because their context was full") == 1
    assert [line.split()[2:] for line in out.getvalue().splitlines() if line.startswith("contexts full")] == [
        ["2", "0"]
    ]


@pytest.mark.parametrize("width", [80, 100])
def test_evaluations_of_long_names_are_told_apart_and_their_numbers_are_whole(width: int):
    names = ["before", *(f"reinforcement-learning-{step}" for step in (40, 60)), "reinforcement-learning"]
    console = Console(file=io.StringIO(), width=width)
    console.print(side_by_side(dict.fromkeys(names, judged())))
    head, _, body = console.file.getvalue().partition("─\n")  # type: ignore[attr-defined]
    assert max(map(cell_len, body.splitlines())) <= width
    assert "…" not in head + body
    assert len(body.splitlines()) == 6, "a row is folded"
    assert body.count(judged().overall.success.percent) == 4
    assert head.count("reinforcement") == 3
    assert head.count("-learning-40") == head.count("-learning-60") == 1


def test_a_single_task_has_no_interval_of_its_turns():
    console = Console(file=io.StringIO(), width=100)
    console.print(side_by_side({"before": judged(1)}))
    assert "inf" not in console.file.getvalue()  # type: ignore[attr-defined]
    assert "±" not in console.file.getvalue()  # type: ignore[attr-defined]


def test_a_divergence_that_rounding_makes_is_zero():
    assert metric({"kl": -9e-12}, "kl") == metric({"drift": 3e-9}, "drift") == "0"
    assert metric({"kl": 3e-6}, "kl") == "3e-06"
    assert metric({"lr": 1e-9}, "lr") == "1e-09"


def test_a_long_evaluation_says_how_far_it_is_where_nobody_looks(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr("sojourn.display.time.monotonic", lambda: now[0])
    out = io.StringIO()
    display = Display(console=Console(file=out, width=100), live=False)
    display.evaluating("rl", 100)
    for number in range(8):
        now[0] += 10
        display.episode(broken("gone") if number == 0 else played(1.0, number))
    lines = [line for line in out.getvalue().splitlines() if line.startswith("evaluating")]
    assert lines == [
        "evaluating rl: 3/100 episodes, 2 successful so far",
        "evaluating rl: 6/100 episodes, 5 successful so far",
    ]
    display.evaluating("more", 100)
    display.episode(played(1.0))
    assert out.getvalue().count("evaluating") == 2
