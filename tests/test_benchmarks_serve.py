"""The benchmark of servers: a short one of a tiny model, what it compares, and how it fails."""

import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))

import serve


def figures(rate, first):
    return {"tokens_per_s": rate, "first_token_median_ms": first}


def test_ratios_are_to_the_better_kind():
    found = {"sojourn": figures(30, 50), "llama.cpp fp16": figures(20, 100), "llama.cpp bf16": figures(10, 80)}
    assert serve.ratios(found) == {"tokens_per_s_ratio": 1.5, "first_token_ratio": 0.62}
    assert serve.ratios({"sojourn": figures(30, 50)}) == {}


def test_a_short_run_of_a_tiny_model(monkeypatch, tmp_path):
    for name, value in {"MODEL": "tiny:layers=1,hidden=64", "SHARED": 9, "SHOWN": 3, "SAID": 6, "TURNS": 2}.items():
        monkeypatch.setattr(serve, name, value)
    servers, without = serve.contenders("", tmp_path)
    assert without == {"llama.cpp": "there is no llama-server: name one with --llama-server"}
    twin = serve.Contender("twin", servers[0].command, servers[0].environment)
    found, agreed = serve.cell([*servers, twin], 2, 1, float("inf"))
    assert agreed == "twin: 4 of 4 replies"
    ours, other = found["servers"]["sojourn"], found["servers"]["twin"]
    assert (ours["prompt_tokens"], ours["sampled_tokens"]) == (other["prompt_tokens"], other["sampled_tokens"])
    assert 0 < ours["sampled_tokens"] <= 2 * 2 * 6
    assert 0 < ours["first_token_median_ms"] <= ours["first_token_p95_ms"]
    assert found["tokens_per_s_ratio"] > 0


def test_a_server_that_does_not_start_says_why():
    broken = serve.Contender("broken", (sys.executable, "-c", "raise SystemExit('no such model')"), {})
    with (
        pytest.raises(RuntimeError, match=re.compile(r"broken: it ended with 1.*no such model", re.DOTALL)),
        broken.open(1),
    ):
        pass
