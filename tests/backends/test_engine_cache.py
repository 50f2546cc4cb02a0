"""Which slot a prompt gets, and what it need not compute there."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sojourn.backends.torch.cache import WAIT, Claim, KeyValues, Shape, Slots


def prompt(*tokens):
    return np.array(tokens, dtype=np.int64)


def fill(slots, claim):
    slots.filled[claim.slot] = slots.known[claim.slot]
    return claim


def keep(slots, tokens, version=0):
    """A context that was computed and is idle now."""
    claim = fill(slots, slots.claim(tokens, version))
    slots.release(claim.slot, version)
    return claim.slot


def test_a_context_goes_on_in_its_own_slot():
    slots = Slots(3, 20)
    own = keep(slots, prompt(1, 2, 3))
    assert slots.claim(prompt(1, 2, 3, 4, 5), 0) == Claim(own, 3)


def test_a_fork_takes_a_copy_and_leaves_the_other_context_alone():
    slots = Slots(3, 20)
    own = keep(slots, prompt(1, 2, 3, 4))
    claim = slots.claim(prompt(1, 2, 9, 9), 0)
    assert (claim.reused, claim.donor) == (2, own)
    assert claim.slot != own
    assert slots.tokens[own, :4].tolist() == [1, 2, 3, 4]


def test_the_last_token_is_always_computed():
    slots = Slots(2, 20)
    keep(slots, prompt(1, 2, 3))
    assert slots.claim(prompt(1, 2, 3), 0).reused == 2


def test_the_longest_idle_is_given_up_first_and_a_donor_last():
    slots = Slots(2, 20)
    older, newer = keep(slots, prompt(1, 1, 1)), keep(slots, prompt(2, 2, 2))
    claim = slots.claim(prompt(1, 1, 5), 0)
    assert claim == Claim(newer, 2, older)
    assert slots.claim(prompt(1, 1, 6), 0) == Claim(older, 2)  # the only idle slot: cut back in place
    assert (
        slots.claim(
            prompt(
                3,
            ),
            0,
        )
        is None
    )


def test_a_group_waits_for_the_one_that_reads_their_prompt():
    slots = Slots(4, 40)
    shared = np.arange(1, 31)
    first = slots.claim(shared, 0)
    assert slots.claim(shared, 0) is WAIT
    assert slots.claim(prompt(99, 98), 0).reused == 0
    fill(slots, first)
    assert slots.claim(shared, 0) == Claim(2, 29, first.slot)


def test_other_weights_keys_are_not_shared():
    slots = Slots(3, 20)
    under_way = fill(slots, slots.claim(prompt(7, 8, 9), 0))
    keep(slots, prompt(1, 2, 3))
    slots.outdate()
    assert slots.claim(prompt(1, 2, 3, 4), 0).reused == 0  # though the version number be the same
    assert slots.claim(prompt(7, 8, 9, 4), 0).reused == 0
    slots.release(under_way.slot, 0)
    assert slots.filled[under_way.slot] == 0


def test_a_score_reuses_nothing():
    slots = Slots(2, 20)
    keep(slots, prompt(1, 2, 3))
    assert slots.claim(prompt(1, 2, 3, 4), 0, reuse=False).reused == 0


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.lists(st.integers(1, 2), min_size=1, max_size=12), st.booleans()), max_size=25))
def test_whatever_is_reused_is_the_prompts_beginning(requests):
    slots, busy = Slots(3, 20), []
    held = {slot: [] for slot in range(3)}  # what the keys of each slot were computed from
    for tokens, ends in requests:
        claim = slots.claim(prompt(*tokens), 0)
        if claim is None or claim is WAIT:
            while busy:
                slots.release(busy.pop(), 0)
            continue
        assert claim.slot not in busy
        source = held[claim.slot if claim.donor is None else claim.donor][: claim.reused]
        assert source == tokens[: claim.reused]
        assert claim.reused < len(tokens)
        held[claim.slot] = list(tokens)
        fill(slots, claim)
        slots.release(claim.slot, 0) if ends else busy.append(claim.slot)


def test_a_copy_carries_keys_and_values_of_all_layers_and_no_more():
    cache = KeyValues([Shape(2, 3, 4)] * 2, 3, 5, torch.float32, torch.device("cpu"))
    for slot in range(3):
        cache.open(slot)
    for layer in cache.layers:
        layer.keys[0], layer.values[0] = 1.0, 2.0
    cache.copy(0, 2, 3)
    for keys, values in cache.layers:
        assert keys[2].sum() == 2 * 3 * 3 * 1.0
        assert values[2].sum() == 2 * 3 * 4 * 2.0
        assert keys[2, :, 3:].sum() == 0
    cache.open(2)  # only the first time clears
    assert cache.layers[0].keys[2].sum() > 0
