"""Repeated matrix games: the opponents as they are known, the best answers by brute force, and what it promises."""

from __future__ import annotations

import random
from itertools import product

import pytest

from sojourn.checks.env import check_env
from sojourn.errors import ActionError, ConfigError, InfrastructureError
from sojourn.types import Message, Role
from sojourn_worlds.matrix import GAMES, NAMES, Matrix
from sojourn_worlds.matrix.opponents import OPPONENTS, Opponent, outlook

PRISONERS = GAMES["prisoners_dilemma"].row


def say(text: str) -> Message:
    return Message(Role.ASSISTANT, text)


def against(name: str, said: str, payoffs=PRISONERS) -> str:
    """Returns what an opponent does while the other says these actions, c for the first and d for the second."""
    opponent, done = Opponent(name, payoffs, 0), []
    state = opponent.begin()
    for number, other in enumerate(said):
        own = opponent.act(state, number)
        done.append("cd"[own])
        state = opponent.after(state, own, "cd".index(other))
    return "".join(done)


async def play(env, policy) -> dict[str, float]:
    observation, total = await env.start(), {}
    while observation is not None:
        step = await env.step(observation.agent, say(policy(env, observation)))
        for seat, reward in step.rewards.items():
            total[seat] = total.get(seat, 0.0) + reward
        observation = step.observation
    return total | {"success": step.success}


@pytest.mark.parametrize(
    "fields",
    [
        {"choices": True},
        {},
        {"game": "any", "opponent": "any", "neutral": True},
        {"opponent": "self", "choices": True, "game": "any", "rounds": 3},
    ],
)
async def test_it_keeps_its_promises(fields) -> None:
    report = await check_env(Matrix(**fields))
    assert report.passed, report.failed


@pytest.mark.parametrize(
    ("name", "said", "done"),
    [
        ("always_cooperate", "cdcd", "cccc"),
        ("always_defect", "cdcd", "dddd"),
        ("tit_for_tat", "cddcc", "ccddc"),
        ("grim", "ccdcc", "cccdd"),
        ("pavlov", "ccddc", "cccdc"),  # betrayed, it changes; punished for it, it comes back
        ("fictitious_play", "ccdd", "cddd"),  # knows nothing at first; then defecting is best
    ],
)
def test_opponents_do_what_they_are_known_for(name, said, done) -> None:
    assert against(name, said) == done


def test_fictitious_play_answers_best_to_what_was_said_most() -> None:
    row = GAMES["matching_pennies"].row  # wants to say the same as the other
    assert against("fictitious_play", "dddccccc", row) == "cdddddcc"


def test_random_tosses_its_coins_by_seed() -> None:
    tossed = [[Opponent("random", PRISONERS, seed).act(0, number) for number in range(40)] for seed in (1, 1, 2)]
    assert tossed[0] == tossed[1] != tossed[2]
    assert 8 < sum(tossed[0]) < 32


@pytest.mark.parametrize("name", OPPONENTS)
@pytest.mark.parametrize("game", NAMES)
async def test_the_best_answer_is_the_best_of_all_answers(game, name) -> None:
    """Every way to play a short match, tried through the world itself: none earns more than 1 or less than 0."""
    family = Matrix(game=game, opponent=name, rounds=4)
    task = family.tasks("train")[3]
    actions = family.make(task).game.rules.actions
    earned = []
    for said in product(actions, repeat=4):
        steps = iter(said)
        earned.append((await play(family.make(task), lambda env, seen, steps=steps: next(steps)))["agent"])
    assert (min(earned), max(earned)) == (0.0, 1.0)
    assert (await play(family.make(task), lambda env, seen: env.expert()))["agent"] == 1.0


async def test_the_expert_earns_everything_and_chance_little() -> None:
    family, rng, chance = Matrix(game="any", opponent="any", choices=True), random.Random(0), []
    for split in ("train", "test"):
        for task in family.tasks(split)[:60]:
            assert await play(family.make(task), lambda env, seen: env.expert()) == {"agent": 1.0, "success": True}
            chance.append(await play(family.make(task), lambda env, seen: rng.choice(seen.choices)))
    assert sum(found["agent"] for found in chance) / 120 < 0.65
    assert sum(found["success"] for found in chance) / 120 < 0.15


async def test_the_expert_makes_the_best_of_a_bad_start() -> None:
    """After any first two actions it gets what dynamic programming says is left."""
    family = Matrix(game="chicken", opponent="pavlov", rounds=7)
    task = family.tasks("train")[0]
    for first in product(("swerve", "straight"), repeat=2):
        env = family.make(task)
        await env.start()
        for action in first:
            await env.step("agent", say(action))
        promised = env.game.points(env.game.policy_seat) + env.game.outlook().best_points
        while env.game.current_seat:
            await env.step("agent", say(env.expert()))
        assert env.game.points(env.game.policy_seat) == promised


