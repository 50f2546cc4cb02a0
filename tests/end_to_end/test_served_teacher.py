"""Runs that a model behind an endpoint teaches, beside those that the same model teaches here."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from trained_run import RECIPE, final_weights, train
from typer.testing import CliRunner
from vllm_server import VLLM, serving

from sojourn.cli import app
from sojourn.config import toml
from sojourn.errors import ModelError, RecordError, SojournError
from sojourn.record import metrics
from sojourn.record.run import RunFolder
from sojourn.train.named_models import check_models_open
from sojourn.train.resolve import load
from sojourn.train.weights import check_models
from tests.envs.loopback import Raw, answered

TEACHER = "tiny:layers=2,hidden=64"
TAUGHT = (
    RECIPE.replace("choices = true", "choices = false")
    .replace('losses = [{ name = "ppo" }]', 'losses = [{ name = "distill", top_k = 8 }, { name = "reinforce" }]')
    .replace(
        'steps = 1\ngroups = { name = "slots"',
        'steps = 2\nestimator = { name = "teacher_kl" }\nstreams = [{ name = "teacher", model = "expert" }]\n'
        'groups = { name = "slots"',
    )
)
HERE = f'{TAUGHT}\n[models.expert]\nname = "{TEACHER}"\ndtype = "fp32"\n'
SECRET = "correct-horse-7"


def there(url: str = "http://127.0.0.1:1/v1", **keys: object) -> str:
    endpoint = {"base_url": url, "model": "org/expert", **keys}
    return f"{TAUGHT}\n{toml.dump({'models': {'expert': {'endpoint': endpoint}}})}"


def steps_of(run: Path) -> list[dict[str, float]]:
    return [line.values for line in metrics.read(run / "metrics.jsonl") if line.stage == "rl"]


def test_a_run_goes_the_way_that_it_goes_with_the_same_teacher_here(tmp_path, monkeypatch):
    monkeypatch.setenv("SOME_ENDPOINT", SECRET)
    expected = train(tmp_path / "here", recipe=HERE)
    with serving(VLLM.of(TEACHER)) as (url, asked):
        found = train(tmp_path / "there", recipe=there(url, key="SOME_ENDPOINT"))
    assert {request["authorization"] for request in asked} == {f"Bearer {SECRET}"}
    assert [request["path"] for request in asked[:3]] == ["/detokenize", "/tokenize", "/v1/completions"]
    assert len(asked) > 4
    other = final_weights(expected)
    for name, weights in final_weights(found).items():
        np.testing.assert_allclose(weights, other[name], atol=1e-4)
    for one, another in zip(steps_of(found), steps_of(expected), strict=True):
        for name in ("reverse_kl", "teacher_gap", "loss"):
            assert one[name] == pytest.approx(another[name], rel=1e-3, abs=1e-5)
    recorded = json.loads((found / "models.json").read_text())
    assert recorded["models.expert"] == "served as org/expert"
    for file in found.rglob("*"):
        assert not file.is_file() or SECRET.encode() not in file.read_bytes()


def test_a_run_goes_on_with_the_same_name_at_another_address_only(tmp_path):
    with serving(VLLM.of(TEACHER)) as (url, _):
        run = train(tmp_path / "run", recipe=there(url))
    file = tmp_path / "r.toml"
    file.write_text(there())
    check_models(load(file).recipe, RunFolder.read(run))
    file.write_text(there(model="org/another"))
    with pytest.raises(
        RecordError, match=r"the models.expert model 'org/another' as served as org/expert, but here it"
    ):
        check_models(load(file).recipe, RunFolder.read(run))


def test_a_dry_run_asks_nothing(tmp_path, monkeypatch):
    file = tmp_path / "r.toml"
    with answered(lambda path, body: Raw(500)) as (url, asked):
        file.write_text(there(url))
        done = CliRunner().invoke(app, ["train", str(file), "models.expert.endpoint.concurrency=3", "--dry"])
    assert done.exit_code == 0, done.output
    lines = [re.sub(r"\s+", " ", line) for line in done.output.splitlines()]
    assert f"models.expert.endpoint.model = 'org/expert' {file}" in lines
    assert "models.expert.endpoint.concurrency = 3 command line" in lines
    assert asked == []


def test_a_server_that_is_not_there_ends_the_run_before_it_begins(tmp_path):
    with pytest.raises(SojournError, match=r"the model models.expert at http://127.0.0.1:1/v1 .* gave no answer"):
        train(tmp_path / "run", recipe=there())
    assert not (tmp_path / "run" / "models.json").exists()


def test_a_server_of_another_vocabulary_ends_the_run_before_it_begins(tmp_path):
    with (
        answered(lambda path, body: Raw(200, '{"prompt": "abc"}')) as (url, _),
        pytest.raises(ModelError, match=r"models.expert = 'org/expert' has not the policy's vocabulary"),
    ):
        train(tmp_path / "run", recipe=there(url))


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("stages.rl.losses=[{name='distill'}]", "Distill has top_k = 0, all tokens, but models.expert.endpoint gives "),
        ("stages.rl.losses=[{name='distill',top_k=21}]", "gives the 20 likeliest: set it to at most 20, or raise the"),
        ("models.expert.endpoint.top_k=0", "gives the 0 likeliest: set the endpoint's top_k to at least 1"),
        ("sampling.temperature=0.7", "sampling.temperature = 0.7: stage 'rl' asks models.expert behind an endpoint"),
        ("models.expert.endpoint.base_url='localhost:8000'", "expected an address such as http://127.0.0.1:8000/v1"),
        ("models.expert.endpoint.model=''", "models.expert.endpoint.model"),
        ("models.expert.endpoint.key='a key'", "expected the name of an environment variable, or nothing"),
        ("models.expert.endpoint.key='NO_SUCH_VARIABLE'", 'key = "NO_SUCH_VARIABLE" is no environment variable'),
        ("models.expert.endpoint.topk=3", "unknown key 'models.expert.endpoint.topk': did you mean 'top_k'?"),
        ("models.expert.name='smollm2'", "the server has the model, so expected none of these: leave them out"),
        ("models.expert.dtype='bf16'", "the server has the model, so expected none of these: leave them out"),
    ],
)
def test_what_an_endpoint_cannot_do_is_refused(tmp_path, override, sentence):
    file = tmp_path / "r.toml"
    file.write_text(there())
    with pytest.raises(SojournError) as told:
        check_models_open(load(file, [override]).recipe)
    assert sentence in str(told.value)


def test_a_loss_within_another_is_checked_too(tmp_path):
    file = tmp_path / "r.toml"
    file.write_text(there())
    losses = "stages.rl.losses=[{name='of_origin',origins=['policy'],base={name='distill'}}]"
    streams = "stages.rl.streams=[{name='teacher',model='expert'},{name='origins'}]"
    with pytest.raises(
        SojournError, match=r"Distill has top_k = 0, all tokens, but models.expert.endpoint gives the 20"
    ):
        load(file, [losses, streams])


def test_teacher_kl_alone_needs_no_likeliest_tokens(tmp_path):
    file = tmp_path / "r.toml"
    file.write_text(there(top_k=0))
    check_models_open(load(file, ["stages.rl.losses=[{name='reinforce'}]"]).recipe)


def test_a_config_that_was_written_down_makes_the_same_models(tmp_path):
    file, again = tmp_path / "r.toml", tmp_path / "again.toml"
    file.write_text(there(top_k=8))
    again.write_text(toml.dump(load(file).table))
    assert load(again).recipe.models == load(file).recipe.models
