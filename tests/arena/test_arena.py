"""Whole matches: every kind of operator, what the terminal shows, what is recorded, and what is refused."""

from __future__ import annotations

import io
import json
import re
import shutil
from pathlib import Path

import pytest
from played_match import match
from rich.console import Console
from starlette.testclient import TestClient

from sojourn.arena.checkpoints import CheckpointOperator
from sojourn.arena.match_display import short_names
from sojourn.arena.results import Difference, difference_table
from sojourn.envs.tools import as_family
from sojourn.envs.toy import Toy
from sojourn.errors import ConfigError, InfrastructureError, ModelError, RecordError
from sojourn.intervals import mean
from sojourn.record.episodes.store import EpisodeStore
from sojourn.view.server import application
from tests.envs.loopback import served

PLANS = [(env := Toy().make(task)).layout.plan(env.state) for task in Toy().tasks("test")[:2]]


def planner(talk: list) -> str:
    """Plays the first test task by a plan."""
    return PLANS[0][sum(message["role"] == "assistant" for message in talk)]


async def test_an_expert_and_a_random_operator_play_side_by_side() -> None:
    ended = await match("expert", "random", "expert", tasks=3, turns=12)
    assert [result.name for result in ended.results] == ["expert", "random", "expert-2"]
    assert ended.named("expert").overall.success.mean == 1.0
    assert ended.named("expert").summary == ended.named("expert-2").summary
    assert ended.shown.count("actions differ from here on") <= 3
    assert "expert, expert-2 observe:" in ended.shown
    assert re.search(r"random - expert\n +-[\d.]+ \[", ended.shown)
    assert max(map(len, ended.shown.splitlines())) <= 80


async def test_equal_observations_are_printed_once() -> None:
    ended = await match("expert", "expert", tasks=1)
    assert ended.shown.count("Take the treasure.") == 1
    assert "see:" not in ended.shown


async def test_a_brief_match_prints_one_line_per_task() -> None:
    ended = await match("expert", "random", brief=True, turns=3)
    assert "turn 1" not in ended.shown
    assert "task 2/2" in ended.shown


async def test_a_person_acts_among_others_and_may_leave() -> None:
    ended = await match("person", "expert", typed="\n".join(PLANS[0]) + "\n:quit\n", tasks=3)
    assert ended.named("person").overall.episodes == 1
    assert ended.named("person").overall.success.mean == 1.0
    assert ended.named("person").failed == 1
    assert ended.named("expert").overall.episodes == 2, "the match ends with the task in which the person left"
    assert "the person left" in ended.shown


async def test_a_person_who_leaves_at_once_ends_the_match() -> None:
    ended = await match("person", typed=":quit\n")
    assert ended.named("person").failed == 1


async def test_a_match_of_which_all_episodes_failed_has_failed() -> None:
    class Play:
        def start(self):
            raise RuntimeError("no world today")

        async def step(self, seat, action): ...
        async def close(self): ...

    class Broken(Toy):
        def make(self, task):
            return Play()

    with pytest.raises(InfrastructureError, match=r"all of 4 episodes failed; the last cause: .*no world today"):
        await match("random", "random", family=Broken(choices=True))


async def test_an_endpoint_plays() -> None:
    with served(planner) as (url, asked):
        ended = await match(f"{url}#some/model", "expert", tasks=1)
    assert ended.named("model").overall.success.mean == 1.0
    assert ended.named("model").tokens == 7 * len(PLANS[0])
    assert asked[0]["messages"][0]["role"] == "system"
    assert [message["role"] for message in asked[1]["messages"]] == ["system", "user", "assistant", "user"]


async def test_a_broken_endpoint_is_a_failed_episode() -> None:
    with served(lambda talk: None if len(talk) > 2 else planner(talk)) as (url, _):
        ended = await match(f"{url}#model", "expert", tasks=1)
    assert ended.named("model").failed == 1
    assert ended.named("model").overall.episodes == 0
    assert ended.named("expert").overall.success.mean == 1.0
    assert "so this episode is not counted" in ended.shown
    assert "answered 500" in ended.shown