def test_known_values_of_the_prisoners_dilemma() -> None:
    def most(name: str, rounds: int = 10) -> int:
        return outlook(Opponent(name, PRISONERS, 0), PRISONERS, rounds)[0][
            Opponent(name, PRISONERS, 0).begin()
        ].best_points

    assert most("tit_for_tat") == 9 * 3 + 5  # cooperate, and defect in the last round
    assert most("grim") == 9 * 3 + 5
    assert most("always_cooperate") == 50
    assert most("always_defect") == 10


async def test_both_move_unseen_and_are_paid_by_the_table() -> None:
    family = Matrix(opponent="self", rounds=2)
    assert family.seats == ("row", "column")
    env = family.make(family.tasks("train")[0])
    first = await env.start()
    assert first.agent == "row"
    assert "You defect, they cooperate: you get 5, they get 0." in first.system[0].text
    step = await env.step("row", say("defect"))
    assert step.observation.agent == "column"
    assert step.observation.system
    assert step.observation.messages[0].text == "Round 1 of 2."
    with pytest.raises(InfrastructureError, match="it is column who acts"):
        await env.step("row", say("defect"))
    step = await env.step("column", say("cooperate"))
    assert step.observation.messages[0].text == "You: defect, they: cooperate. You get 5, they get 0. Round 2 of 2."
    assert not step.observation.system
    step = await env.step("row", say("cooperate"))
    assert step.observation.messages[0].text.startswith("You: cooperate, they: defect. You get 0, they get 5.")
    step = await env.step("column", say("cooperate"))
    assert step.success is None
    assert step.rewards == {"row": pytest.approx(2 * (8 / 2 / 5) - 1), "column": pytest.approx(2 * (3 / 2 / 5) - 1)}
    assert not hasattr(env, "expert")


async def test_pennies_are_zero_sum() -> None:
    family, rng = Matrix(game="matching_pennies", opponent="self", rounds=5), random.Random(0)
    for task in family.tasks("train")[:10]:
        total = await play(family.make(task), lambda env, seen: rng.choice(env.game.choices()))
        assert total["row"] + total["column"] == pytest.approx(0)
        assert abs(total["row"]) <= 1


def test_the_agent_sits_in_both_seats_and_meets_all() -> None:
    family = Matrix(game="any", opponent="any", neutral=True)
    games = [family.make(task).game for task in family.tasks("train")[:150]]
    assert {game.policy_seat for game in games} == {"row", "column"}
    assert {game.opponent.name for game in games} == set(OPPONENTS)
    assert {game.rules.actions for game in games} == {("a", "b"), ("a", "b", "c")}


@pytest.mark.parametrize("said", ["", "cooperate defect", "nothing", "0", "c"])
async def test_what_is_no_action_is_refused(said) -> None:
    env = Matrix().make(Matrix().tasks("train")[0])
    await env.start()
    before = env.state_key()
    with pytest.raises(ActionError, match="say one of: cooperate, defect"):
        await env.step("agent", say(said))
    assert env.state_key() == before


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"rounds": 0}, "rounds = 0, but it must be from 1 to 30"),
        ({"game": "poker"}, 'game = "poker", but it must be one of prisoners_dilemma'),
        ({"opponent": "nobody"}, 'opponent = "nobody", but it must be one of self'),
        ({"threshold": "high"}, "threshold = 'high'"),
    ],
)
def test_impossible_fields_are_refused(wrong, told) -> None:
    with pytest.raises(ConfigError, match=told):
        Matrix(**wrong)


async def test_regret_is_what_the_best_single_action_would_have_earned_more() -> None:
    """It is told in the prisoner's dilemma against one who always cooperates, and to both players of self-play."""
    world, both = Matrix(opponent="always_cooperate", rounds=3), Matrix(opponent="self", rounds=2)
    env = world.make(world.tasks("train")[0])
    await env.start()
    infos = [(await env.step("agent", say(action))).info for action in ("cooperate", "defect", "cooperate")]
    assert [info["regret"] for info in infos] == [5 - 3, 10 - 8, 15 - 11]
    env = both.make(both.tasks("train")[0])
    await env.start()
    for seat, action in (("row", "cooperate"), ("column", "defect"), ("row", "defect")):
        await env.step(seat, say(action))
    step = await env.step("column", say("cooperate"))
    assert (step.info["row_regret"], step.info["column_regret"]) == (6 - 5, 6 - 5)
    assert "regret" not in step.info
