"""A main agent that calls sub-agents: what each is shown, what is kept of each, and what is refused."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from delegated import GO, Errand, Says, agent_of, call, episode_of, played, report
from made import chatml as renderer

from sojourn.agents.delegating import Delegating
from sojourn.agents.plain import Plain, PlainSeat
from sojourn.agents.sub_agent import SubAgent
from sojourn.batch import Aggregate, to_batch
from sojourn.config.registry import build
from sojourn.errors import ConfigError, NoActionError
from sojourn.protocols import AgentContext
from sojourn.rollout.limits import Limits
from sojourn.rollout.play import play
from sojourn.timeline import Timeline
from sojourn.types import Credit, Ending, Group, Message, Observation, Role, SamplingParams, ToolCall, Trajectory

THINKER = SubAgent(instruction="THINK")
WALKER = SubAgent(instruction="WALK", world="acts", turns=3)
BOTH = {"thinker": THINKER, "walker": WALKER}
SCRIPT = (
    "SECRET", call("thinker", "add 1 and 2"), "three", call("walker", "walk on"), "a", "jump", report("walked"),
    call("walker", "again"), "b", "c", "d", "end",
)  # fmt: skip


def texts(one: Trajectory) -> list[str]:
    return [turn.message.text if turn.message else "" for turn in one.turns]


def seen(sampler: Says, number: int) -> str:
    return sampler.prompts[number]


async def test_every_call_is_a_trajectory_of_its_own():
    trajectories, _ = await played(agent_of(BOTH), *SCRIPT)
    assert [one.agent for one in trajectories] == ["agent", "thinker", "walker", "walker"]
    assert [one.ending for one in trajectories] == [Ending.DONE, Ending.DONE, Ending.DONE, Ending.TURNS]
    assert [len(one.turns) for one in trajectories] == [5, 1, 3, 3]
    moves = sorted(turn.info["move"] for one in trajectories for turn in one.turns)
    assert moves == list(range(12))
    assert trajectories[2].turns[1].info["malformed"] == 1


async def test_all_tokens_are_those_of_the_engine_and_each_is_trained_once():
    trajectories, sampler = await played(agent_of(BOTH), *SCRIPT)
    turns = {turn.info["move"]: (one, number) for one in trajectories for number, turn in enumerate(one.turns)}
    for move, (one, number) in turns.items():
        assert one.prompt(number).tolist() == sampler.tokens[int(move)]
        assert one.turns[number].sample is sampler.given[int(move)]
    group = Group(0, episode_of(trajectories).task, (episode_of(trajectories),))
    credit = [[Credit.uniform(one, 1.0) for one in group.trajectories]]
    batch = to_batch([group], credit, {}, aggregate=Aggregate())
    trained = sorted(batch.logprobs[batch.weight > 0].tolist())
    assert trained == sorted(value for sample in sampler.given for value in sample.logprobs.tolist())


async def test_a_sub_agent_is_shown_its_task_and_nothing_of_the_main_agent():
    _, sampler = await played(agent_of(BOTH), *SCRIPT)
    assert seen(sampler, 2) == (
        "<|im_start|>system\nTHINK<|im_end|>\n<|im_start|>user\nadd 1 and 2<|im_end|>\n<|im_start|>assistant\n"
    )
    for number in (2, 4, 5, 6, 8, 9, 10):
        assert not any(words in seen(sampler, number) for words in ("SECRET", "three", "place 0", "thinker"))
    for number in (8, 9, 10):
        assert "walked" not in seen(sampler, number)
        assert "walk on" not in seen(sampler, number)
    assert "RULES WALK" in seen(sampler, 4)
    assert "<|im_start|>user\nwalk on\n\nplace 1<|im_end|>" in seen(sampler, 4)


async def test_the_main_agent_is_shown_what_a_call_returned_and_nothing_else_of_it():
    _, sampler = await played(agent_of(BOTH), *SCRIPT)
    assert "<tool_response>\nthree\n</tool_response>" in seen(sampler, 3)
    assert "walked\n</tool_response><|im_end|>\n<|im_start|>user\nplace 2<|im_end|>" in seen(sampler, 7)
    assert not any(words in seen(sampler, 7) for words in ("jump", "report", "WALK.", "THINK<"))
    assert "<tool_response>\nd\n</tool_response><|im_end|>\n<|im_start|>user\nplace 5<|im_end|>" in seen(sampler, 11)
    assert "place 3" not in seen(sampler, 11)


async def test_rewards_go_to_who_acted_and_the_success_is_of_all():
    trajectories, _ = await played(agent_of(BOTH), *SCRIPT)
    assert [one.reward for one in trajectories] == [1.5, 0.0, 0.5, 1.5]
    assert all(one.success for one in trajectories)
    trajectories, _ = await played(agent_of(BOTH, rewards="main"), *SCRIPT)
    assert [one.reward for one in trajectories] == [3.5, 0.0, 0.0, 0.0]
    assert [turn.reward for turn in trajectories[0].turns] == [0.5, 0.0, 0.5, 1.5, 1.0]
    trajectories, _ = await played(agent_of(BOTH, rewards="both"), *SCRIPT)
    assert [one.reward for one in trajectories] == [3.5, 0.0, 0.5, 1.5]


async def test_an_episode_may_end_in_the_hands_of_a_sub_agent():
    trajectories, _ = await played(agent_of(BOTH), call("walker", "end it"), "end")
    assert [(one.agent, one.reward, one.ending, one.success) for one in trajectories] == [
        ("agent", 0.0, Ending.DONE, True), ("walker", 1.0, Ending.DONE, True),
    ]  # fmt: skip


async def test_the_turns_of_an_episode_count_all():
    trajectories, sampler = await played(agent_of(BOTH), *SCRIPT, turns=5)
    assert len(sampler.given) == 5
    assert [one.ending for one in trajectories] == [Ending.TURNS, Ending.DONE, Ending.TURNS]


async def test_several_calls_of_a_message_are_carried_out_one_after_another():
    calls = call("thinker", "x").calls + call("walker", "y").calls
    both = Message(Role.ASSISTANT, calls=calls)
    trajectories, sampler = await played(agent_of(BOTH), both, "three", "a", report("ok"), "end")
    assert [one.agent for one in trajectories] == ["agent", "thinker", "walker"]
    assert "three\n</tool_response>" in seen(sampler, 4)
    assert "ok\n</tool_response>" in seen(sampler, 4)
    assert "three" not in seen(sampler, 2)


async def test_where_actions_are_calls_a_message_without_one_is_the_result():
    go = Message(Role.ASSISTANT, calls=(replace(call("go", "").calls[0], arguments={}),))
    trajectories, sampler = await played(
        agent_of(BOTH), go, call("walker", "look"), go, "all seen", "end", env=Errand(tools=True)
    )
    assert [len(one.turns) for one in trajectories] == [3, 2]
    assert "place 1" not in seen(sampler, 2)  # an answer to a call of the main agent
    assert "<tool_response>\nplace 2" in seen(sampler, 3)
    assert "<tool_response>\nall seen\n</tool_response>" in seen(sampler, 4)
    assert "place 2" not in seen(sampler, 4)  # an answer to a call of the sub-agent


async def test_a_sub_agent_calls_its_own_tools_alone():
    go = Message(Role.ASSISTANT, calls=(replace(call("go", "").calls[0], arguments={}),))
    blind = {"walker": replace(WALKER, tools=("look",), sees=False)}
    trajectories, sampler = await played(
        agent_of(blind), call("walker", "look"), go, report("no"), "end", env=Errand(tools=True)
    )
    assert trajectories[1].turns[0].info["malformed"] == 1
    assert "You may not call go: you have report." in seen(sampler, 2)
    assert not any(words in seen(sampler, 1) for words in ("RULES", "place", '"go"'))


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (call("thinker", " "), "takes one text, which is not empty"),
        (call("thinker", "x", "text"), 'call thinker\\(task="..."\\)'),
        ("thinker(1, 2)", 'call thinker\\(task="..."\\)'),
        (Message(Role.ASSISTANT, calls=(*call("thinker", "x").calls, *call("go", "x").calls)), "call agents alone"),
    ],
)
async def test_a_malformed_call_is_refused_like_a_malformed_action(said, reason):
    trajectories, sampler = await played(agent_of(BOTH), said, "end")
    assert [one.agent for one in trajectories] == ["agent"]
    assert trajectories[0].turns[0].info["malformed"] == 1
    assert re.search(reason, seen(sampler, 1))
    trajectories, _ = await played(agent_of(BOTH, base=Plain(malformed="end")), said)
    assert trajectories[0].ending is Ending.MALFORMED


async def test_calls_are_bounded():
    once = {"thinker": replace(THINKER, calls=1)}
    trajectories, sampler = await played(agent_of(once), call("thinker", "x"), "y", call("thinker", "x"), "end")
    assert len(trajectories) == 2
    assert trajectories[0].turns[1].info["malformed"] == 1
    assert "You have called thinker 1 times, which is the most" in seen(sampler, 3)


async def test_calls_may_be_written_as_text_and_tasks_and_results_be_listed():
    listed = replace(THINKER, tasks=("left", "right"), results=("yes", "no"))
    trajectories, sampler = await played(
        agent_of({"thinker": listed}), "thinker('up')", "thinker('left')", "maybe", "yes", "end"
    )
    assert [len(one.turns) for one in trajectories] == [3, 2]
    assert "thinker has no task 'up': give it one of left, right." in seen(sampler, 1)
    assert "Your result is 'maybe': give one of yes, no." in seen(sampler, 3)
    assert "<|im_start|>user\nyes<|im_end|>" in seen(sampler, 4)


async def test_listed_actions_are_those_of_the_world_and_the_calls():
    chooses = Plain(choices=True)
    thinker = replace(THINKER, tasks=("left",), results=("yes", "no"), base=chooses)
    walker = replace(WALKER, tasks=("on",), results=("done",), base=chooses)
    agent = agent_of({"thinker": thinker, "walker": walker}, base=chooses)
    script = ("thinker('left')", "yes", "walker('on')", "report('done')", "end")
    _, sampler = await played(agent, *script, env=Errand(choices=("a", "end")))
    offered = [[renderer().parse(list(tokens)).text for tokens in asked.choices] for asked in sampler.asked]
    main = ["a", "end", "thinker('left')", "walker('on')"]
    assert offered == [main, ["yes", "no"], main, ["a", "end", "report('done')"], main]


async def test_where_the_world_lists_nothing_one_that_acts_may_do_more_than_report():
    walker = replace(WALKER, tasks=("on",), results=("done",), base=Plain(choices=True))
    script = (call("walker", "on"), "a", "report('done')", "end")
    trajectories, sampler = await played(agent_of({"walker": walker}), *script)
    assert [asked.choices for asked in sampler.asked] == [()] * 4
    assert texts(trajectories[1]) == ["a", "report('done')"]


def reading(name: str, task: str, *numbers: Any) -> Message:
    return Message(Role.ASSISTANT, calls=(ToolCall(name, {"task": task, "reads": list(numbers)}),))


async def test_in_a_graph_a_call_is_shown_the_results_that_it_reads():
    several = Message(Role.ASSISTANT, calls=reading("thinker", "c", 2).calls + reading("walker", "d", 3, 1).calls)
    trajectories, sampler = await played(
        agent_of(BOTH, graph=True),
        call("thinker", "a"), "one", call("thinker", "b"), "two", several, "three", report("four"), "end",
    )  # fmt: skip
    assert [one.agent for one in trajectories] == ["agent", "thinker", "thinker", "thinker", "walker"]
    assert "<tool_response>\nResult 1, of thinker: one\n</tool_response>" in seen(sampler, 2)
    assert "<|im_start|>user\nb<|im_end|>" in seen(sampler, 3)
    assert "<|im_start|>user\nResult 2, of thinker: two\n\nc<|im_end|>" in seen(sampler, 5)
    both = "<|im_start|>user\nResult 3, of thinker: three\n\nResult 1, of thinker: one\n\nd\n\nplace 0<|im_end|>"
    assert both in seen(sampler, 6)
    assert "Result 4, of walker: four" in seen(sampler, 7)
    assert '"reads"' in seen(sampler, 0)


@pytest.mark.parametrize("numbers", [[2], [0], [1, 1], ["1"], [True], [1.0]])
async def test_a_call_that_reads_what_is_not_there_is_refused(numbers):
    script = (call("thinker", "a"), "one", reading("thinker", "b", *numbers), "end")
    trajectories, sampler = await played(agent_of(BOTH, graph=True), *script)
    assert [len(one.turns) for one in trajectories] == [3, 1]
    assert "expected a list of numbers from 1 to 1, each once." in seen(sampler, 3)


async def test_nothing_can_be_read_at_first_nor_outside_of_a_graph():
    trajectories, sampler = await played(agent_of(BOTH, graph=True), reading("thinker", "a", 1), "end")
    assert len(trajectories) == 1
    assert "expected none, as there are no results yet" in seen(sampler, 1)
    trajectories, sampler = await played(agent_of(BOTH), reading("thinker", "a"), "end")
    assert len(trajectories) == 1
    assert '"reads"' not in seen(sampler, 0)


async def test_a_call_of_a_graph_may_be_written_as_text_and_be_listed():
    listed = replace(THINKER, tasks=("left",), results=("yes", "no"))
    agent = agent_of({"thinker": listed}, graph=True, base=Plain(choices=True))
    script = ("thinker('left')", "yes", "thinker('left', [1])", "no", "thinker('left', [1, 2])", "no", "end")
    trajectories, sampler = await played(agent, *script, env=Errand(choices=("end",)))
    assert len(trajectories) == 4
    assert "<|im_start|>user\nResult 1, of thinker: yes\n\nResult 2, of thinker: no\n\nleft" in seen(sampler, 5)
    offered = [renderer().parse(list(tokens)).text for tokens in sampler.asked[4].choices]
    assert offered == ["end", *(f"thinker('left'{reads})" for reads in ("", ", [1]", ", [2]", ", [1, 2]"))]


async def test_a_sub_agent_whose_context_is_full_ends_alone():
    long = {"thinker": replace(THINKER, instruction="THINK " * 400, description="thinks")}
    trajectories, sampler = await played(agent_of(long), call("thinker", "x"), "end", max_context=800)
    assert [(one.agent, one.ending) for one in trajectories] == [("agent", Ending.DONE)]
    assert "(no result)" in seen(sampler, 1)


async def test_a_sub_agent_that_ends_when_malformed_ends_alone():
    strict = {"walker": replace(WALKER, base=Plain(malformed="end"))}
    trajectories, _ = await played(agent_of(strict), call("walker", "x"), "jump", "end")
    assert [one.ending for one in trajectories] == [Ending.DONE, Ending.MALFORMED]


async def test_samples_have_seeds_of_their_own_and_calls_their_models():
    other = {"thinker": THINKER, "walker": replace(WALKER, model="small")}
    trajectories, sampler = await played(agent_of(other), *SCRIPT)
    assert len({asked.seed for asked in sampler.asked}) == len(sampler.asked)
    assert [one.model for one in trajectories] == ["policy", "policy", "small", "small"]
    assert [one.trainable for one in trajectories] == [True, True, False, False]
    assert [asked.model for asked in sampler.asked[3:6]] == ["policy", "small", "small"]
    trajectories, _ = await played(agent_of(other), *SCRIPT, trained=("policy", "small"))
    assert all(one.trainable for one in trajectories)
    trajectories, _ = await played(agent_of(BOTH), *SCRIPT, trainable=False)
    assert not any(one.trainable for one in trajectories)


@pytest.mark.parametrize("name", ["go", "report"])
async def test_a_name_that_the_world_has_taken_is_refused(name):
    world = Errand(tools=True)
    agent = agent_of({"go" if name == "go" else "walker": WALKER})
    if name == "report":
        first = await world.start()
        world.start = lambda: _given(replace(first, tools=(replace(GO, name="report"),)))  # type: ignore[method-assign]
    with pytest.raises(ConfigError, match=f"the world has a tool '{name}', too"):
        await played(agent, "end", env=world)


async def _given(value):
    return value


TABLE = {"thinker": {"instruction": "Think."}}


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({}, "sub_agents' is missing"),
        ({"sub_agents": {}}, "expected at least one"),
        ({"sub_agents": {"a-b": {"instruction": "x"}}}, "a tool has this name"),
        ({"sub_agents": {"report": {"instruction": "x"}}}, "not 'report'"),
        ({"sub_agents": {"a": {"instruction": " "}}}, "a text that is not empty"),
        ({"sub_agents": {"a": {"instruction": "x", "tools": ["go"]}}}, "set world = 'acts'"),
        ({"sub_agents": {"a": {"instruction": "x", "base": {"name": "plain", "choices": True}}}}, "list its `results`"),
        ({"sub_agents": TABLE, "base": {"name": "plain", "choices": True}}, "sub_agents.thinker has no `tasks`"),
        ({"sub_agents": TABLE, "base": {"name": "mcts"}}, "MCTS searches"),
        (
            {"sub_agents": {"a": {"instruction": "x", "base": {"name": "when_to_ask", "model": "big"}}}},
            "WhenToAsk asks other models",
        ),
        ({"sub_agents": TABLE, "base": {"name": "delegating", "sub_agents": TABLE}}, "Delegating calls other agents"),
        (
            {"sub_agents": {"a": {"instruction": "x", "base": {"name": "delegating", "sub_agents": TABLE}}}},
            "Delegating calls other agents",
        ),
    ],
)
def test_what_cannot_be_is_refused(table, message):
    with pytest.raises(ConfigError, match=message):
        build("agent", {"name": "delegating", **table})


@pytest.mark.parametrize("name", ["mcts", "best_of_n", "instructed", "return_conditioned"])
def test_agents_that_would_lose_the_calls_refuse_it_as_their_base(name):
    more = {"text": "x"} if name == "instructed" else {}
    with pytest.raises(ConfigError, match="Delegating calls other agents"):
        build("agent", {"name": name, **more, "base": {"name": "delegating", "sub_agents": TABLE}})


def test_the_models_of_its_sub_agents_are_known():
    agent = Delegating(sub_agents={"a": THINKER, "b": replace(THINKER, model="small")})
    assert dict(agent.sub_agent_models) == {"a": "", "b": "small"}


@dataclass
class Ponders(PlainSeat):
    """Says something that is refused, then takes a turn for itself, then acts; it notes what it is given."""

    given: list[str] = field(default_factory=list)

    async def act(self, observation: Observation, state: str | None = None) -> Message:
        self.given.append(observation.messages[-1].text)
        message = await super().act(observation, state)
        if message.text == "hm":
            raise NoActionError("it thinks")
        return message


async def test_after_a_turn_that_is_no_action_a_seat_is_given_what_the_world_shows():
    sampler = Says(["jump", "hm", "end"])
    context = AgentContext(
        name="agent", renderer=renderer(), sampler=sampler, params=SamplingParams(max_tokens=64), max_context=4096
    )
    seat = Ponders(Plain(), context)
    [played_once] = await play(Errand(), {"agent": seat}, Limits(turns=3), Timeline())
    assert seat.given == ["place 0", "nobody can jump", "place 0"]
    assert played_once.ending is Ending.DONE