async def test_an_endpoint_calls_tools() -> None:
    def calls(talk: list) -> dict:
        number = sum(message["role"] == "assistant" for message in talk)
        arguments = ["{broken", '{"number": "x"}', '{"number": 3}'][min(number, 2)]
        call = {"id": f"c{number}", "type": "function", "function": {"name": "guess", "arguments": arguments}}
        return {"role": "assistant", "content": "<think>hm</think>", "tool_calls": [call]}

    class Guess:
        """Guess the number."""

        def __init__(self, seed: int) -> None:
            self.guessed: list[int] = []

        def guess(self, number: int) -> str:
            """Say a number."""
            self.guessed.append(number)
            return "no"

        def reward(self) -> float | None:
            return 1.0 if len(self.guessed) == 2 else None

    with served(calls) as (url, asked):
        ended = await match(f"{url}#model", family=as_family(Guess, form="native"), table={"name": "x"}, tasks=1)
    assert ended.named("model").overall.success.mean == 1.0
    assert "could not be read" in ended.shown
    assert "guess(number=3)" in ended.shown
    assert asked[0]["tools"][0]["function"]["name"] == "guess"
    last = asked[-1]["messages"]
    assert [m["role"] for m in last][-2:] == ["assistant", "tool"]
    assert last[-1]["tool_call_id"] == last[-2]["tool_calls"][0]["id"] == "c2"
    refused = next(at for at, m in enumerate(last) if m.get("tool_calls") and m["tool_calls"][0]["id"] == "c1")
    assert [m["role"] for m in last[refused + 1 : refused + 3]] == ["tool", "assistant"], "every call is answered"
    assert last[refused + 1]["content"] == "guess: number = 'x', but it must be int"


async def test_checkpoints_play_as_they_were_trained(trained: Path) -> None:
    ended = await match(f"{trained}", f"{trained}@before", f"{trained}@warmup", "expert", tasks=1)
    assert [r.name for r in ended.results] == ["run", "run@before", "run@warmup", "expert"]
    assert all(r.failed == 0 for r in ended.results)
    assert all(r.tokens > 0 for r in ended.results[:3])
    assert "turn 5" not in ended.shown, "the run was trained with four turns"
    again = await match(f"{trained}", f"{trained}@before", f"{trained}@warmup", "expert", tasks=1)
    assert [r.summary for r in again.results] == [r.summary for r in ended.results]


async def test_a_recorded_match_opens_in_the_viewer(trained: Path, tmp_path: Path) -> None:
    out = tmp_path / "match"
    hostile = "<script>alert(1)</script>\x1b[2J"
    with served(lambda talk: hostile) as (url, _):
        await match("random", "expert", f"{trained}", f"{url}#evil", out=out, turns=4)
    with EpisodeStore(out) as store:
        assert {count.stage for count in store.steps()} == {
            f"evaluation-{name}" for name in ("random", "expert", "run", "evil")
        }
        tasks = [{entry.task for entry in store.query() if entry.place == place} for place in (0, 1)]
        assert all(len(names) == 1 for names in tasks)
        evil = next(iter(store.query(stage="evaluation-evil")))
    assert json.loads((out / "arena.json").read_text())["operators"]["random"] == "random"
    client = TestClient(application([tmp_path]), base_url="http://127.0.0.1")
    page = client.get("/runs/match/groups/evaluation-expert/0/1").text
    assert re.findall(r'<th><a href="[^"]*">([^<]*)</a></th>', page) == ["random", "expert", "run", "evil"]
    assert "<script>alert" not in page
    assert "\x1b" not in page
    assert client.get(f"/runs/match/episodes/{evil.id}").status_code == 200
    assert 'class="state finished"' in client.get("/runs/match").text
    assert "success" in client.get("/runs/match/changes?a=random&b=expert").text


