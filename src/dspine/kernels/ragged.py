"""Rows of different widths as one line of tokens, and back.

One rule: what is done token by token is done on the line, so that it costs what its tokens cost; what needs rows
(attention, a verdict) sees them side by side, each as wide as the widest. Rows that are all as wide as the widest are a
line already: nothing is moved then.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate

import torch
from torch import Tensor

from dspine.kernels.upload import upload


class Ragged:
    """The layout of B rows of `counts` tokens, N together.

    Args:
        counts: tokens of each row, 1 at least.
        width: T, of the rectangle; no row has more.
        device: of the tensors that are moved.

    Attributes:
        starts: where each row begins on the line.
    """

    def __init__(self, counts: Sequence[int], width: int, device: torch.device | str | None = None) -> None:
        self.counts = list(counts)
        self.starts = [0, *accumulate(self.counts)][:-1]
        self.width = width
        self.even = min(self.counts) == width
        self._device = device

    def line(self, x: Tensor) -> Tensor:
        """(B, T, ...) → (N, ...): the tokens of all rows end to end."""
        flat = x.flatten(0, 1)
        return flat if self.even else flat.index_select(0, self._taken)

    def rows(self, x: Tensor) -> Tensor:
        """(N, ...) → (B, T, ...); what lies behind a row's own tokens means nothing, but is a number if all are."""
        whole = x if self.even else x.index_select(0, self._given)
        return whole.reshape(len(self.counts), self.width, *x.shape[1:])

    def part(self, index: Sequence[int]) -> Ragged:
        """The layout of some of the rows, in the order of `index`."""
        return Ragged([self.counts[row] for row in index], self.width, self._device)

    def row(self, index: int) -> slice:
        """Where a row's tokens lie on the line."""
        return slice(self.starts[index], self.starts[index] + self.counts[index])

    @cached_property
    def _taken(self) -> Tensor:
        """Where each token of the line lies in the rectangle: (N,) int64."""
        places = (row * self.width + place for row, count in enumerate(self.counts) for place in range(count))
        return upload(list(places), self._device)

    @cached_property
    def _given(self) -> Tensor:
        """Which token of the line stands at each place of the rectangle, a row's last one behind its end: (B·T,)."""
        places = (
            start + min(place, count - 1)
            for start, count in zip(self.starts, self.counts, strict=True)
            for place in range(self.width)
        )
        return upload(list(places), self._device)
