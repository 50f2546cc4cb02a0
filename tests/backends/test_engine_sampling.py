"""What is drawn from given logits, by torch alone and by the kernel, against distributions computed in plain numpy."""

from functools import partial

import numpy as np
import pytest
import torch

from sojourn.backends.torch.kernels import kernel
from sojourn.backends.torch.kernels.cache import Shape
from sojourn.backends.torch.sampler import sampling
from sojourn.backends.torch.sampler.sampling import Choices, Row, score, uniforms
from sojourn.errors import ModelError
from sojourn.types import SamplingParams

VOCABULARY = 700  # not a whole number of blocks
draw = sampling.draw


@pytest.fixture(autouse=True, params=["torch", "kernel"])
def way(request, monkeypatch):
    """Draws by torch alone, or lets the kernel do what it can."""
    if request.param == "kernel":
        by = kernel.load([Shape(1, 8, 8)], 1, torch.float32, torch.device("cpu"))
        assert by is not None
        monkeypatch.setitem(globals(), "draw", partial(sampling.draw, kernel=by))


def random_logits(rows, seed=0, spread=2.0):
    return torch.from_numpy(np.random.default_rng(seed).normal(0, spread, (rows, VOCABULARY)).astype(np.float32))


def probabilities(logits, kept=None):
    logits = np.asarray(logits, dtype=np.float64)
    if kept is not None:
        logits = np.where(np.isin(np.arange(len(logits)), kept), logits, -np.inf)
    weights = np.exp(logits - logits.max())
    return weights / weights.sum()


def draw_many(logits, params, count=4000, allowed=None):
    """The same row drawn at evenly spaced uniform numbers: every token gets its share, to 1 / count."""
    rows = [Row(params, (n + 0.5) / count, allowed) for n in range(count)]
    result = draw(logits.expand(count, -1), rows)
    shares = np.bincount(result.tokens, minlength=VOCABULARY) / count
    return shares, dict(zip(result.tokens, result.logprobs, strict=True))


def assert_drawn_from(expected, shares, logprobs, count=4000):
    np.testing.assert_allclose(shares, expected, atol=1.5 / count)
    for token, logprob in logprobs.items():
        assert logprob == pytest.approx(np.log(expected[token]), abs=1e-5)


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5])
def test_tokens_come_in_proportion_and_with_their_logprobs(temperature):
    logits = random_logits(1)
    shares, logprobs = draw_many(logits, SamplingParams(1, temperature=temperature))
    assert_drawn_from(probabilities(logits[0] / temperature), shares, logprobs)


def test_top_k_keeps_the_k_likeliest():
    logits = random_logits(1)
    kept = np.argsort(-logits[0].numpy())[:5]
    shares, logprobs = draw_many(logits, SamplingParams(1, top_k=5))
    assert set(logprobs) == set(kept.tolist())
    assert_drawn_from(probabilities(logits[0], kept), shares, logprobs)


@pytest.mark.parametrize(("top_p", "spread"), [(0.5, 2.0), (0.9, 2.0), (0.999, 0.1), (0.01, 2.0)])
def test_top_p_keeps_the_smallest_set_with_that_mass(top_p, spread):
    logits = random_logits(1, spread=spread)
    whole = probabilities(logits[0])
    order = np.argsort(-whole)
    size = int(np.searchsorted(np.cumsum(whole[order]), top_p)) + 1
    shares, logprobs = draw_many(logits, SamplingParams(1, top_p=top_p))
    assert_drawn_from(probabilities(logits[0], order[:size]), shares, logprobs)


def test_a_nucleus_wider_than_the_first_look_is_found(monkeypatch):
    monkeypatch.setattr("sojourn.backends.torch.sampler.sampling.HEAD", 4)
    test_top_p_keeps_the_smallest_set_with_that_mass(0.9, 2.0)


def test_min_p_keeps_what_is_likely_enough_beside_the_likeliest():
    logits = random_logits(1)
    whole = probabilities(logits[0])
    kept = np.flatnonzero(whole >= 0.2 * whole.max())
    shares, logprobs = draw_many(logits, SamplingParams(1, min_p=0.2))
    assert_drawn_from(probabilities(logits[0], kept), shares, logprobs)


def test_cuts_apply_one_after_another_at_the_temperature():
    logits = random_logits(1)
    hot = logits[0].numpy() / 1.7
    first = np.argsort(-hot)[:20]
    among = probabilities(hot, first)
    order = np.argsort(-among)
    second = order[: int(np.searchsorted(np.cumsum(among[order]), 0.8)) + 1]
    shares, logprobs = draw_many(logits, SamplingParams(1, temperature=1.7, top_k=20, top_p=0.8))
    assert_drawn_from(probabilities(hot, second), shares, logprobs)


def test_only_allowed_ids_are_drawn_and_renormalised():
    logits = random_logits(1)
    allowed = np.array([3, 300, 301, 699])
    shares, logprobs = draw_many(logits, SamplingParams(1, temperature=0.6), allowed=allowed)
    assert_drawn_from(probabilities(logits[0] / 0.6, allowed), shares, logprobs)


