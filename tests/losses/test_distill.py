"""The divergences of `distill` by hand, and their gradients against torch's own differentiation."""

from __future__ import annotations

import math

import pytest
import torch

from sojourn.losses.distill import Distill

HALF, THIRDS = [0.5, 0.5, 0.0], [0.25, 0.25, 0.5]


def logs(*rows: list[float]) -> torch.Tensor:
    return torch.tensor(rows).clamp(min=1e-30).log()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"divergence": "reverse_kl"}, math.log(2)),  # 2 * 0.5 log(0.5 / 0.25)
        ({"divergence": "jsd", "beta": 0.5}, None),
        ({"divergence": "reverse_kl", "top_k": 1}, 1 * math.log(1 / 0.5)),  # the third token, and the others together
    ],
)
def test_a_value_by_hand(options, expected):
    """The policy has one half each on two tokens, the teacher a half on the third."""
    if expected is None:  # m = (0.375, 0.375, 0.25)
        p = 2 * 0.25 * math.log(0.25 / 0.375) + 0.5 * math.log(0.5 / 0.25)
        expected = 0.5 * p + 0.5 * (2 * 0.5 * math.log(0.5 / 0.375))
    found = Distill(**options).compare(logs(HALF), logs(THIRDS)).value
    assert found.item() == pytest.approx(expected, abs=1e-5)


def test_the_forward_divergence_by_hand():
    found = Distill(divergence="forward_kl").compare(logs(THIRDS), logs(HALF)).value
    assert found.item() == pytest.approx(math.log(2), abs=1e-5)


