"""The trainer's kernel gives what torch gives in double precision, forward and backward, for every shape and tree."""

import copy
from itertools import pairwise

import numpy as np
import pytest
import torch
from engine_models import VOCABULARY, build
from made import batch as made_batch
from made import tree
from torch.nn.functional import silu

from sojourn.backends.torch.kernels import compiler, gradients, product
from sojourn.backends.torch.models.lora import adapted as with_adapters
from sojourn.backends.torch.trainer.model_passes import ModelPasses
from sojourn.backends.torch.trainer.trainer import TorchTrainer
from sojourn.batch import share
from sojourn.losses.entropy import Entropy
from sojourn.losses.ppo import PPO
from sojourn.models.spec import Lora
from sojourn.optim import Optim

pytestmark = pytest.mark.skipif(gradients.load(16, 16, 2) is None, reason="needs a C compiler")


def seen(made: share.Tree, window: int | None) -> torch.Tensor:
    """Returns which nodes see which: (M, M), from each node's path, segment by segment."""
    mask = torch.zeros(len(made.tokens), len(made.tokens), dtype=torch.bool)
    for segment in made.segments:
        path = np.concatenate([np.arange(*span) for span in (*segment.before, (segment.start, segment.stop))])
        for query in range(segment.start, segment.stop):
            keys = path[path <= query]
            near = made.positions[query] - made.positions[keys] < (window or len(made.tokens))
            mask[query, keys[near]] = True
    return mask


def plain(query, key, value, mask, scale):
    repeats = query.shape[1] // key.shape[1]
    key, value = (t.repeat_interleave(repeats, 1) for t in (key, value))
    scores = torch.einsum("qhd,khd->hqk", query, key) * scale
    return torch.einsum("hqk,khd->qhd", scores.masked_fill(~mask, float("-inf")).softmax(-1), value)


SHAPES = [(16, 16, 4, 2), (64, 64, 9, 3), (12, 12, 4, 2), (40, 24, 2, 2), (8, 8, 5, 1)]
TREES = [((150, 40, 33, 5), 90), ((1, 2, 3, 1), 1), ((700, 1, 60, 300), 200)]


