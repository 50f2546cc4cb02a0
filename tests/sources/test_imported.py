"""Imported groups: exports of ours train exactly as the run they came from, and others' conversations are cloned."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made import chatml as renderer
from made_world import components
from played_run import SUMS, TOY, Made, Script
from trained_run import final_weights
from typer.testing import CliRunner

from sojourn.agents.plain import Plain
from sojourn.cli import app
from sojourn.config import toml
from sojourn.config.registry import build
from sojourn.display import Display
from sojourn.errors import ConfigError
from sojourn.record.episodes.store import EpisodeStore
from sojourn.record.export import export
from sojourn.record.export.selection import Selection
from sojourn.record.run import RunFolder
from sojourn.sources.imported import Imported
from sojourn.train.group_checks import check_groups
from sojourn.train.resolve import Resolved, resolve
from sojourn.train.run import run_recipe
from sojourn.types import Group, Message, Role, Versions

HEAD = """
name = "imported"
model = { name = "tiny:layers=1,hidden=64", dtype = "fp32" }
env = { name = "toy", rooms = 2 }
sampling = { max_tokens = 4 }
rollout = { limits = { turns = 3 } }
evaluation = { tasks = 1 }
optim = { lr = 1e-2 }
[[stages]]
name = "rl"
steps = 1
"""
PLAYED = f"""{HEAD}
groups = {{ name = "slots", width = 2, size = 3 }}
estimator = {{ name = "reinforce", baseline = "none" }}
losses = [{{ name = "ppo" }}]
[reward]
name = "native"
malformed = -0.5
"""
FOLDER = 'groups = { name = "folder", path = "%s", stage = "rl" }'
IMPORTED = 'groups = { name = "imported", files = ["%s"] }'
CLONE = 'estimator = { name = "constant" }\nlosses = [{ name = "nll" }]\n'


def resolved(folder: Path, text: str) -> Resolved:
    folder.mkdir(exist_ok=True)
    (folder / "recipe.toml").write_text(text)
    return resolve(toml.read(folder / "recipe.toml"))


def check(folder: Path, text: str) -> None:
    """As a run does before it begins."""
    asyncio.run(check_groups(resolved(folder, text).recipe))


def run(folder: Path, text: str) -> Path:
    made = resolved(folder, text)
    with RunFolder.create(folder / "run", toml.dump(made.table)) as out, Display(live=False) as display:
        asyncio.run(run_recipe(made.recipe, out, display))
    return folder / "run"


def groups_of(path: Path, stage: str = "rl") -> list[Group]:
    with EpisodeStore(path) as store:
        return list(store.groups(stage))


def taken(*files: Path, world: Any = None, room: int = 4096, **fields: Any) -> list[Group]:
    source = Imported(files=tuple(map(str, files)), **{"width": 99, **fields})
    made = components(build("env", world or TOY, "env").value)
    made.runner.max_context = room
    return asyncio.run(source.bind(made, "again", 1).take(0))


def chat(path: Path, *conversations: Any, **fields: Any) -> Path:
    """A file of another program: pairs of role and content."""
    told = [{"messages": [{"role": r, "content": c} for r, c in one], **fields} for one in conversations]
    path.write_text("".join(json.dumps(one) + "\n" for one in told))
    return path


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(tmp_path_factory.mktemp("played"), PLAYED)


@pytest.fixture(scope="module")
def again(played: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    """The weights after a step on the run folder itself."""
    return final_weights(run(tmp_path_factory.mktemp("again"), PLAYED.replace(LIVE, FOLDER % played)))


LIVE = 'groups = { name = "slots", width = 2, size = 3 }'


@pytest.mark.parametrize("format", ["parquet", "chat", "adp"])
def test_a_step_from_an_export_is_a_step_from_the_run(played: Path, again, tmp_path: Path, format: str):
    if format == "parquet":
        pytest.importorskip("pyarrow")
    export(played, tmp_path / "out", format, Selection(where="stage:rl", tokens=True))
    made = run(tmp_path / "other", PLAYED.replace(LIVE, IMPORTED % (tmp_path / "out")))
    other, live = final_weights(made), final_weights(played)
    assert again.keys() == other.keys() == live.keys()
    for name in again:
        np.testing.assert_array_equal(again[name], other[name])
        np.testing.assert_array_equal(live[name], other[name])
    assert json.loads((made / "metrics.jsonl").read_text())["grad_norm"] > 0


def test_what_another_program_said_is_rendered_as_the_model_would_have_said_it(tmp_path: Path):
    """The agent's own turns, exported without tokens, come back with the same tokens."""
    for number, made in enumerate((Made(TOY, turns=20), Made(SUMS), Made(TOY, agent=Plain(history="page"), turns=20))):
        path = made.run(tmp_path / f"run-{number}")
        export(path, tmp_path / f"{number}.jsonl", "chat", Selection())
        found = taken(tmp_path / f"{number}.jsonl", world=made.world)
        expected = groups_of(path)
        assert [g.task for g in found] == [g.task for g in expected]
        turns = [turn for g in found for t in g.trajectories for turn in t.turns]
        originals = [turn for g in expected for t in g.trajectories for turn in t.turns]
        assert sum(t.success for g in found for t in g.trajectories) > 0
        for one, other in zip(turns, originals, strict=True):
            np.testing.assert_array_equal(one.sample.tokens, other.sample.tokens)
            np.testing.assert_array_equal(one.context, other.context)
            assert one.sample.versions == Versions(-1, -1)