def plain(kind: str, beta: float, q: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
    """The definitions, from probabilities."""
    m = beta * p + (1 - beta) * q
    kl = lambda a, b: (a * (a.log() - b.log())).sum(1)  # noqa: E731
    if kind == "jsd":
        return beta * kl(p, m) + (1 - beta) * kl(q, m)
    return kl(q, p) if kind == "reverse_kl" else kl(p, q)


def merged(probabilities: torch.Tensor, likeliest: torch.Tensor) -> torch.Tensor:
    """The probabilities of some tokens, and of all others together."""
    chosen = probabilities.gather(1, likeliest)
    return torch.cat([chosen, 1 - chosen.sum(1, keepdim=True)], 1)


@pytest.mark.parametrize("top_k", [0, 1, 4])
@pytest.mark.parametrize(
    ("kind", "beta"), [("reverse_kl", 0.5), ("forward_kl", 0.5), ("jsd", 0.5), ("jsd", 0.9), ("jsd", 0.1)]
)
def test_values_and_gradients_are_those_of_the_definition(kind, beta, top_k):
    torch.manual_seed(0)
    logits, teacher = (2 * torch.randn(5, 9, dtype=torch.float64) for _ in range(2))
    logits.requires_grad_()
    q, p = logits.softmax(1), teacher.softmax(1)
    if top_k:
        likeliest = p.topk(top_k, 1).indices
        q, p = merged(q, likeliest), merged(p, likeliest)
    expected = plain(kind, beta, q, p)
    [gradient] = torch.autograd.grad(expected.sum(), logits)
    found = Distill(divergence=kind, beta=beta, top_k=top_k).compare(
        logits.detach().log_softmax(1), teacher.log_softmax(1)
    )
    torch.testing.assert_close(found.value, expected.detach())
    torch.testing.assert_close(found.gradient, gradient)
    assert gradient.abs().max() > 1e-3


def given(teacher: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """What a server says of these log-probabilities (r, V)."""
    top = teacher.topk(count, 1)
    return top.indices, top.values


@pytest.mark.parametrize("count", [4, 6])
@pytest.mark.parametrize("kind", ["reverse_kl", "forward_kl", "jsd"])
def test_the_likeliest_tokens_alone_are_enough(kind, count):
    """Also where more of them are known than are told apart."""
    torch.manual_seed(0)
    policy, teacher = (2 * torch.randn(2, 5, 9)).log_softmax(2)
    loss = Distill(divergence=kind, top_k=4)
    whole, part = loss.compare(policy, teacher), loss.compare_likeliest(policy, *given(teacher, count))
    torch.testing.assert_close(part.value, whole.value, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(part.gradient, whole.gradient, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", ["reverse_kl", "forward_kl", "jsd"])
def test_a_likeliest_token_that_is_missing_counts_among_all_others(kind):
    torch.manual_seed(0)
    policy, teacher = (2 * torch.randn(2, 5, 9)).log_softmax(2)
    tokens, logprobs = given(teacher, 4)
    tokens[::2, 3] = tokens[1, 2:] = -1
    found = Distill(divergence=kind, top_k=4).compare_likeliest(policy, tokens, logprobs)
    for row, known in enumerate((3, 2, 3, 4, 3)):
        alone = Distill(divergence=kind, top_k=known).compare(policy[row : row + 1], teacher[row : row + 1])
        torch.testing.assert_close(found.value[row : row + 1], alone.value, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(found.gradient[row : row + 1], alone.gradient, atol=1e-5, rtol=1e-5)


def test_a_likeliest_token_by_hand():
    """The third token of THIRDS has a half, so all others do too."""
    found = Distill(top_k=1).compare_likeliest(logs(THIRDS), torch.tensor([[2]]), torch.tensor([[math.log(0.25)]]))
    assert found.value.item() == pytest.approx(0.5 * math.log(0.5 / 0.25) + 0.5 * math.log(0.5 / 0.75), abs=1e-6)


@pytest.mark.parametrize("kind", ["reverse_kl", "forward_kl", "jsd"])
def test_likeliest_tokens_that_are_all_leave_others_a_little(kind):
    """Rounded, their probabilities can add up to 1 or more."""
    logprobs = torch.log(torch.tensor([[0.75, 0.25 + 1e-6]]))
    found = Distill(divergence=kind, top_k=2).compare_likeliest(logs(THIRDS), torch.tensor([[0, 1]]), logprobs)
    assert torch.isfinite(found.value).all()
    assert torch.isfinite(found.gradient).all()


@pytest.mark.parametrize("top_k", [0, 3])
@pytest.mark.parametrize("kind", ["reverse_kl", "forward_kl", "jsd"])
def test_equal_distributions_have_neither_a_divergence_nor_a_gradient(kind, top_k):
    torch.manual_seed(0)
    same = torch.randn(4, 50).log_softmax(1)
    found = Distill(divergence=kind, top_k=top_k).compare(same, same.clone())
    assert found.value.abs().max() < 1e-6
    assert found.gradient.abs().max() < 1e-6


@pytest.mark.parametrize("top_k", [0, 2])
@pytest.mark.parametrize("kind", ["reverse_kl", "forward_kl", "jsd"])
def test_tokens_that_cannot_be_have_no_part_in_it(kind, top_k):
    """Logits of forbidden tokens are -1e30, as those of the vocabulary head are."""
    torch.manual_seed(0)
    logits, teacher = torch.randn(2, 3, 6)
    logits[:, 4:] = teacher[:, 4:] = -1e30
    loss = Distill(divergence=kind, top_k=top_k)
    whole = loss.compare(logits.log_softmax(1), teacher.log_softmax(1))
    part = loss.compare(logits[:, :4].log_softmax(1), teacher[:, :4].log_softmax(1))
    torch.testing.assert_close(whole.value, part.value)
    torch.testing.assert_close(whole.gradient[:, :4], part.gradient)
    assert torch.isfinite(whole.gradient).all()


def test_the_generalised_divergence_is_near_both_at_its_ends():
    """JSD(beta) / beta tends to the forward divergence, JSD(beta) / (1 - beta) to the reverse one."""
    torch.manual_seed(0)
    q, p = torch.randn(2, 3, 7, dtype=torch.float64).log_softmax(2)
    for kind, beta, scale in (("forward_kl", 1e-4, 1e-4), ("reverse_kl", 1 - 1e-4, 1e-4)):
        near = Distill(divergence="jsd", beta=beta).compare(q, p)
        exact = Distill(divergence=kind).compare(q, p)
        torch.testing.assert_close(near.value / scale, exact.value, rtol=1e-2, atol=1e-3)
        torch.testing.assert_close(near.gradient / scale, exact.gradient, rtol=1e-2, atol=1e-3)
