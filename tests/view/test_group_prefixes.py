"""Which cells of a group's page have one colour, and what it takes to tell."""

from __future__ import annotations

import random

from sojourn.view.pages.group import _action_prefixes


class Action(str):
    """An action that counts how often it is looked up."""

    __slots__ = ()
    looked_up = 0

    def __hash__(self) -> int:
        Action.looked_up += 1
        return super().__hash__()


def test_cells_have_one_colour_where_their_episodes_did_the_same_so_far() -> None:
    for seed in range(50):
        rng = random.Random(seed)
        actions = [[rng.choice("ab") for _ in range(rng.randint(0, 5))] for _ in range(rng.randint(1, 7))]
        numbered = _action_prefixes(actions, max(map(len, actions)))
        assert list(map(len, numbered)) == list(map(len, actions))
        for turn in range(5):
            acting = [k for k, of_episode in enumerate(actions) if turn < len(of_episode)]
            for k in acting:
                same = [other for other in acting if actions[other][: turn + 1] == actions[k][: turn + 1]]
                assert [other for other in acting if numbered[other][turn][0] == numbered[k][turn][0]] == same
                beside = {actions[other][turn] for other in acting if actions[other][:turn] == actions[k][:turn]}
                assert numbered[k][turn][1] == (len(beside) > 1)


def test_long_episodes_of_a_large_group_are_read_once() -> None:
    rng = random.Random(0)
    actions = [[Action(rng.choice("abc")) for _ in range(40)] for _ in range(64)]
    Action.looked_up = 0
    _action_prefixes(actions, 40)
    assert Action.looked_up <= 5 * 64 * 40
