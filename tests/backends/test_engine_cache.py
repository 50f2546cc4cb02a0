"""Which pages a prompt gets, and what it need not compute there."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sojourn.backends.torch.kernels.cache import PAGE, KeyValues, Shape
from sojourn.backends.torch.sampler.prefix_cache import POLICY, WAIT, Copy, PrefixTree


def prompt(*tokens):
    return np.array(tokens, dtype=np.int64)


def fill(tree, claim):
    tree.fill(claim.context, claim.context.known)
    return claim


def keep(tree, tokens, room=0):
    """A context that was computed and is idle now: the numbers of its pages."""
    claim = fill(tree, tree.claim(tokens, room))
    pages = [page.number for page in claim.context.pages]
    tree.release(claim.context)
    return pages


def held(claim):
    return [page.number for page in claim.context.pages]


def test_a_context_goes_on_in_its_own_pages():
    tree = PrefixTree(5, 4, 20)
    own = keep(tree, prompt(1, 2, 3, 4, 5))
    claim = tree.claim(prompt(1, 2, 3, 4, 5, 6, 7), 5)
    assert (held(claim), claim.reused, claim.copy) == (own, 5, None)
    assert claim.context.reserve == 1  # 12 tokens take three pages
    assert tree.tokens(claim.context, 3, 7).tolist() == [4, 5, 6, 7]


def test_a_fork_shares_whole_pages_and_copies_the_rest():
    tree = PrefixTree(6, 4, 20)
    own = keep(tree, prompt(1, 2, 3, 4, 5, 6, 7))
    claim = tree.claim(prompt(1, 2, 3, 4, 5, 6, 9, 9), 0)
    assert held(claim)[0] == own[0]
    assert (claim.reused, claim.copy) == (6, Copy(own[1], held(claim)[1]))
    fill(tree, claim)
    assert tree.claim(prompt(1, 2, 3, 4, 5, 6, 7, 8), 0).reused == 7  # the other one is as it was


def test_the_last_token_is_always_computed():
    for length in (3, 4, 5, 8):
        tree = PrefixTree(8, 4, 20)
        keep(tree, np.arange(length))
        assert tree.claim(np.arange(length), 0).reused == length - 1


def test_the_longest_idle_leaf_is_given_up_first():
    tree = PrefixTree(4, 2, 8)
    older, newer = keep(tree, prompt(1, 1, 1)), keep(tree, prompt(2, 2, 2))
    claim = tree.claim(prompt(3, 3), 0)
    assert held(claim) == [older[1]]  # not the page above it, on which a leaf may stand
    assert tree.evicted == 1
    assert tree.claim(prompt(1, 1, 5), 0).reused == 2
    assert tree.claim(prompt(2, 2, 2, 2), 2) is None  # one page is free, and two are wanted
    assert newer[0] != older[0]


def test_what_is_kept_of_idle_pages_is_bounded_where_none_is_evicted():
    tree = PrefixTree(8, 4, 16)
    for number in range(200):
        keep(tree, prompt(number % 3, 1, 2))
        if number % 4 == 0:
            tree.forget(POLICY)  # as where an adapter is published
    assert len(tree._leaves) <= 2 * tree.pages
    last, *_ = keep(tree, prompt(7, 8, 9))
    first = [keep(tree, prompt(number, 1, 2))[0] for number in (2, 0, 1)]
    tree.claim(np.arange(20, 36), 0)  # which takes the four free pages
    assert held(tree.claim(prompt(50, 51), 0)) == [last]
    assert held(tree.claim(prompt(60, 61), 0)) == first[:1]


def test_the_closest_of_many_siblings_is_found_and_one_that_can_be_extended_is_preferred():
    generator = np.random.default_rng(0)
    tree, kept = PrefixTree(100, 8, 8), list[list[int]]()
    for length in generator.integers(1, 8, 60):
        tokens = generator.integers(1, 3, length)
        shared = max((common(tokens[:-1], other) for other in kept), default=0)
        claim = fill(tree, tree.claim(tokens, 0))
        assert claim.reused == shared
        assert (claim.copy is None) == (not shared or tokens[:shared].tolist() in kept)
        tree.release(claim.context)
        if claim.copy is None and shared:
            kept.remove(tokens[:shared].tolist())
        kept.append(tokens.tolist())


def common(tokens, other):
    """The length of the prefix that two prompts share."""
    differs = [a != b for a, b in zip(tokens, other, strict=False)]
    return differs.index(True) if True in differs else len(differs)


def test_what_is_promised_to_one_context_is_not_given_to_another():
    tree = PrefixTree(3, 2, 6)
    first = tree.claim(prompt(1, 1), 4)
    assert tree.claim(prompt(2, 2), 0) is None
    fill(tree, first)
    tree.append(first.context, [5, 6, 7, 8])
    assert len(first.context.pages) == 3
    tree.release(first.context)
    assert tree.claim(prompt(2, 2), 4) is not None


def test_a_group_waits_for_the_one_that_reads_their_prompt():
    tree = PrefixTree(12, 8, 64)
    shared = np.arange(1, 31)
    first = tree.claim(shared, 0)
    assert tree.claim(shared, 0) is WAIT
    assert tree.claim(prompt(99, 98), 0).reused == 0
    fill(tree, first)
    second = tree.claim(shared, 0)
    assert second.reused == 29
    assert held(second)[:3] == held(first)[:3]


def test_nobody_waits_for_tokens_that_a_page_held_before():
    tree = PrefixTree(12, 8, 64)
    failed = fill(tree, tree.claim(np.arange(8), 0))
    tree.release(failed.context, keep=False)
    first = tree.claim(prompt(0), 0)
    assert held(first) == held(failed)
    assert tree.claim(np.arange(8), 0).reused == 0


def test_pages_that_two_contexts_computed_become_one():
    tree = PrefixTree(8, 4, 16)
    shared = np.arange(4)  # the last token of which each computes itself
    contexts = [fill(tree, tree.claim(shared, 4)) for _ in range(2)]
    assert held(contexts[0]) == held(contexts[1])
    assert tree.held == 1
    for number, claim in enumerate(contexts):
        tree.append(claim.context, [50 + number])
        fill(tree, claim)
        tree.release(claim.context)
    for number in range(2):
        assert tree.claim(prompt(0, 1, 2, 3, 50 + number, 7), 0).reused == 5


def test_other_weights_keys_are_not_shared():
    tree = PrefixTree(6, 2, 8)
    under_way = fill(tree, tree.claim(prompt(7, 8, 9), 2))
    keep(tree, prompt(1, 2, 3))
    tree.invalidate()
    assert tree.claim(prompt(1, 2, 3, 4), 0).reused == 0
    assert tree.claim(prompt(7, 8), 0).reused == 0
    tree.append(under_way.context, [10, 11])
    fill(tree, under_way)
    tree.release(under_way.context)
    assert tree.held == 3  # of the two that came after


def test_a_score_reuses_nothing_and_a_failure_keeps_nothing():
    tree = PrefixTree(8, 4, 20)
    keep(tree, prompt(1, 2, 3, 4, 5))
    claim = fill(tree, tree.claim(prompt(1, 2, 3, 4, 5, 6), 0, reuse=False))
    assert claim.reused == 0
    tree.release(claim.context, keep=False)
    failed = fill(tree, tree.claim(prompt(8, 8, 8), 0))
    tree.release(failed.context, keep=False)
    assert tree.claim(prompt(8, 8, 8), 0).reused == 0


REQUESTS = st.lists(
    st.tuples(st.lists(st.integers(1, 2), min_size=1, max_size=12), st.integers(0, 4), st.sampled_from("endgx")),
    max_size=40,
)


@settings(max_examples=200, deadline=None)
@given(REQUESTS)
def test_whatever_is_reused_is_the_prompts_beginning_and_no_page_is_lost(requests):
    tree, busy = PrefixTree(9, 3, 18), []
    content: dict[tuple[int, int], tuple[int, ...]] = {}  # page, offset -> all tokens up to the one computed there

    def compute(context, begin, end):
        for at in range(begin, end):
            content[int(context.table[at // 3]), at % 3] = tuple(tree.tokens(context, 0, at + 1).tolist())
        tree.fill(context, end)

    for tokens, room, then in requests:
        claim = tree.claim(prompt(*tokens), room)
        if claim is None or claim is WAIT:
            while busy:
                tree.release(busy.pop())
            claim = tree.claim(prompt(*tokens), room)  # nothing is under way: there is room
        context = claim.context
        assert claim.reused < len(tokens)
        if claim.copy is not None:
            for offset in range(claim.reused % 3):
                content[claim.copy.target, offset] = content[claim.copy.source, offset]
        for at in range(claim.reused):
            assert content[int(context.table[at // 3]), at % 3] == tuple(tokens[: at + 1])
        if then != "n":
            compute(context, claim.reused, len(tokens))
            tree.append(context, [2] * room)
        for other in busy:  # nobody writes where others read
            for at in range(other.filled):
                assert content[int(other.table[at // 3]), at % 3] == tuple(tree.tokens(other, 0, at + 1).tolist())
        if then == "g":
            busy.append(context)
        else:
            tree.release(context, keep=then != "x")
        if then == "d":
            tree.invalidate()
    for context in busy:
        tree.release(context)
    tree.invalidate()
    assert tree.held == 0


def test_a_copy_carries_keys_and_values_of_all_layers_and_no_more():
    cache = KeyValues([Shape(2, 3, 4)] * 2, 3, torch.float32, torch.device("cpu"))
    for layer in cache.layers:
        layer.keys.zero_()[:, :PAGE] = 1.0
        layer.values.zero_()[:, :PAGE] = 2.0
    cache.copy(0, 2)
    for keys, values in cache.layers:
        assert bool((keys[:, 2 * PAGE :] == 1).all())
        assert bool((values[:, 2 * PAGE :] == 2).all())
        assert keys[:, PAGE : 2 * PAGE].sum() == 0
