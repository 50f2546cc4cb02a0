"""How the prefix tree knows steered tokens: by numbers that no prompt has, and no empty place of a page."""

import numpy as np

from sojourn.backends.torch.sampler.prefix_cache import Claim, PrefixTree
from sojourn.backends.torch.sampler.steering import Mark

VOCABULARY = 97


def test_a_steered_request_waits_for_no_tokens_that_nobody_computes():
    tree, mark = PrefixTree(8, 8, 16), Mark(0, VOCABULARY)
    begun = tree.claim(mark([5, 6]), 6)
    assert isinstance(begun, Claim)
    tree.fill(begun.context, 2)
    tree.release(begun.context)
    again = tree.claim(mark([5, 6, 0, 0, 0, 0, 0, 0]), 0)  # as one that goes on with new weights
    assert isinstance(again, Claim)
    assert again.reused == 2


def test_each_token_has_a_number_of_its_own_under_each_steering():
    numbers = np.concatenate([Mark(number, VOCABULARY)(np.arange(VOCABULARY)) for number in range(3)])
    assert len(set(numbers.tolist())) == 3 * VOCABULARY
    assert numbers.max() < -1
