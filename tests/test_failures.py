"""What breaks while a run goes on stops it with one sentence, and is never recorded as a success."""

import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from spawned import sojourn

from sojourn.record.run_status import State, read_status

WORLDS = """
import asyncio, sys, time

class Sound:
    '''Say go.'''
    def __init__(self, seed: int): self.n = 0
    def go(self) -> str:
        '''Goes.'''
        self.n += 1
        return "gone"
    def reward(self): return 1.0 if self.n else None
    def expert(self): return "go()"

class Broken(Sound):
    def __init__(self, seed: int): raise RuntimeError("no such server")

class Fails(Sound):
    def goal(self): raise RuntimeError("gone")

class Exits(Sound):
    def go(self) -> str:
        '''Goes.'''
        sys.exit(7)

class Huge(Sound):
    def reward(self): return 1e300 if self.n else None

class NeverCloses(Sound):
    async def close(self): await asyncio.sleep(1e6)

class Deaf(Sound):
    async def go(self) -> str:
        '''Goes.'''
        while True:
            try:
                await asyncio.sleep(1e6)
            except BaseException:
                continue

class DeafClose(Sound):
    close = Deaf.go

class Blocks(Sound):
    async def go(self) -> str:
        '''Goes.'''
        return await asyncio.to_thread(time.sleep, 1e6)

class OddExpert(Sound):
    def expert(self): return None

class LostExpert(Sound):
    def expert(self): raise RuntimeError("no way out")

class NoExpert:
    '''Say go.'''
    def __init__(self, seed: int): pass
    def go(self) -> str:
        '''Goes.'''
        return "gone"
    def reward(self): return 1.0
"""
RECIPE = """
name = "t"
[model]
name = "tiny:layers=1,hidden=64"
dtype = "fp32"
[env]
name = "worlds:{world}"
[evaluation]
tasks = 2
[rollout]
retries = 0
[rollout.limits]
turns = 2
stall_s = {stall_s}
[[stages]]
name = "warmup"
steps = 2
groups = {{ name = "experts", width = 2 }}
estimator = {{ name = "constant" }}
losses = [{{ name = "nll" }}]
[[stages]]
name = "rl"
steps = 2
groups = {{ name = "slots", width = 2, size = 2 }}
losses = [{{ name = "ppo" }}]
"""
NEVER_ANSWER = ("NeverCloses", "Deaf", "DeafClose", "Blocks")


def recipe(world: str) -> str:
    """Returns the recipe; worlds that answer may take their time, on a busy machine."""
    return RECIPE.format(world=world, stall_s=2.0 if world in NEVER_ANSWER else 60.0)


def run(folder: Path, world: str, *words: str, forked: bool = True) -> subprocess.CompletedProcess[str]:
    (folder / "worlds.py").write_text(WORLDS)
    (folder / "r.toml").write_text(recipe(world))
    return sojourn(folder, *words, forked=forked)


