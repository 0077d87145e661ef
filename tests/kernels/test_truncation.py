"""Truncation by the head of a vocabulary is truncation of the whole of it."""

from __future__ import annotations

import math
import random

import pytest
import torch
from torch import Tensor

from dspine.kernels import truncation
from dspine.kernels.law import Law, law_probs
from dspine.kernels.truncation import HEADS, Cut, truncated

SIZE = 6000
TOP_K = [0, 0, 1, 7, 127, 128, 129, 2048, 2500, 10**6]
TOP_P = [1.0, 1.0, 0.9, 0.5, 0.99, 1e-9]
MIN_P = [0.0, 0.0, 0.05, 1.0, 1e-5]


def definition(scores: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> tuple[Tensor, Tensor]:
    """The law by sorting every token, and the mass before each of them in units of top-p, (N, V)."""
    ordered, index = scores.sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(scores.shape[-1])
    ordered = ordered.masked_fill((top_k > 0) & (rank >= top_k), -torch.inf)
    probs = torch.softmax(ordered, dim=-1)
    before = probs.double().cumsum(-1) - probs.double()
    keep = ((before < top_p) | (top_p >= 1)) & (probs >= min_p * probs[..., :1])
    keep[..., 0] = True
    probs = probs.masked_fill(~keep, 0.0)
    probs = probs / probs.sum(dim=-1, keepdim=True)
    return (torch.zeros_like(probs).scatter(-1, index, probs), torch.zeros_like(before).scatter(-1, index, before))


def logits_of(kind: str, rows: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(rows, SIZE, generator=generator) * {"flat": 0.01, "tied": 3.0}.get(kind, 4.0)
    if kind == "tied":
        logits = logits.round()
    if kind == "masked":
        logits[torch.rand(logits.shape, generator=generator) < 0.98] = -torch.inf
        logits[:, 17] = 0.0
    return logits


def cuts(rows: int, seed: int) -> Cut:
    chance = random.Random(seed)
    top_k, top_p, min_p = ([chance.choice(values) for _ in range(rows)] for values in (TOP_K, TOP_P, MIN_P))
    return Cut(torch.tensor(top_k)[:, None], torch.tensor(top_p)[:, None], torch.tensor(min_p)[:, None])


@pytest.mark.parametrize("kind", ["usual", "flat", "tied", "masked"])
@pytest.mark.parametrize("seed", range(4))
def test_it_is_the_definition(kind: str, seed: int) -> None:
    logits, cut = logits_of(kind, 24, seed), cuts(24, seed)
    ours = truncated(logits, logits.softmax(-1), cut)
    wanted, before = definition(logits, cut.top_k, cut.top_p, cut.min_p)
    # The two take their softmax in different orders: a token at the very bound of top-p may fall on either side.
    at_bound = (before - cut.top_p).abs() < 1e-5
    assert not ((ours > 0) != (wanted > 0))[~at_bound].any()
    assert float((ours - wanted).abs().max()) < 1e-3
    rows = ~(((ours > 0) != (wanted > 0)).any(dim=1))
    torch.testing.assert_close(ours[rows], wanted[rows], rtol=1e-5, atol=1e-9)
    assert torch.allclose(ours.sum(-1), torch.ones(24), atol=1e-5)


@pytest.mark.parametrize("kind", ["usual", "flat", "tied", "masked"])
def test_a_head_gives_bit_for_bit_what_the_whole_gives(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    logits, cut = logits_of(kind, 60, 9), cuts(60, 9)
    probs = logits.softmax(-1)
    by_heads = truncated(logits, probs, cut)
    monkeypatch.setattr(truncation, "HEADS", ())
    assert torch.equal(truncated(logits, probs, cut), by_heads)


@pytest.mark.parametrize("kept", [1, HEADS[0] - 1, HEADS[0], HEADS[0] + 1, HEADS[1], HEADS[1] + 1])
def test_sums_that_are_exact_end_where_they_should(kept: int) -> None:
    """Equal chances of 1/4096: the mass before token n is n/4096 exactly, and ties go by ids."""
    logits = torch.full((1, SIZE), -torch.inf)
    ids = torch.randperm(SIZE, generator=torch.Generator().manual_seed(kept))[:4096].sort().values
    logits[0, ids] = 0.0
    for law in (Law.of([1.0], [kept], [1.0], [0.0]), Law.of([1.0], [0], [kept / 4096], [0.0])):
        probs = law_probs(logits, law)
        assert torch.equal(probs[0].nonzero().flatten(), ids[:kept])
        assert probs[0, ids[0]] == pytest.approx(1 / kept)


def test_one_flat_row_leaves_the_others_alone() -> None:
    logits = torch.cat([logits_of("usual", 3, 1), logits_of("flat", 1, 1)])
    law = Law.of([1.0] * 4, [0] * 4, [0.8] * 4, [0.0] * 4)
    together = law_probs(logits, law)
    alone = torch.cat([law_probs(logits[row : row + 1], law.rows([row])) for row in range(4)])
    assert torch.equal(together, alone)
    assert (together > 0).sum(-1).tolist()[3] > HEADS[1]


def test_logits_that_are_no_numbers_give_no_law() -> None:
    logits = logits_of("usual", 2, 3)
    logits[1, 40] = torch.nan
    probs = law_probs(logits, Law.of([1.0] * 2, [5] * 2, [0.9] * 2, [0.0] * 2))
    assert math.isclose(float(probs[0].sum()), 1, abs_tol=1e-6)
    assert probs[1].isnan().any()
