"""Proofs: tactics on sequents made by hand, the shortest proofs, drawn theorems, and what the world promises."""

from __future__ import annotations

import random
from itertools import product

import pytest

from sojourn.checks.env import check_env
from sojourn.errors import ActionError, ConfigError
from sojourn.types import Message, Role
from sojourn_worlds.proofs import Proof, Proofs, parse, theorem_of_task
from sojourn_worlds.proofs.tactics import Formula, Sequent, Tactic, TacticError, fitting, show
from sojourn_worlds.proofs.theorem import Theorem, theorem_of
from sojourn_worlds.turn_based import TurnBasedEnv


def say(text: str) -> Message:
    return Message(Role.ASSISTANT, text)


def formula(text: str) -> Formula:
    """Reads "a", or "(A & B)" with brackets around everything that has parts."""
    if len(text) == 1:
        return text
    depth = 0
    for number, sign in enumerate(text[1:-1], 1):
        depth += (sign == "(") - (sign == ")")
        if depth == 0 and sign in "&|>":
            return (sign, formula(text[1:number]), formula(text[number + 1 : -1]))
    raise ValueError(text)


def sequent(*texts: str) -> Sequent:
    *hypotheses, goal = map(formula, texts)
    return Sequent(tuple(hypotheses), goal)


def after(tactic: str, *texts: str) -> list[str]:
    return [one.text().replace("\n", ", ") for one in parse(tactic).of(sequent(*texts))]


def theorem(*texts: str) -> Theorem:
    made = theorem_of(sequent(*texts))
    assert made is not None
    return made


def proof(*texts: str, turns: int = 0) -> Proof:
    made = theorem(*texts)
    return Proof(made, [made.sequent], turns)


@pytest.mark.parametrize("fields", [{"choices": True}, {}, {"longest": 8, "extra": 4, "turns": 20}])
async def test_it_keeps_its_promises(fields) -> None:
    report = await check_env(Proofs(**fields))
    assert report.passed, report.failed


def test_each_tactic_leaves_what_its_rule_says() -> None:
    assert after("intro", "c", "(a>b)") == ["1 c, 2 a, goal b"]
    assert after("split", "c", "(a&b)") == ["1 c, goal a", "1 c, goal b"]
    assert after("left", "(a|b)") == ["goal a"]
    assert after("right", "(a|b)") == ["goal b"]
    assert after("apply 1", "a", "a") == []
    assert after("apply 1", "(a>(b>c))", "c") == ["1 a>(b>c), goal a", "1 a>(b>c), goal b"]
    assert after("apply 1", "(a>(b>c))", "(b>c)") == ["1 a>(b>c), goal a"]
    assert after("cases 1", "(a&b)", "d", "c") == ["1 d, 2 a, 3 b, goal c"]
    assert after("cases 1", "(a|b)", "d", "c") == ["1 d, 2 a, goal c", "1 d, 2 b, goal c"]
    assert after("cases 1", "(a&b)", "a", "c") == ["1 a, 2 b, goal c"]  # what is known is not said twice


@pytest.mark.parametrize(
    ("tactic", "reason"),
    [
        ("intro", "intro needs a goal with >"),
        ("split", "split needs a goal with &"),
        ("left", "left needs a goal with |"),
        ("apply 1", "hypothesis 1 does not give the goal"),
        ("apply 3", "there is no hypothesis 3"),
        ("cases 0", "there is no hypothesis 0"),
        ("cases 1", "hypothesis 1 has neither & nor | to take apart"),
    ],
)
async def test_a_tactic_that_does_not_fit_takes_a_turn_and_is_told_why(tactic, reason) -> None:
    game = proof("(a>b)", "a", "b" if tactic != "apply 1" else "(b&a)")
    env, before = TurnBasedEnv(game, policy_seat="agent"), game.state_key()
    await env.start()
    step = await env.step("agent", say(tactic))
    assert step.info == {"error": 1.0, "stuck": 0.0}
    assert step.rewards == {"agent": 0.0}
    assert step.observation.messages[0].text.startswith(f"error: {reason}\n1 a>b\n")
    assert game.state_key() == before
    assert game.taken == 1
    again = await env.step("agent", say(env.expert()))
    assert again.info["error"] == 0.0
    assert again.observation is None or "error" not in again.observation.messages[0].text


def test_a_proof_is_complete_when_no_goal_is_left() -> None:
    game = proof("a", "(a>b)", "(a&b)")
    assert [game.act(tactic)["agent"] for tactic in ("split", "apply 1", "APPLY  2", "apply 1")] == [0, 0, 0, 1]
    assert game.current_seat is None
    assert game.success()


def test_the_observation_is_the_first_goal_with_its_hypotheses() -> None:
    game = proof("a", "((a|c)>b)", "(a&b)")
    assert game.observe("agent") == "1 a\n2 (a|c)>b\ngoal a&b"
    game.act("split")
    assert game.observe("agent") == "goals left: 2\n1 a\n2 (a|c)>b\ngoal a"


async def test_where_no_tactic_fits_the_play_is_lost() -> None:
    env = TurnBasedEnv(proof("(c>b)", "a", "(b|a)"), policy_seat="agent", choices=True)
    await env.start()
    assert (await env.step("agent", say("left"))).observation.choices == ("apply 1",)
    step = await env.step("agent", say("apply 1"))
    assert (step.done, step.success, step.info["stuck"]) == (True, False, 1.0)


