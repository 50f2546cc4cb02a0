"""One run, one step, one episode in the terminal: what is told, at any width, hostile and damaged records included."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console, Group
from typer.testing import CliRunner

from sojourn.cli import app
from sojourn.errors import ConfigError, RecordError
from sojourn.record import metrics
from sojourn.record.episodes import vocabulary
from sojourn.record.episodes.address import Address
from sojourn.record.episodes.store import EpisodeStore
from sojourn.terminal import episode, find, step, tokens
from sojourn.terminal import run as runs
from sojourn.types import Score
from tests.terminal.conftest import printed


def told(run, name, width=80, full=False) -> str:
    return printed(episode.transcript(*find.load_episode(run, name, full)), width)


@pytest.mark.parametrize("width", [40, 80, 120])
def test_a_run(run, width):
    text = printed(runs.overview(run, width), width)
    for said in ("made-1", "finished", "6 of 6 steps", "rl, 4 steps: slots 2 x 2, lag at most 1; grpo; ppo", "2.9e-04"):
        assert said in " ".join(text.split()) or width < 80
    assert "1 x the server is gone\\x1b[2J" in text
    assert "rl/3/1/1" in text
    assert "…" not in text
    assert "▁▃▅▇" in text  # success 0, .25, .5, .75 of 1


def test_a_run_for_scripts(run):
    data = json.loads(runs.as_json(run))
    assert data["last"]["step"] == 3
    assert [count["episodes"] for count in data["episodes"]] == [6, 2, 2, 2]


def test_a_step_lists_rewards_and_advantages(run):
    text = printed(step.table(run, "rl", 2, 80), 80)
    assert "group 0: toy, easy, seed 102, mean reward 0.5" in text
    rows = [line.split() for line in text.splitlines() if line.startswith("rl:2/0/")]
    assert [row[:3] for row in rows] == [["rl:2/0/0", "0", "-0.5"], ["rl:2/0/1", "1", "+0.5"]]
    assert "the server is gone" in printed(step.table(run, "rl", 0, 80), 80)
    with pytest.raises(RecordError, match="has the steps 0 to 3"):
        step.table(run, "rl", 9, 80)
    with pytest.raises(RecordError):
        step.table(run, "rl", 2**63, 80)
    assert json.loads(step.as_json(run, "rl", 2))["groups"][0]["episodes"][1]["advantage"] == 0.5


def test_a_step_tells_where_its_groups_came_from(run):
    with EpisodeStore(run, write=True) as store:
        shown, earlier = (next(iter(store.groups("rl", [at]))) for at in (2, 1))
        renamed = tuple(replace(played, id=f"experts/{n}") for n, played in enumerate(shown.episodes))
        store.append("rl", 3, [replace(shown, episodes=renamed, origin="experts")])
        store.append("rl", 3, [], reused=[replace(earlier, origin="replay")])
    text = " ".join(printed(step.table(run, "rl", 3, 80), 80).split())
    assert text.startswith("groups by origin: 1 policy, 1 experts, 1 replay group 0: toy, easy, seed 103, mean")
    assert "group 1, experts: toy, easy, seed 102" in text
    assert text.endswith("replay: group 0 of step 1, 2 steps old: toy, easy, seed 101, mean reward 0.5 (rl:1/0/0)")
    assert "origin" not in printed(step.table(run, "rl", 2, 80), 80)
    data = json.loads(step.as_json(run, "rl", 3))
    assert [group["origin"] for group in data["groups"]] == ["policy", "experts"]
    [again] = data["again"]
    assert (again["origin"], again["of_step"], again["age"], again["episodes"]) == (
        "replay", 1, 2, ["rl/1/1/0", "rl/1/1/1"],
    )  # fmt: skip
    assert "origin experts" in told(run, "experts/1")
    assert "trained again in step 3 (replay)" in told(run, "rl/1/1/0")
    assert "again" not in told(run, "rl/2/1/0") + told(run, "experts/1")


def test_a_step_that_only_trains_again_what_was_recorded_before_is_shown(run):
    with EpisodeStore(run, write=True) as store:
        store.append("rl", 4, [], reused=[replace(next(iter(store.groups("rl", [1]))), origin="folder")])
    assert "folder: group 0 of step 1, 3 steps old" in printed(step.table(run, "rl", 4, 80), 80)


def test_a_copy_tells_which_episode_it_is_of(run):
    with EpisodeStore(run, write=True) as store:
        group = next(iter(store.groups("rl", [1])))
        store.append("rl", 3, [replace(group, episodes=(replace(group.episodes[1], id="rl/1/1/1#3-7"),))])
    assert "first recorded in rl, step 1: rl/1/1/1\n" in told(run, "rl/1/1/1#3-7")


@pytest.mark.parametrize("width", [40, 80, 120])
def test_an_episode_with_branches(run, width):
    text = told(run, "rl/0/0/forest", width)
    for said in (
        "(reasoning) a door perhaps",
        "640x480, 1 kB",
        "not in blobs/",
        "branches off turn 1",
        "a new context",
    ):
        assert said in " ".join(text.split())
    assert "calls look(at='door', n=2)" in text
    assert text.endswith("turn 1\n  └ turn 2, 3\n  └ turn 4\nturn 5\n")


def test_what_is_known_of_a_turn(run):
    text = " ".join(told(run, "rl/1/1/1").split())
    assert "reward 1, advantage +0.5, 2 tokens, logprob -1, weights 3 (lag 1)" in text
    assert "done, success, reward 1 (native 1)" in text
    assert "the judge's text" in text
    assert "I saw 1 of it" in text
    assert "rewards of the other episodes of its group: 0" in text
    assert "address rl:1/0/1" in text


def test_the_reward_of_the_outcome_is_told_apart_from_penalties(run):
    with EpisodeStore(run, write=True) as store:
        group = next(iter(store.groups("rl", [1])))
        scores = [Score(np.array([0, 0.5], dtype=np.float32), {"native": 1.0}, outcome=1.0) for _ in group.trajectories]
        store.append("rl", 1, [group], [scores])
    assert "reward 0.5 (native 1), of the outcome alone 1" in " ".join(told(run, "rl/1/1/1").split())


def test_seats_speak_in_the_order_of_play(run):
    text = told(run, "rl/0/0/seats")
    order = [text.index(words) for words in ("white opens", "black one", "black two", "white ends")]
    assert order == sorted(order)
    assert "black, turn 2" in text
    assert "not trained" in text


def test_hostile_text_is_spelled_out_and_clipped(run):
    text = told(run, "rl/0/0/hostile")  # `printed` refuses whatever a terminal would obey
    assert "\\x1b[31mred\\x07\\u202e aaa" in " ".join(text.split())
    assert "98,011 more characters" in text.replace("\n  ", " ")
    assert len(text) < 5000
    assert "go\\x1b[2J☃" in text  # what could not be read, from its tokens
    assert told(run, "rl/0/0/hostile", full=True).count("a") > 100_000
    assert "not trained on: the server is gone\\x1b[2J" in told(run, "rl/0/0/failed")


def test_a_long_traceback_is_shown_to_its_end_where_the_own_line_is(run):
    assert "of your own line" in told(run, "rl/0/0/failed")


def test_tokens_are_numbers_in_a_file_and_colours_in_a_terminal(run):
    record, shown = find.load_episode(run, "rl/0/0/hostile")
    rows = [line.split() for line in printed(tokens.tokens(record, shown, False), 80).splitlines()]
    assert ["1", "7", "-0.500", "-0.5", '"\\x1b[2J"'] in rows
    assert ["2", "3", "-0.500", "-0.5", '"\\xe2"'] in rows
    assert ["4", "5", "-0.500", "-0.5", '"☃"'] in rows
    console = Console(file=io.StringIO(), width=80, force_terminal=True, color_system="truecolor")
    console.print(tokens.tokens(record, shown, True))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "\\x1b[2J" in text
    assert "\x1b[2J" not in text


def test_tokens_are_shown_with_the_streams_that_were_recorded(run):
    record, shown = find.load_episode(run, "rl/0/0/seats")
    judged = [t for t in record.episode.trajectories if t.trainable]
    to_go = tuple(tuple(np.array([2.5, 1e6 + n], np.float32) for n in range(len(t.turns))) for t in judged)
    record = replace(record, streams={"steps_to_go": to_go, "weight": to_go})
    rows = [line.split() for line in printed(tokens.tokens(record, shown, False), 80).splitlines()]
    assert ["at", "id", "logprob", "advantage", "steps_to_go", "weight", "text"] in rows
    assert ["0", "1", "-0.500", "+0.5", "2.5", "2.5", '"go"'] in rows
    assert ["1", "2", "-0.500", "+0.5", "1,000,001", "1,000,001", '"', 'north"'] in rows
    assert "steps_to_go: 2.5 1,000,001" in printed(tokens.tokens(record, shown, True), 80)


def test_the_prompt_is_all_that_the_model_saw(run):
    record, shown = find.load_episode(run, "rl/0/0/forest")
    assert shown.vocabulary is not None
    text = printed(tokens.prompt(record, 4, "", shown.vocabulary), 80)  # off turn 1, so without turns 2 and 3
    assert text == "<|im_start|>\ngo north<|im_start|>\n\n6 tokens\n"
    with pytest.raises(RecordError, match="--prompt 9: the seat 'agent' of this episode has 5 turns"):
        tokens.prompt(record, 9, "", shown.vocabulary)
    with pytest.raises(RecordError, match="--seat x: this episode has the seats"):
        tokens.prompt(record, 1, "x", shown.vocabulary)


def test_an_episode_is_found_by_what_people_call_it(run):
    names = [find.load_episode(run, name)[0].episode.id for name in ("rl/2/1/0", "rl/0/0/fo", "rl:2/0/1", "rl:0/0/1")]
    assert names == ["rl/2/1/0", "rl/0/0/forest", "rl/2/1/1", "rl/0/0/seats"]
    with pytest.raises(RecordError, match=r"ids of several episodes in .* begin with 'rl/0/0/f'"):
        find.load_episode(run, "rl/0/0/f")
    assert (Address.parse("rl/2/0/1"), Address("rl", 2, 0, 1)) == (None, Address.parse("rl:2/0/1"))
    with pytest.raises(RecordError, match="no episode 'nothing'"):
        find.load_episode(run, "nothing")


@pytest.mark.parametrize("width", [40, 80])
def test_a_query_finds_episodes_and_shows_where(run, width, monkeypatch):
    text = printed(find.search_table(run, "white", 20, width), width)
    assert text.splitlines()[0] == "1 episode"
    assert "rl/0/0/seats" in text
    assert "turn 1: white opens" in text
    text = printed(find.search_table(run, "reward:>0.5 sort:oldest", 2, width), width)
    assert "the first 2: --limit 10 shows more" in text
    monkeypatch.setattr(find, "MAX_PAGE_ROWS", 2)
    assert "the first 2: narrow the search" in printed(
        find.search_table(run, "reward:>0.5 sort:oldest", 2, width), width
    )
    monkeypatch.undo()
    data = json.loads(find.search_json(run, "white", 20))
    assert (data["total"], data["rows"][0]["entry"]["id"]) == (1, "rl/0/0/seats")
    done = CliRunner().invoke(app, ["show", str(run), "--find", "rewrd:>1"])
    assert "reward" in str(done.exception)


@pytest.mark.parametrize("name", ["evaluations.json", "metrics.jsonl", "episodes.sqlite", "tokens/rl-000003-0.npz"])
def test_of_a_damaged_run_what_is_there_is_shown(run, name):
    for path in (run / name, run / f"{name}-wal"):
        path.unlink(missing_ok=True)
    if name.endswith("json") or name.endswith("jsonl"):
        (run / name).mkdir()
    else:
        (run / name).write_bytes(b"no such thing" * 100)
    text = printed(runs.overview(run, 80), 80)
    assert "rl/3/1/1" in text
    assert "missing: " in text or name.startswith("tokens")
    assert "go north" in told(run, "rl/2/1/0")
    if name.startswith("tokens"):
        assert "missing: episode rl/3/1/0 is left out" in printed(step.table(run, "rl", 3, 80), 80)
        with pytest.raises(RecordError, match="restore it from a copy"):
            told(run, "rl/3/1/0")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--tokens"], "need an episode"),
        (["rl/2/1/0", "--step", "1"], "leave out the episode"),
        (["--step", "1", "--stage", "nothing"], "--stage nothing: "),
        (["--step", "9"], "the stage 'rl' in "),
        (["rl/2/1/0", "--seat", "agent"], "add --prompt 1"),
        (["rl/2/1/0", "--tokens", "--json"], "choose one of them"),
        (["--limit", "3"], "add --find"),
        (["rll:2/1/0"], "its stages are rl: did you mean 'rl'?"),
        (["rl:9/1/0"], "the stage 'rl' has the steps 0 to 3"),
        (["rl:2/0/7"], "the group rl:2/0 has the episodes 0 to 1"),
        (["rl:2/7/0"], "--stage rl --step 2` lists the groups"),
        (["rl/2/0/1"], "or an address stage:step/group/place, such as rl:3/0/1"),
        (["--step", "1", "--find", "x"], "cannot be combined with --find"),
    ],
)
def test_what_does_not_go_together_is_refused(run, words, sentence):
    done = CliRunner().invoke(app, ["show", str(run), *words])
    assert isinstance(done.exception, ConfigError | RecordError)
    assert sentence in str(done.exception)


@pytest.mark.parametrize("more", [[], ["--json"], ["--step", "1"]])
def test_an_unknown_stage_is_one_sentence_and_an_error(run, more):
    done = CliRunner().invoke(app, ["show", str(run), "--stage", "warmpu", *more])
    assert done.exit_code != 0
    assert isinstance(done.exception, ConfigError)
    assert str(done.exception) == f"--stage warmpu: {run} has the stages warmup, rl: did you mean 'warmup'?"
    assert done.output == ""


def test_a_stage_without_episodes_is_known(run):
    done = CliRunner().invoke(app, ["show", str(run), "--stage", "warmup"])
    assert done.exit_code == 0
    assert "has no episodes of the stage warmup yet" in " ".join(done.output.split())
    assert json.loads(CliRunner().invoke(app, ["show", str(run), "--stage", "warmup", "--json"]).output)["last"] is None


def test_a_query_that_finds_nothing_says_so(run):
    done = CliRunner().invoke(app, ["show", str(run), "--find", "stage:nothing"])
    assert "matches 'stage:nothing'; its stages are rl" in " ".join(done.output.split())


def test_a_damaged_vocabulary_is_told(run):
    (run / "vocabulary.json").write_text('{"pieces":' * 5000)
    with pytest.raises(RecordError, match="the file is damaged, restore it from a copy or delete it"):
        vocabulary.read(run)


def test_the_command_without_a_vocabulary(run):
    (run / "vocabulary.json").unlink()
    done = CliRunner().invoke(app, ["show", str(run), "rl/2/1/0", "--prompt", "1"])
    assert done.output.startswith("<|endoftext|>")  # by the tokenizer of the model that the run names
    config = (run / "config.toml").read_text()
    (run / "config.toml").write_text(config.replace('"tiny"', '"gone.gguf"'))
    done = CliRunner().invoke(app, ["show", str(run), "rl/2/1/0", "--prompt", "1"])
    assert "has no vocabulary.json, and its model's tokenizer cannot be loaded" in str(done.exception)


@pytest.mark.parametrize("width", [40, 60, 79, 80, 99, 100, 101, 102, 110, 120, 150])
def test_no_row_of_the_table_of_steps_is_wider_than_the_terminal(width):
    values = {"success": 0.5, "reward": -0.25, "entropy": 1.25e-7, "seconds_step": 12.0}
    lines = [metrics.Line(step, "a stage of a long name", values) for step in range(30)]
    shown = runs._steps(lines, "a stage of a long name", width)
    assert max(len(str(line)) for line in shown) <= width
    assert sum(" 50%" in str(line) for line in shown) == 1


@pytest.mark.parametrize("width", [40, 80])
def test_what_a_curriculum_believes_is_a_table_of_worlds_and_tags(width):
    kinds = {"draw_share_easy": 0.25, "predicted_success_easy": 0.5, "observed_easy": 12.0, "draw_share_hard": 0.75}
    lines = [metrics.Line(0, "rl", {"success": 0.5, "predicted_success": 0.4, **kinds})]
    shown = [line.split() for line in printed(Group(*runs._steps(lines, "rl", width)), width).splitlines()]
    assert [row[:3] for row in shown if row and row[0] in ("easy", "hard")] == [
        ["easy", "25%", "50%"],
        ["hard", "75%", "-"],
    ]
    assert not any("curriculum" in str(line) for line in runs._steps([metrics.Line(0, "rl", {})], "rl", width))


def test_what_a_curriculum_made_is_told():
    values = {"population": 40.0, "tasks_made": 3.0, "tasks_refused": 12.0, "tasks_dropped": 0.0}
    values |= {"drawn_edits": 1.25, "drawn_rooms": 3.5}
    for kinds in ({}, {"draw_share_made": 0.25}):
        shown = printed(
            Group(*runs._steps([metrics.Line(0, "rl", {"success": 0.5, **values, **kinds})], "rl", 120)), 120
        )
        assert (
            "40 tasks, after 3 made, 12 refused, 0 dropped in the last step; the next: edits 1.25  rooms 3.5" in shown
        )
