"""Attention of EAGLE-3's training-time test: every position of a sequence drafts several steps, all side by side.

One rule: row i at step σ sees the first step's keys of rows 0..i and its own keys of steps 1..σ, which is what a chain
that began at row i has in its cache. Source: EAGLE-3 (arXiv 2503.01840), training-time test.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dspine.kernels.attention import grouped_attention


class UnrolledAttention:
    """Keys and values of the steps so far; called once a step, in order."""

    def __init__(self) -> None:
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []

    def __call__(self, layer: int, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """query (N, H, S, D), keys and values (N, G, S, D) of this step → (N, H, S, D)."""
        self._keys.append(keys)
        self._values.append(values)
        if len(self._keys) == 1:
            return grouped_attention(query, keys, values, causal(query.shape[2], query.device))
        return self._later(query)

    def _later(self, query: Tensor) -> Tensor:
        batch, heads, size, dim = query.shape
        groups = self._keys[0].shape[1]
        grouped = query.view(batch, groups, heads // groups, size, dim) * dim**-0.5
        own_keys, own_values = torch.stack(self._keys[1:], 2), torch.stack(self._values[1:], 2)  # (N, G, σ, S, D)
        shared = torch.einsum("nghsd,ngkd->nghsk", grouped, self._keys[0])
        shared = shared.masked_fill(~causal(size, query.device), -torch.inf)
        own = torch.einsum("nghsd,ngksd->nghsk", grouped, own_keys)
        scores = torch.cat((shared, own), dim=-1)
        weights = scores.to(torch.promote_types(scores.dtype, torch.float32)).softmax(-1).to(query.dtype)
        mixed = torch.einsum("nghsk,ngkd->nghsd", weights[..., :size], self._values[0])
        mixed = mixed + torch.einsum("nghsk,ngksd->nghsd", weights[..., size:], own_values)
        return mixed.reshape(batch, heads, size, dim)


def causal(size: int, device: torch.device) -> Tensor:
    """Which rows of a sequence a row sees: bool (1, 1, S, S)."""
    return torch.ones(size, size, dtype=torch.bool, device=device).tril()[None, None]
