import asyncio
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from sojourn.checks.env import check_env
from sojourn.envs.calls import method_of
from sojourn.envs.replay_fork import make_forkable
from sojourn.envs.tools import Tools, as_family
from sojourn.envs.toy import Toy
from sojourn.errors import ActionError, ConfigError, InfrastructureError
from sojourn.types import Message, Role, ToolCall

EXAMPLE = Path(__file__).parents[2] / "examples" / "guess.py"


class Calculator:
    """Work out the sum, then submit it."""

    tasks = tuple({"a": number, "b": 2 * number} for number in range(10))

    def __init__(self, a: int, b: int, bonus: int = 0):
        self.a, self.b, self.bonus, self.answer = a, b, bonus, None
        self.log: list[str] = []

    def goal(self) -> str:
        return f"What is {self.a} plus {self.b}?"

    def add(self, x: int, y: float = 1.0) -> float:
        """Adds two numbers,
        of any size.

        Args:
            x: the first number,
                a whole one
            y (float): the second number

        Returns: the sum.
        """
        self.log.append("add")
        return x + y

    async def note(self, text: str, kind: Literal["a", "b"] = "a", items: list[int] | None = None) -> dict[str, Any]:
        """Writes a note."""
        await asyncio.sleep(0)
        return {"text": text, "kind": kind, "items": items}

    def submit(self, answer: int) -> None:
        """Ends the play."""
        if answer < 0:
            raise ValueError("a sum of these is never negative")
        self.answer = answer

    def reward(self) -> float | None:
        return None if self.answer is None else float(self.answer == self.a + self.b)

    def _hidden(self) -> None: ...

    @staticmethod
    def helper() -> None: ...


class Seeded:
    closed = 0

    def __init__(self, seed: int, size: int = 2):
        self.seed, self.size, self.over = seed, size, False

    def stop(self) -> None:
        self.over = True

    async def reward(self) -> float | None:
        return 0.5 if self.over else None

    def choices(self) -> list[str]:
        return ["stop()"]

    def state_key(self) -> str:
        return str(self.over)

    async def expert(self) -> str:
        return "stop()"

    async def close(self) -> None:
        self.closed += 1


def say(text: str = "", *calls: ToolCall) -> Message:
    return Message(Role.ASSISTANT, text, calls=calls)


async def started(family: Any, index: int = 1):
    env = family.make(family.tasks("train")[index])
    await env.start()
    return env


async def test_a_class_is_shown_as_its_docstring_its_goal_and_its_tools():
    family = as_family(Calculator)
    observation = await family.make(family.tasks("train")[1]).start()
    assert observation.messages == (Message(Role.USER, "What is 1 plus 2?"),)
    assert observation.system[0].text.splitlines() == [
        "Work out the sum, then submit it.",
        "Say one of these calls:",
        "add(x: int, y: float = 1.0): Adds two numbers, of any size.",
        "note(text: str, kind: Literal['a', 'b'] = 'a', items: list[int] | None = None): Writes a note.",
        "submit(answer: int): Ends the play.",
    ]
    add, note, submit = observation.tools
    assert add.name == "add"
    assert add.parameters == {
        "type": "object",
        "properties": {
            "x": {"type": "integer", "description": "the first number, a whole one"},
            "y": {"type": "number", "description": "the second number"},
        },
        "required": ["x"],
        "additionalProperties": False,
    }
    assert note.parameters["properties"]["kind"] == {"enum": ["a", "b"]}
    assert note.parameters["properties"]["items"] == {
        "anyOf": [{"type": "array", "items": {"type": "integer"}}, {"type": "null"}]
    }
    assert submit.description == "Ends the play."