@pytest.mark.parametrize(("key", "value", "heads", "kv_heads"), SHAPES)
@pytest.mark.parametrize("window", [None, 16, 170])
@pytest.mark.parametrize("lengths_and_prompt", TREES)
@pytest.mark.parametrize("portion", [None, 0.3, 0.0])
def test_attention_over_a_tree(key, value, heads, kv_heads, window, lengths_and_prompt, portion):
    """Of all nodes, of some, or of none but the last."""
    own, made = gradients.load(key, value, heads // kv_heads), tree(*lengths_and_prompt)
    assert own is not None
    torch.manual_seed(0)
    nodes = len(made.tokens)
    chosen = torch.rand(nodes) < (1.0 if portion is None else portion)
    chosen[-1] = True
    asked = chosen.nonzero()[:, 0]
    sizes = ((len(asked), heads, key), (nodes, kv_heads, key), (nodes, kv_heads, value))
    sent = [torch.randn(size) for size in sizes]
    sent[0] *= 3
    grad = torch.randn(len(asked), heads, value)
    found = [t.clone().requires_grad_() for t in sent]
    out = own.attend(*found, own.block_mask(made, window, None if portion is None else asked), key**-0.5)
    out.backward(grad)
    exact = [t.double().requires_grad_() for t in sent]
    right = plain(*exact, seen(made, window)[asked], key**-0.5)
    right.backward(grad.double())
    torch.testing.assert_close(out.double(), right, atol=1e-5, rtol=1e-4)
    for one, other in zip(found, exact, strict=True):
        torch.testing.assert_close(one.grad.double(), other.grad, atol=5e-5, rtol=1e-4)


def test_attention_takes_rows_by_their_strides_and_repeats_itself_to_the_bit():
    own, made = gradients.load(16, 16, 2), tree()
    nodes = len(made.tokens)
    torch.manual_seed(0)
    side = torch.randn(nodes, 8, 16)
    apart = [side[:, :4].transpose(0, 1).contiguous().transpose(0, 1), side[:, 4:6], side[:, 6:]]
    threads, found = torch.get_num_threads(), []
    for rows, count in ((apart, threads), ([t.contiguous() for t in apart], threads), (apart, 1)):
        torch.set_num_threads(count)
        inputs = [t.detach().requires_grad_() for t in rows]
        out = own.attend(*inputs, own.block_mask(made, None), 0.25)
        out.square().sum().backward()
        found.append([out, *(t.grad for t in inputs)])
    torch.set_num_threads(threads)
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


def test_memory_grows_with_nodes_not_with_pairs():
    own, sizes = gradients.load(16, 16, 2), []
    for nodes in (4096, 8192):
        mask = own.block_mask(share.line(nodes), None)  # the structure points to its tensors
        sizes.append(own.c.tree_scratch_size(mask.tree(scale=1.0, heads=4, kv_heads=2), True))
    assert sizes[1] < 2.1 * sizes[0]


def compare(function, reference, *shapes, atol=1e-5):
    """Compares results, and gradients to all inputs, where each result has a gradient of its own."""
    torch.manual_seed(0)
    sent = [torch.randn(shape) for shape in shapes]
    found, exact = ([t.to(kind, copy=True).requires_grad_() for t in sent] for kind in (torch.float32, torch.float64))
    for inputs, call in ((found, function), (exact, reference)):
        outs = call(*inputs)
        outs = outs if isinstance(outs, tuple) else (outs,)
        generator = torch.Generator().manual_seed(1)
        sum((out * torch.randn(out.shape, generator=generator).to(out)).sum() for out in outs).backward()
        inputs.extend(out.detach() for out in outs)
    for one, other in pairwise([found, exact]):
        for a, b in zip(one, other, strict=True):
            torch.testing.assert_close(a.double(), b, atol=atol, rtol=1e-4)
            if a.requires_grad:
                torch.testing.assert_close(a.grad.double(), b.grad, atol=atol, rtol=1e-4)


def rms(x, weight):
    return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight


@pytest.mark.parametrize("rows", [1, 64, 65, 300])
@pytest.mark.parametrize("size", [48, 100, 576])
def test_norms(rows, size):
    own = gradients.load(16, 16, 2)
    compare(lambda x, w: own.norm(x, w, 1e-5), rms, (rows, size), (size,), atol=1e-4)
    compare(
        lambda x, m, w: own.add_norm(x, m, w, 1e-5),
        lambda x, m, w: (x + m, rms(x + m, w)),
        *((rows, size), (rows, size), (size,)),
        atol=1e-4,
    )
    compare(lambda x, w: own.norm(x, w, 1e-5), rms, (rows, 3, size), (size,), atol=1e-4)


@pytest.mark.parametrize("count", [1, 7, 4096, 70_001])
def test_gates(count):
    own = gradients.load(16, 16, 2)
    compare(lambda gate, up: own.silu_gate(20 * gate, up), lambda gate, up: silu(20 * gate) * up, (count,), (count,))


def test_rotation():
    own = gradients.load(16, 16, 2)
    torch.manual_seed(0)
    angles = torch.rand(300, 8).repeat(1, 2)

    def turned(x):
        low, high = x.chunk(2, -1)
        cos, sin = angles.cos().to(x)[:, None], angles.sin().to(x)[:, None]
        return x * cos + torch.cat([-high, low], -1) * sin

    compare(lambda x: own.rotate(x, angles.cos(), angles.sin()), turned, (300, 5, 16))


def adapted(name: str):
    """With adapters that do something: they begin at 0."""
    model = with_adapters(build(name), Lora(rank=4), torch.float32)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.copy_(0.2 * torch.randn(parameter.shape, generator=generator))
    return model


def trained(model, kernel: bool, bf16: bool = False) -> TorchTrainer:
    async def nowhere(weights, version):
        """Takes published weights and forgets them."""

    made = TorchTrainer(ModelPasses(model, bf16=bf16, token_budget=10_000, kernel=kernel), nowhere)
    made.begin(Optim(), 1, reference=True)
    return made


FAMILIES = {"llama": True, "mistral": True, "qwen2": True, "qwen3": True, "gemma3": False}


@pytest.mark.parametrize("make", [build, adapted])
@pytest.mark.parametrize(("family", "fused"), FAMILIES.items())
async def test_a_trainer_with_the_kernel_is_one_without(family, fused, make):
    """Logprobs, entropy and every parameter's gradient, norms' and biases' too; windows shorter than the sequences."""
    batch = made_batch(np.random.default_rng(0), vocabulary=VOCABULARY)
    with_it, without = trained(make(family), True), trained(make(family), False)
    assert (with_it.passes.decoder.fused, without.passes.decoder.fused) == (fused, False)
    one, other = [await made.forward(batch) for made in (with_it, without)]
    np.testing.assert_allclose(one.logprobs, other.logprobs, atol=2e-4)
    np.testing.assert_allclose(one.entropy, other.entropy, atol=2e-4)
    metrics = [await made.forward_backward(batch, [PPO(), Entropy(coef=0.1)]) for made in (with_it, without)]
    assert metrics[0] == pytest.approx(metrics[1], abs=1e-4)
    for name, p in without.trainable.items():
        assert p.grad is not None, name
        assert p.grad.norm() > 0, name
        torch.testing.assert_close(with_it.trainable[name].grad, p.grad, atol=1e-4, rtol=1e-3, msg=name)


async def test_without_a_compiler_torch_does_the_same(tmp_path, monkeypatch):
    batch = made_batch(np.random.default_rng(0), vocabulary=VOCABULARY)
    right = await trained(build("llama"), True).forward(batch)
    monkeypatch.setenv("SOJOURN_CACHE", str(tmp_path))
    monkeypatch.setenv("CC", "no-such-compiler")
    for cached in (compiler.compiled, gradients.load, product._library):
        cached.cache_clear()
    made = trained(build("llama"), True)
    assert not made.passes.decoder.fused
    np.testing.assert_allclose((await made.forward(batch)).logprobs, right.logprobs, atol=2e-4)
    for cached in (compiler.compiled, gradients.load, product._library):
        cached.cache_clear()


@pytest.mark.skipif(product._library(True) is None, reason="torch multiplies bf16 here")
@pytest.mark.parametrize("family", FAMILIES)
async def test_products_in_bf16_are_nearer_to_the_whole_than_torchs_autocast(family):
    """Mean distance from fp32 of logprobs, and of all gradients; both far from none, so that bf16 was in use."""
    batch = made_batch(np.random.default_rng(0), vocabulary=VOCABULARY)
    whole, ours, theirs = (trained(build(family), *how) for how in ((True, False), (True, True), (False, True)))
    found = []
    for made in (whole, ours, theirs):
        logprobs = (await made.forward(batch)).logprobs
        await made.forward_backward(batch, [PPO()])
        found.append((torch.from_numpy(logprobs), torch.cat([p.grad.flatten() for p in made.trainable.values()])))
    for right, one, other in zip(*found, strict=True):
        gaps = [float((t - right).abs().mean()) for t in (one, other)]
        assert 1e-4 * float(right.abs().mean()) < gaps[0] < gaps[1]


def test_a_copy_of_a_fused_model_passes_through_its_own_layers():
    made = trained(build("llama"), True)
    other = copy.deepcopy(made.model)
    assert all(layer.forward.args[0] is layer for layer in other.model.layers)


def test_a_model_that_is_not_of_the_form_is_left_alone():
    model = build("llama")
    model.config.attention_dropout = 0.1
    assert not trained(model, True).passes.decoder.fused
    assert all("forward" not in vars(layer) for layer in model.model.layers)