def test_adp_of_another_program_is_rendered_with_its_calls_and_rewards(tmp_path: Path):
    content = [
        {"class_": "text_observation", "content": "Add 1 and 2.", "source": "user"},
        {"class_": "api_action", "function": "add", "kwargs": {"x": 1, "y": 2}, "description": "So:", "reward": 0.25},
        {"class_": "text_observation", "content": "3", "source": "environment"},
        {"class_": "code_action", "language": "python", "content": "print(3)", "description": None},
        {"class_": "web_observation", "html": "<p>3</p>", "axtree": None, "url": None, "image_observation": None,
         "viewport_size": None},
        {"class_": "message_action", "content": "It is 3.", "description": None, "reward": 1.0},
    ]  # fmt: skip
    (tmp_path / "in.jsonl").write_text(json.dumps({"id": "x", "content": content, "details": {"task": "adding"}}))
    (group,) = taken(tmp_path / "in.jsonl")
    (trajectory,) = group.trajectories
    assert [turn.reward for turn in trajectory.turns] == [0.25, 0.0, 1.0]
    text = renderer().decode(np.concatenate([trajectory.prompt(2), trajectory.turns[2].sample.tokens]))
    assert text == (
        "<|im_start|>user\nAdd 1 and 2.<|im_end|>\n"
        '<|im_start|>assistant\nSo:\n<tool_call>\n{"name": "add", "arguments": {"x": 1, "y": 2}}\n</tool_call>'
        "<|im_end|>\n"
        "<|im_start|>user\n3<|im_end|>\n<|im_start|>assistant\n```python\nprint(3)\n```<|im_end|>\n"
        "<|im_start|>user\n<p>3</p><|im_end|>\n<|im_start|>assistant\nIt is 3.<|im_end|>"
    )


def test_sharegpt_is_rendered_with_its_tools_calls_and_answers(tmp_path: Path):
    turns = [
        {"from": "human", "value": "Add 1 and 2."},
        {"from": "function_call", "value": '{"name": "add", "arguments": {"x": 1, "y": 2}}'},
        {"from": "observation", "value": "3"},
        {"from": "gpt", "value": "It is 3."},
    ]
    (tmp_path / "in.json").write_text(json.dumps([{"conversations": turns}], indent=2))
    (group,) = taken(tmp_path / "in.json")
    (trajectory,) = group.trajectories
    text = renderer().decode(np.concatenate([trajectory.prompt(1), trajectory.turns[1].sample.tokens]))
    assert text == (
        "<|im_start|>user\nAdd 1 and 2.<|im_end|>\n"
        '<|im_start|>assistant\n<tool_call>\n{"name": "add", "arguments": {"x": 1, "y": 2}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>\n3\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\nIt is 3.<|im_end|>"
    )


