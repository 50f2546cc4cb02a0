"""The tree of a batch: every token keeps its own past, and no past stands twice."""

import numpy as np
import pytest

from sojourn.backends.torch.trainer.rounds import rounds
from sojourn.batch import share
from sojourn.types import Batch


def batch(*sequences: list[int], images: tuple[tuple[str, ...], ...] = ()) -> Batch:
    tokens = np.array([token for sequence in sequences for token in sequence])
    numbers = np.repeat(np.arange(len(sequences)), [len(s) for s in sequences])
    ones = np.ones(len(tokens), dtype=np.float32)
    return Batch(tokens, numbers, ones, ones, ones, ones, numbers, numbers, images=images)


def path(tree: share.Tree, node: int) -> list[int]:
    """Returns the tokens from the root to a node, read from the segments alone."""
    segment = next(segment for segment in tree.segments if segment.start <= node < segment.stop)
    before = [n for start, stop in segment.before for n in range(start, stop)]
    return tree.tokens[[*before, *range(segment.start, node + 1)]].tolist()


CASES = [
    [[1, 2, 3], [1, 2, 4], [1, 5], [6]],
    [[1, 2], [1, 2], [1, 2, 3]],
    [[9, 1, 2, 3, 4], [9, 1, 2, 5, 6], [9, 1, 2, 5, 7], [9, 1, 8]],
    [[300, 1], [2, 1], [300, 2]],
]


@pytest.mark.parametrize("sequences", CASES)
def test_every_token_stands_after_its_own_past(sequences):
    made = batch(*sequences)
    tree = share.merge(made)
    for s, sequence in enumerate(sequences):
        for position in range(len(sequence)):
            node = int(tree.node[made.offsets[s] + position])
            assert path(tree, node) == sequence[: position + 1]
            assert tree.positions[node] == position


@pytest.mark.parametrize("sequences", CASES)
def test_no_past_stands_twice(sequences):
    pasts = {tuple(s[: n + 1]) for s in sequences for n in range(len(s))}
    assert len(share.merge(batch(*sequences)).tokens) == len(pasts)


def test_sequences_with_different_images_share_nothing():
    alike = share.merge(batch([1, 2], [1, 2], images=(("a",), ("a",))))
    unlike = share.merge(batch([1, 2], [1, 2], images=(("a",), ("b",))))
    assert (len(alike.tokens), len(unlike.tokens)) == (2, 4)


def nodes(made, numbers):
    return len(share.merge(made.take(numbers)).tokens)


def parts(made, budget):
    """Shares that pass one after another."""
    found = list(rounds(made, budget))
    assert all(len(some) == 1 for some in found)
    return [numbers for [numbers] in found]


def test_what_is_shared_counts_once_in_the_budget():
    made = batch(*[[1, 2, 3]] * 8, [1, 2, 4], [9])
    assert [len(numbers) for numbers in parts(made, 4)] == [9, 1]


def test_images_count_in_the_budget():
    made = batch(*[[1, 2, 3]] * 4, images=(("a",), ("b",), ("c",), ("d",)))
    assert [nodes(made, numbers) for numbers in parts(made, 6)] == [6, 6]


def test_a_full_part_ends_between_episodes_rather_than_between_turns_of_one():
    """Two groups of one prompt each, of two episodes of three turns, each turn with all that came before it."""
    episodes = [[group] * 4 + [10 * group + episode] * 30 for group in (1, 2) for episode in (1, 2)]
    made = batch(*[tokens[: 4 + 10 * turns] for tokens in episodes for turns in (1, 2, 3)])
    found = parts(made, 60)  # a prompt, an episode and most of another
    assert [len(numbers) for numbers in found] == [3, 3, 3, 3]
    assert [nodes(made, numbers) for numbers in found] == [34] * 4
    between_groups = parts(made, 110)
    assert [len(numbers) for numbers in between_groups] == [6, 6]


@pytest.mark.parametrize("budget", [1, 4, 6, 100])
def test_parts_hold_every_sequence_once_and_keep_to_the_budget(budget):
    made = batch([1, 2, 3], [1, 2, 4], [7, 8], [1, 2, 3, 5])
    found = parts(made, budget)
    assert sorted(np.concatenate(found)) == [0, 1, 2, 3]
    for numbers in found:
        assert len(numbers) == 1 or nodes(made, numbers) <= budget
    assert len(found) == {1: 4, 4: 3, 6: 2, 100: 1}[budget]


def test_workers_get_equal_shares_of_what_is_worth_dividing():
    made = batch(*[[1, 2] + [10 + n] * 30 for n in range(8)])  # 242 nodes
    [both] = rounds(made, 300, workers=2)
    assert [nodes(made, numbers) for numbers in both] == [122, 122]
    found = list(rounds(made, 130, workers=2))
    assert sorted(s for some in found for numbers in some for s in numbers) == list(range(8))
    assert [[nodes(made, numbers) for numbers in some] for some in found] == [[62, 62], [62, 62]]


@pytest.mark.parametrize(
    "sequences",
    [
        [[1] * 100 + [n] for n in range(8)],  # nearly all of it would be computed twice
        [[1] * 90, [2] * 10],  # one would wait for the other
        [[1, 2, 3]],
    ],
)
def test_what_is_not_worth_dividing_passes_whole(sequences):
    made = batch(*sequences)
    [[numbers]] = rounds(made, 1000, workers=2)
    assert sorted(numbers) == list(range(len(sequences)))


def test_an_empty_batch_has_no_rounds():
    nothing = batch([1, 2]).take(np.array([], dtype=np.int64))
    assert [list(rounds(nothing, 10, workers=teams)) for teams in (1, 2)] == [[], []]


def test_sequences_too_long_to_stand_beside_others_pass_alone():
    made = batch([1] * 80, [2] * 80)
    assert [len(some) for some in rounds(made, 100, workers=2)] == [1, 1]
    assert [len(some) for some in rounds(made, 160, workers=2)] == [2]


@pytest.mark.parametrize("sequences", CASES)
def test_what_a_node_sees_is_its_path(sequences):
    """Read from where nodes end: what comes before and has not ended."""
    tree = share.merge(batch(*sequences))
    for node in range(len(tree.tokens)):
        seen = [n for n in range(node + 1) if tree.ends[n] > node]
        assert tree.tokens[seen].tolist() == path(tree, node)