def one_sentence(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr + done.stdout
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    return done.stderr


@pytest.mark.parametrize(
    ("world", "told"),
    [
        ("Broken", "an environment of the world cannot be made: RuntimeError: no such server"),
        ("NeverCloses", "did not answer within 2 s"),
        ("NoExpert", "has no expert()"),
        ("OddExpert", "expert() returned None: expected the next action as text"),
        ("Sound sampling.temperature=0", "stage 'rl' needs the logprobs of the distribution"),
        ("Sound stages.rl.groups={name='folder',path='nowhere',stage='x'}", "no recorded episodes there"),
    ],
)
def test_a_run_that_cannot_play_is_refused_and_leaves_nothing(tmp_path, world, told):
    world, *words = world.split()
    assert told in one_sentence(run(tmp_path, world, "train", "r.toml", *words))
    assert not list(tmp_path.glob("runs/*"))


@pytest.mark.parametrize(
    ("world", "words", "told"),
    [
        ("Exits", [], "SystemExit: 7"),
        ("Fails", [], "all of 2 episodes failed; the last cause: RuntimeError: gone"),
        ("Huge", [], "1e+300: return a finite number of at most 1e+30 in size, or None"),
        ("OddExpert", [], "expert() returned None"),
        ("Sound", ["backend.max_context=8", "sampling.max_tokens=4"], "raise backend.max_context"),
        ("Sound", ["stages.warmup.losses.0.coef=1e38", "stages.warmup.optim.lr=1e30"], "not finite"),
        ("Sound", ["model.weights=nowhere"], "no run with a complete checkpoint"),
    ],
)
def test_a_run_that_breaks_stops_with_the_cause(tmp_path, world, words, told):
    assert told in one_sentence(run(tmp_path, world, "train", "r.toml", *words))


@pytest.mark.parametrize(
    ("world", "told"),
    [
        ("Deaf", "() does not end and ignores its cancellation"),
        ("DeafClose", "() does not end and ignores its cancellation"),
        ("Blocks", "the world did not answer within 2 s"),
    ],
)
def test_a_world_that_never_lets_go_holds_neither_a_run_nor_its_end(tmp_path, world, told):
    done = run(tmp_path, world, "train", "r.toml")
    assert done.returncode == 2, done.stderr
    said, ended = done.stderr.strip().splitlines()
    assert told in said
    assert "still runs" in ended


def test_a_run_that_breaks_says_so_in_the_list_of_runs(tmp_path):
    one_sentence(run(tmp_path, "LostExpert", "train", "r.toml"))
    (folder,) = tmp_path.glob("runs/*")
    found = read_status(folder)
    assert (found.state, [evaluation.name for evaluation in found.evaluations]) == (State.FAILED, ["before"])
    listed = sojourn(tmp_path, "runs")
    assert "RuntimeError: no way out" in listed.stdout
    assert "failed" in listed.stdout.splitlines()[1]


def test_an_evaluation_starts_from_the_weights_that_are_named_and_refuses_those_that_are_not_there(tmp_path):
    told = one_sentence(run(tmp_path, "Sound", "eval", "r.toml", "model.weights=nowhere"))
    assert "model.weights = 'nowhere'" in told


def test_a_plain_class_is_a_world_by_the_name_tools_too(tmp_path):
    done = run(tmp_path, "Sound", "check", "tools", "cls=worlds:Sound")
    assert done.returncode == 0, done.stdout + done.stderr


PAGES = """
from dataclasses import dataclass
from sojourn.envs.tools import as_family
from sojourn.types import Task
from worlds import Sound

class Page:
    '''A play whose expert is a property that raises where the page has none.'''
    def __init__(self, env, page): self.env, self.page = env, page
    @property
    def expert(self):
        if self.page == "draw":
            raise AttributeError("no expert")
        return self.env.expert
    async def start(self): return await self.env.start()
    async def step(self, agent, action): return await self.env.step(agent, action)
    async def close(self): await self.env.close()

@dataclass(frozen=True, kw_only=True)
class Pages:
    def tasks(self, split):
        return [Task("pages", {}, seed, split, (("click", "draw", "type")[seed % 3],)) for seed in range(30)]
    def make(self, task):
        return Page(as_family(Sound).make(task), task.tags[0])
"""


@pytest.mark.parametrize("dry", [["--dry"], []])
def test_demonstrations_of_a_page_without_an_expert_are_refused_at_once_and_the_page_is_named(tmp_path, dry):
    (tmp_path / "pages.py").write_text(PAGES)
    done = run(tmp_path, "Sound", "train", "r.toml", *dry, "env.name=pages:Pages")
    assert "the world 'pages' for its tasks 'draw' has no expert()" in one_sentence(done)
    assert "evaluation before" not in done.stdout


def test_a_run_that_cannot_draw_its_curve_is_complete(tmp_path):
    (tmp_path / "matplotlib.py").write_text("raise ImportError('not here')")
    done = run(tmp_path, "Sound", "train", "r.toml", forked=False)
    assert done.returncode == 0, done.stderr
    assert "note: a curve needs matplotlib" in done.stdout


JUDGES = """
from dataclasses import dataclass

@dataclass(frozen=True)
class Down:
    async def __call__(self, group):
        raise ConnectionError("no route to the judge")

DOWN = []

@dataclass(frozen=True)
class Comes(Down):
    '''A judge whose server fails for the first task of training.'''
    async def __call__(self, group):
        from sojourn.rewards.native import Native
        key = (group.task.id, [e.id for e in group.episodes])
        if group.trajectories and group.episodes[0].id.startswith("rl/"):
            DOWN.append(key)
        return await (super().__call__(group) if DOWN[:1] == [key] else Native()(group))
"""


def test_a_judge_that_is_down_stops_the_run_with_its_name_and_one_that_fails_once_is_counted(tmp_path):
    (tmp_path / "judges.py").write_text(JUDGES)
    told = one_sentence(run(tmp_path, "Sound", "train", "r.toml", "reward.name=judges:Down"))
    assert "the reward judges:Down gave no answer for task" in told
    assert "ConnectionError: no route to the judge" in told
    done = run(tmp_path, "Sound", "train", "r.toml", "reward.name=judges:Comes")
    assert done.returncode == 0, done.stderr
    assert "rl 1/2" in done.stdout
    assert "errors 2" in done.stdout


def test_two_runs_that_begin_at_once_get_folders_of_their_own(tmp_path):
    (tmp_path / "worlds.py").write_text(WORLDS)
    (tmp_path / "r.toml").write_text(recipe("Sound"))
    with ThreadPoolExecutor(2) as pool:
        done = list(pool.map(lambda _: sojourn(tmp_path, "train", "r.toml", forked=False), range(2)))
    assert [one.returncode for one in done] == [0, 0], [one.stderr for one in done]
    assert len(list(tmp_path.glob("runs/*"))) == 2