def test_conversations_that_begin_alike_are_a_group_and_weight_0_is_context(tmp_path: Path):
    asked, other = ("user", "Say yes."), ("user", "Say no.")
    path = chat(
        tmp_path / "a", [asked, ("assistant", "yes")], [other, ("assistant", "no")], [asked, ("assistant", "no")]
    )
    groups = taken(path)
    assert [len(group.episodes) for group in groups] == [2, 1]
    assert len({e.id for g in groups for e in g.episodes}) == 3
    messages = [{"role": "user", "content": "Say yes."}, {"role": "assistant", "content": "no", "weight": 0}]
    messages += [{"role": "user", "content": "Yes!"}, {"role": "assistant", "content": "yes"}]
    path.write_text(json.dumps({"messages": messages, "reward": 0.5, "success": True}))
    (group,) = taken(path)
    (trajectory,) = group.trajectories
    (turn,) = trajectory.turns
    assert (turn.reward, trajectory.success, turn.message) == (0.5, True, Message(Role.ASSISTANT, "yes"))
    assert "assistant\nno<|im_end|>" in renderer().decode(turn.context)


def test_plays_that_share_a_name_are_told_apart(tmp_path: Path):
    path = Made(TOY, Script(["go north"]), tasks=1).run(tmp_path / "run")
    for name in ("a", "b"):
        export(path, tmp_path / name, "chat", Selection(tokens=True))
    groups = taken(tmp_path / "a", tmp_path / "b")
    ids = [[e.id for e in g.episodes] for g in groups]
    assert [id.partition("/")[2] for id in ids[0]] == [id.partition("/")[2] for id in ids[1]]
    assert not set(ids[0]) & set(ids[1])


def test_tokens_of_another_model_are_refused_and_rendered_where_that_is_asked(tmp_path: Path):
    path = Made(TOY, Script(["go north"]), tasks=1, episodes=1).run(tmp_path / "run")
    out = tmp_path / "out"
    export(path, out, "chat", Selection(tokens=True))
    assert (taken(out))[0].trajectories[0].turns[0].sample.versions == Versions(2, 3)
    line = json.loads(out.read_text())
    for shift in (1, 10**9):
        for turn, data in enumerate(line["sojourn"]["turns"]):
            data["tokens"] = [token + shift for token in data["tokens"]]
            assert turn < 4
        out.write_text(json.dumps(line))
        with pytest.raises(ConfigError, match="another model sampled them: add render = true"):
            taken(out)
    (group,) = taken(out, render=True)
    assert {turn.sample.versions for t in group.trajectories for turn in t.turns} == {Versions(-1, -1)}
    assert renderer().parse(group.trajectories[0].turns[0].sample.tokens.tolist()).text == "go north"


def test_files_that_lack_turns_are_numbered_anew_or_refused(tmp_path: Path):
    path = Made(TOY, Script(["go north"]), Plain(history="page"), tasks=1, episodes=1).run(tmp_path / "run")
    out = tmp_path / "out"
    export(path, out, "chat", Selection(tokens=True))
    kept = out.read_text().splitlines()[2:]
    out.write_text("\n".join(kept))
    assert len((taken(out))[0].trajectories[0].turns) == 2
    line = json.loads(kept[0])
    line["sojourn"]["turns"][0]["parent"] = 1
    out.write_text(json.dumps(line))
    with pytest.raises(ConfigError, match="follows turn 1, which is not there"):
        taken(out)


