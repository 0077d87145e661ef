"""Target features that a drafter has not taken in, while it rests.

One rule: a slot is a position, modulo `SLOTS`. A round that is run again overwrites what its first run left, and
rows may be behind by different numbers of positions.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dspine.kernels.upload import upload

SLOTS = 32  # positions that a row can be behind


class Backlog:
    """The newest features of every row.

    Args:
        rows: number of rows.
    """

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._stored: Tensor | None = None  # (rows, SLOTS, m·d), made when something is stored

    @property
    def bytes(self) -> int:
        return 0 if self._stored is None else self._stored.numel() * self._stored.element_size()

    def store(self, starts: Sequence[int], features: Tensor) -> None:
        """Keep features (B, T, m·d) of rows 0..B-1, from positions `starts` on; T is `SLOTS` at most.

        Those behind a row's own overwrite what is older than `SLOTS - T` positions.
        """
        if self._stored is None:
            self._stored = features.new_zeros(self._rows, SLOTS, features.shape[2])
        where = self._places(starts, features.shape[1], features.device)
        self._stored.flatten(0, 1).index_copy_(0, where, features.flatten(0, 1))

    def read(self, starts: Sequence[int], width: int) -> Tensor:
        """Features (B, width, m·d) of rows 0..B-1 from positions `starts` on; anything where none were kept.

        Raises:
            RuntimeError: nothing was stored, or `width` is more than is kept.
        """
        if self._stored is None or width > SLOTS:
            raise RuntimeError(f"{width} positions asked of a backlog of {SLOTS if self._stored is not None else 0}")
        where = self._places(starts, width, self._stored.device)
        return self._stored.flatten(0, 1).index_select(0, where).view(len(starts), width, -1)

    @staticmethod
    def _places(starts: Sequence[int], width: int, device: torch.device) -> Tensor:
        """Where positions lie, all rows' slots end to end: (B·width,)."""
        return upload(
            [row * SLOTS + at % SLOTS for row, start in enumerate(starts) for at in range(start, start + width)], device
        )

    def move(self, source: int, target: int) -> None:
        """Copy a row over another one."""
        if self._stored is not None:
            self._stored[target] = self._stored[source]
