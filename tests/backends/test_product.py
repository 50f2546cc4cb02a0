"""The trainer's products are those of double precision, of whatever shape and layout, and their gradients."""

import pytest
import torch

from sojourn.backends.torch.kernels import compiler, product

HALF = pytest.mark.parametrize("half", [False, True], ids=["fp32", "bf16"])
SIZES = [(1, 1, 1), (5, 7, 3), (13, 2, 33), (97, 64, 96), (200, 33, 65), (30, 3000, 31), (411, 130, 7)]
SIZES += [(9000, 3, 40), (40, 2, 9000)]  # more than are packed at once
SIZES += [(16, 32, 32), (32, 64, 64), (33, 48, 32), (17, 31, 40), (49, 600, 70)]  # about the size of tiles

pytestmark = pytest.mark.skipif(product._library(False) is None, reason="needs a C compiler")


@pytest.fixture(autouse=True)
def kernel(monkeypatch):
    """Has the kernel multiply in bf16, too, where the trainer leaves that to torch: the sampler does not."""
    halves = {True: [compiler.REAL16], False: []}
    monkeypatch.setattr(product, "_library", lambda bf16: compiler.compiled("product", *halves[bf16]))


def test_tiles_are_multiplied_where_the_processor_can():
    """Else the tests below would say nothing of them: also within a test, where signals may have a stack of their
    own."""
    library = compiler.compiled("product", compiler.REAL16)
    assert library.uses_matrix_unit() == torch.cpu._is_amx_tile_supported()
    assert not compiler.compiled("product").uses_matrix_unit()


def rounded(x: torch.Tensor, half: bool) -> torch.Tensor:
    return (x.bfloat16() if half else x).double()


def close(found: torch.Tensor, right: torch.Tensor, terms: int) -> None:
    torch.testing.assert_close(found.double(), right, atol=3e-6 * terms**0.5, rtol=1e-5)


@HALF
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("turned", [(False, False), (True, False), (False, True), (True, True)])
def test_a_product_in_any_layout(size, turned, half):
    rows, inputs, outputs = size
    torch.manual_seed(0)
    x, weight = (
        torch.randn(inputs, count).T if turn else torch.randn(count, inputs)
        for count, turn in zip((rows, outputs), turned, strict=True)
    )
    found = product.linear(x, weight, bf16=half)
    assert found.dtype == torch.float32
    close(found, rounded(x, half) @ rounded(weight, half).T, inputs)


@HALF
def test_neither_stride_is_one_and_nothing_at_all(half):
    torch.manual_seed(0)
    x, weight = torch.randn(6, 20)[:, ::2], torch.randn(8, 30)[:, ::3]
    close(product.linear(x, weight, bf16=half), rounded(x, half) @ rounded(weight, half).T, 10)
    assert product.linear(x[:0], weight, bf16=half).shape == (0, 8)
    assert product.linear(x[:, :0], weight[:, :0], bf16=half).eq(0).all()


@HALF
def test_a_sum_has_one_order_on_however_many_threads_and_rows(half):
    torch.manual_seed(0)
    x, weight, threads = torch.randn(700, 300), torch.randn(200, 300), torch.get_num_threads()
    try:
        found = []
        for count in (1, 3):
            torch.set_num_threads(count)
            found.append(product.linear(x, weight, bf16=half))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(*found)
    assert torch.equal(found[0][17:30], product.linear(x[17:30], weight, bf16=half))


@HALF
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", [(1,), (300,), (1, 40)])
def test_a_layers_gradients(shape, bias, half):
    torch.manual_seed(1)
    layer, x = torch.nn.Linear(20, 33, bias=bias), torch.randn(*shape, 20, requires_grad=True)
    grad = torch.randn(*shape, 33)
    product.use_kernel(layer, bf16=half)
    out = layer(x)
    out.backward(grad)
    rows, wide = x.detach().reshape(-1, 20), grad.reshape(-1, 33)
    right = rounded(rows, half) @ rounded(layer.weight.detach(), half).T
    close(out.reshape(-1, 33), right + layer.bias.detach().double() if bias else right, 20)
    close(x.grad.reshape(-1, 20), rounded(wide, half) @ rounded(layer.weight.detach(), half), 33)
    close(layer.weight.grad, rounded(wide, half).T @ rounded(rows, half), len(rows))
    if bias:
        close(layer.bias.grad, wide.double().sum(0), len(rows))


def test_what_is_frozen_has_no_gradient():
    layer, x = torch.nn.Linear(4, 3), torch.randn(2, 4, requires_grad=True)
    layer.requires_grad_(False)
    product.use_kernel(layer, bf16=False)
    layer(x).sum().backward()
    assert layer.weight.grad is None
    assert x.grad is not None


def test_without_a_compiler_torch_multiplies(monkeypatch):
    torch.manual_seed(0)
    x, weight, bias = torch.randn(5, 8), torch.randn(3, 8), torch.randn(3)
    monkeypatch.setattr(product, "_library", lambda bf16: None)
    close(product.linear(x, weight, bias), x.double() @ weight.double().T + bias.double(), 8)
    right = rounded(x, True) @ rounded(weight, True).T + bias.double()
    torch.testing.assert_close(product.linear(x, weight, bias, bf16=True).double(), right, atol=0.05, rtol=0.02)
