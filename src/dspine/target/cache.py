"""The key/value cache that a transformers model writes into.

One rule: it holds nothing itself. Keys and values lie in a `RowCache`, where a slot is an absolute position;
sliding-window layers keep all their slots too, so that rolling a row back is only a smaller length. Windows are
the mask's business.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import Cache

from dspine.kernels.kv import RowCache, Span


class TargetCache(Cache):
    """A transformers `Cache` over a `RowCache`.

    Args:
        layers: number of decoder layers.
        rows: number of rows; committed lengths are `rows.lengths`.
    """

    def __init__(self, layers: int, rows: int, *, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__(layers=[])
        self.rows = RowCache(layers, rows, dtype=dtype, device=device)
        self._span: Span | None = None

    def open(self, span: Span) -> None:
        """Begin a forward that writes where `span` says."""
        self.rows.open(span)
        self._span = span

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Called by the attention layers: store (B, G, T, D) and return views (B, G, limit, D)."""
        return self.rows.write(layer_idx, key_states, value_states)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Slots before the open forward, of the longest row (positions are always passed explicitly)."""
        return 0 if self._span is None else max(self._span.starts)

    def get_query_offset(self, layer_idx: int = 0) -> int:
        return self.get_seq_length(layer_idx)

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        return self.get_seq_length(layer_idx) + query_length, 0

    def get_max_length(self, layer_idx: int | None = None) -> int:
        return -1

    @property
    def is_compileable(self) -> bool:
        return False
