"""The law of a token: temperature, top-k, top-p, min-p, against a slow reference; and draws from it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dspine.kernels.law import Law, _likeliest_by_bits, draw, law_probs, likeliest


def reference(logits: np.ndarray, temperature: float, top_k: int, top_p: float, min_p: float) -> np.ndarray:
    """One row, token by token."""
    order = sorted(range(len(logits)), key=lambda i: (-logits[i], i))
    if temperature == 0:
        return np.eye(len(logits))[order[0]]
    kept = order[:top_k] if top_k else order
    weights = {i: np.exp((logits[i] - logits[order[0]]) / temperature) for i in kept}
    total = sum(weights.values())
    probs, before, chosen = {i: w / total for i, w in weights.items()}, 0.0, []
    for i in kept:
        if i == order[0] or (before < top_p and probs[i] >= min_p * probs[order[0]]):
            chosen.append(i)
        before += probs[i]
    out = np.zeros(len(logits))
    out[chosen] = [probs[i] for i in chosen]
    return out / out.sum()


parameters = st.tuples(
    st.sampled_from([0.0, 1e-3, 0.3, 1.0, 2.0]),
    st.sampled_from([0, 1, 3, 50]),
    st.sampled_from([1.0, 0.9, 0.5, 0.05]),
    st.sampled_from([0.0, 0.05, 0.5, 1.0]),
)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), parameters, parameters)
def test_the_law_equals_the_reference(seed, first, second):
    logits = torch.randn(2, 3, 11, generator=torch.Generator().manual_seed(seed)) * 3
    law = Law.of(*[list(pair) for pair in zip(first, second, strict=True)])
    ours = law_probs(logits, law)
    assert ours.dtype == torch.float32
    for row, params in enumerate((first, second)):
        for place in range(3):
            expected = reference(logits[row, place].double().numpy(), *params)
            np.testing.assert_allclose(ours[row, place].numpy(), expected, atol=2e-5)


def test_forbidden_ids_stay_forbidden():
    logits = torch.tensor([[0.0, -torch.inf, 2.0, -torch.inf]])
    for law in (Law.of([1.0], [0], [1.0], [0.0]), Law.of([1.0], [3], [0.9], [0.0]), Law.greedy_rows(1)):
        probs = law_probs(logits, law)
        assert probs[0, 1] == probs[0, 3] == 0
        assert torch.isfinite(probs).all()


@pytest.mark.parametrize("edge", [0.0, 1 - 2**-24])
def test_an_id_of_probability_zero_is_never_drawn(edge):
    probs = torch.tensor([[0.0, 0.5, 0.0, 0.5, 0.0], [0.0, 0.0, 1.0, 0.0, 0.0]])
    ids = draw(probs, torch.full((2,), edge))
    assert (probs.gather(1, ids[:, None]) > 0).all()


def test_draws_follow_the_law():
    probs = torch.tensor([0.1, 0.0, 0.6, 0.3])
    count = 200_000
    uniforms = torch.rand(count, generator=torch.Generator().manual_seed(0))
    counts = torch.bincount(draw(probs.expand(count, -1), uniforms), minlength=4).double()
    expected = probs.double() * count
    present = probs > 0
    chi2 = ((counts - expected)[present] ** 2 / expected[present]).sum()
    assert chi2 < 13.8  # df 2, 0.1 %
    assert counts[1] == 0


def test_rows_pick_their_parameters():
    law = Law.of([0.0, 1.0, 0.5], [0, 3, 0], [1.0, 1.0, 0.9], [0.0, 0.0, 0.1])
    assert not law.greedy
    assert law.rows([0]).greedy
    assert law.rows([2, 1]).temperature.tolist() == [0.5, 1.0]
    assert law.rows([2, 1]).top_k.tolist() == [0, 3]


def test_a_rows_law_does_not_depend_on_its_company():
    logits = torch.randn(2, 5, 3000, generator=torch.Generator().manual_seed(1)) * 6
    alone = law_probs(logits[:1], Law.of([0.9], [0], [1.0], [0.0]))
    beside = law_probs(logits, Law.of([0.9, 1.0], [0, 5], [1.0, 0.8], [0.0, 0.1]))
    assert torch.equal(beside[:1], alone)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_likeliest_is_the_first_of_the_best(dtype):
    scores = torch.randn(3, 4, 50, generator=torch.Generator().manual_seed(2)).to(dtype)
    scores[0, 0, [7, 9]] = 50.0
    scores[1] = -torch.inf
    scores[2, 1, 30] = torch.nan
    assert torch.equal(likeliest(scores), scores.argmax(-1))
    assert torch.equal(likeliest(scores.transpose(0, 1)), scores.argmax(-1).T)
    assert likeliest(scores)[0, 0] == 7
    assert likeliest(scores[0, 0]) == 7


def test_bfloat16_scores_are_told_apart_by_their_bits_as_long_as_they_can_be():
    scores = torch.randn(3, 50, generator=torch.Generator().manual_seed(3)).bfloat16()
    scores[0, [7, 9]] = 5.0
    assert torch.equal(torch.from_numpy(_likeliest_by_bits(scores)), scores.argmax(-1))
    none_positive, signed_nan = scores.clone(), scores.clone()
    none_positive[1] = -scores[1].abs()
    signed_nan.view(torch.int16)[2, 30] = -1  # no number, its sign set
    for told in (none_positive, signed_nan):
        assert _likeliest_by_bits(told) is None
        assert torch.equal(likeliest(told), told.argmax(-1))
