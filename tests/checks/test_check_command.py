"""`sojourn check` finds out what a name is of, and prints the report of the right suite."""

import subprocess
from pathlib import Path

import pytest
from spawned import sojourn

ROOT = Path(__file__).parents[2]
MINE = """
from dataclasses import dataclass
from typing import ClassVar

@dataclass(frozen=True)
class Mean:
    needs = frozenset[str]()
    zero_at_zero_advantage = True

    def __call__(self, out, batch):
        return -(batch.advantages * out.logprobs).mean(), {}
"""


def check(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return sojourn(folder, "check", *words)


def test_a_name_is_enough_where_it_is_of_one_kind(tmp_path):
    done = check(tmp_path, "grpo", "scale_by_std=false")
    assert done.returncode == 0, done.stderr
    assert "GRPO" in done.stdout
    assert "permuting episodes permutes credit" in done.stdout


def test_ones_own_loss_that_averages_fails(tmp_path):
    (tmp_path / "mine.py").write_text(MINE)
    done = check(tmp_path, "mine:Mean")  # known as a loss by its call
    assert done.returncode == 1, done.stderr
    assert "one value per token, never a mean" in done.stdout
    assert "1 broken" in done.stdout


PARTS = """
from dataclasses import dataclass

@dataclass(frozen=True)
class Mute:
    def seat(self, context):
        return self

@dataclass(frozen=True)
class Half:
    provides = "half"
    reference = False

    async def __call__(self, context):
        return []

@dataclass(frozen=True)
class Empty:
    def bind(self, tokenizer, template=""):
        return self

    def encode_reply(self, message):
        return {}[message.text]

@dataclass(frozen=True)
class Endless:
    live = True
    width = 0

    def tasks(self, steps):
        return 0

    def bind(self, context, stage, steps, first=0):
        return self

@dataclass(frozen=True)
class Won:
    async def __call__(self, group):
        return [t.success for t in group.trajectories]

@dataclass(frozen=True)
class Second:
    def __call__(self, group, scores):
        return [1]

@dataclass(frozen=True)
class Falling:
    def __call__(self, step, steps):
        return -step

@dataclass(frozen=True)
class Deaf:
    def bind(self, folder, config):
        return self

@dataclass(frozen=True)
class Last:
    split: str = "train"

    def bind(self, tasks, seed):
        return self
"""


def test_a_renderer_is_checked_with_the_tokenizer_of_a_model(tmp_path):
    done = check(tmp_path, "chatml", "thinking=true", "--model", "tiny:layers=1,hidden=64")
    assert done.returncode == 0, done.stderr
    assert "a reply reads back: thoughts" in done.stdout


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("Mute", "Mute has no act()"),
        ("Half", "0 lists for 6 groups"),
        ("Empty", "KeyError: 'go north' (parts.py:"),
        ("Endless", "expected how many groups a step has"),
        ("Won", "the reward parts:Won gave"),
        ("Second", "expected numbers from 0 to 0"),
        ("Falling", "update 1 of 2 has the factor -1"),
        ("Deaf", "Deaf has no write()"),
        ("Last", "Last has no draw()"),
    ],
)
def test_the_kind_of_a_class_follows_from_what_it_takes(tmp_path, name, sentence):
    (tmp_path / "parts.py").write_text(PARTS)
    done = check(tmp_path, f"parts:{name}")
    assert done.returncode == 1, done.stderr
    assert sentence in done.stdout


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["grop"], "unknown component 'grop': did you mean 'grpo'?"),
        (["reinforce"], "add --kind estimator or --kind loss"),
        (["grop", "--kind", "estimator"], "unknown estimator 'grop'"),
        (["grpo", "--kind", "loss"], "unknown loss 'grpo'"),
        (["grpo", "--kind", "optimizer"], "use one of env, agent, renderer, groups, reward, "),
        (["constant"], "add --kind estimator or --kind schedule"),
        (["grpo", "scale_by_sdt=false"], "did you mean 'scale_by_std'?"),
        (["grpo", "--episodes", "3"], "only a world is played"),
        (["grpo", "--model", "tiny"], "only a renderer has a tokenizer"),
        (["gemma"], "the tokenizer has no token '<bos>'"),
    ],
)
def test_one_sentence_and_exit_code_2(tmp_path, words, sentence):
    done = check(tmp_path, *words)
    assert done.returncode == 2, done.stderr
    assert sentence in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


RISKY = """
from dataclasses import dataclass
from sojourn_worlds.blackjack import Blackjack

@dataclass(frozen=True, kw_only=True)
class Risky(Blackjack):
    def risks(self):
        return ("The walls are thin here: build better ones.",)
"""


def test_what_a_machine_does_not_hold_is_said_before_anything_is_played(tmp_path):
    (tmp_path / "risky.py").write_text(RISKY)
    mixed = 'worlds=[{ name = "toy" }, { name = "risky:Risky" }]'
    for words in (["risky:Risky", "--kind", "env", "--attack"], ["mixed", mixed, "--kind", "env", "--episodes", "1"]):
        done = check(tmp_path, *words)
        assert done.stderr.splitlines()[0] == "note: The walls are thin here: build better ones."
    assert "note:" not in check(tmp_path, "toy", "--episodes", "1").stderr
