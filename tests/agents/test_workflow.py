"""Roles that work out an action together: what each is shown, what is kept of each, and what is refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from delegated import GO, Errand, Says, episode_of, played
from made import chatml as renderer

from sojourn.agents.plain import Plain
from sojourn.agents.workflow import Workflow, WorkflowRole
from sojourn.batch import Aggregate, to_batch
from sojourn.config.registry import build
from sojourn.errors import ConfigError
from sojourn.protocols import AgentContext
from sojourn.types import Credit, Ending, Group, Message, Role, SamplingParams, ToolCall, Trajectory

ROLES = {
    "planner": WorkflowRole(instruction="PLAN", every=2),
    "critic": WorkflowRole(instruction="JUDGE", sees=("planner",)),
    "actor": WorkflowRole(instruction="ACT", sees=("world", "planner", "critic")),
}
ORDER = ("planner", "critic", "actor")
TEAM = Workflow(roles=ROLES, order=ORDER)
SCRIPT = ("go far", "good", "a", "still", "jump", "b", "go home", "hm", "end")


def by_name(trajectories: tuple[Trajectory, ...]) -> dict[str, Trajectory]:
    return {one.agent: one for one in trajectories}


def shown(sampler: Says, number: int) -> list[str]:
    """The messages of a prompt, of which the last begins the answer."""
    return [part.removesuffix("<|im_end|>\n") for part in sampler.prompts[number].split("<|im_start|>")[1:-1]]


async def test_the_roles_speak_in_their_order_and_the_last_one_acts() -> None:
    trajectories, _ = await played(TEAM, *SCRIPT)
    assert [one.agent for one in trajectories] == ["agent", "planner", "critic"]
    said = {one.agent: [turn.message.text for turn in one.turns if turn.message] for one in trajectories}
    assert said == {
        "agent": ["a", "jump", "b", "end"],
        "planner": ["go far", "go home"],
        "critic": ["good", "still", "hm"],
    }
    moves = {one.agent: [turn.info["move"] for turn in one.turns] for one in trajectories}
    assert moves == {"agent": [2, 4, 5, 8], "planner": [0, 6], "critic": [1, 3, 7]}
    assert by_name(trajectories)["agent"].turns[1].info["malformed"] == 1
    assert {one.ending for one in trajectories} == {Ending.DONE}


async def test_each_is_shown_what_it_sees_and_nothing_else() -> None:
    _, sampler = await played(TEAM, *SCRIPT)
    assert shown(sampler, 0) == ["system\nRULES PLAN", "user\nplace 0"]
    assert shown(sampler, 1) == ["system\nJUDGE", "user\nplanner: go far"]
    assert shown(sampler, 2) == ["system\nRULES ACT", "user\nplace 0\n\nplanner: go far\n\ncritic: good"]
    assert shown(sampler, 3)[-1] == "user\n(nothing yet)", "the planner has said nothing new"
    assert shown(sampler, 4)[-1] == "user\nplace 1\n\ncritic: still"
    assert "nobody can jump" in shown(sampler, 5)[-1]
    assert shown(sampler, 6) == [
        "system\nRULES PLAN", "user\nplace 0", "assistant\ngo far", "user\nplace 1\n\nplace 2",
    ]  # fmt: skip


async def test_all_tokens_are_those_of_the_engine_and_each_is_trained_once() -> None:
    trajectories, sampler = await played(TEAM, *SCRIPT)
    for one in trajectories:
        for number, turn in enumerate(one.turns):
            move = int(turn.info["move"])
            assert one.prompt(number).tolist() == sampler.tokens[move]
            assert turn.sample is sampler.given[move]
    group = Group(0, episode_of(trajectories).task, (episode_of(trajectories),))
    credit = [[Credit.uniform(one, 1.0) for one in group.trajectories]]
    batch = to_batch([group], credit, {}, aggregate=Aggregate())
    trained = sorted(batch.logprobs[batch.weight > 0].tolist())
    assert trained == sorted(value for sample in sampler.given for value in sample.logprobs.tolist())


async def test_all_or_the_actor_alone_get_the_worlds_rewards_and_all_its_success() -> None:
    trajectories, _ = await played(TEAM, *SCRIPT)
    assert {one.agent: one.reward for one in trajectories} == {"agent": 2.0, "planner": 2.0, "critic": 2.0}
    planner = by_name(trajectories)["planner"]
    assert [turn.reward for turn in planner.turns] == [1.0, 1.0], "two actions followed the first word, one the second"
    trajectories, _ = await played(replace(TEAM, rewards="actor"), *SCRIPT)
    assert {one.agent: one.reward for one in trajectories} == {"agent": 2.0, "planner": 0.0, "critic": 0.0}
    assert all(one.success for one in trajectories)


async def test_the_turns_of_an_episode_count_all() -> None:
    trajectories, sampler = await played(TEAM, *SCRIPT, turns=2)
    assert len(sampler.given) == 2
    assert {one.agent: one.ending for one in trajectories} == dict.fromkeys(
        ("agent", "planner", "critic"), Ending.TURNS
    )
    assert not by_name(trajectories)["agent"].turns


async def test_answers_to_tool_calls_are_the_actors_own() -> None:
    go = Message(Role.ASSISTANT, calls=(ToolCall("go", {}),))
    _, sampler = await played(TEAM, "far", "good", go, "hm", go, "home", "hm", "end", env=Errand(tools=True))
    assert "# Tools" not in sampler.prompts[0]
    assert GO.name in sampler.prompts[2]
    assert "<tool_response>\nplace 1\n</tool_response>" in sampler.prompts[4]
    assert shown(sampler, 5)[-1] == "user\nplace 1\n\nplace 2", "the planner reads them as texts"


async def test_a_role_whose_context_is_full_is_silent_and_an_actor_whose_is_ends_the_episode() -> None:
    talks = replace(ROLES["planner"], every=1, base=Plain())
    pair = Workflow(
        roles={"planner": talks, "actor": ROLES["actor"].__class__(instruction="A")}, order=("planner", "actor")
    )
    long = "x" * 185
    trajectories, _ = await played(pair, long, "a", "b", "end", max_context=200)
    found = by_name(trajectories)
    assert [len(found[name].turns) for name in ("planner", "agent")] == [1, 3]
    assert (found["planner"].ending, found["agent"].ending) == (Ending.TOKENS, Ending.DONE)
    trajectories, _ = await played(pair, "p", "y" * 185, "q", max_context=200)
    assert by_name(trajectories)["agent"].ending is Ending.TOKENS


async def test_a_role_says_what_is_listed_where_it_is() -> None:
    choosy = Plain(choices=True)
    roles = {
        "planner": WorkflowRole(instruction="P", says=("near", "far"), base=choosy),
        "actor": WorkflowRole(instruction="A", sees=("world", "planner"), base=choosy),
    }
    team = Workflow(roles=roles, order=("planner", "actor"))
    _, sampler = await played(team, "far", "end", env=Errand(choices=("end", "a")))
    encoded = [
        [tuple(renderer().encode_reply(Message(Role.ASSISTANT, text))) for text in texts]
        for texts in (("near", "far"), ("end", "a"))
    ]
    assert [[choice[:3] for choice in params.choices] for params in sampler.asked] == [
        [choice[:3] for choice in choices] for choices in encoded
    ]


async def test_each_samples_with_a_seed_of_its_own_and_by_its_model() -> None:
    models = replace(TEAM, roles={**ROLES, "critic": replace(ROLES["critic"], model="small")})
    assert models.sub_agent_models == {"planner": "", "critic": "small"}
    trajectories, sampler = await played(models, *SCRIPT)
    assert len({params.seed for params in sampler.asked}) == len(sampler.asked)
    assert [params.model for params in sampler.asked[:3]] == ["policy", "small", "policy"]
    assert {one.agent: (one.model, one.trainable) for one in trajectories} == {
        "agent": ("policy", True), "planner": ("policy", True), "critic": ("small", False),
    }  # fmt: skip


def table(roles: Mapping[str, Any], *order: str) -> dict[str, Any]:
    return {"name": "workflow", "roles": roles, "order": list(order)}


PLANS, ACTS = {"instruction": "p"}, {"instruction": "a"}


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (table({}), r"order = \[\]: expected each of the roles \(none\) once"),
        (table({"plans": PLANS, "acts": ACTS}, "acts"), "expected each of the roles plans, acts once"),
        (table({"acts": ACTS}, "acts", "acts"), "expected each of the roles acts once"),
        (
            table({"plans": PLANS | {"sees": ["nobody"]}, "acts": ACTS}, "plans", "acts"),
            r"roles.plans.sees = \['nobody'\]",
        ),
        (
            table({"plans": PLANS | {"sees": ["plans"]}, "acts": ACTS}, "plans", "acts"),
            r"roles.plans.sees = \['plans'\]",
        ),
        (table({"plans": PLANS | {"sees": []}, "acts": ACTS}, "plans", "acts"), "at least one"),
        (table({"plans": PLANS, "acts": ACTS | {"every": 2}}, "plans", "acts"), "roles.acts says the actions"),
        (table({"plans": PLANS, "acts": ACTS | {"model": "small"}}, "plans", "acts"), "roles.acts says the actions"),
        (table({"plans": PLANS, "acts": ACTS | {"sees": ["plans"]}}, "plans", "acts"), "roles.acts says the actions"),
        (
            table({"plans": PLANS | {"base": {"name": "plain", "choices": True}}, "acts": ACTS}, "plans", "acts"),
            "list it",
        ),
        (table({"plans": PLANS | {"base": {"name": "mcts"}}, "acts": ACTS}, "plans", "acts"), "MCTS searches"),
        (
            table({"plans": PLANS | {"base": {"name": "when_to_ask", "model": "big"}}, "acts": ACTS}, "plans", "acts"),
            "WhenToAsk asks other models",
        ),
    ],
)
def test_what_cannot_be_is_refused(wrong: Mapping[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        build("agent", wrong)


def test_the_seat_is_the_actors() -> None:
    context = AgentContext(
        name="agent", renderer=renderer(), sampler=Says([]), params=SamplingParams(8), max_context=99
    )
    assert TEAM.seat(context).finish(Ending.DONE).agent == "agent"
