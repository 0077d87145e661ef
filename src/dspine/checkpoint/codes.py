"""Transfer codes rebuilt from a stored basis, and kept in the user's cache folder where that takes long.

One rule: what is read is what would be made, bit for bit. A file is named after a digest of all that its codes are made
from and holds the digest of the codes; one that is damaged is made again, and a cache that cannot be written costs time
and nothing else.
"""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from dspine.cache_folder import cache_root
from dspine.drafter.transfer import TransferSpace

WORTH = 2**30  # multiplications: fewer are done sooner than a file is read and checked
_CODES, _DIGEST = "codes", "sha256"
_FORMULA = "1"  # to be raised when `TransferSpace.from_basis` gives other numbers


def space_of_basis(head: Tensor, mean: Tensor, basis: Tensor) -> TransferSpace:
    """`TransferSpace.from_basis` of a head (V, d), mean (d) and basis (r, d), with the cache's codes if it has them.

    The first call for a large head on a CPU writes them to `<cache>/codes` (4 · V · r bytes).
    """
    if head.device.type != "cpu" or head.numel() * len(basis) < WORTH:
        return TransferSpace.from_basis(head, mean, basis)
    name = hashlib.sha256("".join([_FORMULA, str(head.dtype), *map(_digest, (head, mean, basis))]).encode()).hexdigest()
    file = cache_root() / "codes" / f"{name}.safetensors"
    codes = _read(file)
    if codes is not None:
        return TransferSpace(mean=mean.float(), basis=basis.float(), codes=codes)
    space = TransferSpace.from_basis(head, mean, basis)
    with suppress(OSError, SafetensorError):
        _write(file, space.codes)
    return space


def _read(file: Path) -> Tensor | None:
    """The codes of a file, None if there is none or it is not what was written."""
    try:
        with safe_open(file, "pt") as opened:
            codes: Tensor = opened.get_tensor(_CODES)
            return codes if (opened.metadata() or {}).get(_DIGEST) == _digest(codes) else None
    except (OSError, SafetensorError):
        return None


def _write(file: Path, codes: Tensor) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    aside = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        save_file({_CODES: codes}, aside, metadata={_DIGEST: _digest(codes)})
        aside.replace(file)
    finally:
        aside.unlink(missing_ok=True)


def _digest(tensor: Tensor) -> str:
    """sha256 (hex) of a tensor's bytes, its shape and all."""
    digest = hashlib.sha256(f"{tuple(tensor.shape)}\n".encode())
    digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().data)
    return digest.hexdigest()
