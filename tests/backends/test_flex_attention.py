"""One kernel under the tree's block mask gives what attention run by run gives (without gradients, on a CPU)."""

import pytest
import torch
from made import tree

from sojourn.backends.torch.trainer import flex_attention, tree_attention


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("window", [None, 16, 300])
@pytest.mark.parametrize("softcap", [None, 3.0])
def test_the_block_mask_of_a_tree_attends_as_its_runs_do(window, softcap):
    made = tree()
    torch.manual_seed(0)
    query, key, value = (2 * torch.randn(1, heads, len(made.tokens), 16) for heads in (4, 2, 2))
    cpu = torch.device("cpu")
    tree_mask = tree_attention.TreeMask(made, cpu, kernel=False)
    runs, _ = tree_attention.attend(
        None, query, key, value, None, tree_mask=tree_mask, sliding_window=window, softcap=softcap
    )
    whole = flex_attention.attend(flex_attention.BlockMasks(made, cpu).of(window), query, key, value, None, softcap)
    torch.testing.assert_close(whole, runs, atol=1e-5, rtol=1e-4)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("sizes", [((150, 40, 33, 5), 90), ((3, 2, 2, 1), 4)])
def test_on_a_cuda_device_the_gradients_agree_too(sizes):
    made = tree(*sizes)
    torch.manual_seed(0)
    sent = [torch.randn(1, heads, len(made.tokens), 16) for heads in (4, 2, 2)]
    found = []
    for device in (torch.device("cpu"), torch.device("cuda")):
        inputs = [t.detach().clone().to(device).requires_grad_() for t in sent]
        tree_mask = tree_attention.TreeMask(made, device, kernel=False)
        out, _ = tree_attention.attend(None, *inputs, None, tree_mask=tree_mask)
        out.square().sum().backward()
        with torch.no_grad():
            again, _ = tree_attention.attend(None, *inputs, None, tree_mask=tree_mask)
        torch.testing.assert_close(again, out.detach(), atol=1e-5, rtol=1e-4)
        found.append([out.detach().cpu(), *(t.grad.cpu() for t in inputs)])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, atol=1e-2, rtol=1e-2)
