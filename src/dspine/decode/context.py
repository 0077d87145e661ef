"""What the drafter knows of the active rows: its cache, and the features that it has not taken in yet.

One rule: a row that is drafted has seen or kept waiting the features of every position before its anchor, and no
others; a row that is not drafted keeps no context. Rows are those of the target's cache, in the same order.
Source: DSpine (arXiv 2609.36173), target features; section on speculative decoding.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch
from torch import Tensor

from dspine.decode.backlog import SLOTS, Backlog
from dspine.decode.rows import Row
from dspine.drafter.proposal import Drafter
from dspine.kernels.kv import Span
from dspine.stages import stage


class Context:
    """The contexts of a batch's rows.

    Args:
        drafter: whose they are.
        capacity: most rows.

    Attributes:
        cache: the drafter's.
    """

    def __init__(self, drafter: Drafter, capacity: int) -> None:
        self.drafter = drafter
        self.cache = drafter.new_cache(capacity)
        self._backlog = Backlog(capacity)

    @property
    def bytes(self) -> int:
        """Storage of the cache and of what waits."""
        return self.cache.bytes + self._backlog.bytes

    # ---------------------------------------------------------------- features come in

    def prompt(
        self, first: int, start: int, rows: Sequence[Row], ids: Tensor, features: Tensor, counts: Sequence[int]
    ) -> None:
        """Take in a chunk of prompts: tokens ids (B, T) from position `start` on of rows `first` and behind.

        Args:
            rows: longest prompt first; at least B.
            features: (B, T, m·d). counts: how many of the T are each row's own.
        """
        # Prompts beyond the drafter's range are the longest, so they are the first rows: the others are a slice.
        skipped = sum(not row.drafting for row in rows[: len(counts)])
        for index in range(skipped):
            self.forget(first + index)
        if counts[skipped:]:
            span = Span(first + skipped, (start,) * (len(counts) - skipped), counts[skipped])
            seen, tokens = (each[skipped:, : span.width] for each in (features, ids))
            self.drafter.observe(self.cache, span, seen, counts[skipped:], tokens)

    def take_in(self, rows: Sequence[Row], ids: Tensor, features: Tensor, kept: Sequence[int]) -> None:
        """Show the drafter what a round kept before its new anchors.

        Args:
            ids, features: (B, T) and (B, T, m·d) of the tokens from each row's anchor on.
            kept: how many of them stand, the anchor among them.
        """
        counts = [count if row.drafting else 0 for row, count in zip(rows, kept, strict=True)]
        begins = tuple(row.position if row.drafting else 0 for row in rows)
        if width := max(counts):
            span = Span(0, begins, width)
            self.drafter.observe(self.cache, span, features[:, :width], counts, ids[:, :width])

    def put_off(self, rows: Sequence[Row], features: Tensor) -> None:
        """Keep features (B, T, m·d) of the tokens from each row's anchor on for later, whatever of them stands: a few
        a row are not worth a pass through the weights."""
        if max(self.behind(rows)) + features.shape[1] > SLOTS:
            self.catch_up(rows)
        self._backlog.store([row.position for row in rows], features)

    def catch_up(self, rows: Sequence[Row]) -> None:
        """Show the drafter the features that wait."""
        behind = self.behind(rows)
        if not any(behind):
            return
        begins = [row.position - count if row.drafting else 0 for row, count in zip(rows, behind, strict=True)]
        span = Span(0, tuple(begins), max(behind))
        slices = [row.tokens[begin : begin + span.width] for row, begin in zip(rows, begins, strict=True)]
        waiting = self._backlog.read(begins, span.width)
        ids = torch.tensor([tokens + [0] * (span.width - len(tokens)) for tokens in slices], device=waiting.device)
        with stage("draft/catch-up"):
            self.drafter.observe(self.cache, span, waiting, behind, ids)

    def behind(self, rows: Sequence[Row]) -> list[int]:
        """How many features of each row wait."""
        held = self.cache.lengths[: len(rows)]  # the cache has free rows behind the active ones
        return [row.position - seen if row.drafting else 0 for row, seen in zip(rows, held, strict=True)]

    # ---------------------------------------------------------------- rows leave

    def within_range(self, row: Row, anchor: int) -> bool:
        """Whether a block with that anchor lies inside the drafter's positions; a warning if it should but does not."""
        inside = anchor + self.drafter.candidates < self.drafter.max_positions
        if not inside and row.remaining > self.drafter.candidates:
            warnings.warn(
                f"request {row.request.id} goes beyond the {self.drafter.max_positions} positions of the drafter; "
                "it continues without drafts, with the same output",
                RuntimeWarning,
                stacklevel=2,
            )
        return inside

    def leave_range(self, rows: Sequence[Row]) -> None:
        """Stop drafting for rows whose block would end beyond the drafter's positions."""
        for index, row in enumerate(rows):
            if row.drafting and not self.within_range(row, row.position):
                row.drafting = False
                self.forget(index)

    def settle(self, rows: Sequence[Row]) -> None:
        """Hold no more than what lies before the anchors: where an interrupted round leaves everything."""
        for index, row in enumerate(rows):
            seen = self.cache.lengths[index]  # less than the position where features wait
            self.cache.commit(index, min(seen, row.position) if row.drafting else 0)

    def forget(self, index: int) -> None:
        """Let a row's context go."""
        self.cache.commit(index, 0)

    def move(self, source: int, target: int) -> None:
        """Copy a row's context over another one."""
        self.cache.move(source, target)
        self._backlog.move(source, target)