def test_long_conversations_are_left_out_and_nothing_left_is_an_error(tmp_path: Path):
    short = [("user", "Say yes."), ("assistant", "yes")]
    path = chat(tmp_path / "in", short, [("user", "x" * 3000), ("assistant", "yes")])
    with pytest.warns(RuntimeWarning, match="1 conversations are longer than backend.max_context = 256"):
        assert len(taken(path, room=256)) == 1
    chat(path, [("user", "Say yes.")])
    with pytest.raises(ConfigError, match="holds no usable groups"):
        taken(path)
    chat(path, short, success=False)
    assert len(taken(path)) == 1
    with pytest.raises(ConfigError, match="holds no usable groups"):
        taken(path, success_only=True)
    thought = [{"role": "assistant", "content": "yes", "reasoning_content": "hm"}]
    path.write_text(json.dumps({"messages": thought}))
    with pytest.raises(ConfigError, match="in:1: the assistant's message has the thought 'hm'"):
        taken(path)


@pytest.mark.parametrize(
    ("learning", "sentence"),
    [
        (
            'estimator = { name = "constant" }\nlosses = [{ name = "ppo" }]',
            "'rl': PPO needs the sampler's log-probabilities",
        ),
        (CLONE.replace("[{", '[{ name = "sapo" }, {'), "'rl': SAPO needs the sampler's log-probabilities"),
        (
            'losses = [{ name = "nll" }]\nstreams = [{ name = "ref_logprobs" }]\n'
            'estimator = { name = "kl_reward", base = { name = "grpo" } }',
            "'rl': KLReward needs the sampler's log-probabilities",
        ),
        (
            'losses = [{ name = "importance", base = { name = "nll" } }]\nstreams = [{ name = "policy_logprobs" }]\n'
            'estimator = { name = "constant" }',
            "'rl': Importance needs the sampler's log-probabilities",
        ),
    ],
)
def test_what_needs_the_samplers_logprobs_is_refused_at_start_up(tmp_path: Path, learning: str, sentence: str):
    path = chat(tmp_path / "in", [("user", "Say yes."), ("assistant", "yes")])
    text = f"{HEAD}{IMPORTED % path}\n"
    check(tmp_path, text + CLONE)
    with pytest.raises(ConfigError, match=sentence):
        check(tmp_path, text + learning)
    made = Made(TOY, turns=20, tasks=1, episodes=1).run(tmp_path / "run")  # an expert's tokens have none either
    export(made, tmp_path / "exact", "adp", Selection())
    exact = f"{HEAD}{IMPORTED % (tmp_path / 'exact')}\n"
    with pytest.raises(ConfigError, match=sentence):
        check(tmp_path, exact + learning)


def test_files_that_cannot_be_used_are_refused_at_start_up(tmp_path: Path):
    path = tmp_path / "in"
    text = f"{HEAD}{IMPORTED % path}\n{CLONE}"
    with pytest.raises(ConfigError, match="cannot be read"):
        check(tmp_path, text)
    path.write_text('{"messages": [{"role": "user", "content": "x"}]}\n')
    with pytest.raises(ConfigError, match="holds nothing to learn from"):
        check(tmp_path, text)
    path.write_text('{"messages": [{"role": "user", "content": "x"}]}\n{half\n')
    with pytest.raises(ConfigError, match="in:2 is not JSON"):
        check(tmp_path, text)
    with pytest.raises(ConfigError, match=r"files = \[\]"):
        resolved(tmp_path, text.replace(f'"{path}"', ""))


def test_a_recipe_that_clones_a_file_can_be_checked_dry_and_learns(tmp_path: Path):
    said = [("user", "Say yes."), ("assistant", "yes"), ("user", "Again."), ("assistant", "yes")]
    path = chat(tmp_path / "in", said)
    text = f"{HEAD}{IMPORTED % path}\n{CLONE}".replace("steps = 1", "steps = 8")
    resolved(tmp_path, text)
    done = CliRunner().invoke(app, ["train", "--dry", str(tmp_path / "recipe.toml")])
    assert done.exit_code == 0, done.exception
    assert "imported: everything can be built" in done.output
    made = run(tmp_path / "clone", text)
    nll = [json.loads(line)["nll"] for line in (made / "metrics.jsonl").read_text().splitlines()]
    assert nll[-1] < nll[0] / 2
