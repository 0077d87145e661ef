"""Transfer space against a float64 reference written from the formulas (DSpine, unified transfer space)."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dspine.drafter import TransferSpace
from dspine.errors import ConfigError


def reference_codes(head: np.ndarray, rank: int) -> np.ndarray:
    rows = head.astype(np.float64)
    present = np.linalg.norm(rows, axis=1) > 0
    unit = rows[present] / np.linalg.norm(rows[present], axis=1, keepdims=True)
    centred = unit - unit.mean(axis=0)
    values, vectors = np.linalg.eigh(centred.T @ centred)
    values, vectors = values[::-1][:rank], vectors[:, ::-1][:, :rank]
    coordinates = centred @ vectors / np.sqrt(values)
    codes = np.zeros((head.shape[0], rank))
    codes[present] = coordinates / np.linalg.norm(coordinates, axis=1, keepdims=True)
    return codes


@pytest.mark.parametrize("rank", [1, 7, 24])
def test_codes_equal_the_float64_reference_up_to_sign(rank):
    torch.manual_seed(0)
    head = torch.randn(300, 24) * torch.linspace(0.2, 3, 24) + 0.5
    space = TransferSpace.fit(head, rank)
    ours, theirs = space.codes.double().numpy(), reference_codes(head.numpy(), rank)
    signs = np.sign((ours * theirs).sum(axis=0))
    np.testing.assert_allclose(ours, theirs * signs, atol=2e-6)
    # Scalar products of codes do not depend on the sign convention at all.
    np.testing.assert_allclose(ours @ ours.T, theirs @ theirs.T, atol=1e-5)


def test_codes_have_unit_norm_and_padding_rows_have_none():
    torch.manual_seed(1)
    head = torch.randn(200, 16)
    head[150:] = 0
    padded, bare = TransferSpace.fit(head, 8), TransferSpace.fit(head[:150], 8)
    torch.testing.assert_close(padded.codes[:150].norm(dim=1), torch.ones(150), atol=1e-6, rtol=0)
    assert torch.equal(padded.codes[150:], torch.zeros(50, 8))
    assert torch.equal(padded.mean, bare.mean)  # padding has no part in μ
    torch.testing.assert_close(padded.codes[:150], bare.codes)


def test_too_few_directions_are_refused_with_the_number_that_fits():
    torch.manual_seed(2)
    head = torch.randn(100, 5) @ torch.randn(5, 32)
    with pytest.raises(ConfigError, match="only 5 directions"):
        TransferSpace.fit(head, 6)
    assert TransferSpace.fit(head, 5).rank == 5


def test_a_rank_wider_than_the_head_is_refused():
    with pytest.raises(ConfigError, match="exceeds the head's width 4"):
        TransferSpace.fit(torch.randn(10, 4), 5)


def test_codes_rebuilt_from_the_basis_are_the_same_bits():
    torch.manual_seed(3)
    head = torch.randn(500, 32)
    space = TransferSpace.fit(head, 16)
    assert torch.equal(TransferSpace.from_basis(head, space.mean, space.basis).codes, space.codes)


def test_chunks_change_nothing(monkeypatch):
    torch.manual_seed(4)
    head = torch.randn(100, 16)
    whole = TransferSpace.fit(head, 8)
    monkeypatch.setattr("dspine.drafter.transfer.CHUNK", 7)
    torch.testing.assert_close(TransferSpace.fit(head, 8).codes.abs(), whole.codes.abs(), atol=1e-6, rtol=0)


def test_directions_are_orthonormal():
    torch.manual_seed(5)
    directions = TransferSpace.fit(torch.randn(200, 24), 10).directions
    torch.testing.assert_close(directions @ directions.T, torch.eye(10), atol=1e-5, rtol=0)
