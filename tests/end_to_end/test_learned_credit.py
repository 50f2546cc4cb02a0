"""A run whose critic and streams learn beside the policy: recorded, and resumed to the same weights."""

import asyncio
import contextlib
import shutil

from test_loop import RECIPE, assert_same_weights

from sojourn.config import toml
from sojourn.display import Display
from sojourn.record import checkpoint, metrics
from sojourn.record.run import RunFolder
from sojourn.train.resolve import resolve
from sojourn.train.run import run_recipe

CREDIT = """
[critic]
model = "tiny:layers=1,hidden=64"
optim = { lr = 1e-3 }
"""
LEARNING = ("progress", "curiosity", "implicit_reward", "utterance_advantage", "feedback")
FUSED = """
estimator = { name = "process", stream = "progress", base = { name = "process",
    stream = "curiosity", base = { name = "process", stream = "feedback", base = { name = "process",
    stream = "utterance_advantage", base = { name = "oprl", base = {
    name = "normalised", base = { name = "gae" } } } } } } }
losses = [{ name = "ppo" }, { name = "value" }]
streams = [{ name = "values" }, { name = "next_values" }, { name = "progress" }, { name = "curiosity", eta = 1.0 },
    { name = "implicit_reward", loss = "ce", optim = { lr = 1e-2 } },
    { name = "utterance_advantage", warmup = 0, updates = 3 },
    { name = "feedback", messages_per_step = 4, updates = 3 }]
"""


class Stops(Display):
    """Ends the run after a step, as a machine that is taken away."""

    def step(self, step, values):
        super().step(step, values)
        if step == 2:
            raise KeyboardInterrupt


def resolved(folder):
    table = RECIPE.replace('estimator = { name = "reinforce", baseline = "none" }\n', "")
    table = table.replace('losses = [{ name = "ppo" }, { name = "kl" }, { name = "entropy" }]\n', "")
    table = table.replace('streams = [{ name = "ref_logprobs" }]\n', FUSED.replace("\n    ", " "))
    path = folder / "recipe.toml"
    path.write_text(table + CREDIT)
    return resolve(toml.read(path, ["stages.rl.steps=4"]))


def ran(recipe, path, display, resume=False):
    make = RunFolder.open(path) if resume else RunFolder.create(path, toml.dump(recipe.table))
    with make as folder, display(live=False) as shown:
        asyncio.run(run_recipe(recipe.recipe, folder, shown, resume=resume))
    return path


TWICE = """
[[stages]]
name = "again"
steps = 2
groups = { name = "slots", width = 2, size = 3 }
estimator = { name = "process", stream = "progress" }
losses = [{ name = "ppo" }]
streams = [{ name = "progress" }]
"""


def test_what_a_stream_learnt_goes_on_in_the_next_stage(tmp_path):
    """Where it is set up alike; and it is the same whether the run went through or was taken up between them. The error
    is of what was learnt before: with another learning rate it is that of a network that has learnt nothing yet."""
    stages = RECIPE.partition("[[stages]]")[0] + TWICE.replace("again", "first") + TWICE
    errors = {}
    for name, other in (("alike", ""), ("unlike", ", lr = 2e-3")):
        path = tmp_path / f"{name}.toml"
        path.write_text(
            stages[::-1].replace('{ name = "progress" }'[::-1], ('{ name = "progress"' + other + " }")[::-1], 1)[::-1]
        )
        recipe = resolve(toml.read(path, []))
        whole = ran(recipe, tmp_path / name, Display)
        errors[name] = [line.values["progress_error"] for line in metrics.read(whole / "metrics.jsonl")]
    assert errors["alike"][:2] == errors["unlike"][:2]
    assert errors["alike"][2] != errors["unlike"][2]
    shutil.rmtree(checkpoint.checkpoints(tmp_path / "alike" / "checkpoints")[-1].path)
    ran(resolve(toml.read(tmp_path / "alike.toml", [])), tmp_path / "alike", Display, resume=True)
    again = [line.values["progress_error"] for line in metrics.read(tmp_path / "alike" / "metrics.jsonl")]
    assert again == errors["alike"]


def test_what_learns_beside_the_policy_resumes_with_it(tmp_path):
    made = resolved(tmp_path)
    whole = ran(made, tmp_path / "whole", Display)
    cut = tmp_path / "cut"
    with contextlib.suppress(KeyboardInterrupt):
        ran(made, cut, Stops)
    assert checkpoint.latest(cut / "checkpoints").step == 4  # two of cloning, two of reinforcement
    ran(made, cut, Display, resume=True)
    assert_same_weights(whole, cut)
    lines = [
        [line.values for line in metrics.read(run / "metrics.jsonl") if line.stage == "rl"] for run in (whole, cut)
    ]
    for one, other in zip(*lines, strict=True):
        for name in LEARNING:
            assert one.get(f"{name}_error") == other.get(f"{name}_error")
        assert one["value_error"] == other["value_error"]
    assert {f"{name}_error" for name in LEARNING} <= {name for line in lines[0] for name in line}
    assert lines[0][0]["explained_variance"] == 0  # the critic says nothing yet
    assert lines[0][-1]["explained_variance"] != 0