async def test_the_form_decides_where_the_tools_are_declared():
    text = as_family(Calculator, form="text")
    native = as_family(Calculator, form="native")
    assert not (await text.make(text.tasks("train")[0]).start()).tools
    observation = await native.make(native.tasks("train")[0]).start()
    assert observation.system[0].text == "Work out the sum, then submit it."
    assert len(observation.tools) == 3


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        ("add(x=1, y=2)", "3"),
        ("  add(1, 2)\n", "3"),
        ("add ( 1 , y = -2.5 )", "-1.5"),
        ("add(1)", "2.0"),
        ("note('a, (b) \"c\"', items=[1, 2])", '{"text": "a, (b) \\"c\\"", "kind": "a", "items": [1, 2]}'),
        ("note(text='x', kind='b')", '{"text": "x", "kind": "b", "items": null}'),
    ],
)
async def test_calls_in_text_are_read_and_answered(said, answer):
    step = await (await started(as_family(Calculator))).step("agent", say(said))
    assert step.observation.messages == (Message(Role.USER, answer),)
    assert step.rewards == {"agent": 0.0}
    assert not step.done


async def test_structured_calls_are_answered_by_id_or_name():
    env = await started(as_family(Calculator))
    calls = (ToolCall("add", {"x": 1, "y": 2}, id="c1"), ToolCall("submit", {"answer": -1}), ToolCall("add", {"x": 4}))
    step = await env.step("agent", say("ignored(", *calls))
    said = [(m.role, m.answers, m.text) for m in step.observation.messages]
    assert said == [
        (Role.TOOL, "c1", "3"),
        (Role.TOOL, "submit", "error: a sum of these is never negative"),
        (Role.TOOL, "add", "5.0"),
    ]
    assert step.info == {"error": 1.0}
    fine = await env.step("agent", say("", ToolCall("add", {"x": 1})))
    assert fine.info == {"error": 0.0}
    ended = await env.step("agent", say("", *calls[:2], ToolCall("submit", {"answer": 3})))
    assert (ended.done, ended.info) == (True, {"error": 1.0})


@pytest.mark.parametrize(("answer", "reward"), [(3, 1.0), (4, 0.0)])
async def test_the_play_ends_with_the_reward(answer, reward):
    env = await started(as_family(Calculator))
    step = await env.step("agent", say(f"submit({answer})"))
    assert step.done
    assert step.observation is None
    assert step.rewards == {"agent": reward}
    with pytest.raises(InfrastructureError):
        await env.step("agent", say(f"submit({answer})"))


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("", "say one call, such as"),
        ("hello there", "say one call, such as"),
        ("x" * 20_000, "20000 characters are too many"),
        ("((" * 2_000, "say one call"),
        ("-" * 9_000 + "1", "say one call"),
        ("\ud800\u0000", "say one call"),
        ("self.add(1)", "is no call"),
        ("add(1)(2)", "is no call"),
        ("add(1); add(2)", "is no call"),
        ("add(open('x'))", "plain values"),
        ("add(__import__('os').getpid())", "plain values"),
        ("add(10 ** 10)", "plain values"),
        ("add(*[1])", "plain values"),
        ("add(**{'x': 1})", "gives too many values or one twice"),
        ("add(1, x=2)", "gives too many values or one twice"),
        ("add(1, 2, 3)", "gives too many values or one twice"),
        ("add(x=1, x=2)", "one"),
        ("add('1')", r"add: x = '1', but it must be int"),
        ("add(True)", r"add: x = True, but it must be int"),
        ("add(1, 1e999)", r"add: y = inf, but it must be float"),
        ("add(0x" + "f" * 5_000 + ")", "add: x = a huge number, but it must be int"),
        ("add()", r"add: x is missing, the call is add\(x: int, y: float = 1.0\)"),
        ("add(1, z=2)", "add: there is no argument 'z'"),
        ("note('x', kind='c')", r"note: kind = 'c', but it must be Literal\['a', 'b'\]"),
        ("note('x', items=[1, 'b'])", r"note: items = \[1, 'b'\], but it must be list\[int\]"),
        ("reward()", "there is no tool 'reward', use one of add, note, submit"),
        ("_hidden()", "there is no tool"),
        ("helper()", "there is no tool"),
        ("__init__(1, 2)", "there is no tool"),
        ("submit(-5)", "submit: a sum of these is never negative"),
    ],
)
async def test_a_bad_call_is_refused_with_what_was_expected(said, told):
    env = await started(as_family(Calculator))
    with pytest.raises(ActionError, match=told):
        await env.step("agent", say(said))
    assert not env.game.log
    assert env.game.answer is None


