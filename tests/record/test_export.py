"""Exports: what a run recorded, in the formats of others, exactly and whatever was said in it."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from forked import tree
from made import chatml as renderer
from played_run import SUMS, TOY, Made, Script
from typer.testing import CliRunner

from sojourn.agents.plain import Plain
from sojourn.cli import app
from sojourn.errors import ConfigError, RecordError
from sojourn.record.changes import Change, record_changes
from sojourn.record.episodes.store import EpisodeStore
from sojourn.record.export import export, parquet, read
from sojourn.record.export.conversations import Conversation
from sojourn.record.export.selection import Selection, windows
from sojourn.record.run import RunFolder
from sojourn.types import Ending, Group, Message, Role, Tool, Trajectory

MIXED = Script(["go north", "<tool_call>never closed", "go south"])
ADD = '<tool_call>{"name": "add", "arguments": {"x": 1, "y": 2}}</tool_call>'
WRONG = ADD.replace("add", "subtract")  # two calls, and one refusal
HOSTILE = "</script>\u2028\x00\x1b[2J\r\n\ud800 \\ud800 \\\ud800 \U0001f600 " + "x" * 10


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("runs")
    made = {
        "expert": Made(TOY, turns=20),
        "sampled": Made(TOY, MIXED),
        "pages": Made(TOY, MIXED, Plain(history="window", turns=1)),
        "tools": Made(SUMS),
        "calls": Made(
            SUMS,
            Script([WRONG + WRONG, ADD + ADD, '<tool_call>{"name": "submit", "arguments": {"answer": 3}}</tool_call>']),
        ),
        "choices": Made(TOY, Script(["go north", "go south"], constrained=True)),
        "seats": Made({"name": "matrix", "opponent": "self", "rounds": 2}, Script(["cooperate", "defect"])),
    }
    found = {name: one.run(folder / name) for name, one in made.items()}
    return found | {"hostile": hostile(found["tools"])}


def hostile(run: Path) -> Path:
    """As `run`, with text in every place that a world or a model can fill, a failed episode and an empty seat."""
    other = run.with_name("hostile")

    def change(trajectory: Trajectory) -> Trajectory:
        first, *rest = trajectory.turns
        said = replace(first.message or Message(Role.ASSISTANT), text=HOSTILE, thought=HOSTILE)
        shown = (Message(Role.USER, HOSTILE, images=("a" * 64,)), Message(Role.TOOL, HOSTILE, answers=HOSTILE))
        tools = (Tool(HOSTILE, HOSTILE, {"type": HOSTILE}),)
        info = {HOSTILE: float("nan"), "success": 1.0}
        turn = replace(
            first, message=said, observed=shown, state=HOSTILE, info=info, tools=tools, context_messages=shown,
            notes={HOSTILE: HOSTILE, "empty": ""},
        )  # fmt: skip
        return replace(trajectory, turns=(turn, *rest))

    with EpisodeStore(run) as store:
        groups = [
            replace(g, episodes=tuple(replace(e, trajectories=tuple(map(change, e.trajectories))) for e in g.episodes))
            for g in store.groups("rl")
        ]
    gone = replace(groups[0].episodes[0], id="gone", trajectories=(), error="OSError: the world went away")
    mute = replace(groups[0].episodes[0], id="mute", trajectories=(Trajectory("agent", (), Ending.TOKENS),))
    groups[0] = replace(groups[0], episodes=(gone, *groups[0].episodes, mute))
    with RunFolder.create(other, (run / "config.toml").read_text()), EpisodeStore(other, write=True) as store:
        for step, group in enumerate(groups):
            store.append("rl", step, [group])
    return other


def written(run: Path, format: str, out: Path, **choice: Any) -> Path:
    export(run, out, format, Selection(**choice))
    return out


def lines(path: Path) -> list[dict[str, Any]]:
    """Of strict JSON: no NaN, and nothing that UTF-8 cannot hold."""

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    found = [json.loads(line, parse_constant=refuse) for line in path.read_bytes().split(b"\n")[:-1]]
    json.dumps(found, ensure_ascii=False).encode()
    return found


def groups_of(run: Path) -> list[Group]:
    with EpisodeStore(run) as store:
        return list(store.groups("rl"))


def same(one: Any, other: Any) -> None:
    """Equal, arrays by their numbers and types, NaN as NaN."""
    assert type(one) is type(other), (one, other)
    if isinstance(one, np.ndarray):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)
    elif isinstance(one, tuple | list):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            same(a, b)
    elif isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            same(one[key], other[key])
    elif hasattr(one, "__dataclass_fields__"):
        for name in one.__dataclass_fields__:
            same(getattr(one, name), getattr(other, name))
    else:
        assert one == other or (one != one and other != other)


NAMES = ("expert", "sampled", "pages", "tools", "calls", "choices", "seats", "hostile")


@pytest.mark.parametrize("name", NAMES)
def test_parquet_gives_the_same_groups_back(runs: dict[str, Path], tmp_path: Path, name: str):
    pytest.importorskip("pyarrow")
    path = written(runs[name], "parquet", tmp_path / "out.parquet")
    same(list(read(path)), groups_of(runs[name]))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("format", ["chat", "adp"])
def test_lines_with_tokens_give_the_same_groups_back(runs: dict[str, Path], tmp_path: Path, name: str, format: str):
    """But for episodes without turns, which have no line."""
    path = written(runs[name], format, tmp_path / "out.jsonl", tokens=True)
    groups = groups_of(runs[name])
    if name == "hostile":
        kept = [e for e in groups[0].episodes if e.id not in ("gone", "mute")]
        groups[0] = replace(groups[0], episodes=tuple(kept))
        assert len(list(read(path))) == len(groups)  # half a surrogate pair and NaN have no place in lines for others
        return
    same(list(read(path)), groups)


@pytest.mark.parametrize("format", ["parquet", "chat", "adp"])
def test_branches_share_their_turns_again(runs: dict[str, Path], tmp_path: Path, format: str):
    """So that a turn in which several plays began is trained once, by the first of them."""
    pytest.importorskip("pyarrow")
    run = _recorded(runs["sampled"], tmp_path / "forked", tree())
    [group] = read(written(run, format, tmp_path / "out", tokens=format == "chat"))
    same([e.branch for e in group.episodes], [e.branch for e in tree().episodes])
    assert group.holders == groups_of(run)[0].holders == tree().holders
    some = written(run, format, tmp_path / "some", tokens=format == "chat", episodes=("c", "b"))
    [group] = read(some)
    assert group.holders == ((0, 0, 0), (0, 0, 1))


@pytest.mark.parametrize("format", ["parquet", "chat", "adp"])
def test_a_group_that_a_filter_parted_is_whole_again(runs: dict[str, Path], tmp_path: Path, format: str):
    pytest.importorskip("pyarrow")
    group = groups_of(runs["sampled"])[0]
    first, second = (replace(group, episodes=(episode,)) for episode in group.episodes)
    run = _recorded(runs["sampled"], tmp_path / "parted", second, first)
    [again] = read(written(run, format, tmp_path / "out", tokens=format == "chat"))
    same(again, group)


@pytest.mark.parametrize("format", ["chat", "adp"])
def test_lines_of_several_runs_in_one_file_are_no_mixture(runs: dict[str, Path], tmp_path: Path, format: str):
    """Two runs with the same seed call their episodes alike."""
    paths = [written(runs[name], format, tmp_path / name, tokens=format == "chat") for name in ("sampled", "pages")]
    (both := tmp_path / "both").write_bytes(b"".join(path.read_bytes() for path in paths))
    same(list(read(both)), [*groups_of(runs["sampled"]), *groups_of(runs["pages"])])
    text = both.read_text().replace('"run": "pages"', '"run": "sampled"').replace("sampled/rl", "pages/rl")
    both.write_text(text)
    with pytest.raises(
        RecordError, match=r"both:\d+: turn \d of episode rl/0/0-\w+ has other tokens before: give each"
    ):
        list(read(both))


@pytest.mark.parametrize("format", ["parquet", "chat", "adp"])
def test_who_took_the_turns_is_known_again(runs: dict[str, Path], tmp_path: Path, format: str):
    pytest.importorskip("pyarrow")
    group = groups_of(runs["sampled"])[0]
    played = [replace(e, trajectories=(replace(e.trajectories[0], model="rival"),)) for e in group.episodes]
    run = _recorded(runs["sampled"], tmp_path / "rivals", group := replace(group, episodes=tuple(played)))
    same(list(read(written(run, format, tmp_path / "out", tokens=format == "chat"))), [group])


def _recorded(like: Path, run: Path, *groups: Group) -> Path:
    """Records groups in one step of a new run."""
    with RunFolder.create(run, (like / "config.toml").read_text()), EpisodeStore(run, write=True) as store:
        store.append("rl", 0, groups)
    return run


def test_parquet_holds_advantages_and_scores_as_columns(runs: dict[str, Path], tmp_path: Path):
    pq = pytest.importorskip("pyarrow.parquet")
    rows = pq.read_table(written(runs["expert"], "parquet", tmp_path / "out.parquet")).to_pylist()
    with EpisodeStore(runs["expert"]) as store:
        records = [store.read(entry) for entry in store.query()]
    assert len(rows) == sum(len(t.turns) for r in records for t in r.episode.trajectories)
    row, record = rows[-1], records[-1]
    (trajectory,) = record.episode.trajectories
    assert row["tokens"] == trajectory.turns[-1].sample.tokens.tolist()
    assert row["context"] == trajectory.turns[-1].context.tolist()
    assert row["advantages"] == record.credits[0].tokens[-1].tolist()
    assert row["score"] == float(record.scores[0].turns[-1])
    assert (row["success"], row["ending"], row["env"], row["turn"]) == (True, "done", "toy", len(trajectory.turns) - 1)


@pytest.mark.parametrize("format", ["chat", "adp", "parquet"])
def test_notes_of_turns_go_with_their_episode_where_tokens_do(runs: dict[str, Path], tmp_path: Path, format: str):
    pytest.importorskip("pyarrow")
    run = tmp_path / "run"
    [group, *_] = groups_of(runs["sampled"])
    [episode, *_] = group.episodes
    [trajectory] = episode.trajectories
    turns = [replace(turn, notes={"client": f"agent {n}\n"}) for n, turn in enumerate(trajectory.turns)]
    noted = replace(episode, trajectories=(replace(trajectory, turns=(*turns[:-1], trajectory.turns[-1])),))
    with RunFolder.create(run, (runs["sampled"] / "config.toml").read_text()), EpisodeStore(run, write=True) as store:
        store.append("rl", 0, [replace(group, episodes=(noted,))])
    path = written(run, format, tmp_path / "out", **({"tokens": True} if format != "parquet" else {}))
    [back] = read(path)
    found = [dict(turn.notes) for turn in back.episodes[0].trajectories[0].turns]
    assert found == [*[dict(turn.notes) for turn in turns[:-1]], {}]
    if format == "chat":
        assert "agent 0" not in written(run, format, tmp_path / "plain").read_text()


def test_chat_lines_are_what_the_model_saw_in_each_context(runs: dict[str, Path], tmp_path: Path):
    plain = lines(written(runs["sampled"], "chat", tmp_path / "plain.jsonl"))
    assert len(plain) == 4
    assert [m["role"] for m in plain[0]["messages"][:3]] == ["system", "user", "assistant"]
    assert plain[0]["messages"][4] == {"role": "assistant", "content": "", "weight": 0}  # what could not be read
    assert plain[0]["weights"] == {"model": "tiny", "oldest": 2, "newest": 3}
    assert plain[0]["task"]["env"] == "toy"
    assert "sojourn" not in plain[0]


@pytest.mark.parametrize("agent", [Plain(), Plain(history="page"), Plain(history="window", turns=2)])
def test_every_window_is_a_line_that_renders_to_the_tokens_the_model_saw(tmp_path: Path, agent: Plain):
    for world in (TOY, SUMS):
        run = Made(world, agent=agent, turns=20, tasks=1, episodes=1).run(tmp_path / world["name"])
        (group,) = groups_of(run)
        (trajectory,) = group.trajectories
        paths = windows(trajectory)
        assert len(paths) == (1 if agent.history == "full" else len(trajectory.turns))
        path = written(run, "chat", tmp_path / f"{world['name']}.jsonl")
        for turns, found in zip(paths, read(path), strict=True):
            assert isinstance(found, Conversation)
            prompt = renderer().open(found.messages[:-1], found.tools).tokens
            np.testing.assert_array_equal(prompt, trajectory.prompt(turns[-1]))


def test_chat_lines_hold_calls_tools_and_answers_as_openai_has_them(tmp_path: Path):
    script = Script(['<tool_call>{"name": "add", "arguments": {"x": 1, "y": 2}}</tool_call>', "ok", "submit(answer=3)"])
    run = Made(SUMS, script, tasks=1, episodes=1).run(tmp_path / "run")
    (line,) = lines(written(run, "chat", tmp_path / "out.jsonl"))
    assert [tool["function"]["name"] for tool in line["tools"]] == ["add", "submit"]
    said = next(m for m in line["messages"] if "tool_calls" in m)
    (call,) = said["tool_calls"]
    assert (call["type"], call["function"]["name"]) == ("function", "add")
    assert json.loads(call["function"]["arguments"]) == {"x": 1, "y": 2}
    answer = line["messages"][line["messages"].index(said) + 1]
    assert (answer["role"], answer["tool_call_id"]) == ("tool", call["id"])
    (found,) = read(tmp_path / "out.jsonl")
    assert isinstance(found, Conversation)
    (group,) = groups_of(run)
    turns = group.episodes[0].trajectories[0].turns
    assert found.tools == turns[0].tools
    assert [found.messages[n].text for n in sorted(found.imitated)] == [
        turn.message.text for turn in turns if turn.message
    ]


@pytest.mark.parametrize("format", ["chat", "adp"])
def test_hostile_text_stays_in_its_line(runs: dict[str, Path], tmp_path: Path, format: str):
    path = written(runs["hostile"], format, tmp_path / "out.jsonl", tokens=True)
    found = lines(path)
    assert len(found) == 4
    assert path.read_bytes().isascii()
    texts = [m.get("content") for m in found[0].get("messages", found[0].get("content"))]
    text = next(t for t in texts if isinstance(t, str) and t.startswith("</script>"))
    assert text == re.sub("[\ud800-\udfff]", "\ufffd", HOSTILE)


def test_adp_lines_keep_the_rules_of_the_protocol(runs: dict[str, Path], tmp_path: Path):
    for name in NAMES:
        for line in lines(written(runs[name], "adp", tmp_path / f"{name}.jsonl")):
            assert line.keys() == {"schema_version", "id", "content", "details"}
            assert all(isinstance(value, str) for value in line["details"].values())
            require_protocol(line["content"])


ADP = {  # the required and the optional fields of each class, in schema 1.2.0 of the protocol's repository
    "text_observation": ({"content", "source"}, {"name", "tool_call_id", "reward"}),
    "image_observation": ({"content", "source"}, {"annotations", "tool_call_id", "reward"}),
    "message_action": ({"content"}, {"description", "reasoning_content", "reward"}),
    "api_action": ({"function", "kwargs"}, {"description", "reasoning_content", "reward", "tool_call_id"}),
}


def require_protocol(content: list[dict[str, Any]]) -> None:
    calls: set[str] = set()
    answered: list[str] = []
    for item, after in zip(content, [*content[1:], {"class_": ""}], strict=True):
        required, optional = ADP[item["class_"]]
        assert required <= item.keys() - {"class_"} <= required | optional
        if "source" in item:
            assert item["source"] in ("user", "agent", "environment")
        if item["class_"] == "api_action":
            assert "tool_call_id" in item or not after["class_"].endswith("observation")
            calls |= {item["tool_call_id"]} if "tool_call_id" in item else set()
        elif "tool_call_id" in item:
            answered.append(item["tool_call_id"])
            assert item["tool_call_id"] in calls
    assert sorted(answered) == sorted(calls)


def test_adp_tells_one_course_of_the_world_whatever_contexts_held(runs: dict[str, Path], tmp_path: Path):
    found = lines(written(runs["pages"], "adp", tmp_path / "out.jsonl"))
    assert len(found) == 4
    kinds = [item["class_"] for item in found[0]["content"]]
    assert kinds.count("message_action") == 4
    assert kinds[:5] == ["text_observation"] * 2 + ["message_action", "text_observation", "message_action"]
    assert found[0]["content"][0]["source"] == "environment"


def test_prov_says_what_made_an_episode(runs: dict[str, Path], tmp_path: Path):
    with EpisodeStore(runs["sampled"]) as store:
        entry = next(iter(store.query()))
    path = written(runs["sampled"], "prov", tmp_path / "out.json", episodes=(entry.id,))
    document = json.loads(path.read_text())
    entities = document["entity"]
    kinds = {entity["prov:type"]["$"] for entity in entities.values()}
    assert kinds == {
        f"sojourn:{kind}"
        for kind in (
            "Configuration", "Code", "Model", "World", "Reward", "Scaffold", "Task", "Episode", "Prompt", "Sample",
            "Weights", "Score",
        )
    }  # fmt: skip
    run = RunFolder.read(runs["sampled"])
    assert entities["run:config"]["sojourn:sha256"] == run.versions["config"]
    assert entities["run:code"]["sojourn:sha256"] == run.versions["source"]
    assert document["activity"]["run:training"]["prov:startTime"] == run.versions["began"]
    assert {"run:weights/2", "run:weights/3"} <= entities.keys()
    assert document["agent"].keys() == {"run:policy", "run:judge", "run:sojourn"}
    known = entities.keys() | document["activity"].keys() | document["agent"].keys()
    for kind in ("used", "wasGeneratedBy", "wasAssociatedWith", "wasAttributedTo", "wasDerivedFrom", "wasInformedBy"):
        for relation in document[kind].values():
            assert set(relation.values()) <= known, kind


def test_prov_says_what_a_resume_changed(tmp_path: Path):
    run = Made(TOY, Script(["go north"]), tasks=1, episodes=1).run(tmp_path / "run")
    changes = [Change("stages.rl.steps", 2, 4), Change("reward.headers.Authorization", None, "Bearer abc123")]
    with RunFolder.open(run) as folder:
        recorded = record_changes(folder, "rl", 2, changes)
    document = json.loads(written(run, "prov", tmp_path / "out.json").read_text())
    changed = document["entity"]["run:changes/0"]
    assert (changed["prov:type"]["$"], changed["sojourn:stage"], changed["sojourn:step"]) == (
        "sojourn:Changes",
        "rl",
        2,
    )
    steps, header = json.loads(changed["sojourn:changes"])
    assert steps == {"key": "stages.rl.steps", "old": 2, "new": 4}
    assert "abc123" not in header["new"]
    assert document["activity"]["run:resume/0"]["prov:startTime"] == recorded.time
    for kind, relation in (
        ("wasGeneratedBy", {"prov:entity": "run:changes/0", "prov:activity": "run:resume/0"}),
        ("wasDerivedFrom", {"prov:generatedEntity": "run:config", "prov:usedEntity": "run:changes/0"}),
        ("used", {"prov:activity": "run:training", "prov:entity": "run:changes/0"}),
        ("wasInformedBy", {"prov:informed": "run:training", "prov:informant": "run:resume/0"}),
    ):
        assert relation in document[kind].values(), kind


@pytest.mark.parametrize("name", NAMES)
def test_an_independent_reader_of_prov_takes_all_of_it(runs: dict[str, Path], tmp_path: Path, name: str):
    model = pytest.importorskip("prov.model")
    path = written(runs[name], "prov", tmp_path / "out.json")
    document = model.ProvDocument.deserialize(str(path), format="json")
    told = json.loads(path.read_text())
    assert len(document.get_records()) == sum(len(records) for kind, records in told.items() if kind != "prefix")
    assert document == model.ProvDocument.deserialize(content=document.serialize(format="json"), format="json")


def test_weights_are_named_by_their_step_and_checkpoint(tmp_path: Path):
    run = Made(TOY, Script(["go north"]), tasks=1, episodes=1).run(tmp_path / "run")
    weights = run / "checkpoints" / "step-000002" / "weights"
    weights.mkdir(parents=True)
    (weights / "weights.safetensors").write_bytes(b"w")
    manifest = {"step": 2, "files": {"weights/weights.safetensors": 1}}
    (weights.parent / "checkpoint.json").write_text(json.dumps(manifest))
    config = run / "config.toml"
    config.write_text(config.read_text() + '\n[[stages]]\nname = "rl"\nsteps = 2\n')
    (run / "metrics.jsonl").write_text(
        "".join(json.dumps({"step": n, "stage": "rl", "version": n + 2.0}) + "\n" for n in range(2))
    )
    entities = json.loads(written(run, "prov", tmp_path / "out.json").read_text())["entity"]
    assert (entities["run:weights/2"]["sojourn:step"], entities["run:weights/3"]["sojourn:step"]) == (0, 1)
    assert "sojourn:checkpoint" not in entities["run:weights/2"]
    assert entities["run:weights/3"]["sojourn:checkpoint"] == "step-000002"
    assert len(entities["run:weights/3"]["sojourn:sha256"]) == 64


def test_a_choice_is_kept_to_and_an_empty_one_is_refused(runs: dict[str, Path], tmp_path: Path):
    run = runs["expert"]
    with EpisodeStore(run) as store:
        ids = [entry.id for entry in store.query()]
    assert [line["episode"] for line in lines(written(run, "chat", tmp_path / "a", episodes=(ids[2],)))] == [ids[2]]
    assert len(lines(written(run, "chat", tmp_path / "b", where="stage:rl env:toy split:train success:yes"))) == 4
    for where in ("stage:warmup", "env:sums", "success:no", "split:test"):
        with pytest.raises(RecordError, match=r"no episode of .* matches '.*': its stages are rl"):
            written(run, "chat", tmp_path / "none", where=where)
    assert not (tmp_path / "none").exists()


def test_nothing_is_written_over_and_nothing_half(runs: dict[str, Path], tmp_path: Path, full_disk):
    out = tmp_path / "out"
    out.write_text("mine")
    with pytest.raises(RecordError, match="exists"):
        written(runs["expert"], "chat", out)
    assert out.read_text() == "mine"
    with pytest.raises(RecordError, match="there is no folder"):
        written(runs["expert"], "chat", tmp_path / "gone" / "out")
    for format in ("chat", "adp", "prov"):
        with full_disk(), pytest.raises(RecordError, match="cannot be written"):
            written(runs["expert"], format, tmp_path / "full")
    with pytest.raises(ConfigError, match="unknown format 'chatt': did you mean 'chat'"):
        written(runs["expert"], "chatt", tmp_path / "full")
    assert os.listdir(tmp_path) == ["out"]


def test_what_failed_or_is_damaged_is_left_out_and_told(runs: dict[str, Path], tmp_path: Path):
    done = export(runs["hostile"], tmp_path / "out", "chat", Selection())
    assert (done.episodes, done.records, len(done.left_out)) == (5, 4, 1)  # one had no turn, so it has no line
    assert done.left_out == ("episode gone: its world failed: OSError: the world went away",)
    run = Made(TOY).run(tmp_path / "run")
    path = sorted((run / "tokens").glob("*.npz"))[0]
    path.write_bytes(path.read_bytes()[:100])
    done = export(run, tmp_path / "half", "adp", Selection())
    assert (done.episodes, len(done.left_out)) == (2, 2)
    assert "is damaged" in done.left_out[0]


@pytest.mark.parametrize("format", ["chat", "adp", "prov", "parquet"])
def test_an_export_of_nothing_is_refused_and_leaves_no_file(tmp_path: Path, format: str):
    run = Made(TOY).run(tmp_path / "run")
    for path in (run / "tokens").glob("*.npz"):
        path.write_bytes(b"")
    with pytest.raises(
        RecordError, match=r"nothing is written, as none of the chosen episodes can be: episode .* is d"
    ):
        export(run, tmp_path / "out", format, Selection())
    assert os.listdir(tmp_path) == ["run"]


def test_an_export_of_failed_episodes_alone_says_why_the_first_failed(runs: dict[str, Path], tmp_path: Path):
    with pytest.raises(RecordError, match=r"none of the chosen .*: episode gone: its world failed: OSError: the wor"):
        export(runs["hostile"], tmp_path / "out", "chat", Selection(episodes=("gone",)))
    assert not os.listdir(tmp_path)


def test_the_command_says_in_a_note_what_it_read_around(tmp_path: Path):
    run = Made(TOY).run(tmp_path / "run")
    for path in run.glob("episodes.sqlite*"):
        path.write_bytes(b"damaged" * 1000)
    for words in (["export", run, "--out", tmp_path / "out"], ["replay", run, "--all"]):
        done = CliRunner().invoke(app, [*map(str, words)])
        assert done.exit_code == 0, done
        assert re.search(
            r"^note: .*episodes.sqlite is damaged \(.*\): made again in memory$", done.output, re.MULTILINE
        )


def test_the_command_says_what_it_wrote(runs: dict[str, Path], tmp_path: Path):
    def command(*words: object) -> tuple[int, str]:
        done = CliRunner().invoke(app, ["export", *map(str, words)])
        return done.exit_code, done.output + (str(done.exception) if done.exception else "")

    out = tmp_path / "out.jsonl"
    assert command(runs["pages"], "--out", out) == (0, f"written: {out}, 4 episodes as 16 lines of the format chat\n")
    code, said = command(runs["hostile"], "--out", tmp_path / "h", "--format", "prov")
    assert code == 0
    assert re.fullmatch(r"written: .*/h, 6 episodes as \d+ statements of the format prov\n", said)
    for format, name in {
        "chat": "episodes.chat.jsonl",
        "adp": "episodes.adp.jsonl",
        "prov": "episodes.prov.json",
        "parquet": "episodes.parquet",
    }.items():
        said = command(runs["pages"], "--format", format)[1]
        assert said == f"--out is missing: name the file to write, such as --out {name}"
    assert "leave one of them out" in command(runs["pages"], "x", "--where", "stage:rl", "--out", tmp_path / "x")[1]
    assert "--tokens needs --format chat" in command(runs["pages"], "--format", "adp", "--tokens", "--out", "x")[1]
    assert "there is no episode 'x' in" in command(runs["pages"], "x", "--out", tmp_path / "x")[1]
    assert ", 1 episode as" in command(runs["pages"], "rl:0/0/0", "rl:0/0/0", "--out", tmp_path / "twice")[1]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "is empty"),
        ("1", ":1 holds '1': expected a JSON object"),
        ("[1]", ": item 1 holds '1': expected a JSON object"),
        ('{"x": 1}', """:1 has the keys x: expected chat messages {"messages": """),
        ("{half", ":1 is not JSON (at column 2: Expecting property name"),
        (
            '[{"messages": [{"role": "user", "content": "x"}]},\n {"messages": half}]',
            ":2 is not JSON (at column 15: Expecting value",
        ),
        ('{"messages": []}', ":1: messages is '[]'"),
        ('{"messages": [{"role": "wizard"}]}', "messages[0] role is 'wizard', which is none of system, user,"),
        ('{"messages": [{"content": "x"}]}', ":1: messages[0] has no 'role'"),
        ('{"messages": [{"role": "user", "contents": "x"}]}', ":1: messages[0] has no 'content'"),
        ('{"messages": [{"role": "user", "content": 3}]}', "content is '3', neither a text nor a list of parts"),
        ('{"messages": [{"role": "user", "content": [{"type": "video"}]}]}', "neither text nor image_url"),
        ('{"messages": [{"role": "user", "content": "x"}], "reward": "much"}', "no finite number"),
        ('{"messages": [], "sojourn": {"stage": "rl"}}', ":1: Object missing required field `step`"),
        ('{"id": "x", "content": [{"class_": "dance"}]}', "an item of class 'dance'"),
        ('{"id": "x", "content": []}', "its content is empty"),
        ('{"prompt": "x", "response": "y"}', """:1: has no 'completion': expected {"prompt": "..."""),
        ('{"prompt": "x", "completion": 3}', ":1: completion is '3'"),
        ('{"conversations": []}', ":1: conversations is '[]': expected ShareGPT turns"),
        ('{"conversations": [{"from": "human", "text": "x"}]}', ":1: conversations[0] has no 'value'"),
        ('{"conversations": [{"from": "robot", "value": "x"}]}', "conversations[0] from is 'robot', which is none of"),
        ('{"conversations": [{"from": "function_call", "value": "add(1)"}]}', "conversations[0] Expecting value"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused_at_its_line(tmp_path: Path, text: str, sentence: str):
    path = tmp_path / "in.jsonl"
    path.write_text(text + "\n")
    with pytest.raises(RecordError) as told:
        list(read(path))
    assert sentence in str(told.value)
    assert str(path) in str(told.value)


DOCS = Path(__file__).parents[2] / "docs" / "export-columns.md"


def test_every_column_of_parquet_is_documented_with_its_type():
    pa = pytest.importorskip("pyarrow")
    section = DOCS.read_text().partition("## Parquet: a row for each turn")[2].partition("\n## ")[0]
    rows = [line.split("|")[1:3] for line in section.splitlines() if line.startswith("| `")]
    documented = {name: kind.strip() for names, kind in rows for name in re.findall("`([a-z_]+)`", names)}
    fields = list(parquet.schema())
    assert list(documented) == [field.name for field in fields]
    for field in fields:
        kind = documented[field.name]
        assert ("list" in kind) == pa.types.is_list(field.type), field
        assert ("JSON" in kind) == field.name.endswith("_json") or ", JSON" in kind, field


def test_exports_say_where_groups_came_from_and_what_trained_them_again(runs: dict[str, Path], tmp_path: Path):
    pq = pytest.importorskip("pyarrow.parquet")
    first, second = groups_of(runs["expert"])
    run = tmp_path / "run"
    config = (runs["expert"] / "config.toml").read_text()
    with RunFolder.create(run, config), EpisodeStore(run, write=True) as store:
        store.append("rl", 0, [replace(first, origin="experts")])
        store.append("rl", 1, [second])
        for step in (3, 6):
            store.append("rl", step, [], reused=[replace(second, origin="replay")])
    expected = {(0, "experts", ()), (1, "policy", (3, 6))}
    table = pq.read_table(written(run, "parquet", tmp_path / "all.parquet"))
    assert {(row["step"], row["origin"], tuple(row["reused_in"])) for row in table.to_pylist()} == expected
    chat = lines(written(run, "chat", tmp_path / "chat.jsonl"))
    assert {(line["step"], line["origin"], tuple(line["reused_in"])) for line in chat} == expected
    pq.write_table(table.drop_columns(["origin", "reused_in"]), tmp_path / "older.parquet")
    same([g.episodes for g in read(tmp_path / "older.parquet")], [first.episodes, second.episodes])


def test_the_documented_function_puts_prompts_together(runs: dict[str, Path], tmp_path: Path):
    pq = pytest.importorskip("pyarrow.parquet")
    section = DOCS.read_text().partition("## Parquet: a row for each turn")[2].partition("\n## ")[0]
    scope: dict[str, Any] = {}
    exec(section.partition("```python\n")[2].partition("```")[0], scope)
    for name in ("expert", "pages"):
        table = pq.read_table(written(runs[name], "parquet", tmp_path / f"{name}.parquet"))
        episode = groups_of(runs[name])[0].episodes[0]
        rows = [row for row in table.to_pylist() if row["episode"] == episode.id]
        for number in range(len(episode.trajectories[0].turns)):
            assert scope["prompt"](rows, number) == episode.trajectories[0].prompt(number).tolist()
        assert len(rows) > 1


def test_parquet_without_conversations_or_cut_short_is_refused(tmp_path: Path):
    pq, pa = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow")
    pq.write_table(pa.table({"text": ["x"]}), tmp_path / "other.parquet")
    with pytest.raises(
        RecordError,
        match="has the columns text: expected 'messages', 'conversations', 'chosen'",
    ):
        list(read(tmp_path / "other.parquet"))
    pq.write_table(pa.table({"logprobs": [[0.0]]}), tmp_path / "other.parquet")
    with pytest.raises(RecordError, match="has no column 'run': expected all that `sojourn export` wrote"):
        list(read(tmp_path / "other.parquet"))
    pq.write_table(pa.table({"prompt": ["x", "y"], "completion": ["z", None]}), tmp_path / "other.parquet")
    with pytest.raises(RecordError, match=r"other\.parquet: row 2: has no 'completion'"):
        list(read(tmp_path / "other.parquet"))
    (tmp_path / "cut.parquet").write_bytes((tmp_path / "other.parquet").read_bytes()[:50])
    with pytest.raises(RecordError, match="cannot be read as Parquet"):
        list(read(tmp_path / "cut.parquet"))
    with pytest.raises(RecordError, match="cannot be read"):
        list(read(tmp_path / "none.parquet"))
