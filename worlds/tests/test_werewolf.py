"""Werewolf in one night: what it promises, what each player knows, and who wins."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sojourn.checks.env import check_env
from sojourn.errors import ActionError, ConfigError
from sojourn_worlds.werewolf import NAMES, Night, Werewolf

ROLES = {"ann": "villager", "bob": "seer", "cid": "wolf", "dora": "villager"}


def night(**fields) -> Night:
    return Night(Werewolf(**fields), 0, ROLES)


def played(game: Night, *actions: str):
    return [game.act(action) for action in actions]


@pytest.mark.parametrize("fields", [{}, {"choices": True, "rules": False}, {"players": 3, "choices": True}])
async def test_it_keeps_its_promises(fields) -> None:
    report = await check_env(Werewolf(**fields))
    assert report.passed, report.failed


def test_the_seer_alone_learns_what_it_saw_and_all_hear_what_is_said():
    game = night()
    assert game.current_seat == "bob"
    assert game.system_prompt("bob").endswith("You are bob, the seer.")
    played(game, "cid", "  Good \n morning ")
    assert game.observe("bob") == "cid is the wolf.\nann: Good morning\nWhat do you say?"
    played(game, "It is cid!")
    assert game.observe("cid") == "ann: Good morning\nbob: It is cid!\nWhat do you say?"
    played(game, "No.", "Hm.")
    assert game.current_seat == "ann"
    assert game.observe("ann") == "bob: It is cid!\ncid: No.\ndora: Hm.\nWho is to go?"
    assert game.observe("dora") == "Who is to go?"  # it heard all before it spoke
    innocent = night()
    played(innocent, "ann", "x")
    assert innocent.observe("bob").startswith("ann is not the wolf.")


@pytest.mark.parametrize(
    ("votes", "caught"),
    [
        (("cid", "cid", "ann", "ann"), False),  # a tie drives nobody out
        (("cid", "cid", "ann", "bob"), True),
        (("bob", "ann", "bob", "bob"), False),
        (("cid", "cid", "dora", "cid"), True),
    ],
)
def test_the_village_wins_if_the_wolf_is_named_most(votes, caught):
    game = night()
    *none, rewards = played(game, "ann", "a", "b", "c", "d", *votes)
    assert not any(none)
    village = 1.0 if caught else -1.0
    assert rewards == {"ann": village, "bob": village, "cid": -village, "dora": village}
    assert game.info() == {"caught": float(caught)}
    assert game.current_seat is None


def test_what_cannot_be_done_is_refused_and_changes_nothing():
    game = night(choices=True)
    for wrong in ("bob", "zoe", ""):
        with pytest.raises(ActionError):
            game.act(wrong)
    played(game, "ann")
    with pytest.raises(ActionError):
        game.act("Anything else.")
    assert game.said == {}
    assert len(game.choices()) == 1 + 3 * 3
    with pytest.raises(ActionError, match="empty"):
        (free := replace(night(), seen="ann")).act("  ")
    assert free.current_seat == "ann"
    with pytest.raises(ConfigError, match="players"):
        Werewolf(players=len(NAMES) + 1)


def test_roles_follow_from_the_seed():
    world = Werewolf()
    drawn = [world.make(task).game.roles for task in world.tasks("train")[:40]]
    assert all(sorted(roles.values()) == ["seer", "villager", "villager", "wolf"] for roles in drawn)
    assert {name for roles in drawn for name, role in roles.items() if role == "wolf"} == set(world.seats)
    assert world.make(world.tasks("train")[0]).game.roles == drawn[0]
