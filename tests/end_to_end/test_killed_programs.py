"""Runs whose agents are programs, killed with the gateway while replies are under way: nothing is lost or repeated."""

from __future__ import annotations

from pathlib import Path

import pytest
import spawned
import tomli_w
import trained_run
from trained_run import weight_bytes

from sojourn.record.episodes.store import EpisodeStore

CHOOSER = """
import json, os, urllib.request

def asked(url, body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)

messages = [{"role": "user", "content": os.environ["SOJOURN_TASK"]}]
url = os.environ["SOJOURN_URL"]
while not (seen := asked(url + "/observation"))["done"]:
    schema = {"type": "string", "enum": seen["choices"]}
    body = {"model": "m", "messages": messages, "response_format": {
        "type": "json_schema", "json_schema": {"name": "action", "schema": schema}}}
    text = asked(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body)["choices"][0]["message"]["content"]
    shown = asked(url + "/act", {"text": json.loads(text)})
    told = " ".join(one["content"] for one in shown["messages"])
    messages += [{"role": "assistant", "content": text}, {"role": "user", "content": told or "Go on."}]
"""
AGENTS = {
    "python": {"name": "python", "function": "tests.program_worlds:chooses"},
    "sandbox": {"name": "program", "command": ["/usr/bin/python3", "chooser.py"], "files": {"chooser.py": CHOOSER}},
}
RECIPE = {
    "name": "programs",
    "model": {"name": "tiny:layers=1,hidden=64", "dtype": "fp32"},
    "env": {"name": "toy", "rooms": 2, "choices": True},
    "backend": {"name": "torch", "threads": 1},
    "sampling": {"max_tokens": 8},
    "evaluation": {"tasks": 2},
    "rollout": {"limits": {"turns": 4}},
    "record": {"checkpoint_every": 1},
    "stages": [
        {"name": "rl", "steps": 2, "groups": {"name": "slots", "width": 2, "size": 2}, "losses": [{"name": "ppo"}]}
    ],
}
KILLED = """
import os, signal, sys
from sojourn.cli import main
from sojourn.gateway.session import Session

record, recorded, last = Session._record, [], int(sys.argv.pop(1))

def dies(self, *arguments):
    recorded.append(self.key)
    if len(recorded) == last:
        os.kill(os.getpid(), signal.SIGKILL)
    return record(self, *arguments)

Session._record = dies
main()
"""  # the command, in a process that kills itself as a reply has been sampled and is no turn yet


def recipe_of(agent: str) -> str:
    return tomli_w.dumps({**RECIPE, "agent": AGENTS[agent]})


def sampled(run: Path) -> dict[str, list[tuple[list[int], bytes]]]:
    """Returns what was sampled in each episode, evaluations included."""
    with EpisodeStore(run) as store:
        records = [(row.stage, store.read(row).episode) for row in store.query()]
    found = {f"{stage} {one.id}": [turn for path in one.trajectories for turn in path.turns] for stage, one in records}
    assert len(found) == len(records), "an episode was recorded twice"
    return {
        name: [(turn.sample.tokens.tolist(), turn.sample.logprobs.tobytes()) for turn in turns]
        for name, turns in found.items()
    }


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nobody kills; the two agents ask the same."""
    return trained_run.train(tmp_path_factory.mktemp("plain") / "run", recipe=recipe_of("python"))


@pytest.mark.parametrize(("agent", "reply"), [("python", 3), ("python", 30), ("sandbox", 17), ("sandbox", 41)])
def test_a_gateway_that_is_killed_loses_and_repeats_nothing(agent: str, reply: int, plain: Path, tmp_path: Path):
    (tmp_path / "recipe.toml").write_text(recipe_of(agent))
    words = ["train", str(tmp_path / "recipe.toml"), "--out", str(tmp_path / "run")]
    spawned.killed(KILLED, tmp_path, str(reply), *words)
    spawned.resumed(tmp_path / "run")
    assert sampled(tmp_path / "run") == sampled(plain)
    assert weight_bytes(tmp_path / "run") == weight_bytes(plain)
