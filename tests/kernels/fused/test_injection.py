"""Message, write-back and transition scores: fused against the plain definitions, at odd shapes and strided inputs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from dspine.kernels import injection as plain
from dspine.kernels.fused import message, scores, write
from dspine.kernels.injection import MessageWeights
from dspine.kernels.reference import unit_normalise

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
# The definitions round in half precision at every step, the kernels at the end of a sum; the interpreter cuts off to
# bfloat16 instead of rounding, which costs another bit each time.
CLOSE = {
    torch.float32: {"atol": 2e-5, "rtol": 2e-5},
    torch.bfloat16: {"atol": 1e-1, "rtol": 5e-2},
    torch.float16: {"atol": 8e-3, "rtol": 8e-3},
}
SHAPES = [(1, 3, 16, 8), (3, 5, 40, 19), (2, 15, 130, 33)]  # B, M, r, a


@pytest.fixture
def made(device: torch.device):
    generator = torch.Generator().manual_seed(0)

    def make(*shape: int, dtype: torch.dtype = torch.float32, scale: float = 1.0) -> Tensor:
        return (torch.randn(*shape, generator=generator) * scale).to(dtype).to(device)

    return make


def strided(x: Tensor) -> Tensor:
    """The same numbers as every other row of a wider block, as a slice of a block's rows is."""
    wide = x.new_full((x.shape[0], 2 * x.shape[1] + 1, *x.shape[2:]), 7.0)
    wide[:, 1::2] = x
    return wide[:, 1::2]


def weights_of(made, rank: int, size: int, dtype: torch.dtype) -> MessageWeights:
    gates = [made(size, rank, dtype=dtype, scale=rank**-0.5) for _ in range(3)]
    return MessageWeights(*gates, made(size, dtype=dtype), rank**0.5)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("batch", "places", "rank", "size"), SHAPES)
def test_a_place_hears_its_neighbour(made, batch, places, rank, size, dtype):
    weights = weights_of(made, rank, size, dtype)
    said = strided(made(batch, places, rank, dtype=dtype, scale=30.0))
    anchor = unit_normalise(made(batch, rank))
    said[0, -1] = 0  # a zero readout stays finite
    fused = message.neighbour_message(said, anchor, weights)
    assert fused.shape == (batch, places, size)
    assert fused.dtype == dtype
    torch.testing.assert_close(fused, plain.neighbour_message(said, anchor, weights), **CLOSE[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("batch", "places", "rank", "size"), SHAPES)
@pytest.mark.parametrize("top", [3, 16])
def test_a_place_hears_every_candidate_before_it(made, batch, places, rank, size, top, dtype):
    weights = weights_of(made, rank, size, dtype)
    said = strided(made(batch, places, rank, dtype=dtype))
    codes = unit_normalise(made(50, rank))
    codes[4] = 0  # a padding row of the vocabulary
    before = torch.randint(0, 50, (batch, places, top), generator=torch.Generator().manual_seed(1)).to(said.device)
    before[0, 0, 0] = 4
    fused = message.candidate_message(said, codes, before, weights)
    torch.testing.assert_close(fused, plain.candidate_message(said, codes, before, weights), **CLOSE[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("batch", "places", "width"), [(1, 1, 16), (3, 5, 40), (2, 15, 130)])
def test_write_back_and_norm(made, batch, places, width, dtype):
    block, written = made(batch, places + 1, width, dtype=dtype, scale=3.0), made(batch, places, width, dtype=dtype)
    weight = made(width, dtype=dtype)
    fused = write.write_and_norm(strided(block), strided(written), weight, 1e-6)
    wanted = plain.write_and_norm(block, written, weight, 1e-6)
    assert torch.equal(fused[0][:, 0], block[:, 0])
    for ours, theirs in zip(fused, wanted, strict=True):
        assert ours.dtype == dtype
        torch.testing.assert_close(ours, theirs, **CLOSE[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("batch", "places", "width", "top"), [(1, 1, 16, 1), (2, 3, 70, 5), (1, 2, 1100, 16)])
def test_transition_scores(made, batch, places, width, top, dtype):
    last, written = made(batch, places, width, dtype=dtype), made(batch, places, top, width, dtype=dtype)
    weight, head = made(width, dtype=dtype), made(61, width, dtype=dtype, scale=width**-0.5)
    order = torch.rand(batch, places, 61, generator=torch.Generator().manual_seed(2)).argsort(-1)
    candidates = order[..., :top].to(last.device)
    fused = scores.refined_scores(strided(last), strided(written), weight, 1e-6, head, candidates)
    wanted = plain.refined_scores(last, written, weight, 1e-6, head, candidates)
    assert fused.shape == (batch, places, top, top)
    torch.testing.assert_close(fused, wanted, **CLOSE[dtype])


def test_states_beyond_half_precision_keep_their_scores(made):
    """Before the norm, state · scale is beyond float16's range; the scores are not."""
    last, written = made(1, 1, 32, dtype=torch.float16, scale=4000.0), made(1, 1, 4, 32, dtype=torch.float16)
    weight, head = torch.full_like(last[0, 0], 30.0), made(9, 32, dtype=torch.float16, scale=0.05)
    candidates = torch.tensor([[[5, 0, 8, 2]]], device=last.device)
    arguments = (last, written, weight, 1e-6, head, candidates)
    torch.testing.assert_close(
        scores.refined_scores(*arguments), plain.refined_scores(*arguments), **CLOSE[torch.float16]
    )
