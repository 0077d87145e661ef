"""The cache that a transformers model writes into.

One rule: it holds nothing itself. Keys and values lie in a `RowCache`, where a slot is an absolute position;
sliding-window layers keep all their slots too, so that rolling a row back is only a smaller length. Windows are
the mask's business. Convolution and recurrent states, where layers keep any, lie in a `StateCache`, which goes by the
same lengths.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import Cache

from dspine.kernels.kv import DeviceSpan, RowCache, Span
from dspine.target.states import CONV, RECURRENT, StateCache, last_places


class TargetCache(Cache):
    """A transformers `Cache` over a `RowCache`, and a `StateCache` beside it.

    Args:
        layers: number of decoder layers.
        rows: number of rows; committed lengths are `rows.lengths`.
        states: where layers keep states; None if none does.
    """

    def __init__(
        self, layers: int, rows: int, *, dtype: torch.dtype, device: torch.device, states: StateCache | None = None
    ) -> None:
        super().__init__(layers=[])
        self.rows = RowCache(layers, rows, dtype=dtype, device=device)
        self.states = states
        self._span: Span | DeviceSpan | None = None

    def open(self, span: Span | DeviceSpan) -> None:
        """Begin a forward that writes where `span` says."""
        if self.states is not None:
            if isinstance(span, DeviceSpan):
                raise RuntimeError("states take their places from the host")
            self.states.open(span, self.rows.lengths)
        self.rows.open(span)
        self._span = span

    @property
    def bytes(self) -> int:
        """Bytes of storage, states included."""
        return self.rows.bytes + (0 if self.states is None else self.states.bytes)

    def move(self, source: int, target: int) -> None:
        """Copy a row's committed slots and state over another row."""
        if self.states is not None:
            self.states.move(source, target, self.rows.lengths)
        self.rows.move(source, target)

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Called by the attention layers: store (B, G, T, D) and return views (B, G, limit, D)."""
        return self.rows.write(layer_idx, key_states, value_states)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Slots before the open forward, of the longest row (positions are always passed explicitly)."""
        if self._span is None:
            return 0
        # Of a span that the device alone knows: the most that it can be.
        return max(self._span.starts) if isinstance(self._span, Span) else self._span.limit - self._span.width

    # ---------------------------------------------------------------- what layers with a state ask for

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> Tensor | None:
        """The inputs (B, C, K) of the last K places; a layer may shift them in place."""
        return self._kept.read(layer_idx, (CONV, state_idx))

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> Tensor | None:
        """The recurrent state (B, ...); a layer may step it in place."""
        return self._kept.read(layer_idx, (RECURRENT, state_idx))

    def update_conv_state(
        self, conv_states: Tensor, layer_idx: int, state_idx: int = 0, conv_kernel_size: int | None = None, **_: Any
    ) -> Tensor:
        """Take in new inputs (B, C, T) and return them behind those that the state holds."""
        before = self._kept.read(layer_idx, (CONV, state_idx))
        full = conv_states if before is None else torch.cat((before, conv_states), dim=-1)
        size = conv_kernel_size or (conv_states if before is None else before).shape[-1]
        self._kept.write(layer_idx, (CONV, state_idx), last_places(full, size))
        return full

    def update_recurrent_state(self, recurrent_states: Tensor, layer_idx: int, state_idx: int = 0, **_: Any) -> Tensor:
        """Take in the state (B, ...) after the new tokens."""
        self._kept.write(layer_idx, (RECURRENT, state_idx), recurrent_states)
        return recurrent_states

    def has_previous_state(self, layer_idx: int | None = None, state_idx: int | None = None) -> bool:
        return self._kept.has_state(layer_idx)

    def is_recording_past(self, layer_idx: int) -> bool:
        return False  # what may be given back is kept by the states themselves

    @property
    def _kept(self) -> StateCache:
        if self.states is None:
            raise RuntimeError("a layer asks for a state that this cache was not made for")
        return self.states

    # ---------------------------------------------------------------- what is asked of any cache

    def get_query_offset(self, layer_idx: int = 0) -> int:
        return self.get_seq_length(layer_idx)

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        return self.get_seq_length(layer_idx) + query_length, 0

    def get_max_length(self, layer_idx: int | None = None) -> int:
        return -1

    @property
    def is_compileable(self) -> bool:
        return False
