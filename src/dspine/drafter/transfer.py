"""The unified transfer space: one table of codes in which a predecessor speaks, be it a state or a token.

One rule: made once from the target's LM head, in float64, never trained, never made anew for a trained drafter (an
eigenbasis is defined only up to sign and rotation). Source: DSpine (arXiv 2609.36173), unified transfer space:
Ē_v = E_v/|E_v|, C_v = normalize(Λ_r^{-1/2} P_rᵀ (Ē_v - μ)).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from dspine.errors import ConfigError

CHUNK = 16384  # vocabulary rows in float64 at a time
SMALLEST = 1e-6  # of the first eigenvalue: below it a direction is noise, and whitening would blow it up


@dataclass(frozen=True)
class TransferSpace:
    """mean μ (d), basis Λ_r^{-1/2} P_rᵀ (r, d) and codes C (V, r), all float32.

    Rows of the head with zero norm (padding of the vocabulary) have a zero code and no part in μ and the basis.
    """

    mean: Tensor
    basis: Tensor
    codes: Tensor

    @property
    def rank(self) -> int:
        return self.basis.shape[0]

    @property
    def directions(self) -> Tensor:
        """P_rᵀ (r, d) float32, orthonormal rows: what a readout R_l starts from."""
        basis = self.basis.double()
        directions: Tensor = (basis / basis.norm(dim=1, keepdim=True)).float()
        return directions

    @classmethod
    def fit(cls, head: Tensor, rank: int, *, whitening: bool = True) -> TransferSpace:
        """Make the space from the target's LM head (V, d).

        Args:
            whitening: whether directions count alike; else as much as the rows vary along them (the basis is P_rᵀ).

        Raises:
            ConfigError: fewer than `rank` directions have an eigenvalue of at least 1e-6 of the first.
        """
        width = head.shape[1]
        if rank > width:
            raise ConfigError(f"transfer_rank {rank} exceeds the head's width {width}", "Choose a smaller rank.")
        total = torch.zeros(width, dtype=torch.float64, device=head.device)
        gram = torch.zeros(width, width, dtype=torch.float64, device=head.device)
        rows = 0
        for unit in _unit_rows(head):
            present = unit[unit.any(dim=1)]
            total += present.sum(dim=0)
            gram += present.T @ present
            rows += present.shape[0]
        mean = total / max(rows, 1)
        values, vectors = torch.linalg.eigh(gram - rows * torch.outer(mean, mean))
        values, vectors = values.flip(0)[:rank], vectors.flip(1)[:, :rank]
        usable = int((values >= SMALLEST * values[0]).sum()) if float(values[0]) > 0 else 0
        if usable < rank:
            raise ConfigError(
                f"transfer_rank {rank}: only {usable} directions of the target's output embeddings carry variance "
                f"(eigenvalue at least {SMALLEST:g} of the first)",
                f"Set transfer_rank to at most {usable}.",
            )
        basis = vectors.T / values.sqrt()[:, None] if whitening else vectors.T
        return cls.from_basis(head, mean.float(), basis.float())

    @classmethod
    def from_basis(cls, head: Tensor, mean: Tensor, basis: Tensor) -> TransferSpace:
        """Rebuild the codes from a stored mean (d) and basis (r, d), float32: the same bits as `fit` made."""
        centre, project = mean.double(), basis.double().T
        codes = torch.empty(head.shape[0], basis.shape[0], dtype=torch.float32, device=head.device)
        start = 0
        for unit in _unit_rows(head):
            coordinates = (unit - centre) @ project
            coordinates /= coordinates.norm(dim=1, keepdim=True).clamp_min(torch.finfo(torch.float64).tiny)
            coordinates[~unit.any(dim=1)] = 0.0
            codes[start : start + unit.shape[0]] = coordinates.float()
            start += unit.shape[0]
        return cls(mean=mean.float(), basis=basis.float(), codes=codes)


def _unit_rows(head: Tensor) -> Iterator[Tensor]:
    """The head's rows at unit norm, float64, chunk by chunk; a zero row stays zero."""
    for chunk in torch.split(head.detach(), CHUNK):
        rows = chunk.double()
        yield rows / rows.norm(dim=1, keepdim=True).clamp_min(torch.finfo(torch.float64).tiny)