async def test_it_ends_without_reward_when_the_turns_are_over() -> None:
    env = TurnBasedEnv(proof("(a>b)", "(b>a)", "c", "(c|b)", turns=3), policy_seat="agent")
    await env.start()
    for turn, tactic in enumerate(["split", "right", "apply 1"]):
        step = await env.step("agent", say(tactic))
        assert step.done == (turn == 2)
    assert (step.success, step.rewards) == (False, {"agent": 0.0})


def shortest(goals: tuple[Sequent, ...]) -> int | None:
    """Searches breadth-first over plays, without any of the world's cleverness."""
    seen, frontier, length = {goals}, [goals], 0
    while frontier and length < 9:
        following = []
        for left in frontier:
            if not left:
                return length
            for _, made in fitting(left[0]):
                then = (*made, *left[1:])
                if then not in seen and len(then) < 6:
                    seen.add(then)
                    following.append(then)
        frontier, length = following, length + 1
    return None


def test_the_lengths_are_those_of_a_search_of_every_play() -> None:
    for index in range(40):
        task = Proofs(longest=5).tasks("train")[index]
        made = theorem_of_task(task.split, task.seed, task.data["steps"], task.data["extra"])
        assert made.length([made.sequent]) == shortest((made.sequent,)) == task.data["steps"]
    shallow = ["(a>(b>(d>c)))", "a", "b", "d", "(e>c)", "(f>e)", "f", "c"]  # by four tactics, or deeper by three
    assert theorem(*shallow).length([sequent(*shallow)]) == shortest((sequent(*shallow),)) == 3
    assert theorem("(a>b)", "(b>a)", "a").length([sequent("(a>b)", "(b>a)", "a")]) is None
    assert shortest((sequent("(a>b)", "(b>a)", "a"),)) is None


def holds(one: Formula, true: frozenset[str]) -> bool:
    if isinstance(one, str):
        return one in true
    sign, left, right = one
    sides = holds(left, true), holds(right, true)
    return {"&": all(sides), "|": any(sides), ">": not sides[0] or sides[1]}[sign]


def test_what_can_be_proved_is_true_whatever_the_atoms_are() -> None:
    found = 0
    for index in range(30):
        task = Proofs().tasks("train")[index]
        made = theorem_of_task(task.split, task.seed, task.data["steps"], task.data["extra"])
        for hypotheses, goal in made.lengths:
            for values in product([False, True], repeat=8):
                true = frozenset(atom for atom, value in zip("abcdefgh", values, strict=True) if value)
                assert holds(goal, true) or not all(holds(one, true) for one in hypotheses)
            found += 1
    assert found > 100


async def test_the_expert_finishes_by_a_shortest_proof_from_wherever_there_is_one() -> None:
    family, rng, finished = Proofs(longest=8, choices=True), random.Random(3), 0
    for split, index in product(("train", "test"), range(20)):
        env = family.make(family.tasks(split)[index])
        observation = await env.start()
        for _ in range(rng.randrange(3)):
            step = await env.step("agent", say(rng.choice(observation.choices)))
            observation = step.observation
            if observation is None:
                break
        left = env.game.theorem.length(env.game.left)
        if observation is None or left is None:
            continue
        for _ in range(left):
            step = await env.step("agent", say(env.expert()))
        assert step.success
        finished += 1
    assert finished > 20


async def test_chance_proves_little() -> None:
    family, rng, won = Proofs(choices=True, turns=12), random.Random(0), 0
    for index in range(60):
        env = family.make(family.tasks("train")[index])
        observation = await env.start()
        while observation is not None:
            step = await env.step("agent", say(rng.choice(observation.choices)))
            observation = step.observation
        won += step.success
    assert won < 25


def test_tasks_alternate_between_lengths_and_no_theorem_is_in_both_splits() -> None:
    family = Proofs(shortest=2, longest=4)
    assert [task.tags for task in family.tasks("train")[:4]] == [("steps-2",), ("steps-3",), ("steps-4",), ("steps-2",)]
    texts = {
        split: {family.make(task).game.theorem.sequent.text() for task in family.tasks(split)[:150]}
        for split in ("train", "test")
    }
    assert len(texts["train"]) > 140
    assert not texts["train"] & texts["test"]


@pytest.mark.parametrize(
    "said", ["", "apply", "apply a", "apply 1 2", "intro 1", "intro split", "apply 100", "\u202eintro"]
)
async def test_what_is_no_tactic_is_refused(said) -> None:
    env = TurnBasedEnv(proof("a", "(a>b)", "b"), policy_seat="agent")
    await env.start()
    with pytest.raises(ActionError, match="is no tactic, say one of: intro, split, left, right, apply 2, cases 1"):
        await env.step("agent", say(said))
    assert env.game.taken == 0


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"longest": 11}, "longest"),
        ({"extra": -1}, "extra"),
        ({"shortest": 4, "longest": 3}, "longest = 3, but proofs have at least shortest = 4"),
        ({"turns": 2}, "turns = 2, but some proofs have 6 tactics"),
    ],
)
def test_impossible_fields_are_refused(wrong, message) -> None:
    with pytest.raises(ConfigError, match=f"proofs: {message}"):
        Proofs(**wrong)


def test_formulas_are_shown_with_brackets_around_their_parts() -> None:
    assert show(formula("((a&b)>(c|(d>e)))")) == "(a&b)>(c|(d>e))"
    with pytest.raises(TacticError):
        Tactic("apply", 2).of(sequent("a", "a"))
