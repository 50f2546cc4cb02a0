"""How a batch is divided between processes that compute it together."""

import numpy as np
import pytest
from made import batch as made_batch
from made import group, sample

from sojourn.backends.torch.trainer.rounds import rounds, rounds_of_ranks
from sojourn.batch import Aggregate, share, to_batch
from sojourn.types import Batch, Credit, Ending, Trajectory, Turn


def trees(sizes: list[int], prompt: int = 40, seed: int = 0) -> Batch:
    """One group for each size, whose episodes of 10 tokens share a prompt."""
    rng, made = np.random.default_rng(seed), []
    for slot, size in enumerate(sizes):
        start = np.concatenate([[slot], rng.integers(0, 300, prompt - 1)])
        turns = [Turn(-1, start, sample([n, *rng.integers(0, 300, 9).tolist()]), None) for n in range(size)]
        made.append(group([Trajectory("agent", (turn,), Ending.DONE) for turn in turns], slot))
    return to_batch(made, [[Credit.uniform(t, 1.0) for t in g.trajectories] for g in made], {}, aggregate=Aggregate())


def nodes(batch: Batch, numbers) -> int:
    return len(share.merge(batch.take(numbers)).tokens)


def loads(batch: Batch, budget: int, ranks: int) -> list[int]:
    divided = rounds_of_ranks(batch, budget, 1, ranks)
    return [sum(nodes(batch, numbers) for one in own for numbers in one) for own in divided]


@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 40])
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("budget", [60, 4096])
def test_every_sequence_is_computed_by_one_rank(ranks, workers, budget):
    batch = made_batch(np.random.default_rng(0), groups=4, size=4)
    divided = rounds_of_ranks(batch, budget, workers, ranks)
    assert len(divided) == ranks
    found = np.concatenate([numbers for own in divided for one in own for numbers in one])
    assert sorted(found.tolist()) == list(range(len(batch.offsets) - 1))
    for own in divided:
        for one in own:
            assert sum(nodes(batch, numbers) for numbers in one) <= budget or len(one) == 1 == len(one[0])


def test_one_rank_has_the_rounds_of_one_process():
    batch = made_batch(np.random.default_rng(0), groups=4, size=4)
    for budget, workers in ((60, 1), (300, 2)):
        [own] = rounds_of_ranks(batch, budget, workers, 1)
        assert [[n.tolist() for n in one] for one in own] == [
            [n.tolist() for n in one] for one in rounds(batch, budget, workers)
        ]


def test_shared_prefixes_stay_together_where_ranks_are_kept_busy():
    batch = trees([4, 4, 4, 4])
    assert loads(batch, 4096, 2) == [160, 160]
    assert loads(batch, 4096, 4) == [80, 80, 80, 80]
    assert loads(batch, 100, 2) == [160, 160]


def test_ranks_finish_together():
    lengths = made_batch(np.random.default_rng(3), groups=8, size=4)
    for ranks in (2, 4):
        found = loads(lengths, 4096, ranks)
        assert max(found) <= 1.15 * sum(found) / ranks


def test_a_prefix_that_costs_more_than_it_gains_is_not_divided():
    """Of one long prompt with two short ends, two ranks would each compute the prompt, and end hardly sooner."""
    assert loads(trees([2], prompt=2000), 4096, 2) == [2020, 0]
    assert loads(trees([2], prompt=2000), 2015, 2) == [2010, 2010]
    assert loads(trees([0, 0], prompt=9), 4096, 3) == [0, 0, 0]