def test_greedy_is_the_likeliest_with_its_logprob_at_temperature_one():
    logits = random_logits(3)
    logits[2, [40, 50]] = 30.0
    result = draw(logits, [Row(SamplingParams(1, temperature=0.0, top_k=3), 0.9)] * 3)
    assert result.tokens == [int(logits[0].argmax()), int(logits[1].argmax()), 40]
    for row, (token, logprob) in enumerate(zip(result.tokens, result.logprobs, strict=True)):
        assert logprob == pytest.approx(np.log(probabilities(logits[row])[token]), abs=1e-5)


def test_rows_do_not_affect_each_other():
    logits = random_logits(6)
    kinds = [SamplingParams(1), SamplingParams(1, top_k=3), SamplingParams(1, temperature=0.0)] * 2
    rows = [Row(params, 0.1 + 0.15 * n) for n, params in enumerate(kinds)]
    together = draw(logits, rows)
    for n, row in enumerate(rows):
        alone = draw(logits[n : n + 1], [row])
        assert (alone.tokens[0], alone.logprobs[0]) == (together.tokens[n], together.logprobs[n])


@pytest.mark.parametrize("uniform", [0.0, np.nextafter(1.0, 0.0)])
@pytest.mark.parametrize("spread", [0.0, 1.0, 60.0])
def test_the_ends_of_the_unit_interval_draw_a_possible_token(uniform, spread):
    logits = random_logits(4, spread=spread)
    logits[:, :17] = -torch.inf
    logits[:, 650:] = -torch.inf
    result = draw(logits, [Row(SamplingParams(1), float(uniform))] * 4)
    assert all(17 <= token < 650 for token in result.tokens)
    assert np.isfinite(result.logprobs).all()


def test_the_kernel_draws_what_torch_draws():
    """But where a uniform number falls between two tokens: there, rounding decides."""
    logits, chance = random_logits(400, spread=1.0), np.random.default_rng(1).random(400)
    temperatures = [(0.0, 0.5, 1.0, 1.3)[n % 4] for n in range(400)]
    rows = [Row(SamplingParams(1, temperature=t), float(u)) for t, u in zip(temperatures, chance, strict=True)]
    ours, plain = draw(logits, rows), sampling.draw(logits, rows)
    same = np.equal(ours.tokens, plain.tokens)
    assert np.mean(same) > 0.99
    np.testing.assert_allclose(np.array(ours.logprobs)[same], np.array(plain.logprobs)[same], atol=1e-5)


def test_logits_are_left_as_they_were():
    logits = random_logits(2)
    before = logits.clone()
    draw(logits, [Row(SamplingParams(1, top_k=2), 0.5), Row(SamplingParams(1), 0.5, np.array([1]))])
    assert torch.equal(logits, before)


def test_logits_that_are_not_finite_give_no_token_and_leave_the_other_rows_alone():
    for odd in (torch.nan, torch.inf, -torch.inf):
        assert draw(torch.full((1, 10), odd), [Row(SamplingParams(1), 0.5)]).tokens == [-1]
    spoilt = random_logits(1)
    spoilt[0, VOCABULARY - 1] = torch.nan
    both = draw(torch.cat([spoilt, random_logits(1)]), [Row(SamplingParams(1), 0.5), Row(SamplingParams(1), 0.5)])
    assert both.tokens[0] == -1
    assert both.tokens[1] == draw(random_logits(1), [Row(SamplingParams(1), 0.5)]).tokens[0]


def test_a_temperature_that_spoils_the_logits_gives_no_sample():
    """The engine refuses so low a temperature; what is drawn by one is no token in any case."""
    assert draw(random_logits(1), [Row(SamplingParams(1, 1e-40), 0.5)]).tokens == [-1]


def test_scores_are_logprobs():
    logits, tokens = random_logits(300), torch.arange(300)
    expected = [np.log(probabilities(logits[n])[n]) for n in range(300)]
    np.testing.assert_allclose(score(logits, tokens), expected, atol=1e-5)


def test_uniform_numbers_follow_from_seed_and_place_alone():
    long, short = uniforms(7, 30, 100), uniforms(7, 30, 10)
    np.testing.assert_array_equal(long[:10], short)
    others = [uniforms(8, 30, 10), uniforms(7, 31, 10), uniforms(-1, 30, 10), uniforms(2**63, 30, 10)]
    assert all(not np.allclose(short, other) for other in others)
    many = uniforms(1, 1, 20000)
    assert ((many >= 0) & (many < 1)).all()
    assert abs(many.mean() - 0.5) < 0.01


def advanced(choices, tokens):
    for token in tokens:
        assert token in choices.allowed()
        choices.advance(token)
    return choices


def test_choices_allow_what_leads_to_one_of_them():
    choices = ((5, 6, 7), (5, 8), (9,))
    assert Choices(choices, ()).allowed().tolist() == [5, 9]
    assert advanced(Choices(choices, ()), [5]).allowed().tolist() == [6, 8]
    assert not advanced(Choices(choices, ()), [5, 6]).complete
    assert all(advanced(Choices(choices, ()), choice).complete for choice in choices)


def test_a_choice_that_begins_another_needs_a_stop():
    choices = Choices(((5, 6), (5, 6, 7)), (2,))
    assert advanced(choices, [5, 6]).allowed().tolist() == [2, 7]
    assert not choices.complete
    assert advanced(choices, [2]).complete
    with pytest.raises(ModelError, match="beginning of another"):
        Choices(((5, 6), (5, 6, 7)), ())
    with pytest.raises(ModelError, match="no tokens"):
        Choices(((),), (2,))