async def test_a_bad_call_among_several_lets_none_run():
    env = await started(as_family(Calculator))
    with pytest.raises(ActionError):
        await env.step("agent", say("", ToolCall("add", {"x": 1}), ToolCall("add", {"x": "1"})))
    with pytest.raises(ActionError, match="must be given by name"):
        await env.step("agent", say("", ToolCall("add", [1])))  # type: ignore[arg-type]
    assert not env.game.log


async def test_an_exception_that_is_not_a_refusal_is_not_the_agents_fault():
    class Buggy(Seeded):
        def crash(self) -> None:
            raise KeyError("oops")

    with pytest.raises(KeyError):
        await (await started(as_family(Buggy))).step("agent", say("crash()"))


def test_listed_tasks_are_split_and_carry_their_arguments():
    family = as_family(Calculator, bonus=7)
    train, test = family.tasks("train"), family.tasks("test")
    assert [task.data["a"] for task in test] == [4, 9]
    assert [task.data["a"] for task in train] == [0, 1, 2, 3, 5, 6, 7, 8]
    assert train[0].data["bonus"] == 7
    assert family.make(train[3]).game.bonus == 7
    assert train[0].env == f"{Calculator.__module__}:Calculator"


def test_tasks_may_be_a_mapping_or_a_function_of_the_split():
    class Mapped(Calculator):
        tasks = {"train": [{"a": 1, "b": 1}], "test": [{"a": 2, "b": 2}]}  # type: ignore[assignment]  # noqa: RUF012

    class Called(Calculator):
        @staticmethod
        def tasks(split):  # type: ignore[override]
            return ({"a": number, "b": len(split)} for number in range(3))

    assert [task.data["a"] for task in as_family(Mapped).tasks("test")] == [2]
    assert [task.data["b"] for task in as_family(Called).tasks("train")] == [5, 5, 5]


class Counts:
    """Count."""

    def __init__(self, size: int):
        self.size = size

    def count(self) -> int:
        return self.size

    def reward(self) -> float | None:
        return None


def test_a_task_may_have_tags_which_are_no_argument_of_the_class():
    class Tagged(Counts):
        """Count."""

        tasks = ({"size": 1, "tags": ["small", "odd"]}, {"size": 2})

    first, second = as_family(Tagged).tasks("train")
    assert (first.tags, dict(first.data), second.tags) == (("small", "odd"), {"size": 1}, ())

    class Takes(Counts):
        """Count."""

        tasks = ({"size": 1, "tags": ["own"]},)

        def __init__(self, size: int, tags: list):
            super().__init__(size)

    (own,) = as_family(Takes).tasks("train")
    assert (own.tags, own.data["tags"]) == ((), ["own"])
    for wrong in ("small", [1], 3):
        with pytest.raises(ConfigError, match=r"tags = .*: expected a list of texts"):
            _ = as_family(type("Wrong", (Counts,), {"tasks": ({"size": 1, "tags": wrong},)})).tasks("train")[0]


def test_a_path_in_place_of_tasks_is_told_how_to_read_it():
    for path in ("train.jsonl", {"train": "train.jsonl"}):
        with pytest.raises(ConfigError, match=r"'train\.jsonl' is a text, not a list of tasks: read the file"):
            as_family(type("Wrong", (Counts,), {"tasks": path})).tasks("train")


def test_the_object_gets_copies_of_the_tasks_arguments():
    class Holder(Calculator):
        tasks = [{"a": [1], "b": 2}]  # type: ignore[assignment]  # noqa: RUF012

    family = as_family(Holder)
    task = family.tasks("train")[0]
    family.make(task).game.a.append(2)
    assert family.make(task).game.a == [1]


async def test_a_class_with_a_seed_has_tasks_without_end():
    family = as_family(Seeded, size=5)
    train, test = family.tasks("train"), family.tasks("test")
    assert len(train) == 100_000
    assert not {task.seed for task in train[:500]} & {task.seed for task in test[:500]}
    game = family.make(test[3]).game
    assert (game.seed, game.size) == (test[3].seed, 5)


