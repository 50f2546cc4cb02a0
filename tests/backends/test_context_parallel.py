"""Processes that share a tree compute each node once, attend as one process does, and have about as much to do.

That they have its gradients is tested on real ranks: `ray/test_trainer_ranks.py`.
"""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from made import batch as made_batch
from made import tree as made_tree
from transformers import LlamaConfig, LlamaForCausalLM

from sojourn.backends.torch.trainer import flex_attention, tree_attention
from sojourn.backends.torch.trainer.context_parallel import ContextGroup, Division, Layout
from sojourn.backends.torch.trainer.decoder import Decoder
from sojourn.batch import share
from sojourn.errors import ModelError


@given(st.integers(0, 1000), st.integers(2, 6))
def test_each_node_is_computed_once_with_its_whole_past(seed, count):
    tree = share.merge(made_batch(np.random.default_rng(seed)))
    divisions = [ContextGroup(rank, count).divide(tree) for rank in range(count)]
    np.testing.assert_array_equal(
        np.sort(np.concatenate([one.nodes for one in divisions])), np.arange(len(tree.tokens))
    )
    for division in divisions:
        computed = [node for part in division.segments for node in range(part.start, part.stop)]
        assert computed == division.nodes.tolist()
        assert division.here(division.nodes).all()
        for part in division.segments:
            past = [node for start, stop in part.before for node in range(start, stop)]
            known = [node for node in range(part.start) if tree.ends[node] > part.start]
            assert past == known


@pytest.mark.parametrize("count", [2, 3, 8])
def test_of_one_long_sequence_all_have_the_same_to_do(count):
    tree = share.line(32 * count)
    divisions = [ContextGroup(rank, count).divide(tree) for rank in range(count)]
    assert {len(one.nodes) for one in divisions} == {32}
    assert len({int((one.nodes + 1).sum()) for one in divisions}) == 1  # scores


def test_of_fewer_nodes_than_processes_some_compute_one_that_nobody_reads():
    tree = share.line(2)
    divisions = [ContextGroup(rank, 4).divide(tree) for rank in range(4)]
    assert sorted(one.nodes.tolist() for one in divisions) == [[0], [0], [0], [1]]
    assert sum(int(one.here(one.nodes).sum()) for one in divisions) == 2


@given(st.lists(st.integers(0, 3), min_size=1, max_size=40))
def test_a_layout_tells_where_each_lies(owners):
    told = np.array(owners)
    layouts = [Layout.of(told, rank, 4) for rank in range(4)]
    values = np.arange(len(told))
    padded = [np.pad(values[one.own], (0, one.most - len(one.own)), constant_values=-1) for one in layouts]
    for layout in layouts:
        np.testing.assert_array_equal(np.concatenate(padded)[layout.place], values)


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_positions_that_depend_on_the_length_are_refused(kind):
    factors = {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8, "original_max_position_embeddings": 64}
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    rope = {"rope_type": kind, "rope_theta": 1e4, "factor": 2.0, **(factors if kind == "longrope" else {})}
    decoder = Decoder(LlamaForCausalLM(LlamaConfig(vocab_size=9, **sizes, rope_parameters=rope)), bf16=False)
    decoder.share(None)
    with pytest.raises(ModelError, match=rf"\(rope_type '{kind}'\).*set backend\.trainer\.context_parallel = 1"):
        decoder.share(ContextGroup(0, 2))


class Gathered(Division):
    """A division in one process, which is given the keys and values of all nodes."""

    def gather(self, rows: torch.Tensor) -> torch.Tensor:
        return self.whole


@pytest.mark.parametrize("window", [None, 16])
@pytest.mark.parametrize("way", ["kernel", "torch", "flex"])
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_the_queries_of_a_process_attend_as_in_the_whole_tree(way, window):
    tree, cpu = made_tree(), torch.device("cpu")
    torch.manual_seed(0)
    query, key, value = (torch.randn(1, heads, len(tree.tokens), 16) for heads in (4, 2, 2))
    whole, _ = tree_attention.attend(
        None, query, key, value, None, tree_mask=tree_attention.TreeMask(tree, cpu, kernel=False), sliding_window=window
    )
    for rank in range(3):
        division = Gathered(ContextGroup(rank, 3), tree)
        division.whole = torch.cat([key, value], -1)[0].transpose(0, 1)
        own = torch.from_numpy(division.nodes)
        assert 1 < len(own) < len(tree.tokens)
        if way == "flex":
            mask = flex_attention.BlockMasks(tree, cpu, own).of(window)
            found = flex_attention.attend(mask, query[:, :, own], key, value, None, None)
        else:
            mask = tree_attention.TreeMask(tree, cpu, kernel=way == "kernel", division=division)
            parts = (t[:, :, own] for t in (query, key, value))
            found, _ = tree_attention.attend(None, *parts, None, tree_mask=mask, sliding_window=window)
        torch.testing.assert_close(found, whole[:, own], atol=1e-5, rtol=1e-4)