async def test_hostile_text_is_cleaned_before_it_is_printed(tmp_path: Path) -> None:
    with served(lambda talk: "\x1b]0;owned\x07[bold]x") as (url, _):
        ended = await match(f"{url}#evil", tasks=1, turns=2)
    assert "\x1b" not in ended.shown
    assert "\x07" not in ended.shown
    assert "[bold]x" in ended.shown


@pytest.mark.parametrize(
    ("operators", "asked", "sentence"),
    [
        ((), {}, "--operator is missing"),
        (("nosuch",), {}, "expected expert, random, person"),
        (("http://127.0.0.1:1/v1",), {}, "by its address and its model"),
        (("http://127.0.0.1:1/v1#m",), {}, "nothing answers at 127.0.0.1 port 1"),
        (("person", "person"), {}, "name it once"),
        (("expert",), {"others": "person"}, "a person can only play as --operator"),
        (("expert",), {"split": "test", "first": 10**9}, "has 1000 tasks"),
    ],
)
async def test_an_impossible_match_gets_a_reason(operators, asked, sentence: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        await match(*operators, **asked)


async def test_weights_that_are_not_there_or_of_another_model_are_refused(trained: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="it has before, warmup, rl"):
        await match(f"{trained}@nosuch")
    other = shutil.copytree(trained, tmp_path / "other")
    config = other / "config.toml"
    config.write_text(config.read_text().replace("hidden=64", "hidden=128"))
    with pytest.raises((RecordError, ModelError), match="made with"):
        await match(f"{other}")


def test_a_checkpoint_operator_names_its_weights_after_an_at_sign(trained: Path) -> None:
    assert (CheckpointOperator.parse(f"{trained}@2").weights_name, CheckpointOperator.parse(f"{trained}@2").name) == (
        "2",
        "run@2",
    )


@pytest.mark.parametrize("width", [80, 100])
def test_names_that_leave_no_room_for_figures_are_whole_and_on_lines_of_their_own(width: int) -> None:
    estimate = mean([0.0, 1.0, 0.5])
    names = [f"runs/toy-grpo-2026-11-2{day}-1@{day}20" for day in (1, 2, 3)]
    pairs = [(names[1], names[0]), (names[2], names[0]), (names[2], names[1])]
    console = Console(width=width, file=io.StringIO())
    console.print(difference_table([Difference(*pair, estimate, estimate, 1, 1, 1) for pair in pairs], width))
    lines = console.file.getvalue().splitlines()
    assert [line for line in lines if "runs/" in line] == [f"{one} - {other}" for one, other in pairs]
    assert sum("+0.50" in line for line in lines) == 3
    assert max(map(len, lines)) <= width


def test_operators_of_long_names_are_told_apart_in_every_line() -> None:
    runs = [f"runs/toy-grpo-2026-11-2{day}-1@120" for day in (1, 2)]
    assert short_names(["expert", *runs]) == ["expert", "…grpo-2026-11-21-1@120", "…grpo-2026-11-22-1@120"]
    alike = short_names([f"{folder}/toy-grpo-2026-11-21-1@120" for folder in ("a", "b")])
    assert alike == ["1 …o-2026-11-21-1@120", "2 …o-2026-11-21-1@120"]
    assert max(map(len, alike)) <= 22


async def test_the_results_of_a_match_fit_a_narrow_terminal_with_whole_names(trained: Path, tmp_path: Path) -> None:
    named = tmp_path / "runs-of-the-toy-world-with-a-long-name-2026-11-25-1"
    shutil.copytree(trained, named)
    ended = await match("expert", f"{named}@before", f"{named}", tasks=1, brief=True)
    text = ended.shown.partition("\n\n")[2]
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    for name in (f"{named.name}@before", f"{named.name} - expert"):
        assert name in text