async def test_optional_methods_are_offered_where_the_class_has_them():
    family = as_family(Seeded)
    env = family.make(family.tasks("train")[0])
    observation = await env.start()
    assert observation.choices == ("stop()",)
    assert observation.messages[0].text == "Begin."
    assert env.state_key() == "False"
    assert await env.expert() == "stop()"
    assert not hasattr(env, "fork")  # it has something to close
    await env.close()
    await env.close()
    assert env.game.closed == 1
    plain = await started(as_family(Calculator))
    assert hasattr(plain, "fork")
    assert not hasattr(plain, "expert")
    assert not hasattr(plain, "state_key")


class Forwarding(Calculator):
    """Passes on to another object what it lacks itself."""

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda: name


async def test_what_getattr_would_return_is_no_optional_member_on_any_version_of_python():
    play = await started(as_family(Forwarding))
    assert [name for name in ("expert", "state_key") if hasattr(play, name)] == []
    assert hasattr(play, "fork")
    assert (await play.start()).choices == ()
    step = await play.step("agent", Message(Role.ASSISTANT, "submit(0)"))
    assert (step.done, step.success) == (True, None)


async def test_what_cannot_be_copied_is_forked_by_its_actions():
    """As an object that holds a generator."""

    class Drawing(Calculator):
        def __init__(self, a: int, b: int) -> None:
            super().__init__(a, b)
            self.numbers = (number for number in range(9))

    family = as_family(Drawing)
    env = make_forkable(family, family.tasks("train")[0])
    await env.start()
    await env.step("agent", say("add(1)"))
    twin = await env.fork()
    await twin.step("agent", say("add(2)"))
    assert (twin.env.game.log, env.env.game.log) == (["add", "add"], ["add"])


class Opening:
    """Holds what cannot be copied from its first call on."""

    def __init__(self, seed: int):
        self.lines: Any = None

    def read(self) -> str:
        self.lines = self.lines or iter(line for line in "ab")
        return next(self.lines)

    def reward(self) -> float | None:
        return None


async def test_what_comes_to_hold_what_cannot_be_copied_is_refused():
    family = as_family(Opening)
    env = family.make(family.tasks("train")[0])
    await env.start()
    await (await env.fork()).close()
    await env.step("agent", say("read()"))
    with pytest.raises(ConfigError, match=r"Opening: a play cannot be copied, .*generator.*: let it hold that"):
        await env.fork()
    await env.close()


async def test_a_fork_is_a_copy():
    env = await started(as_family(Calculator))
    twin = await env.fork()
    await twin.step("agent", say("add(1)"))
    assert (twin.game.log, env.game.log) == (["add"], [])


class NoReward:
    def tool(self) -> None: ...


class NoTool:
    def reward(self) -> None: ...


class NoTasks(NoTool):
    def tool(self) -> None: ...


class NoHint(NoTasks):
    def tool(self, x) -> None: ...  # type: ignore[no-untyped-def]


class Slashed(NoTasks):
    def tool(self, x: int, /) -> None: ...


class BadHint(NoTasks):
    def tool(self, x: bytes) -> None: ...


@pytest.mark.parametrize(
    ("cls", "told"),
    [
        (NoReward, "has no method reward"),
        (NoTool, "add a tool"),
        (NoHint, "needs a type hint, such as x: int"),
        (Slashed, r"Slashed.tool: x comes before a '/', but tools are called by names"),
        (BadHint, "x has the type hint <class 'bytes'>: use int"),
    ],
)
def test_a_class_that_cannot_be_an_environment_is_refused_at_once(cls, told):
    with pytest.raises(ConfigError, match=told):
        Tools(cls=cls)


