"""Codes in the cache folder: the same bits, made again when damaged, never in the way."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from dspine.checkpoint import codes, load_drafter
from dspine.drafter.dspine import DSpine
from dspine.drafter.transfer import TransferSpace
from dspine.target.model import Target


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the codes, with every head worth it."""
    monkeypatch.setenv("DSPINE_CACHE", str(tmp_path))
    monkeypatch.setattr(codes, "WORTH", 0)
    return tmp_path / "codes"


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """The heads that codes were made from."""
    heads: list[Tensor] = []
    make = TransferSpace.from_basis

    def counted(head: Tensor, mean: Tensor, basis: Tensor) -> TransferSpace:
        heads.append(head)
        return make(head, mean, basis)

    monkeypatch.setattr(TransferSpace, "from_basis", counted)
    return heads


@pytest.fixture(scope="module")
def space() -> tuple[Tensor, TransferSpace]:
    head = torch.randn(90, 12, generator=torch.Generator().manual_seed(0))
    return head, TransferSpace.fit(head, 5)


def test_the_second_call_reads_the_same_bits(cache, made, space):
    head, fitted = space
    first, second = (codes.space_of_basis(head, fitted.mean, fitted.basis) for _ in range(2))
    assert len(made) == 1
    for found in (first, second):
        assert torch.equal(found.codes, fitted.codes)
        assert torch.equal(found.mean, fitted.mean)
        assert torch.equal(found.basis, fitted.basis)
    assert len(list(cache.iterdir())) == 1


def test_everything_that_codes_are_made_from_is_in_the_name(cache, made, space):
    head, fitted = space
    nudged = head.clone()
    nudged[0, 0] = torch.nextafter(head[0, 0], torch.tensor(9.0))
    for given in (
        (head, fitted.mean, fitted.basis),
        (nudged, fitted.mean, fitted.basis),
        (head, fitted.mean + 1e-3, fitted.basis),
        (head, fitted.mean, fitted.basis * 2),
        (head, fitted.mean, fitted.basis[:4]),
        (head.bfloat16(), fitted.mean, fitted.basis),
    ):
        found = codes.space_of_basis(*given)
        assert torch.equal(found.codes, TransferSpace.from_basis(*given).codes)
    assert len(list(cache.iterdir())) == 6
    assert len(made) == 12  # each once by the cache, once to compare with


@pytest.mark.parametrize("damage", ["cut", "flip", "empty"])
def test_a_damaged_file_is_made_again(cache, made, space, damage):
    head, fitted = space
    codes.space_of_basis(head, fitted.mean, fitted.basis)
    [file] = cache.iterdir()
    content = file.read_bytes()
    flipped = content[:-1] + bytes([content[-1] ^ 1])
    file.write_bytes({"cut": content[:-9], "flip": flipped, "empty": b""}[damage])
    assert torch.equal(codes.space_of_basis(head, fitted.mean, fitted.basis).codes, fitted.codes)
    assert len(made) == 2
    assert file.read_bytes() == content


def test_a_cache_that_cannot_be_written_is_no_fault(cache, made, space):
    head, fitted = space
    cache.write_text("a file where the folder should be")
    for _ in range(2):
        assert torch.equal(codes.space_of_basis(head, fitted.mean, fitted.basis).codes, fitted.codes)
    assert len(made) == 2


def test_a_full_disk_leaves_nothing_behind(cache, space, monkeypatch):
    def full(tensors, file, metadata):
        file.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(codes, "save_file", full)
    head, fitted = space
    assert torch.equal(codes.space_of_basis(head, fitted.mean, fitted.basis).codes, fitted.codes)
    assert list(cache.iterdir()) == []


def test_small_heads_are_not_worth_a_file(cache, space, monkeypatch):
    head, fitted = space
    monkeypatch.setattr(codes, "WORTH", head.numel() * 5 + 1)
    codes.space_of_basis(head, fitted.mean, fitted.basis)
    assert not cache.exists()


def test_drafters_of_our_own_layout_are_loaded_through_it(cache, made, own: Path, target: Target, drafter: DSpine):
    for _ in range(2):
        assert torch.equal(load_drafter(own, target).codes, drafter.codes)
    assert len(made) == 1