def test_other_mistakes_are_refused_in_words():
    with pytest.raises(ConfigError, match="list keyword arguments in `tasks`, or take a `seed: int`"):
        as_family(NoTasks).tasks("train")
    with pytest.raises(ConfigError, match="takes no argument 'frm': did you mean 'form'"):
        as_family(Counts, frm="text")
    with pytest.raises(ConfigError, match="takes no argument 'zzz': use one of form, size, test, train"):
        as_family(Counts, zzz=1)
    with pytest.raises(ConfigError, match="takes no argument 'sise': did you mean 'size'"):
        as_family(Seeded, sise=3)
    with pytest.raises(ConfigError, match="form = 'json'"):
        Tools(cls=Seeded, form="json")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="unknown split"):
        as_family(Seeded).tasks("valid")
    with pytest.raises(ConfigError, match="cannot be imported"):
        as_family("sojourn.no_such_module:Thing")
    with pytest.raises(ConfigError, match="is no environment"):
        as_family(3)


async def test_a_reward_that_is_no_number_is_the_authors_fault():
    class Odd(Seeded):
        async def reward(self) -> Any:
            return float("nan") if self.over else None

    with pytest.raises(InfrastructureError, match="gave nan"):
        await (await started(as_family(Odd))).step("agent", say("stop()"))


@pytest.mark.parametrize("reward", [np.float32(0.5), np.float16(0.5), np.bool_(True), np.int64(2)])
async def test_a_reward_may_be_a_number_of_numpy(reward):
    class Counted(Seeded):
        async def reward(self) -> Any:
            return reward

    step = await (await started(as_family(Counted))).step("agent", say("stop()"))
    assert step.rewards == {"agent": float(reward)}
    assert type(step.rewards["agent"]) is float


@pytest.mark.parametrize("choices", ["stop()", [1, 2]])
async def test_choices_that_are_no_texts_are_the_authors_fault(choices):
    class Odd(Seeded):
        def choices(self) -> Any:
            return choices

    with pytest.raises(InfrastructureError, match=r"choices\(\) gave .*: return a list of texts"):
        await started(as_family(Odd))


def test_families_pass_through():
    toy = Toy()
    assert as_family(toy) is toy
    assert as_family(Toy, rooms=4) == Toy(rooms=4)
    assert as_family("sojourn.envs.toy:Toy") == toy
    with pytest.raises(ConfigError, match="already made"):
        as_family(toy, rooms=4)


async def test_the_example_is_short_and_its_expert_always_wins(monkeypatch):
    assert len(EXAMPLE.read_text().splitlines()) <= 25
    monkeypatch.syspath_prepend(str(EXAMPLE.parents[1]))
    family = as_family("examples.guess:Guess")
    secrets = set()
    for task in family.tasks("train")[:100]:
        env = family.make(task)
        await env.start()
        secrets.add(env.game.secret)
        done = False
        while not done:
            step = await env.step("agent", say(await env.expert()))
            done = step.done
        assert step.rewards == {"agent": 1.0}
    assert secrets == set(range(1, 16))


class Picky:
    """Put things of any kind."""

    def __init__(self, seed: int):
        self.seed = seed
        self.put = 0

    def goal(self) -> str:
        return f"Put number {self.seed}."

    def put_numbers(self, real: float, whole: int, maybe: float | None) -> None:
        self.put += 1

    def put_words(self, word: str, one: Literal["a", 1], flag: bool) -> None:
        self.put += 1

    def put_many(self, numbers: list[float], named: dict[str, list[int]], anything: Any) -> str:
        self.put += 1
        return "many"

    def reward(self) -> float | None:
        return 0.0 if self.put >= 5 else None


async def test_odd_arguments_of_every_type_break_nothing():
    report = await check_env(Picky)
    assert report.passed, [report[name] for name in report.failed]


def test_a_number_too_large_for_a_float_is_refused():
    put = method_of("put_numbers", Picky.put_numbers, "Picky")
    with pytest.raises(ActionError, match="real = 1000"):
        put.arguments({"real": 10**400, "whole": 1, "maybe": None})
    assert put.arguments({"real": 10**300, "whole": 1, "maybe": -1e308}) == {
        "real": 10**300,
        "whole": 1,
        "maybe": -1e308,
    }
